"""What a step of a search may take. Knows no record.

How much a step reads is bounded by the log's reader; what that becomes when it is opened is up to
whoever has written it, and how long it takes to look through, to whoever searches.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_OPENED: Final = 8 * 1024 * 1024
_MADE: Final = 8 * 1024 * 1024
_SECONDS: Final = 0.1


class Budget:
    """Of one step. A fresh one is never spent, so that each step comes further."""

    def __init__(self) -> None:
        self._opened = _OPENED
        self._made = _MADE
        self._seconds = _SECONDS

    @property
    def may_open(self) -> bool:
        """Whether one more batch may be opened."""
        return self._opened > 0 and self.may_look

    @property
    def may_look(self) -> bool:
        """Whether one more record may be looked at."""
        return self._made > 0 and self._seconds > 0

    def opened(self, size: int) -> None:
        """Bytes that a batch has opened to."""
        self._opened -= size

    def spend(self, characters: int) -> None:
        """Characters that were made of a record."""
        self._made -= characters

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Counts the time within."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._seconds -= time.perf_counter() - began
