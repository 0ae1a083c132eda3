"""What workers write to their log, line by line, each with its worker's number.

Knows the two formats of `gateway.logs`; not what is told.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

_LONGEST: Final = 2**20
"""Of what has no end yet; it is then told as far as it has come."""


class Lines:
    """Takes what one process writes, in whatever pieces, and hands on whole lines.

    label: makes a line, without its end, one of that worker's. write: takes each, with its end.
    """

    def __init__(self, label: Callable[[bytes], bytes], write: Callable[[bytes], None]) -> None:
        self._label = label
        self._write = write
        self._rest = b""

    def feed(self, piece: bytes) -> None:
        """What was written next."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > _LONGEST:
            lines.append(self._rest)
            self._rest = b""
        for line in lines:
            self._write(self._label(line) + b"\n")

    def end(self) -> None:
        """It writes no more; what had no end is a line, too."""
        if self._rest:
            self.feed(b"\n")


def label_of(log_format: str, worker: int) -> Callable[[bytes], bytes]:
    """Of lines for people it is a word before each; of JSON a field, and what a library or the
    interpreter has written otherwise becomes a line of JSON."""

    def before(line: bytes) -> bytes:
        return b"worker=%d " % worker + line

    def within(line: bytes) -> bytes:
        try:
            told = json.loads(line)
        except ValueError:
            told = None
        if not isinstance(told, dict):
            told = {"event": line.decode(errors="replace"), "level": "warning"}
        return json.dumps({"worker": worker, **told}).encode()

    return within if log_format == "json" else before
