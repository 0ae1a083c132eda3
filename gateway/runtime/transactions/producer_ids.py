"""Producer ids for idempotent producers, from blocks this broker holds."""

import asyncio
from collections import deque
from typing import Final

from core.ports.log import LogStore

BLOCK: Final = 1_000
"""As Kafka's ProducerIdsBlock: a broker that dies loses the rest of its block."""


class ProducerIds:
    """Gives out producer ids that are never given out again."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self._ids: deque[int] = deque()
        self._block = range(0)
        self._refill = asyncio.Lock()

    async def next_id(self) -> int:
        """A fresh producer id. Raises StoreUnavailable."""
        async with self._refill:
            if not self._ids:
                self._block = await self._store.allocate_producer_ids(BLOCK)
                self._ids.extend(self._block)
            return self._ids.popleft()

    def give_back(self, producer_id: int) -> None:
        """Takes back an id that no client has seen, if it is of the present block."""
        if producer_id in self._block:
            self._ids.appendleft(producer_id)

    def forget(self) -> None:
        """Drops the block: after a failover, another history may give out the same ids."""
        self._ids.clear()
        self._block = range(0)
