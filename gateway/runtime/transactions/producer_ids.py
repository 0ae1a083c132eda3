"""Producer ids for idempotent producers and for transactions, from blocks this broker holds."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from core.ports.log import LogStore

BLOCK: Final = 1_000
"""As Kafka's ProducerIdsBlock: a broker that dies loses the rest of its block."""


class ProducerIds:
    """Gives out producer ids that are never given out again.

    brokers: those that live, as this one knows; see `next_rising_id`.
    """

    def __init__(self, store: LogStore, brokers: Callable[[], frozenset[int]] = frozenset) -> None:
        self._store = store
        self._brokers = brokers
        self._among: frozenset[int] = frozenset()  # when the block was taken
        self._returned: deque[int] = deque()
        self._ids: deque[int] = deque()
        self._block = range(0)
        self._refill = asyncio.Lock()

    async def next_id(self) -> int:
        """A fresh producer id. Raises StoreUnavailable."""
        async with self._refill:
            return self._returned.popleft() if self._returned else await self._take()

    async def next_rising_id(self) -> int:
        """A fresh producer id, above all that were given out by this before; and, as long as who
        gives them out changes only with the live brokers, above those of others. Raises
        StoreUnavailable."""
        async with self._refill:
            if self._among != (among := self._brokers()):
                self.forget()
                self._among = among
            return await self._take()

    async def _take(self) -> int:
        if not self._ids:
            self._block = await self._store.allocate_producer_ids(BLOCK)
            self._ids.extend(self._block)
        return self._ids.popleft()

    def give_back(self, producer_id: int) -> None:
        """Takes back an id that no client has seen, if it is of the present block."""
        if producer_id in self._block:
            self._returned.appendleft(producer_id)

    def forget(self) -> None:
        """Drops the block: after a failover, another history may give out the same ids."""
        self._ids.clear()
        self._returned.clear()
        self._block = range(0)
