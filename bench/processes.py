"""CPU time and memory of groups of processes, read from the operating system with psutil.

Knows process ids only; must not know what the processes are for.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import subprocess
import threading
from dataclasses import dataclass, field
from types import TracebackType

import psutil

MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Memory:
    """Sums over a group, in MB (10⁶ bytes).

    `rss` counts PostgreSQL's shared buffers once per backend that touched them; `pss` splits
    shared pages among their users, so it adds up; `uss` is what would be freed by stopping.
    """

    rss: float
    pss: float
    uss: float


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """A process and its descendants, less the trees of `excluding` (gateway without database)."""

    root: int
    excluding: tuple[int, ...] = ()

    def members(self) -> list[psutil.Process]:
        try:
            root = psutil.Process(self.root)
            found = {root.pid: root} | {p.pid: p for p in root.children(recursive=True)}
        except psutil.NoSuchProcess:
            return []
        for excluded in self.excluding:
            for process in ProcessGroup(excluded).members():
                found.pop(process.pid, None)
        return list(found.values())

    def cpu_seconds(self) -> float:
        """User and system time so far, members that have ended and were reaped included."""
        total = 0.0
        for process in self.members():
            try:
                total += sum(process.cpu_times()[:4])
            except psutil.NoSuchProcess:
                continue
        return total

    def memory(self) -> Memory:
        rss = pss = uss = 0
        for process in self.members():
            try:
                full = process.memory_full_info()
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
            rss, pss, uss = rss + full.rss, pss + full.pss, uss + full.uss
        return Memory(rss / MB, pss / MB, uss / MB)


@dataclass(slots=True)
class PeakMemory:
    """Samples groups twice a second in a thread while it is entered; keeps each sum's maximum."""

    groups: dict[str, ProcessGroup]
    peaks: dict[str, Memory] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> PeakMemory:
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _sample(self) -> None:
        while True:
            for name, group in self.groups.items():
                seen, now = self.peaks.get(name, Memory(0, 0, 0)), group.memory()
                self.peaks[name] = Memory(
                    max(seen.rss, now.rss), max(seen.pss, now.pss), max(seen.uss, now.uss)
                )
            if self._stop.wait(0.5):
                return


def stop_process(process: subprocess.Popen[str], patience_s: float = 20.0) -> None:
    """SIGTERM, then SIGKILL to its whole session after `patience_s`; returns when it is reaped."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def free_port() -> int:
    """A loopback TCP port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def free_ports_in_a_row(count: int) -> range:
    """Such ports, each the next of the one before."""
    while True:
        first = free_port()
        with contextlib.ExitStack() as probes:
            try:
                for port in range(first, first + count):
                    probes.enter_context(socket.create_server(("127.0.0.1", port)))
            except (OSError, OverflowError):  # taken, or beyond the last port
                continue
        return range(first, first + count)


def may_open(count: int) -> None:
    """Lets this process have so many sockets beside its other files, as far as it is allowed to."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, count + 500)), hard))
