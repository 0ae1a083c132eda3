"""Offsets that wait for their transaction, on their way into the database: one flush for all.

What fails together is tried one by one, so that each caller hears of its own alone. Knows no rule.
"""

from __future__ import annotations

import asyncio
from collections import deque

from core.ports.log import EffectRefused, VersionMismatch
from core.ports.transactions import PendingOffsets, TransactionStore

_AT_ONCE = 256


class PendingOffsetWriter:
    """Writes by group commit: while one flush is under way, what comes becomes the next one."""

    def __init__(self, store: TransactionStore) -> None:
        self._store = store
        self._queue: deque[tuple[PendingOffsets, asyncio.Future[None]]] = deque()
        self._task: asyncio.Task[None] | None = None

    async def write(self, pending: PendingOffsets) -> None:
        """Returns once they are durable.

        Raises VersionMismatch, EffectRefused, StoreUnavailable, CommitUnknown.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((pending, done))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        await done

    async def _run(self) -> None:
        while self._queue:
            batch = [self._queue.popleft() for _ in range(min(len(self._queue), _AT_ONCE))]
            try:
                await self._store.put_pending([pending for pending, _ in batch])
            except (VersionMismatch, EffectRefused) as error:
                if len(batch) == 1:
                    _fail(batch[0][1], error)
                else:
                    await self._one_by_one(batch)
            except Exception as error:  # noqa: BLE001 - whatever it is must leave nobody waiting
                for _, done in batch:
                    _fail(done, error)
            else:
                for _, done in batch:
                    if not done.done():
                        done.set_result(None)

    async def _one_by_one(self, batch: list[tuple[PendingOffsets, asyncio.Future[None]]]) -> None:
        for pending, done in batch:
            try:
                await self._store.put_pending([pending])
            except Exception as error:  # noqa: BLE001 - each hears of its own, whatever it is
                _fail(done, error)
            else:
                if not done.done():
                    done.set_result(None)


def _fail(done: asyncio.Future[None], error: Exception) -> None:
    if not done.done():
        done.set_exception(error)
