"""Ctrl-C, remembered until the command comes round to it.

kafka-python's event loop swallows a KeyboardInterrupt that meets it within a callback (`except
BaseException` in its selector), and the command would go on for ever. Knows no command.
"""

import os
import select
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any, BinaryIO, Self

_LOOK_S = 0.5
_CHUNK_BYTES = 2**16


class Interrupts:
    """While it is entered, `check` raises KeyboardInterrupt once Ctrl-C was pressed."""

    def __init__(self) -> None:
        self._is_heard = False
        self._former: Any = signal.SIG_DFL

    def __enter__(self) -> Self:
        self._former = signal.signal(signal.SIGINT, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._former)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self._is_heard = True
        raise KeyboardInterrupt

    def check(self) -> None:
        """Raises KeyboardInterrupt where one was meant, and got lost."""
        if self._is_heard:
            raise KeyboardInterrupt

    def lines_of(self, stream: BinaryIO) -> Iterator[bytes]:
        """Lines without their ends, as they come; looks for Ctrl-C while none does."""
        try:
            descriptor = stream.fileno()
        except OSError:  # nothing that is waited for
            for line in stream:
                yield line.removesuffix(b"\n").removesuffix(b"\r")
            return
        yield from self._lines_as_they_come(descriptor)

    def _lines_as_they_come(self, descriptor: int) -> Iterator[bytes]:
        begun: list[bytes] = []
        while True:
            self.check()
            if not select.select([descriptor], [], [], _LOOK_S)[0]:
                continue
            chunk = os.read(descriptor, _CHUNK_BYTES)
            if not chunk:
                break
            first, *others = chunk.split(b"\n")
            begun.append(first)
            for line in others:
                yield b"".join(begun).removesuffix(b"\r")
                begun = [line]
        if last := b"".join(begun):
            yield last.removesuffix(b"\r")
