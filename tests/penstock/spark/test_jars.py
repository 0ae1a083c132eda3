"""The connector's jars: found on the machine, fetched where they are not, refused in a sentence.

A repository laid out as Maven Central's is served on loopback; nothing here needs Spark or Java.
"""

from __future__ import annotations

import functools
import http.server
import json
import sys
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app
from penstock.spark import jars, session
from penstock.spark.jars import Artifact, JarsUnavailable, connector_jars, with_jars

SPARK = "org.apache.spark"
CONNECTOR = "spark-sql-kafka-0-10_2.13"
PROVIDER = "spark-token-provider-kafka-0-10_2.13"
KAFKA = Artifact("org.apache.kafka", "kafka-clients", "3.9.2")
POOL = Artifact("org.apache.commons", "commons-pool2", "2.13.1")

POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><dependencies>
{dependencies}
</dependencies></project>"""
DEPENDENCY = """<dependency><groupId>{0.group}</groupId><artifactId>{0.name}</artifactId>
<version>{0.version}</version><scope>{1}</scope></dependency>"""


@dataclass
class Repository:
    """A directory laid out as Maven's are."""

    root: Path

    def add(self, *artifacts: Artifact) -> None:
        for artifact in artifacts:
            path = self.root / artifact.path()
            path.parent.mkdir(parents=True, exist_ok=True)
            with zipfile.ZipFile(path, "w") as jar:
                jar.writestr("name", str(artifact))

    def add_release(self, version: str, provider: str) -> None:
        """A connector. Its pom names the token provider of its version, be that there or not."""
        connector = Artifact(SPARK, CONNECTOR, version)
        self.add(connector, KAFKA, POOL, Artifact(SPARK, PROVIDER, provider))
        wanted = [Artifact(SPARK, PROVIDER, version), KAFKA, POOL]
        shown = [DEPENDENCY.format(each, "compile") for each in wanted]
        shown.append(DEPENDENCY.format(Artifact("org.scalatest", "scalatest", "3.2"), "test"))
        pom = POM.format(dependencies="\n".join(shown))
        (self.root / connector.path("pom")).write_text(pom)


@pytest.fixture(autouse=True)
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither jars nor Maven, an empty home."""
    home = tmp_path / "home"
    home.mkdir()
    for name in ("SPARK_HOME", "PENSTOCK_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr(jars, "CENTRAL", "http://127.0.0.1:9")  # nobody listens there


@pytest.fixture
def central(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    """A repository that is reached over HTTP."""
    root = tmp_path / "central"
    root.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(root))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setattr(jars, "CENTRAL", f"http://127.0.0.1:{server.server_port}")
        yield Repository(root)
        server.shutdown()
        thread.join()


def names(found: list[Path]) -> list[str]:
    return [path.name for path in found]


def test_the_set_that_the_pom_names_is_fetched_once(central: Repository, tmp_path: Path) -> None:
    central.add_release("4.0.0", provider="4.0.0")
    found = connector_jars("4.0.0", cache=tmp_path / "cache")
    assert names(found) == [
        f"{CONNECTOR}-4.0.0.jar",
        "commons-pool2-2.13.1.jar",
        "kafka-clients-3.9.2.jar",
        f"{PROVIDER}-4.0.0.jar",
    ]
    assert all(path.is_absolute() and zipfile.is_zipfile(path) for path in found)
    assert connector_jars("4.0.0", cache=tmp_path / "cache", offline=True) == found
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["4.0.0"]  # nothing half done


def test_a_token_provider_of_another_release_serves_where_its_own_is_missing(
    central: Repository, tmp_path: Path
) -> None:
    central.add_release("4.2.0", provider="4.0.0")
    found = connector_jars("4.2.0", cache=tmp_path / "cache")
    assert f"{PROVIDER}-4.0.0.jar" in names(found)


def test_the_connector_of_an_earlier_patch_serves_a_later_one(
    central: Repository, tmp_path: Path
) -> None:
    central.add_release("4.2.0", provider="4.2.0")
    found = connector_jars("4.2.2", cache=tmp_path / "cache")
    assert names(found)[0] == f"{CONNECTOR}-4.2.0.jar"


def test_jars_of_the_local_maven_repository_and_of_spark_home_need_no_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Repository(tmp_path / "home" / ".m2" / "repository")
    here.add_release("4.2.0", provider="4.0.0")
    (here.root / KAFKA.path()).unlink()
    with pytest.raises(JarsUnavailable, match=r"kafka-clients:3\.9\.2 was not found on this mach"):
        connector_jars("4.2.0", offline=True)
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    with zipfile.ZipFile(tmp_path / "spark" / "jars" / KAFKA.file_name(), "w") as jar:
        jar.writestr("name", "kafka")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    assert len(connector_jars("4.2.0", offline=True)) == 4
    assert (tmp_path / "home" / ".cache" / "penstock" / "spark-jars" / "4.2.0").is_dir()


def test_a_jar_that_was_cut_short_is_not_taken(central: Repository, tmp_path: Path) -> None:
    central.add_release("4.2.0", provider="4.2.0")
    jar = central.root / POOL.path()
    jar.write_bytes(jar.read_bytes()[:50])
    with pytest.raises(JarsUnavailable, match=r"commons-pool2:2\.13\.1 was not found"):
        connector_jars("4.2.0", cache=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_who_has_maven_fetches_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An `mvn` that copies what it is asked for out of a repository that only it can reach."""
    mirror = Repository(tmp_path / "mirror")
    mirror.add_release("4.2.0", provider="4.2.0")
    maven = tmp_path / "bin" / "mvn"
    maven.parent.mkdir()
    maven.write_text(
        f"""#!{sys.executable}
import pathlib, shutil, sys
said = dict(word[2:].split("=") for word in sys.argv if word.startswith("-D"))
group, name, version, kind = said["artifact"].split(":")
path = pathlib.Path({str(mirror.root)!r}, *group.split("."), name, version)
shutil.copy(path / f"{{name}}-{{version}}.{{kind}}", said["outputDirectory"])
"""
    )
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", str(maven.parent))
    assert len(connector_jars("4.2.0", cache=tmp_path / "cache")) == 4


