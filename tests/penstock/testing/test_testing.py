"""A broker for a test in one line, and pytest's fixtures, as a user's project has them."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import psycopg
import pytest
from kafka import KafkaConsumer, KafkaProducer

from penstock.testing import BrokerFailed, broker
from penstock.testing.wire import Connection, RequestRefused
from tests.cli.test_ephemeral import wait_until

# A user's tests. The plugin is named, as this checkout may not be installed with its entry point.
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "penstock.testing.plugin"]
TESTS = """
import pytest
from penstock.testing.wire import Connection

@pytest.mark.parametrize("number", range(2))
def test_a_topic(penstock, penstock_topic, number):
    with Connection(penstock.bootstrap_servers) as connection:
        assert connection.topics() == {penstock_topic}
        connection.create_topic("another", 3, {"retention.ms": "1000"})
"""


def run_pytest(
    directory: Path, *arguments: str, tests: str = TESTS, within: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """within: the beginning of a command that runs another."""
    (directory / "test_mine.py").write_text(tests)
    ours = {name: each for name, each in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    return subprocess.run(
        [*within, *PYTEST, "-W", "error", "-p", "no:cacheprovider", "test_mine.py", *arguments],
        cwd=directory,
        env={**ours, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_a_stock_client_uses_it_and_sql_looks_inside() -> None:
    with broker(properties={"num.partitions": "2"}) as running:
        topic = running.create_topic("orders of today", partitions=3)
        assert topic.startswith("orders-of-today-")
        with KafkaProducer(bootstrap_servers=running.bootstrap_servers) as producer:
            producer.send(topic, b"hello", partition=2).get(30)
        consumer = KafkaConsumer(
            topic,
            bootstrap_servers=running.bootstrap_servers,
            group_id="readers",
            auto_offset_reset="earliest",
        )
        assert next(consumer).value == b"hello"
        consumer.close()
        with psycopg.connect(running.database_url) as connection:
            found = connection.execute("SELECT topic, partitions FROM v_topic").fetchall()
        assert found == [(topic, 3)]
        assert "is ready" in running.log()
    with pytest.raises(OSError, match="refused"):
        Connection(running.bootstrap_servers)


def test_topics_and_groups_of_a_test_are_gone_after_it() -> None:
    with broker() as running:
        before = running.create_topic()
        with running.clean():
            topic = running.create_topic()
            consumer = KafkaConsumer(
                topic, bootstrap_servers=running.bootstrap_servers, group_id="readers"
            )
            consumer.poll(1000)
            consumer.commit()
            consumer.close()
            with Connection(running.bootstrap_servers) as connection:
                assert connection.groups() == {"readers"}
        with Connection(running.bootstrap_servers) as connection:
            assert connection.topics() == {before}
            assert connection.groups() == set()
            with pytest.raises(RequestRefused, match="error 36"):
                connection.create_topic(before, 1, {})


def test_data_that_is_kept_can_be_opened_again() -> None:
    from tests.conftest import open_directory

    with open_directory() as path:
        with broker(keep=path / "data") as running:
            topic = running.create_topic()
        with (
            broker(keep=path / "data") as running,
            Connection(running.bootstrap_servers) as connection,
        ):
            assert connection.topics() == {topic}


def test_a_broker_that_does_not_start_shows_its_log() -> None:
    with (
        pytest.raises(BrokerFailed, match=r"ended with 2(.|\n)*Value must be at least 1"),
        broker(properties={"num.partitions": "0"}),
    ):
        pass


def test_the_fixtures_give_each_test_a_clean_broker(tmp_path: Path) -> None:
    done = run_pytest(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_the_block_of_the_readme_passes_as_it_stands(tmp_path: Path) -> None:
    readme = (Path(__file__).parents[3] / "README.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)
    (block,) = [each for each in blocks if "penstock_topic" in each]
    done = run_pytest(tmp_path, "-W", "default", tests=block)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_a_run_that_uses_no_fixture_imports_no_client_and_no_server(tmp_path: Path) -> None:
    light = (
        "import sys\ndef test_light():\n"
        "    assert not {'kafka', 'cli', 'core', 'typer', 'psycopg', 'pyspark'} & {*sys.modules}\n"
    )
    done = run_pytest(tmp_path, tests=light)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_run_that_is_killed_takes_its_broker_along(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(
        "import pathlib, time\n"
        "def test_hangs(penstock):\n"
        "    pathlib.Path('broker').write_text(penstock.database_url)\n"
        "    time.sleep(600)\n"
    )
    with subprocess.Popen(
        [*PYTEST, "-p", "no:cacheprovider", "test_mine.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdout=subprocess.DEVNULL,
    ) as run:
        told = tmp_path / "broker"
        wait_until(lambda: told.exists() and told.read_text())
        sockets = Path(told.read_text().partition("host=")[2].replace("%2F", "/"))
        assert sockets.is_dir()
        run.send_signal(signal.SIGKILL)
    wait_until(lambda: not sockets.parent.exists())


MEETING = """
import os, pathlib, time
import pytest

