"""EXCLUSIVE and FAILOVER: one consumer gets everything, in order.

What it has not acknowledged is not kept here entry by entry: to deliver it again, reading goes back
to the mark-delete offset. Rules: Pulsar's AbstractDispatcherSingleActiveConsumer.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Collection, Sequence

from core.subscription.cursor import Cursor
from core.subscription.dispatch import Changes, Dispatcher
from core.subscription.key_ranges import refusal_of_ranges
from core.subscription.murmur3 import murmur3_32
from core.subscription.values import (
    MAX_PERMITS,
    ActiveChange,
    ConsumerId,
    ConsumerStatus,
    Delivery,
    DispatchSettings,
    Entry,
    Joining,
    Reason,
    Refused,
    SubscriptionType,
)

_ROUNDS_REMEMBERED = 1_000
_POINTS = 100  # Pulsar's CONSUMER_CONSISTENT_HASH_REPLICAS


class _Consumer:
    __slots__ = ("consumer_id", "epoch", "hash_ranges", "name", "permits", "priority_level")

    def __init__(self, joining: Joining) -> None:
        self.consumer_id = joining.consumer_id
        self.name = joining.name
        self.priority_level = joining.priority_level
        self.epoch = joining.epoch
        self.hash_ranges = joining.hash_ranges
        self.permits = 0

    def wants(self, key_hash: int | None) -> bool:
        return key_hash is not None and any(
            first <= key_hash <= last for first, last in self.hash_ranges
        )


class SingleActiveDispatcher(Dispatcher):
    """Who is active is told by `_pick`, of `_consumers` in the order in which they `_enter`."""

    def __init__(self, cursor: Cursor, settings: DispatchSettings) -> None:
        super().__init__(cursor, settings)
        self._consumers: list[_Consumer] = []
        self._by_id: dict[ConsumerId, _Consumer] = {}
        self._active: _Consumer | None = None
        # Each time that reading went back: how far it had come. An entry was delivered before as
        # often as there are numbers above its offset, times that it was pending included.
        self._rounds: list[int] = []

    def _enter(self, consumer: _Consumer) -> None:
        self._consumers.append(consumer)

    def _pick(self) -> _Consumer:
        return self._consumers[0]

    # --- consumers ---

    @property
    def has_consumers(self) -> bool:
        """See Dispatcher."""
        return bool(self._consumers)

    def add_consumer(self, joining: Joining) -> Changes | Refused:
        """See Dispatcher. All are told where another one is active now, else the new one only."""
        consumer = _Consumer(joining)
        self._enter(consumer)
        self._by_id[consumer.consumer_id] = consumer
        return self._choose() or (ActiveChange(consumer.consumer_id, is_active=False),)

    def remove_consumer(self, consumer_id: ConsumerId) -> Changes:
        """See Dispatcher. What the active one had is delivered again, to the next one."""
        consumer = self._by_id.pop(consumer_id, None)
        if consumer is None:
            return ()
        self._consumers.remove(consumer)
        if self._consumers:
            return self._choose()
        self._active = None
        self._go_back()
        return ()

    def _choose(self) -> Changes:
        chosen = self._pick()
        if chosen is self._active:
            return ()
        self._active = chosen
        self._go_back()
        return tuple(ActiveChange(each.consumer_id, each is chosen) for each in self._consumers)

    def flow(self, consumer_id: ConsumerId, permits: int, *, has_more: bool = False) -> None:
        """See Dispatcher. Those of a consumer that is not active count once it is."""
        consumer = self._by_id.get(consumer_id)
        if consumer is not None and permits > 0:
            consumer.permits = min(consumer.permits + permits, MAX_PERMITS)

    def consumers(self) -> list[ConsumerStatus]:
        """See Dispatcher. unacked: for the active one, whatever lies before the read position."""
        unacked = self.cursor.count_unacknowledged(self.cursor.mark_delete, self.read_position)
        return [
            ConsumerStatus(
                each.consumer_id,
                each.name,
                each.priority_level,
                each.permits,
                unacked if each is self._active else 0,
                is_blocked=False,
                is_active=each is self._active,
                epoch=each.epoch,
            )
            for each in self._consumers
        ]

    # --- entries ---

    @property
    def wanted(self) -> int:
        """See Dispatcher."""
        return max(self._active.permits, 0) if self._active else 0

    def offer(self, start: int, entries: Sequence[Entry], end: int, now_ms: int) -> list[Delivery]:
        """See Dispatcher. Times of delivery are not waited for."""
        active, position = self._active, self.read_position
        if active is None or start != position:
            return []
        deliveries: list[Delivery] = []
        for entry in entries:
            if active.permits <= 0:
                break
            self._pass_gap(position, entry.base_offset)
            position = entry.last_offset + 1
            if active.hash_ranges and not active.wants(entry.key_hash):
                continue
            remaining, count = self.remaining_of(entry)
            if not count:
                continue
            active.permits -= count
            deliveries.append(
                Delivery(
                    active.consumer_id, entry, self._redelivery_count(entry.base_offset), remaining
                )
            )
        else:
            self._pass_gap(position, end)
            position = max(position, end)
        self._position = position
        return deliveries

    def dispatch(self, limit: int) -> list[Delivery]:
        """See Dispatcher. Nothing waits here: it is read again."""
        return []

    def redeliver(
        self, consumer_id: ConsumerId, offsets: Collection[int] | None = None, epoch: int = 0
    ) -> None:
        """See Dispatcher. Always all, since single entries would come out of order."""
        consumer = self._by_id.get(consumer_id)
        if consumer is None:
            return
        consumer.epoch = max(consumer.epoch, epoch)
        if consumer is self._active:
            self._go_back()

    def _go_back(self) -> None:
        position, mark_delete = self.read_position, self.cursor.mark_delete
        rounds = self._rounds
        del rounds[: bisect_right(rounds, mark_delete)]
        if position > mark_delete:
            insort(rounds, position)
            del rounds[:-_ROUNDS_REMEMBERED]
        self._position = mark_delete

    def _redelivery_count(self, offset: int) -> int:
        rounds = self._rounds
        return len(rounds) - bisect_right(rounds, offset) if rounds else 0

    # --- the cursor ---

    def acknowledge(self, start: int, end: int) -> int:
        """See Dispatcher."""
        return self.cursor.acknowledge(start, end)

    def acknowledge_up_to(self, end: int) -> int:
        """See Dispatcher."""
        return self.cursor.acknowledge_up_to(end)

    def give_back_pending(self, start: int, end: int) -> None:
        """See Dispatcher. Again all, as in Pulsar's endTxn of a subscription: what is promised here
        is the order, so that what the consumer has of later ones comes again, too."""
        self.cursor.show(start, end)
        if self.cursor.count_unacknowledged(start, min(end, self.read_position)):
            self._go_back()

    def _forget_outstanding(self) -> None:
        self._rounds.clear()

    @property
    def deadline_ms(self) -> int | None:
        """See Dispatcher."""
        return None

    def expire(self, now_ms: int) -> None:
        """See Dispatcher."""


class ExclusiveDispatcher(SingleActiveDispatcher):
    """EXCLUSIVE: one consumer. With hash ranges it gets only keys in them; the rest is passed over,
    and not acknowledged."""

    type = SubscriptionType.EXCLUSIVE

    def add_consumer(self, joining: Joining) -> Changes | Refused:
        """See Dispatcher."""
        if self._consumers:
            return Refused(Reason.CONSUMER_BUSY, "Exclusive consumer is already connected")
        if joining.hash_ranges and (refusal := refusal_of_ranges(joining.hash_ranges, ())):
            return refusal
        return super().add_consumer(joining)


class FailoverDispatcher(SingleActiveDispatcher):
    """FAILOVER: the consumers stand in order of priority level, then name. Of those with the best
    level each is active in as many partitions as the others.

    partition: index of the partition, or -1 where the topic is not partitioned; then topic_name
    chooses on a ring of hashes.
    """

    type = SubscriptionType.FAILOVER

    def __init__(
        self, cursor: Cursor, settings: DispatchSettings, partition: int, topic_name: str
    ) -> None:
        super().__init__(cursor, settings)
        self._partition = partition
        self._topic_hash = murmur3_32(topic_name.encode())
        self._places: dict[ConsumerId, tuple[bool, int]] = {}

    def add_consumer(self, joining: Joining) -> Changes | Refused:
        """See Dispatcher."""
        self._places[joining.consumer_id] = self._place_on_ring(joining.name)
        return super().add_consumer(joining)

    def remove_consumer(self, consumer_id: ConsumerId) -> Changes:
        """See Dispatcher."""
        self._places.pop(consumer_id, None)
        return super().remove_consumer(consumer_id)

    def _enter(self, consumer: _Consumer) -> None:
        insort(self._consumers, consumer, key=lambda each: (each.priority_level, each.name))

    def _pick(self) -> _Consumer:
        best = self._consumers[0].priority_level
        count = bisect_right(self._consumers, best, key=lambda each: each.priority_level)
        candidates = self._consumers[:count]
        if self._partition >= 0:
            return candidates[self._partition % count]
        # Of consumers with the same name the last one has all their points, as in Pulsar.
        return min(reversed(candidates), key=lambda each: self._places[each.consumer_id])

    def _place_on_ring(self, name: str) -> tuple[bool, int]:
        """The consumer's point that the topic comes to first; sorts as the ring goes round."""
        if self._partition >= 0:
            return False, 0
        points = [murmur3_32(f"{name}{point}".encode()) for point in range(_POINTS)]
        return min((point < self._topic_hash, point) for point in points)
