"""What several who look are shown alike: read once for all, and again when it is too old."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from gateway.console.findings import OPEN_AFTER_S, STUCK_AFTER_S

if TYPE_CHECKING:
    from core.ports.console.overview import OverviewReads

Value = TypeVar("Value")

FRESH_S: Final = 2.0


class Shared(Generic[Value]):
    """read: what there is now; its exceptions go to who asks, and are not kept."""

    def __init__(self, read: Callable[[], Awaitable[Value]], fresh_s: float = FRESH_S) -> None:
        self._read = read
        self._fresh_s = fresh_s
        self._reading = asyncio.Lock()
        self._found: tuple[float, Value] | None = None

    async def get(self) -> Value:
        """At most `fresh_s` old."""
        async with self._reading:
            if self._found is None or time.monotonic() - self._found[0] > self._fresh_s:
                # Its age counts from before: what came meanwhile may not be in it.
                began = time.monotonic()
                self._found = (began, await self._read())
            return self._found[1]


class Overview:
    """The cluster as a whole, as all who look see it; what each may see is asked afterwards."""

    def __init__(self, reads: OverviewReads) -> None:
        self.brokers: Final = Shared(reads.brokers)
        self.database: Final = Shared(reads.database)
        self.totals: Final = Shared(reads.totals)
        self.stuck_groups: Final = Shared(lambda: reads.stuck_groups(STUCK_AFTER_S))
        self.stuck_subscriptions: Final = Shared(lambda: reads.stuck_subscriptions(STUCK_AFTER_S))
        self.open_transactions: Final = Shared(lambda: reads.open_transactions(OPEN_AFTER_S))
        self.slowest_groups: Final = Shared(reads.slowest_groups)
        self.inbox: Final = Shared(reads.inbox)