@pytest.mark.parametrize(
    ("version", "sentence"),
    [
        ("4.9.0", "org.apache.spark:spark-sql-kafka-0-10_2.13:4.9.0 was not found here or at "),
        ("3.5.1", "'3.5.1' is no version of Spark 4 or later, written as for example 4.2.0."),
        ("../4", "'../4' is no version of Spark 4 or later"),
    ],
)
def test_what_cannot_be_had_is_one_sentence_and_2(version: str, sentence: str) -> None:
    done = CliRunner().invoke(app, ["pipeline", "jars", "--spark-version", version])
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr.startswith(sentence)
    assert done.stderr.count("\n") == 1


def test_the_command_prints_what_spark_takes(central: Repository, tmp_path: Path) -> None:
    central.add_release("4.2.0", provider="4.2.0")
    words = ["pipeline", "jars", "--spark-version", "4.2.0", "--cache", str(tmp_path / "cache")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.stderr
    printed = done.stdout.removesuffix("\n").split(",")
    assert [Path(each).is_file() for each in printed] == [True] * 4
    assert json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout) == printed


def test_without_pyspark_a_pipeline_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session.util, "find_spec", lambda name: None)
    done = CliRunner().invoke(app, ["pipeline", "transform", "--input", "a"])
    assert done.exit_code == 2
    assert done.stderr == "PySpark is not installed: pip install 'penstock[spark]'.\n"


def test_without_java_a_pipeline_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    done = CliRunner().invoke(app, ["pipeline", "transform", "--input", "a"])
    assert done.exit_code == 2
    assert done.stderr.startswith("No Java was found: Spark needs Java 17 or later (")
    old = tmp_path / "jdk" / "bin" / "java"
    old.parent.mkdir(parents=True)
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    old.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    done = CliRunner().invoke(app, ["pipeline", "transform", "--input", "a"])
    assert done.stderr == f"{old} is Java 11: Spark needs Java 17 or later.\n"


def test_help_of_a_pipeline_needs_nothing() -> None:
    done = CliRunner().invoke(app, ["pipeline", "jars", "--help"])
    assert done.exit_code == 0
    assert "--spark-version" in done.stdout


@pytest.mark.parametrize(
    ("given", "jars"),
    [
        ({}, "/found.jar"),
        ({"spark.jars": "/mine.jar"}, "/mine.jar,/found.jar"),
        ({"spark.jars.packages": "org.apache.hadoop:hadoop-aws:3.4.2"}, "/found.jar"),
        ({"spark.jars": "/x/the-connector-4.2.0.jar"}, None),
        ({"spark.jars.packages": "org:the-connector:4.2.0"}, None),
    ],
)
def test_jars_are_added_to_the_users_own(given: dict[str, str], jars: str | None) -> None:
    added = with_jars(given, "the-connector", lambda: [Path("/found.jar")])
    assert added.get("spark.jars") == jars
