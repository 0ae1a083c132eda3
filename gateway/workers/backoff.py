"""How long to wait before what has ended is started again."""

from __future__ import annotations

from typing import Final

FIRST_S: Final = 0.2
LONGEST_S: Final = 30.0
FORGOTTEN_AFTER_S: Final = 60.0


class Backoff:
    """Of one worker: twice as long each time, until it has lived for a good while."""

    def __init__(self) -> None:
        self._next_s = FIRST_S

    def after(self, lived_s: float) -> float:
        """Seconds to wait, now that it has ended after so many."""
        if lived_s >= FORGOTTEN_AFTER_S:
            self._next_s = FIRST_S
        wait_s = self._next_s
        self._next_s = min(2 * wait_s, LONGEST_S)
        return wait_s
