"""`penstock serve --ephemeral`: a broker for a test, gone with its data and with its starter."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest

from cli.check import Presence, presence
from tests.cli.test_main import ENVIRONMENT, refused

WITHIN_S = 60.0
SERVE = [sys.executable, "-m", "penstock", "serve", "--ephemeral"]

# Starts a broker as any program would, says its process id, and waits.
STARTER = """
import subprocess, sys, time
broker = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE)
print(broker.pid, flush=True)
time.sleep(600)
"""


@contextmanager
def serving(*arguments: str | Path, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [*SERVE, *arguments], stdin=subprocess.PIPE, env={**ENVIRONMENT, **variables}
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_until(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def properties(ready: Path) -> dict[str, str]:
    wait_until(ready.exists)
    lines = ready.read_text().splitlines()
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def data_of(pid: int) -> Path | None:
    """The directory whose lock the process holds."""
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since
            target = entry.readlink()
            if target.name == "owner.lock":
                return target.parent
    return None


def test_it_takes_a_free_port_says_so_in_a_file_and_leaves_nothing(tmp_path: Path) -> None:
    ready = tmp_path / "ready.properties"
    ready.write_text("bootstrap.servers=of.an.earlier.one:1\n")
    with serving("--ready-file", ready) as first, serving() as second:
        wait_until(lambda: "earlier" not in (ready.read_text() if ready.exists() else "earlier"))
        found = properties(ready)
        assert presence(found["bootstrap.servers"], timeout_s=5) is Presence.ANSWERS
        with psycopg.connect(found["# database_url"]) as connection:
            assert connection.execute("SELECT state FROM v_broker").fetchall() == [("live",)]
        data = data_of(first.pid)
        assert data is not None and data.is_dir()
        second.kill()
        first.terminate()
        assert first.wait(WITHIN_S) == 0
        assert not data.exists()
        assert not ready.exists()


def test_it_ends_when_its_standard_input_does(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    with serving("--ready-file", ready, "--stop-with-stdin") as process:
        properties(ready)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(WITHIN_S) == 0


def test_it_ends_and_leaves_nothing_when_its_starter_is_killed(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    command = [sys.executable, "-c", STARTER, *SERVE, "--ready-file", ready, "--stop-with-stdin"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=ENVIRONMENT) as starter:
        assert starter.stdout is not None
        broker = int(starter.stdout.readline())
        properties(ready)
        data = data_of(broker)
        assert data is not None
        starter.kill()
    wait_until(lambda: not Path(f"/proc/{broker}/cmdline").exists() or not ready.exists())
    wait_until(lambda: not data.exists())
    assert not ready.exists()


def test_stopped_while_it_starts_it_leaves_nothing(tmp_path: Path) -> None:
    cold = str(tmp_path)  # no cluster to copy: the start takes longer
    with serving(XDG_CACHE_HOME=cold) as process:
        wait_until(lambda: data_of(process.pid))
        data = data_of(process.pid)
        process.send_signal(signal.SIGTERM)
        assert process.wait(WITHIN_S) == 128 + signal.SIGTERM
        assert data is not None and not data.exists()


@pytest.mark.parametrize("flag", ["--data", "--database-url"])
def test_it_uses_no_database_of_ones_own(flag: str) -> None:
    assert refused("serve", "--ephemeral", flag, "postgresql://me@127.0.0.1/mine") == (
        "penstock: --ephemeral makes a database of its own: leave out --data and --database-url."
    )


def test_a_ready_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    missing = tmp_path / "missing" / "file"
    sentence = refused("serve", "--ephemeral", "--ready-file", missing)
    assert sentence.startswith(f"penstock: --ready-file: {missing} cannot be written (")
    assert list(tmp_path.iterdir()) == []