@pytest.mark.parametrize("number", range(4))
def test_meeting(penstock, penstock_topic, number):
    me = pathlib.Path(os.environ["PYTEST_XDIST_WORKER"])
    me.write_text(penstock.bootstrap_servers)
    assert penstock.create_topic("mine").startswith("mine-")
    deadline = time.monotonic() + 60
    while not pathlib.Path("gw1" if me.name == "gw0" else "gw0").exists():  # both at once
        assert time.monotonic() < deadline
        time.sleep(0.05)
"""


def test_each_worker_of_xdist_has_a_broker_of_its_own(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, "-p", "xdist.plugin", "-n", "2", tests=MEETING)
    assert "4 passed" in done.stdout, done.stdout + done.stderr
    addresses = {(tmp_path / worker).read_text() for worker in ("gw0", "gw1")}
    assert len(addresses) == 2
    for address in addresses:
        with pytest.raises(OSError, match="refused"):
            Connection(address)


def processes_of_the_broker() -> list[psutil.Process]:
    """Itself first; then its PostgreSQL, and whatever that has started."""
    (root,) = (
        each
        for each in psutil.Process().children()
        if each.status() != psutil.STATUS_ZOMBIE and "--stop-with-stdin" in each.cmdline()
    )
    return [root, *root.children(recursive=True)]


@pytest.mark.skipif(os.geteuid() != 0, reason="not root here")
def test_as_root_only_the_broker_is_root() -> None:
    with broker() as running:
        itself, *others = processes_of_the_broker()
        assert itself.uids().real == 0
        assert others
        assert 0 not in {each.uids().real for each in others}
        assert running.create_topic().startswith("topic-")


def without_memory(kind: str) -> list[str]:
    """For a program that has another /dev/shm; skips the test where that cannot be."""
    mount = f"mount -t tmpfs -o {kind} none /dev/shm"
    within = ["unshare", "--mount", "sh", "-c", f'{mount} && exec "$@"', "sh"]
    if shutil.which("unshare") is None or subprocess.run([*within, "true"], check=False).returncode:
        pytest.skip("cannot mount here")
    return within


@pytest.mark.parametrize("kind", ["size=64m", "ro"], ids=["as a container's", "of no use"])
def test_it_needs_no_memory_of_dev_shm(tmp_path: Path, kind: str) -> None:
    done = run_pytest(tmp_path, within=without_memory(kind))
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def cpu_seconds(processes: Sequence[psutil.Process]) -> float:
    """What they have taken, with those of their children that have ended."""
    return sum(sum(each.cpu_times()[:4]) for each in processes)


def test_it_is_up_with_two_seconds_of_cpu() -> None:
    """So in less than two seconds where nothing else runs. What is waited for does not count, nor
    how long the processor was another's; `make bench` has the time by the clock."""
    with broker():  # the first start makes the cluster that others copy
        pass
    taken = []
    for _ in range(3):
        with broker():
            taken.append(cpu_seconds(processes_of_the_broker()))
    assert min(taken) < 2, taken
