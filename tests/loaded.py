"""Processes of `penstock` that begin loaded: forked off one process that has imported the program.

To import it is four fifths of a broker's start, and tests start hundreds of brokers. What runs is
`penstock`'s own `main`, in a process of its own, with its arguments, environment and output; only
the interpreter's start is left out. So what a test shows of that start, of variables that Python
itself reads, or of what /proc tells of the environment needs a `subprocess`.

A `Loader` is the forking process, seen from the tests; one a worker. A message to it is a JSON
object (arguments, environment, directory) with four file descriptors: standard input, output,
error, and a pipe into which it writes the process's id and, when it has ended, its exit status, a
line each. Must not know what is run.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[1]
MESSAGE_BYTES_MAX = 2**17
FILES = 4
LOADED_WITHIN_S = 60.0


class Process:
    """A process of the loader's; what tests use of `subprocess.Popen`, which it is like."""

    def __init__(self, arguments: Sequence[str], told: int) -> None:
        """told: the end of the pipe that is read; closed when the process has ended."""
        self.args = arguments
        self.returncode: int | None = None
        self._told = told
        self._text = b""
        self._lock = threading.Lock()
        self._read(LOADED_WITHIN_S, lines=1)
        self.pid = int(self._text.split()[0])

    def _read(self, within_s: float | None, lines: int) -> bool:
        """Whether so many lines were there in time. Raises RuntimeError if the loader is gone."""
        readable = select.poll()
        readable.register(self._told, select.POLLIN)
        while self._text.count(b"\n") < lines:
            if not readable.poll(None if within_s is None else within_s * 1000):
                return False
            if not (piece := os.read(self._told, 100)):
                raise RuntimeError("the process that forks `penstock` is gone")
            self._text += piece
        return True

    def poll(self) -> int | None:
        """Its exit code, negative for a signal, once it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code. Raises subprocess.TimeoutExpired after so many seconds."""
        with self._lock:
            if self.returncode is None:
                if not self._read(timeout, lines=2):
                    raise subprocess.TimeoutExpired(self.args, timeout or 0)
                self.returncode = int(self._text.split()[1])
                os.close(self._told)
            return self.returncode

    def send_signal(self, number: int) -> None:
        """Nothing, if it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Loader:
    """Starts processes that begin loaded. Safe to use from several threads."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.loaded", str(theirs.fileno())],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._socket = ours

    def close(self) -> None:
        """Kills what it started and still runs."""
        self._socket.close()
        self._process.wait()

    def start(
        self,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str],
        stdout: IO[bytes],
        stderr: IO[bytes],
    ) -> Process:
        """`penstock` with these arguments, in a session of its own, with nothing to read.

        stdout, stderr: files.
        """
        message = json.dumps([list(arguments), dict(environment), str(Path.cwd())]).encode()
        told, tells = os.pipe()
        try:
            with Path(os.devnull).open("rb") as nothing:
                files = [each.fileno() for each in (nothing, stdout, stderr)]
                socket.send_fds(self._socket, [message], [*files, tells])
        finally:
            os.close(tells)
        return Process(["penstock", *arguments], told)


@cache
def loader() -> Loader:
    """This process's; it ends when this process does."""
    made = Loader()
    atexit.register(made.close)
    return made


def run(
    *arguments: str | Path, environment: Mapping[str, str], timeout_s: float = 60.0
) -> subprocess.CompletedProcess[str]:
    """Runs `penstock` to its end, as `subprocess.run` would.

    Raises subprocess.TimeoutExpired; then it was killed.
    """
    words = [str(each) for each in arguments]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = loader().start(words, environment=environment, stdout=out, stderr=err)
        try:
            code = process.wait(timeout_s)
        finally:
            process.kill()
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(
            process.args, code, out.read().decode(), err.read().decode()
        )


# --- the forking process ---


class _Forks:
    """Takes messages and forks, until nobody is left who sends any."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._tells: dict[int, int] = {}  # process id: file descriptor

    def serve(self) -> bool:
        """True in each process that was forked, ready to run; False at the end."""
        signal.signal(signal.SIGCHLD, self._tell_of_the_ended)
        while True:
            message, files, *_ = socket.recv_fds(self._requests, MESSAGE_BYTES_MAX, FILES)
            if not message:
                for pid in self._tells:
                    os.kill(pid, signal.SIGKILL)
                return False
            arguments, environment, directory = json.loads(message)
            # Whoever waits is told of the process first, then of its end.
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
            pid = os.fork()
            if pid == 0:
                self._become(arguments, environment, directory, files)
                return True
            *standard, tells = files
            for each in standard:
                os.close(each)
            self._tells[pid] = tells
            _write(tells, pid)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])

    def _become(
        self, arguments: list[str], environment: dict[str, str], directory: str, files: list[int]
    ) -> None:
        self._requests.close()
        for each in self._tells.values():
            os.close(each)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        os.setsid()
        for number, file in enumerate(files[:3]):
            os.dup2(file, number)
        for file in files:
            os.close(file)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(directory)
        sys.argv[1:] = arguments

    def _tell_of_the_ended(self, *_: object) -> None:
        while self._tells:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            tells = self._tells.pop(pid)
            _write(tells, os.waitstatus_to_exitcode(status))
            os.close(tells)


def _write(tells: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody waits for it any more
        os.write(tells, b"%d\n" % number)


def _load() -> None:
    """What `penstock serve` imports, sooner or later."""
    for name in ("alembic.command", "cli.main", "cli.supervised", "gateway.app", "storage.migrate"):
        import_module(name)
    import_module("storage.server.ephemeral")
    import_module("uvloop")


def _main(requests: socket.socket) -> None:
    _load()
    threads = len(list(Path("/proc/self/task").iterdir()))
    assert threads == 1, "a fork has one thread only"
    gc.collect()
    gc.freeze()
    if _Forks(requests).serve():
        from cli.main import main

        main()


if __name__ == "__main__":
    sys.argv[0] = "penstock"
    _main(socket.socket(fileno=int(sys.argv[1])))
