"""Writes offsets that wait for their transaction into the database: one flush for all.

Offsets that fail together are tried one by one, so that each caller gets its own result. Knows no
rule.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from core.ports.log import EffectRefused, VersionMismatch
from core.ports.transactions import PendingOffsets, TransactionStore
from gateway.runtime.flush.queue import FlushQueue

_AT_ONCE: Final = 256

_Write = tuple[PendingOffsets, asyncio.Future[None]]


class PendingOffsetWriter:
    """Writes all pending offsets of this process."""

    def __init__(self, store: TransactionStore) -> None:
        self._store = store
        self._queue = FlushQueue(self._settle, limit=_AT_ONCE, weigh=_one)

    async def write(self, pending: PendingOffsets) -> None:
        """Returns once they are durable.

        Raises VersionMismatch, EffectRefused, StoreUnavailable, CommitUnknown.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.put((pending, done))
        await done

    async def _settle(self, writes: Sequence[_Write]) -> None:
        try:
            await self._store.put_pending([pending for pending, _ in writes])
        except (VersionMismatch, EffectRefused) as error:
            if len(writes) == 1:
                _fail(writes, error)
                return
            for each in writes:
                await self._settle([each])
        except Exception as error:  # noqa: BLE001 - no error may leave a caller waiting
            _fail(writes, error)
        else:
            for _, done in writes:
                if not done.done():
                    done.set_result(None)


def _one(_: _Write) -> int:
    return 1


def _fail(writes: Sequence[_Write], error: Exception) -> None:
    for _, done in writes:
        if not done.done():
            done.set_exception(error)
