"""Watches for snapshots that are held for long: a forgotten psql slows down every flush.

Knows neither SQL nor metrics.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from core.ports.log import StoreUnavailable
from core.ports.snapshots import HeldSnapshot

log = structlog.get_logger(__name__)

INTERVAL_S: Final = 30.0
WARN_FROM_S: Final = 600.0


class SnapshotWatch:
    """Looks now and then, and warns once of each holder.

    oldest: reads the oldest snapshot; may raise StoreUnavailable.
    """

    def __init__(self, oldest: Callable[[], Awaitable[HeldSnapshot | None]]) -> None:
        self._oldest = oldest
        self._warned_of: str | None = None
        self.seconds = 0.0
        """Age of the oldest snapshot at the last look; 0 if there was none."""

    async def run(self) -> None:
        """Looks every `INTERVAL_S` until cancelled, also while the database is away."""
        while True:
            try:
                await self.look()
            except StoreUnavailable as error:
                log.debug("snapshots_not_read", reason=str(error))
            await asyncio.sleep(INTERVAL_S)

    async def look(self) -> None:
        """Raises StoreUnavailable."""
        held = await self._oldest()
        self.seconds = held.seconds if held else 0.0
        if held is None or held.seconds < WARN_FROM_S:
            self._warned_of = None
        elif held.holder != self._warned_of:
            self._warned_of = held.holder
            log.warning("snapshot_held", holder=held.holder, seconds=round(held.seconds))
