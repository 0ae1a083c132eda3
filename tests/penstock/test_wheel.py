"""The wheel, installed beside a project whose own packages have the names of the server's rooms.

What is tried is the installed one: nothing of this checkout is on its path.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from core.version import VERSION
from storage.migrate import HEAD
from tests.conftest import Gateway
from tests.spark.conftest import unavailable

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
ROOMS = ("cli", "core", "gateway", "migrations", "storage")
WITHIN_S = 120.0


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as `pip install` builds it, from a copy: setuptools leaves things behind."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in (*ROOMS, "penstock"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir"]
    subprocess.run([*command, target, source], check=True, timeout=WITHIN_S)
    (built,) = target.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path) -> Iterator[Path]:
    """A virtual environment with the wheel; what it depends on is this environment's.

    Not below `tmp_path`: the embedded PostgreSQL is started by another user there.
    """
    from tests.conftest import open_directory

    with open_directory() as path:
        venv.create(path / "venv", symlinks=True)
        packages = Path(sysconfig.get_path("purelib", "venv", vars={"base": str(path / "venv")}))
        install = [sys.executable, "-m", "pip", "--python", path / "venv", "install"]
        # Whatever pip sees of this checkout (its working directory is on its path) is not there.
        options = ["--quiet", "--no-deps", "--no-index", "--ignore-installed"]
        subprocess.run([*install, *options, wheel], check=True, timeout=WITHIN_S, cwd=path)
        # Lines of a .pth file are directories; those files of the directory itself (that of this
        # checkout, installed for editing) are not read.
        here = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
        (packages / "dependencies.pth").write_text("\n".join(sorted(here)))
        yield path / "venv"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with packages of the names of all rooms, each with a content of its own."""
    return make_packages(tmp_path / "project", "MINE = True\n")


def make_packages(directory: Path, content: str) -> Path:
    for room in ROOMS:
        (directory / room).mkdir(parents=True)
        (directory / room / "__init__.py").write_text(content)
        (directory / room / "main.py").write_text(content)
    return directory


