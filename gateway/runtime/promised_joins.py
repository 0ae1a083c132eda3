"""Joins that have been answered and wait for the first batches of their transaction.

A V1 producer says what it is going to write to before it writes. What it said is stored with the
first batches, in their commit; and as they come one by one (librdkafka sends a request a partition)
those that were announced are waited for, for a moment. Knows no store and no rule: what becomes of
a join is decided when its turn comes in the flush (`docs/decisions/0007`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from core.errors import Error
from core.transaction.values import Answer, ProducerIdAndEpoch
from gateway.runtime.pending import Pending, PendingAppend, PendingJoin, PendingTransition

UNWRITTEN_S = 0.02
"""How long a join waits for a first batch, until it is stored by itself for others to see."""
GATHER_S = 0.001
"""How long batches wait for those of the other partitions that were announced."""
AGAIN_S = 1.0
"""After how long a join is tried again that the database did not take."""


@dataclass(slots=True)
class _Promise:
    join: PendingJoin
    timer: asyncio.TimerHandle
    awaited: set[int]
    kept: list[PendingAppend] = field(default_factory=list)


class PromisedJoins:
    """At most one promise a producer; it goes to `enqueue` with the batches kept behind it."""

    def __init__(self, enqueue: Callable[[Pending], None]) -> None:
        self._enqueue = enqueue
        self._promises: dict[int, _Promise] = {}
        self._producer_ids: dict[str, int] = {}
        self._unsettled: dict[str, asyncio.Future[Answer]] = {}

    def promise(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partition_ids: Iterable[int],
        version: int,
    ) -> None:
        """Takes a join that is answered with this call. version: of the row it was decided on."""
        known = self._promises.get(producer.producer_id)
        new = dict.fromkeys(partition_ids)
        if known is not None:
            if (known.join.producer, known.join.promised_on) == (producer, version):
                known.awaited |= new.keys() - known.join.partition_ids.keys()
                known.join.partition_ids |= new
                return
            self.release(producer.producer_id)
        done: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._hold(PendingJoin(transactional_id, producer, new, version, done), UNWRITTEN_S)

    def keeps(self, pending: Pending) -> bool:
        """Whether a batch waits with its producer's join. Releases, where it was the last one that
        was waited for, or where the transaction is to end."""
        if not self._promises:
            return False
        if isinstance(pending, PendingTransition):
            producer_id = self._producer_ids.get(pending.transactional_id)
            if producer_id is not None:
                self.release(producer_id)
            return False
        if not isinstance(pending, PendingAppend) or not pending.batch.is_transactional:
            return False
        producer_id = pending.batch.producer_id
        promise = self._promises.get(producer_id)
        if promise is None:
            return False
        promise.awaited.discard(pending.partition_id)
        if not promise.awaited:
            self.release(producer_id)
            return False
        if not promise.kept:
            self._set_timer(promise, GATHER_S)
        promise.kept.append(pending)
        return True

    def release(self, producer_id: int) -> None:
        """Lets a join go, and what was kept behind it."""
        promise = self._promises.pop(producer_id, None)
        if promise is None:
            return
        promise.timer.cancel()
        join = promise.join
        if self._producer_ids.get(join.transactional_id) == producer_id:
            del self._producer_ids[join.transactional_id]
        self._unsettled[join.transactional_id] = join.done
        join.done.add_done_callback(lambda done: self._settle(join, done.result()))
        self._enqueue(join)
        for pending in promise.kept:
            self._enqueue(pending)

    def release_all(self) -> None:
        """Lets all of them go."""
        for producer_id in list(self._promises):
            self.release(producer_id)

    async def settle(self, transactional_ids: Iterable[str] | None = None) -> None:
        """Waits until what was promised (to all, or to these) is stored, or refused."""
        if transactional_ids is None:
            self.release_all()
            transactional_ids = list(self._unsettled)
        waited_for = []
        for name in transactional_ids:
            if (producer_id := self._producer_ids.get(name)) is not None:
                self.release(producer_id)
            if (done := self._unsettled.get(name)) is not None:
                waited_for.append(done)
        if waited_for:
            await asyncio.wait(waited_for)

    def _hold(self, join: PendingJoin, seconds: float) -> None:
        producer_id = join.producer.producer_id
        if (before := self._producer_ids.get(join.transactional_id)) is not None:
            self.release(before)  # the id's producer before its epochs were exhausted
        timer = asyncio.get_running_loop().call_later(seconds, self.release, producer_id)
        self._promises[producer_id] = _Promise(join, timer, set(join.partition_ids))
        self._producer_ids[join.transactional_id] = producer_id

    def _set_timer(self, promise: _Promise, seconds: float) -> None:
        promise.timer.cancel()
        loop = asyncio.get_running_loop()
        producer_id = promise.join.producer.producer_id
        promise.timer = loop.call_later(seconds, self.release, producer_id)

    def _settle(self, join: PendingJoin, answer: Answer) -> None:
        """What the database did not take for now is tried again: it was promised."""
        producer_id = join.producer.producer_id
        if self._unsettled.get(join.transactional_id) is join.done:
            del self._unsettled[join.transactional_id]
        if answer.error is not Error.COORDINATOR_NOT_AVAILABLE or producer_id in self._promises:
            return
        join.done = asyncio.get_running_loop().create_future()
        self._hold(join, AGAIN_S)
        self._promises[producer_id].awaited.clear()
