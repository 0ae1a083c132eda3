"""Turns: those who look take one after the other, and rest, so that clients need not wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

_LONGEST_REST_S: Final = 2.0


class Turns:
    """rest: after a turn nobody has one for so many times as long."""

    def __init__(self, rest: float) -> None:
        self._rest = rest
        self._lock = asyncio.Lock()
        self._free_at = 0.0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Waits for it, in order."""
        async with self._lock:
            await asyncio.sleep(max(0.0, self._free_at - time.monotonic()))
            began = time.monotonic()
            try:
                yield
            finally:
                now = time.monotonic()
                self._free_at = now + min(self._rest * (now - began), _LONGEST_REST_S)
