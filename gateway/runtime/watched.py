"""Keeps rows of a table in memory up to date: a change counts within a second, news lost or not.

With the database away those last read stay. Does not know what the rows mean.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final, Generic

import structlog

from core.ports.log import StoreUnavailable
from core.ports.watched import Row, WatchedRows
from gateway.runtime.topics.shared_read import SharedRead

log = structlog.get_logger(__name__)

LOOK_AGAIN_S: Final = 0.5


class Watched(Generic[Row]):
    """Rows of one table. name: of what they are, for the log: "acls".

    read: all rows, or None if nothing has changed since those given; raises StoreUnavailable. take:
    called with those before and those found, one call at a time; what is found counts from its end.
    """

    def __init__(
        self,
        name: str,
        read: Callable[[WatchedRows[Row]], Awaitable[WatchedRows[Row] | None]],
        take: Callable[[WatchedRows[Row], WatchedRows[Row]], Awaitable[None]],
    ) -> None:
        self._not_read = f"{name}_not_read"
        self._read = read
        self._take = take
        self._found: WatchedRows[Row] = WatchedRows()
        self._wake = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()
        self._fresh = SharedRead(self._look)

    @property
    def rows(self) -> Mapping[bytes, Row]:
        """By key, as last read."""
        return self._found.rows

    def invalidate(self) -> None:
        """They may have changed, at any broker: makes `run` look at once."""
        self._wake.set()

    def forget(self) -> None:
        """The database has another history: they are compared with what is there, not by their
        version."""
        self._found = WatchedRows(rows=self._found.rows)
        self.invalidate()

    async def refresh(self) -> None:
        """Reads what has changed, by a read that begins after this call; callers share it. Raises
        StoreUnavailable."""
        await self._fresh.find([None])

    async def _look(self, _: Collection[None]) -> Mapping[None, None]:
        async with self._one_at_a_time:
            before = self._found
            found = await self._read(before)
            if found is not None:
                await self._take(before, found)
                self._found = found
        return {}

    async def refresh_quietly(self) -> bool:
        """The same; False where the database is away."""
        try:
            await self.refresh()
        except StoreUnavailable as error:
            log.debug(self._not_read, reason=str(error))
            return False
        return True

    async def run(self) -> None:
        """Looks for changes, until cancelled."""
        is_away = False
        while True:
            self._wake.clear()
            was_away, is_away = is_away, not await self.refresh_quietly()
            if is_away and not was_away:
                log.warning(self._not_read, what_happens="those last read stay in force")
            try:
                async with asyncio.timeout(LOOK_AGAIN_S):
                    await self._wake.wait()
            except TimeoutError:
                pass
