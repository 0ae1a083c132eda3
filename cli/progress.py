"""A line on a terminal that says how far a command is; nothing where nobody looks.

Knows stderr; not what is counted.
"""

import sys
import time
from typing import Final

_INTERVAL_S: Final = 0.5


class Progress:
    """Counts records; `word` is what has happened to them ("sent")."""

    def __init__(self, word: str) -> None:
        self._word = word
        self._is_shown = sys.stderr.isatty()
        self._started = time.monotonic()
        self._next = self._started + _INTERVAL_S
        self._is_written = False

    def at(self, count: int) -> None:
        """So many by now; written twice a second at most."""
        now = time.monotonic()
        if not self._is_shown or now < self._next:
            return
        self._next = now + _INTERVAL_S
        self._is_written = True
        speed = count / (now - self._started)
        sys.stderr.write(f"\r\x1b[K{records(count)} {self._word}, {speed:,.0f} a second")
        sys.stderr.flush()

    def end(self, sentence: str) -> None:
        """The last word, in the line's place."""
        start = "\r\x1b[K" if self._is_written else ""
        sys.stderr.write(f"{start}{sentence}\n")
        sys.stderr.flush()


def records(count: int) -> str:
    """A number of records in words."""
    return f"{count:,} record" + ("" if count == 1 else "s")