def run(
    environment: Path, *command: str, cwd: Path, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs a program of the environment; PENSTOCK_… and Python's variables are those given."""
    program, *arguments = command
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PENSTOCK_", "PY"))
    }
    return subprocess.run(
        [environment / "bin" / program, *arguments],
        cwd=cwd,
        env={**inherited, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=WITHIN_S,
    )


def succeeds(environment: Path, *command: str, cwd: Path, **variables: str) -> str:
    done = run(environment, *command, cwd=cwd, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_holds_penstock_and_nothing_beside_it(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as content:
        names = set(content.namelist())
    assert {name.partition("/")[0] for name in names} == {
        "penstock",
        f"penstock-{VERSION}.dist-info",
    }


SUFFIXES = {".py", ".pyi", ".json", ".mako", ".sql", ".html", ".css", ".js", ".svg"}


def test_it_holds_every_file_of_every_room(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as content:
        names = set(content.namelist())
    expected = {
        f"penstock/_server/{file.relative_to(ROOT)}"
        for room in ROOMS
        for file in (ROOT / room).rglob("*")
        if file.suffix in SUFFIXES
    }
    expected |= {str(file.relative_to(ROOT)) for file in (ROOT / "penstock").rglob("*.py")}
    assert {name for name in names if name.startswith("penstock/")} == expected


@pytest.mark.parametrize("program", [["penstock"], ["python", "-m", "penstock"]])
def test_packages_of_the_same_names_do_not_disturb(
    environment: Path, project: Path, tmp_path: Path, program: list[str]
) -> None:
    """Wherever they are: in the current directory and on PYTHONPATH."""
    broken = make_packages(tmp_path / "broken", "raise ImportError('not this one')\n")
    for here, path in ((project, ""), (broken, ""), (tmp_path, str(project))):
        shown = succeeds(environment, *program, "--version", cwd=here, PYTHONPATH=path)
        assert shown == f"penstock {VERSION}\n"


def test_a_package_imported_as_python_starts_does_not_disturb(
    environment: Path, project: Path
) -> None:
    (project / "sitecustomize.py").write_text("import core\n")
    shown = succeeds(environment, "penstock", "--version", cwd=project, PYTHONPATH=str(project))
    assert shown == f"penstock {VERSION}\n"


def test_users_processes_see_their_own_packages(environment: Path, project: Path) -> None:
    script = (
        "import penstock.spark.source, penstock.spark.session, core, storage, sys\n"
        "from penstock.spark import PenstockDataSource\n"
        "print(PenstockDataSource.name(), core.MINE and storage.MINE, 'cli' in sys.modules)"
    )
    assert succeeds(environment, "python", "-c", script, cwd=project) == "penstock True False\n"


def test_without_packages_of_ones_own_there_are_none(environment: Path, tmp_path: Path) -> None:
    done = run(environment, "python", "-c", "import penstock, core", cwd=tmp_path)
    assert done.returncode == 1
    assert "No module named 'core'" in done.stderr


@pytest.mark.java
@pytest.mark.parametrize("program", [["penstock"], ["python", "-m", "penstock"]])
def test_a_pipeline_runs_modules_of_its_user(
    environment: Path, project: Path, program: list[str]
) -> None:
    """Its function is in a package `core`; it is looked for, and refused, before Spark starts."""
    (project / "core" / "rules.py").write_text(
        "import storage.main\nassert storage.main.MINE\ntotals = 'no function'\n"
    )
    command = [*program, "pipeline", "transform", "--from", "a", "--to", "b"]
    command += ["--checkpoint", str(project / "c"), "--python", "core.rules:totals"]
    done = run(environment, *command, cwd=project, JAVA_HOME=os.environ.get("JAVA_HOME", ""))
    assert "core.rules:totals is no function" in done.stderr, done.stdout + done.stderr


SINK = """
import sys
import core.rules, gateway, storage
import penstock
from penstock.spark import PenstockDataSource
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

bootstrap, topic = sys.argv[1:]
assert gateway.MINE and storage.MINE
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
spark.dataSource.register(PenstockDataSource)
numbers = spark.range(0, 100, 1, 2).selectExpr("CAST(id AS STRING) AS value")
frame = numbers.select(udf(core.rules.marked)("value").alias("value"))
writer = frame.write.format("penstock").mode("append").option("topic", topic)
writer.option("kafka.bootstrap.servers", bootstrap).save()
print(penstock.__file__)
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))
def test_sparks_sink_writes_beside_them(environment: Path, project: Path, gateway: Gateway) -> None:
    """Driver and workers have the wheel's `penstock`, and the user's own `core`."""
    (project / "core" / "rules.py").write_text("def marked(text):\n    return f'mine {text}'\n")
    (project / "write.py").write_text(SINK)
    topic = f"wheel-{os.getpid()}"
    shown = succeeds(
        environment,
        *("python", "write.py", gateway.bootstrap, topic),
        cwd=project,
        PYTHONPATH=str(project),
        PYSPARK_PYTHON=str(environment / "bin" / "python"),
    )
    assert shown.splitlines()[-1].startswith(str(environment))
    reader = Consumer(
        {"bootstrap.servers": gateway.bootstrap, "group.id": topic, "auto.offset.reset": "earliest"}
    )
    reader.subscribe([topic])
    found = set()
    while len(found) < 100:
        message = reader.poll(30)
        assert message is not None, found
        if message.error() is None:
            found.add(message.value().decode())
    reader.close()
    assert found == {f"mine {number}" for number in range(100)}


def test_it_finds_its_migrations(environment: Path, project: Path, empty_database_url: str) -> None:
    migrate = ("penstock", "migrate", "--database-url", empty_database_url)
    assert "brought up to date" in succeeds(environment, *migrate, cwd=project)
    assert HEAD in succeeds(
        environment,
        "python",
        "-c",
        f"import psycopg; print(psycopg.connect({empty_database_url!r})"
        ".execute('SELECT version_num FROM alembic_version').fetchone()[0])",
        cwd=project,
    )


def test_its_fixtures_and_its_server_work_beside_them(environment: Path, project: Path) -> None:
    """The plugin is found by its entry point; the server starts in this directory."""
    (project / "test_mine.py").write_text(
        "import core, storage, penstock as package\n"
        "from kafka import KafkaProducer\n"
        "def test_mine(penstock, penstock_topic):\n"
        f"    assert package.__file__.startswith({str(environment)!r})\n"
        "    assert core.MINE and storage.MINE\n"
        "    with KafkaProducer(bootstrap_servers=penstock.bootstrap_servers) as producer:\n"
        "        assert producer.send(penstock_topic, b'x').get(30).offset == 0\n"
    )
    command = ("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py")
    assert "1 passed" in succeeds(environment, *command, cwd=project, PYTHONPATH=str(project))
