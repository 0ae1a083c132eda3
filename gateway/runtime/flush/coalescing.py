"""A transaction's batches wait for each other, if their partitions were announced together.

A V1 producer announces the partitions that it will write to (AddPartitionsToTxn); librdkafka then
sends one request per partition, right behind each other. They wait here for one common commit; the
last announced partition ends the wait. Knows no rule: it only queues them later, in their order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from core.transaction.key import TransactionKey
from gateway.runtime.flush.work import QueuedAppend, QueuedTransition, QueuedWork

UNWRITTEN_S = 0.02
"""An announcement without a batch is forgotten after this."""
GATHER_S = 0.001
"""How long batches wait for those of the other partitions."""


@dataclass(slots=True)
class _Expected:
    key: TransactionKey
    awaited: set[int]
    timer: asyncio.TimerHandle
    kept: list[QueuedAppend] = field(default_factory=list)


class Coalescing:
    """What producers are expected to write, and batches that wait for it; given to `enqueue`, in
    order."""

    def __init__(self, enqueue: Callable[[QueuedWork], None]) -> None:
        self._enqueue = enqueue
        self._by_producer: dict[int, _Expected] = {}

    def expect(self, key: TransactionKey, producer_id: int, partition_ids: Iterable[int]) -> None:
        """These partitions have joined the producer's transaction."""
        known = self._by_producer.get(producer_id)
        if known is not None:
            known.awaited.update(partition_ids)
            return
        timer = asyncio.get_running_loop().call_later(UNWRITTEN_S, self.release, producer_id)
        awaited = set(partition_ids)
        self._by_producer[producer_id] = _Expected(key, awaited, timer)

    def keeps(self, queued: QueuedWork) -> bool:
        """Keeps a batch (True) if others are still awaited. Releases the waiting ones if it is the
        last one awaited, or if it changes their transaction."""
        if not self._by_producer:
            return False
        if isinstance(queued, QueuedTransition):
            self._release_for(queued)
            return False
        if not isinstance(queued, QueuedAppend) or not queued.batch.is_transactional:
            return False
        producer_id = queued.batch.producer_id
        announced = self._by_producer.get(producer_id)
        if announced is None:
            return False
        announced.awaited.discard(queued.partition_id)
        if not announced.awaited:
            self.release(producer_id)
            return False
        if not announced.kept:
            announced.timer.cancel()
            loop = asyncio.get_running_loop()
            announced.timer = loop.call_later(GATHER_S, self.release, producer_id)
        announced.kept.append(queued)
        return True

    def release(self, producer_id: int) -> None:
        """Releases a producer's batches and forgets what was expected."""
        announced = self._by_producer.pop(producer_id, None)
        if announced is not None:
            announced.timer.cancel()
            for queued in announced.kept:
                self._enqueue(queued)

    def _release_for(self, queued: QueuedTransition) -> None:
        """The waiting batches were written before the transition: they go first."""
        if queued.producer_id is not None:  # an end
            self.release(queued.producer_id)
            return
        for producer_id, each in list(self._by_producer.items()):
            if each.key == queued.key:
                self.release(producer_id)

    def release_all(self) -> None:
        """Releases all batches."""
        for producer_id in list(self._by_producer):
            self.release(producer_id)
