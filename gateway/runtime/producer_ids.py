"""Producer ids for idempotent producers, from blocks this broker holds."""

import asyncio
from collections import deque
from typing import Final

from core.ports import LogStore

BLOCK: Final = 1_000
"""As Kafka's ProducerIdsBlock: a broker that dies loses what is left of its block."""


class ProducerIds:
    """Hands out producer ids nobody else gets, ever."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self._ids: deque[int] = deque()
        self._refill = asyncio.Lock()

    async def next_id(self) -> int:
        """A fresh producer id. Raises StoreUnavailable."""
        async with self._refill:
            if not self._ids:
                self._ids.extend(await self._store.allocate_producer_ids(BLOCK))
            return self._ids.popleft()

    def forget(self) -> None:
        """Drops the block: after a failover another history may hand the same ids out."""
        self._ids.clear()
