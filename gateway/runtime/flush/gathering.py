"""How long work of transactions waits for that of others, so that one commit serves them all.

A commit costs the database and this process much the same for one transaction's work as for that of
ten. Where many are at work at once, each step of each would be a commit of its own, or nearly; so
work waits a moment for the others'. A transaction that is alone never waits. Knows no rule.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

SHORT_S: Final = 0.001
LONG_S: Final = 0.002
"""The loop's timers have no finer steps than 1 ms: the first may end at once, or nearly."""
SOME: Final = 4
MANY: Final = 12
AT_WORK_S: Final = 0.5
"""A transaction that has done nothing for so long is not waited for."""


class Gathering:
    """The transactions at work in this process, each by its producer's id. clock: seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[int, float] = {}  # when last, oldest first

    def note(self, producer_id: int) -> None:
        """The transaction does something."""
        seen = self._seen
        seen.pop(producer_id, None)
        seen[producer_id] = self._clock()

    def leave(self, producer_id: int) -> None:
        """It has ended."""
        self._seen.pop(producer_id, None)

    def wait_s(self, count: int) -> float:
        """How long so many pieces of work, one of a transaction each, wait for more; 0: not at all,
        since all are there, or few are at work."""
        seen = self._seen
        if len(seen) < SOME:
            return 0
        before = self._clock() - AT_WORK_S
        while seen:
            oldest = next(iter(seen))
            if seen[oldest] >= before:
                break
            del seen[oldest]
        at_work = len(seen)
        if at_work < SOME or count >= at_work:
            return 0
        return SHORT_S if at_work < MANY else LONG_S
