"""What several who look are shown alike: read once for all, and again when it is too old."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from core.ports.console.topics import Rank
from core.ports.log import StoreUnavailable
from gateway.console.findings import OPEN_AFTER_S, STUCK_AFTER_S

if TYPE_CHECKING:
    from core.ports.console.overview import OverviewReads
    from core.ports.console.topics import TopicReads

Value = TypeVar("Value")

_FRESH_S: Final = 2.0
_FAILED_S: Final = 5.0  # then the database may be back
_MOST_OF_THE_TIME: Final = 1 / 20
"""So much of it the database is asked at most, however many look and however long it takes."""
_MOST_NAMES: Final = 100


class Shared(Generic[Value]):
    """read: what there is now. Its StoreUnavailable is kept for a while, too: what cannot be read
    must not be asked for again by each who looks."""

    def __init__(self, read: Callable[[], Awaitable[Value]]) -> None:
        self._read = read
        self._reading = asyncio.Lock()
        self._found: Value | None = None
        self._failed: str | None = None
        self._good_until = float("-inf")

    async def get(self) -> Value:
        """Seconds old at most, more where it takes long to read. Raises StoreUnavailable."""
        async with self._reading:
            began = time.monotonic()
            if began > self._good_until:
                # Its age counts from before: what came meanwhile may not be in it.
                self._found, self._failed = None, None
                try:
                    self._found = await self._read()
                except StoreUnavailable as error:
                    self._failed = str(error)
                took_s = time.monotonic() - began
                good_s = max(_FRESH_S, took_s / _MOST_OF_THE_TIME)
                self._good_until = began + (good_s if self._failed is None else _FAILED_S + took_s)
            if self._failed is not None:
                raise StoreUnavailable(self._failed)
            assert self._found is not None, "it is read, or that has failed"
            return self._found


class SharedByName(Generic[Value]):
    """The same of each of several names, of those that were asked for last."""

    def __init__(self, read: Callable[[str], Awaitable[Value]]) -> None:
        self._read = read
        self._by_name: OrderedDict[str, Shared[Value]] = OrderedDict()

    async def get(self, name: str) -> Value:
        """As `Shared.get`."""
        shared = self._by_name.pop(name, None) or Shared(partial(self._read, name))
        self._by_name[name] = shared
        if len(self._by_name) > _MOST_NAMES:
            self._by_name.popitem(last=False)
        return await shared.get()


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
        self._all: Final = (
            *(self.brokers, self.database, self.totals, self.stuck_groups),
            *(self.stuck_subscriptions, self.open_transactions, self.slowest_groups, self.inbox),
        )

    async def look(self) -> None:
        """Reads all that is too old, side by side. Raises StoreUnavailable."""
        await asyncio.gather(*(each.get() for each in self._all))


class Topics:
    """All topics by what they hold, and who reads each of them, for which all that groups have
    committed is looked through."""

    def __init__(self, reads: TopicReads) -> None:
        self.ranked: Final = {rank: Shared(partial(reads.ranked, rank)) for rank in Rank}
        self.groups: Final = SharedByName(reads.groups)
        self.subscriptions: Final = SharedByName(reads.subscriptions)
