"""tests.loaded: what runs there starts, ends and is told apart as a process of its own is."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from core.version import VERSION
from tests.conftest import StartGateway, free_port
from tests.loaded import Loader, Process, run


def test_a_command_has_its_output_and_exit_code() -> None:
    told = run("--version", environment=os.environ)
    assert (told.returncode, told.stdout, told.stderr) == (0, f"penstock {VERSION}\n", "")
    wrong = run("serve", environment={**os.environ, "PENSTOCK_LISTEN": "nonsense"})
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("penstock: PENSTOCK_LISTEN: 'nonsense' is not HOST:PORT")
    right = run("serve", "--log-level", "no", environment=os.environ)
    assert "nonsense" not in right.stderr, "the variable was another command's"


def test_it_is_in_the_directory_of_the_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "penstock.toml").write_text('listen = "nonsense"\n')
    monkeypatch.chdir(tmp_path)
    done = run("serve", "--config", "penstock.toml", environment=os.environ)
    assert done.returncode == 2
    assert "nonsense" in done.stderr


def test_it_is_waited_for_signalled_and_killed(
    database_url: str, start_gateway: StartGateway
) -> None:
    process = start_gateway(database_url=database_url).process
    assert isinstance(process, Process)
    assert os.getsid(process.pid) == process.pid
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.kill()
    assert process.wait(20) == process.poll() == process.returncode == -signal.SIGKILL
    process.terminate()  # nothing, as it has ended


def test_what_runs_ends_with_whoever_started_it(database_url: str, tmp_path: Path) -> None:
    own = Loader()
    words = ["serve", "--listen", f"127.0.0.1:{free_port()}", "--database-url", database_url]
    with (tmp_path / "log").open("wb") as log:
        process = own.start(words, environment=os.environ, stdout=log, stderr=log)
    assert Path(f"/proc/{process.pid}").exists()
    own.close()
    deadline = time.monotonic() + 20
    while Path(f"/proc/{process.pid}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    with pytest.raises(RuntimeError, match="is gone"):
        process.wait(1)
