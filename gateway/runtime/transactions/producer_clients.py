"""Rows of the clients that asked for idempotent producers' ids, for people: who wrote a record.

Written a little later, many at once, so that no producer waits for it. Decides nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

import structlog

from core.ports.log import StoreUnavailable
from core.ports.producer_clients import ProducerClient, ProducerClientStore

log = structlog.get_logger(__name__)

_EVERY_S: Final = 1.0
_EXPIRE_EVERY_S: Final = 3600.0
_MOST_WAITING: Final = 10_000
"""Beyond it the oldest are lost: a database that is away must not fill memory."""


class ProducerClients:
    """Those that are to be written, and the loop that writes.

    expiration_ms: how long a row is kept. is_on_duty: whether this broker removes what is older.
    """

    def __init__(
        self,
        store: ProducerClientStore,
        expiration_ms: Callable[[], int],
        is_on_duty: Callable[[], bool],
    ) -> None:
        self._store = store
        self._expiration_ms = expiration_ms
        self._is_on_duty = is_on_duty
        self._waiting: deque[ProducerClient] = deque(maxlen=_MOST_WAITING)
        self._some = asyncio.Event()

    def note(self, client: ProducerClient) -> None:
        """A producer id was given to this client."""
        self._waiting.append(client)
        self._some.set()

    async def run(self) -> None:
        """Writes until cancelled."""
        expired_at = float("-inf")
        while True:
            try:
                await self.write()
                if self._is_on_duty() and time.monotonic() - expired_at > _EXPIRE_EVERY_S:
                    await self._store.expire(self._expiration_ms() / 1000)
                    expired_at = time.monotonic()
            except StoreUnavailable as away:
                log.debug("producer_clients_not_written", reason=str(away))
            await asyncio.sleep(_EVERY_S)
            try:
                async with asyncio.timeout(_EXPIRE_EVERY_S):
                    await self._some.wait()
            except TimeoutError:
                pass

    async def write(self) -> None:
        """All that wait; what cannot be written waits on. Raises StoreUnavailable."""
        self._some.clear()
        clients, self._waiting = self._waiting, deque(maxlen=_MOST_WAITING)
        if not clients:
            return
        try:
            await self._store.put(list(clients))
        except StoreUnavailable:
            self._waiting = deque([*clients, *self._waiting], maxlen=_MOST_WAITING)
            self._some.set()
            raise
