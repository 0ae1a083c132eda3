"""Processes that copy a topic, for tests that kill them or what they talk to; and what they made.

Must not know how a record is copied (`copier.py`) nor what is being broken.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.compat.clients import Confluent, Read, read_until


class Copier:
    """A process that is started again with the same transactional id whenever it has ended."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._command = command
        self._log = log
        self.starts = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.starts += 1
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def start_if_it_has_ended(self) -> None:
        if self._process is None or self._process.poll() is not None:
            self.start()

    def kill(self) -> None:
        """SIGKILL, also for what it has started."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def said(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]


def copies(
    bootstrap: str,
    topic: str,
    partitions: int,
    count: int,
    within_s: float = 60.0,
    copiers: Sequence[Copier] = (),
) -> list[list[str]]:
    """What is committed in the copy, by partition in order, once there are so many or more.

    copiers: those that are started again meanwhile when they have ended.
    """

    def is_done(found: list[Read]) -> bool:
        for copier in copiers:
            copier.start_if_it_has_ended()
        return len(found) >= count

    client = Confluent(bootstrap)
    with contextlib.closing(client.reader(topic, partitions)) as reader:
        found = read_until(reader, is_done, within_s)
        found += reader.poll(1.0)  # and no more
    return [
        [
            read.value.decode()
            for read in sorted(found, key=lambda r: r.offset)
            if read.partition == n
        ]
        for n in range(partitions)
    ]
