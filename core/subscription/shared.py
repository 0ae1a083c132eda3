"""SHARED: each entry goes to the next consumer that takes one, best priority level first.

Entries that come back (their consumer is gone, or gave them back) go before new ones, in order of
offset. Entries of one *lane* belong together and go to one consumer at a time, in order: here the
chunks of one message; KEY_SHARED makes a lane of each hash. Rules: Pulsar's
PersistentDispatcherMultipleConsumers and SharedConsumerAssignor.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Collection, Hashable, Iterable, Sequence
from heapq import heapify, heappop, heappush

from core.subscription.cursor import Cursor
from core.subscription.delayed import DelayedEntries
from core.subscription.dispatch import Changes, Dispatcher
from core.subscription.offset_ranges import OffsetRange, OffsetRanges
from core.subscription.sharing import Held, Lane, OneEntry, SharingConsumer
from core.subscription.sorted_offsets import SortedOffsets
from core.subscription.stashed import StashedEntries
from core.subscription.values import (
    MAX_PERMITS,
    ConsumerId,
    ConsumerStatus,
    Delivery,
    DispatchSettings,
    Entry,
    Joining,
    Refused,
    SubscriptionType,
)

_WANTED_AT_MOST = 1_000


class SharedDispatcher(Dispatcher):
    """See the module. Every entry that was taken and is not acknowledged is in exactly one place:
    held by a consumer, waiting (free, or in its lane), delayed, or stashed, if nothing is left of
    it but what is pending.

    One exception: where an aborted transaction frees messages of an entry of which a consumer has
    others, these *freed* ones wait while the rest is held. So these hold:

    - What a connected consumer has, nobody is given: neither another one nor itself again. It has
      what was delivered to it and is neither acknowledged, nor pending, nor given back.
    - An entry is one consumer's at a time. Its freed messages wait in a lane that this one holds:
      the entry's, or one of its own. They are the consumer's while it has others of the entry,
      anybody's as soon as it has none, and go out with these if it gives them back.
    - `Held.freed` is not None just as long as the entry is among those that wait in its lane. It
      may name what is acknowledged or pending by now: that is left out when it goes.
    - `Held.unacked` are the entry's messages that are neither acknowledged nor pending nor freed.
    - The redelivery count of an entry is how often some of it was delivered before.
    """

    type = SubscriptionType.SHARED

    def __init__(self, cursor: Cursor, settings: DispatchSettings) -> None:
        super().__init__(cursor, settings)
        self._consumers: dict[ConsumerId, SharingConsumer] = {}
        # Consumers that take entries, by priority level, next one first. One that takes no more is
        # thrown out when it is met.
        self._queues: dict[int, deque[SharingConsumer]] = {}
        self._levels: list[int] = []  # those that have a queue
        self._expecting: dict[SharingConsumer, None] = {}  # no permits now, but soon: has_more
        self._unacked = 0
        self._is_blocked = False
        self._held: dict[int, Held] = {}
        self._order = SortedOffsets()  # of what is held
        self._redelivered: dict[int, int] = {}
        self._waiting: list[Entry] = []  # a heap
        self._lanes: dict[Hashable, Lane] = {}
        self._in_lanes = 0  # entries that wait in lanes
        self._runnable: dict[SharingConsumer, None] = {}  # those that take, and have lanes
        self._delayed = DelayedEntries()
        self._stash = StashedEntries()
        self._keepers: dict[int, SharingConsumer] = {}  # by base offset; see KeySharedDispatcher

    def limit(self, settings: DispatchSettings) -> None:
        """See Dispatcher."""
        if settings == self.settings:
            return
        self.settings = settings
        self._is_blocked = 0 < settings.max_unacked <= self._unacked
        most = settings.max_unacked_per_consumer
        for consumer in self._consumers.values():
            consumer.is_blocked = 0 < most <= consumer.unacked
            if consumer.is_blocked:
                self._runnable.pop(consumer, None)
            else:
                self._wake(consumer)

    # --- consumers ---

    @property
    def has_consumers(self) -> bool:
        """See Dispatcher."""
        return bool(self._consumers)

    def add_consumer(self, joining: Joining) -> Changes | Refused:
        """See Dispatcher."""
        self._consumers[joining.consumer_id] = SharingConsumer(joining)
        return ()

    def remove_consumer(self, consumer_id: ConsumerId) -> Changes:
        """See Dispatcher. Its entries wait for others, each counted as delivered once more."""
        consumer = self._consumers.pop(consumer_id, None)
        if consumer is not None:
            consumer.is_blocked = True
            self._expecting.pop(consumer, None)
            self._runnable.pop(consumer, None)
            self._leave_queue(consumer)
            self._left(consumer)
            self._give_back(consumer, list(consumer.held.values()))
        return ()

    def _left(self, consumer: SharingConsumer) -> None:
        """The consumer is gone; what it has is still its."""

    def flow(self, consumer_id: ConsumerId, permits: int, *, has_more: bool = False) -> None:
        """See Dispatcher."""
        consumer = self._consumers.get(consumer_id)
        if consumer is None:
            return
        consumer.has_more = has_more
        if permits > 0:
            consumer.permits = min(consumer.permits + permits, MAX_PERMITS)
            self._wake(consumer)
        if not has_more or consumer.permits > 0:
            self._expecting.pop(consumer, None)

    def _wake(self, consumer: SharingConsumer) -> None:
        """The consumer may have begun to take entries."""
        if consumer.permits <= 0 or consumer.is_blocked:
            return
        if not consumer.is_queued:
            consumer.is_queued = True
            level = consumer.priority_level
            queue = self._queues.get(level)
            if queue is None:
                queue = self._queues[level] = deque()
                insort(self._levels, level)
            queue.append(consumer)
        if consumer.lanes:
            self._runnable[consumer] = None

    def _leave_queue(self, consumer: SharingConsumer) -> None:
        if consumer.is_queued:
            queue = self._queues[consumer.priority_level]
            queue.remove(consumer)
            if not queue:
                del self._queues[consumer.priority_level]
                self._levels.remove(consumer.priority_level)

    def _next(self) -> SharingConsumer | None:
        """Whose turn it is."""
        levels = self._levels
        while levels:
            if self._expecting and self._is_expected_above(levels[0]):
                return None
            queue = self._queues[levels[0]]
            while queue:
                consumer = queue[0]
                if consumer.permits > 0 and not consumer.is_blocked:
                    return consumer
                consumer.is_queued = False
                queue.popleft()
            del self._queues[levels.pop(0)]
        return None

    def _is_expected_above(self, level: int) -> bool:
        """Whether one of a better level takes more as soon as it has got what it was given."""
        return any(each.priority_level < level and not each.is_blocked for each in self._expecting)

    def consumers(self) -> list[ConsumerStatus]:
        """See Dispatcher."""
        return [
            ConsumerStatus(
                each.consumer_id,
                each.name,
                each.priority_level,
                each.permits,
                each.unacked,
                each.is_blocked,
                is_active=True,
                epoch=each.epoch,
            )
            for each in sorted(self._consumers.values(), key=lambda each: each.priority_level)
        ]

    # --- entries ---

    @property
    def wanted(self) -> int:
        """See Dispatcher. Nothing while something waits that `dispatch` would give."""
        if (
            self._is_blocked
            or self._waiting
            or self._runnable
            or self._in_lanes >= self._look_ahead()
            or len(self._delayed) >= self._most_delayed()
            or self._next() is None
        ):
            return 0
        permits = 0
        for level in self._levels:
            for consumer in self._queues[level]:
                if not consumer.is_blocked:
                    permits += max(consumer.permits, 0)
                if permits >= _WANTED_AT_MOST:
                    return _WANTED_AT_MOST
        return permits

    def _most_delayed(self) -> int:
        return self.settings.max_delayed or MAX_PERMITS

    def _look_ahead(self) -> int:
        """Pulsar's getEffectiveLookAheadLimit."""
        settings, count = self.settings, len(self._consumers)
        limits = [settings.look_ahead_per_consumer * count, settings.look_ahead]
        if not any(limits):
            limits = [settings.max_unacked_per_consumer * count, settings.max_unacked]
        return min((each for each in limits if each), default=MAX_PERMITS)

    def offer(self, start: int, entries: Sequence[Entry], end: int, now_ms: int) -> list[Delivery]:
        """See Dispatcher. Nothing is taken while something waits that `dispatch` would give."""
        position = self.read_position
        deliveries: list[Delivery] = []
        if start != position or self._waiting or self._runnable:
            return deliveries
        most_in_lanes, most_delayed = self._look_ahead(), self._most_delayed()
        for entry in entries:
            if (
                self._is_blocked
                or self._in_lanes >= most_in_lanes
                or len(self._delayed) >= most_delayed
                or self._next() is None
            ):
                break
            if entry.base_offset > position:
                self.cursor.pass_gap(position, entry.base_offset)
            position = entry.last_offset + 1
            if entry.deliver_at_ms is not None and entry.deliver_at_ms > now_ms:
                self._delayed.add(entry)
            else:
                self._place(entry, deliveries)
        else:
            self._pass_gap(position, end)
            position = max(position, end)
        self._position = position
        return deliveries

    def dispatch(self, limit: int) -> list[Delivery]:
        """See Dispatcher."""
        deliveries: list[Delivery] = []
        runnable, waiting = self._runnable, self._waiting
        while runnable and len(deliveries) < limit and not self._is_blocked:
            consumer = next(iter(runnable))
            if consumer.permits <= 0 or consumer.is_blocked or not consumer.lanes:
                del runnable[consumer]
                continue
            self._run_lane(consumer, deliveries)
        while waiting and len(deliveries) < limit and not self._is_blocked:
            if self._next() is None:
                break
            self._place(heappop(waiting), deliveries)
        return deliveries

    def _lane_of(self, entry: Entry) -> Hashable | None:
        """The lane the entry has to keep to; None for none."""
        return entry.chunk_group

    def _owner(self, lane: Lane) -> SharingConsumer | None:
        """Whose the lane's next entry is: here whoever has the others, or the next one."""
        return lane.holder or self._next()

    def _place(self, entry: Entry, deliveries: list[Delivery]) -> None:
        """Delivers an entry, or lets it wait in its lane. Somebody takes entries."""
        key = self._lane_of(entry)
        if key is None:
            consumer = self._next()
            assert consumer is not None
            self._deliver(consumer, entry, None, deliveries)
            return
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(key)
        owner = self._owner(lane)
        if (
            owner is None
            or owner.permits <= 0
            or owner.is_blocked
            or lane.waiting
            or not self._may_have(owner, lane)
        ):
            self._wait_in(lane, entry)
        else:
            self._deliver(owner, entry, lane, deliveries)
            if not lane.held:  # there was nothing left of the entry
                del self._lanes[key]

    def _may_have(self, owner: SharingConsumer, lane: Lane) -> bool:
        """Whether the owner may have the lane's next entry now."""
        return lane.holder is None or lane.holder is owner

    def _wait_in(self, lane: Lane, entry: Entry) -> None:
        heappush(lane.waiting, entry)
        self._in_lanes += 1
        if lane.waiting[0] is entry:
            self._announce(lane)

    def _announce(self, lane: Lane) -> None:
        """The lane has another first entry, or another owner, or its holder has given all back."""
        owner = self._owner(lane)
        if owner is not None and self._may_have(owner, lane):
            heappush(owner.lanes, (lane.waiting[0].base_offset, lane.key))
            if owner.permits > 0 and not owner.is_blocked:
                self._runnable[owner] = None

    def _run_lane(self, consumer: SharingConsumer, deliveries: list[Delivery]) -> None:
        offset, key = heappop(consumer.lanes)
        lane = self._lanes.get(key)
        # What was announced may have changed since; then it was announced again.
        if lane is None or not lane.waiting or lane.waiting[0].base_offset != offset:
            return
        if self._owner(lane) is not consumer or not self._may_have(consumer, lane):
            return
        entry = heappop(lane.waiting)
        self._in_lanes -= 1
        self._deliver(consumer, entry, lane, deliveries, self._held.get(offset))
        if lane.waiting:
            heappush(consumer.lanes, (lane.waiting[0].base_offset, key))
            return
        self._nothing_waits(lane)
        if not lane.held:
            del self._lanes[key]

    def _nothing_waits(self, lane: Lane) -> None:
        """The last entry that waited in the lane has gone."""

    def _deliver(
        self,
        consumer: SharingConsumer,
        entry: Entry,
        lane: Lane | None,
        deliveries: list[Delivery],
        held: Held | None = None,
    ) -> None:
        """The consumer takes entries and gets this one, if there is anything left of it; if it has
        some of it, what was freed."""
        offset = entry.base_offset
        if held is None:
            remaining, count = self.remaining_of(entry)
            if remaining is not None and self._puts_off(entry, count, lane):
                return
            redelivery_count = self._redelivered.get(offset, 0) if self._redelivered else 0
            held = Held(entry, consumer, count, lane)
            self._held[offset] = consumer.held[offset] = held
            self._order.add(offset)
            if lane is not None:
                lane.holder = consumer
                lane.held += 1
        else:
            remaining = self._freed_of(held)
            held.freed = None
            count = sum(end - start for start, end in remaining)
            if not count:
                return
            held.unacked += count
            redelivery_count = self._redelivered.get(offset, 0) + 1
            self._redelivered[offset] = redelivery_count
        deliveries.append(Delivery(consumer.consumer_id, entry, redelivery_count, remaining))
        consumer.permits -= count
        if consumer.has_more and consumer.permits <= 0:
            self._expecting[consumer] = None
        consumer.unacked += count
        self._unacked += count
        limits = self.settings
        if limits.max_unacked and self._unacked >= limits.max_unacked:
            self._is_blocked = True
        if limits.max_unacked_per_consumer and (
            consumer.unacked >= limits.max_unacked_per_consumer
        ):
            consumer.is_blocked = True
        if consumer.is_queued:
            queue = self._queues[consumer.priority_level]
            if queue[0] is consumer:
                queue.rotate(-1)

    def _puts_off(self, entry: Entry, count: int, lane: Lane | None) -> bool:
        """Whether whose turn the entry is, with so many messages left of it, is not given it."""
        if not count:
            self._nothing_left(entry)
        return not count

    def left_of(self, delivery: Delivery) -> tuple[tuple[OffsetRange, ...] | None, int]:
        """See Dispatcher."""
        held = self._held.get(delivery.entry.base_offset)
        if held is None or held.consumer.consumer_id != delivery.consumer_id:
            return (), 0
        remaining, count = super().left_of(delivery)
        if held.freed is not None:
            left = (held.entry.offsets,) if remaining is None else remaining
            remaining = tuple(part for each in left for part in held.freed.missing(*each))
            count = sum(end - start for start, end in remaining)
        return remaining, count

    def take_back(self, delivery: Delivery) -> None:
        """See Dispatcher. What else the consumer has of the entry stays its."""
        held = self._held.get(delivery.entry.base_offset)
        if held is None or held.consumer.consumer_id != delivery.consumer_id:
            return
        remaining, _ = self.left_of(delivery)
        for each in (held.entry.offsets,) if remaining is None else remaining:
            self._free(held, *each)
        self._lessened(held)

    def redeliver(
        self, consumer_id: ConsumerId, offsets: Collection[int] | None = None, epoch: int = 0
    ) -> None:
        """See Dispatcher. An offset inside of an entry names it as well."""
        consumer = self._consumers.get(consumer_id)
        if consumer is None:
            return
        consumer.epoch = max(consumer.epoch, epoch)
        if offsets is None:
            given = list(consumer.held.values())
        else:
            found = {each.entry.base_offset: each for each in map(self._holding, offsets) if each}
            given = [each for each in found.values() if each.consumer is consumer]
        self._give_back(consumer, given)
        self._wake(consumer)

    def _give_back(self, consumer: SharingConsumer, given: Iterable[Held]) -> None:
        """These entries of the consumer wait again, before all newer ones."""
        for held in given:
            offset = held.entry.base_offset
            self._redelivered[offset] = self._redelivered.get(offset, 0) + 1
            if held.freed is not None:
                pass  # it waits already
            elif held.lane is None:
                heappush(self._waiting, held.entry)
            else:
                self._wait_in(held.lane, held.entry)
            self._let_go(held)

    def _holding(self, offset: int) -> Held | None:
        """The entry with this offset, if somebody has it."""
        held = self._held.get(offset)
        if held is None:
            for base in self._order.within(offset, offset + 1):
                if self._held[base].entry.last_offset >= offset >= base:
                    return self._held[base]
        return held

    def _let_go(self, held: Held) -> None:
        """Nobody has the entry any more; it is acknowledged, or waits already."""
        offset, consumer, lane = held.entry.base_offset, held.consumer, held.lane
        del self._held[offset], consumer.held[offset]
        self._order.remove(offset)
        self._reduce_unacked(held, held.unacked)
        if lane is not None:
            lane.held -= 1
            if not lane.held:
                lane.holder = None
                self._drained(lane)

    def _drained(self, lane: Lane) -> None:
        """Nobody has anything of the lane. Chunks that wait go to whoever is next."""
        del self._lanes[lane.key]
        self._in_lanes -= len(lane.waiting)
        for entry in lane.waiting:
            heappush(self._waiting, entry)

    def _reduce_unacked(self, held: Held, count: int) -> None:
        """So many messages of the entry are off the consumer's list."""
        held.unacked -= count
        consumer, settings = held.consumer, self.settings
        consumer.unacked -= count
        self._unacked -= count
        # Half of the limit, so that a consumer at its limit is not woken for each message.
        if self._is_blocked and self._unacked <= settings.max_unacked // 2:
            self._is_blocked = False
        if (
            consumer.is_blocked
            and consumer.unacked <= settings.max_unacked_per_consumer // 2
            and consumer.consumer_id in self._consumers
        ):
            consumer.is_blocked = False
            self._wake(consumer)

    # --- the cursor ---

    def acknowledge(self, start: int, end: int) -> int:
        """See Dispatcher."""
        new = self.cursor.acknowledge(start, end)
        if new:
            held = self._held.get(start)
            # The quick way, where all of an entry was the consumer's: nothing pending, or freed.
            if held is not None and held.unacked == new and held.entry.last_offset == end - 1:
                self._acknowledged(held)
            else:
                self._acknowledged_within(start, end)
        return new

    def acknowledge_up_to(self, end: int) -> int:
        """See Dispatcher."""
        start = self.cursor.mark_delete
        new = self.cursor.acknowledge_up_to(end)
        if new:
            self._acknowledged_within(start, end)
            self._forget_waiting_below(self.cursor.mark_delete)
        return new

    def _acknowledged_within(self, start: int, end: int) -> None:
        for base in self._order.within(start, end):
            held = self._held[base]
            last = held.entry.last_offset
            if last < start:
                continue
            if start <= base and last < end:
                self._acknowledged(held)
            else:
                self._lessened(held)
        if self._stash.entries:
            for entry in self._stash.within(start, end):
                if not self.cursor.count_hidden(*entry.offsets):
                    self._stash.remove(entry)
                    self._redelivered.pop(entry.base_offset, None)
        if self._keepers:
            self._let_move(start, end)

    def _lessened(self, held: Held) -> None:
        """Some of the entry is acknowledged now, or pending."""
        entry = held.entry
        left = self.cursor.count_unacknowledged(entry.base_offset, entry.last_offset + 1)
        if held.freed is not None:
            left -= sum(end - start for start, end in self._freed_of(held))
        if left:
            self._reduce_unacked(held, held.unacked - left)
        elif held.freed is not None:  # it waits already
            self._give_back(held.consumer, (held,))
        elif self.cursor.count_hidden(entry.base_offset, entry.last_offset + 1):
            self._redelivered[entry.base_offset] = self._redelivered.get(entry.base_offset, 0) + 1
            self._stash.add(entry)
            self._let_go(held)
        else:
            self._acknowledged(held)

    def _acknowledged(self, held: Held) -> None:
        if self._redelivered:
            self._redelivered.pop(held.entry.base_offset, None)
        self._let_go(held)

    # --- what is pending ---

    def hold_back(self, start: int, end: int) -> None:
        """See Dispatcher."""
        self.cursor.hide(start, end)
        for base in self._order.within(start, end):
            held = self._held[base]
            if held.entry.last_offset >= start:
                self._lessened(held)

    def _nothing_left(self, entry: Entry) -> None:
        """Whose turn the entry was got none of it."""
        offset = entry.base_offset
        if self.cursor.count_hidden(*entry.offsets):
            self._redelivered.setdefault(offset, 1)  # somebody had it, or it were not pending
            self._stash.add(entry)
        else:
            self._redelivered.pop(offset, None)

    def give_back_pending(self, start: int, end: int) -> None:
        """See Dispatcher. A consumer that has others of the entry keeps these."""
        cursor = self.cursor
        cursor.show(start, end)
        for base in self._order.within(start, end):
            held = self._held[base]
            first, behind = max(base, start), min(held.entry.last_offset + 1, end)
            if cursor.count_unacknowledged(first, behind):
                self._free(held, first, behind)
        for entry in self._stash.within(start, end):
            if cursor.count_unacknowledged(*entry.offsets):
                self._stash.remove(entry)
                self._wait_again(entry)
        if self._keepers:
            self._let_move(start, end)

    def _let_move(self, start: int, end: int) -> None:
        """Some of these offsets may be pending no longer."""

    def _free(self, held: Held, start: int, end: int) -> None:
        """The consumer has others of the entry, and not these: they wait beside. start < end."""
        if held.freed is None:
            held.freed = OffsetRanges()
            self._wait_in(self._lane_beside(held), held.entry)
        held.freed.add(start, end)

    def _lane_beside(self, held: Held) -> Lane:
        """Where messages of the entry wait for who has the others."""
        if held.lane is None:
            lane = held.lane = Lane(OneEntry())
            self._lanes[lane.key] = lane
            lane.holder, lane.held = held.consumer, 1
        return held.lane

    def _freed_of(self, held: Held) -> tuple[OffsetRange, ...]:
        """What was freed and is neither acknowledged nor pending again; in order."""
        freed = held.freed or ()
        return tuple(part for each in freed for part in self.cursor.unacknowledged(*each))

    def _wait_again(self, entry: Entry) -> None:
        """In its lane, if there is one, before later ones of it."""
        key = self._lane_of(entry)
        lane = None if key is None else self._lanes.get(key)
        if lane is None:
            self._await_turn(entry)
        else:
            self._wait_in(lane, entry)

    # --- what is skipped or forgotten ---

    def _forget_waiting_below(self, offset: int) -> None:
        """Entries that lie below are acknowledged: they must not hold up reading."""
        self._drop_below(self._waiting, offset)
        self._delayed.forget_below(offset)
        for lane in list(self._lanes.values()):
            if not lane.waiting or lane.waiting[0].last_offset >= offset:
                continue
            self._in_lanes -= self._drop_below(lane.waiting, offset)
            if lane.waiting:
                self._announce(lane)
                continue
            self._nothing_waits(lane)
            if not lane.held:
                del self._lanes[lane.key]

    def _drop_below(self, waiting: list[Entry], offset: int) -> int:
        kept = [each for each in waiting if each.last_offset >= offset]
        dropped = len(waiting) - len(kept)
        if dropped:
            for each in waiting:
                if each.last_offset < offset:
                    self._redelivered.pop(each.base_offset, None)
            heapify(kept)
            waiting[:] = kept
        return dropped

    def _forget_outstanding(self) -> None:
        self._held.clear()
        self._order.clear()
        self._redelivered.clear()
        self._waiting.clear()
        self._lanes.clear()
        self._runnable.clear()
        self._delayed.clear()
        self._stash.clear()
        self._keepers.clear()
        self._in_lanes = self._unacked = 0
        self._is_blocked = False
        for consumer in self._consumers.values():
            consumer.held.clear()
            consumer.lanes.clear()
            consumer.claims.clear()
            consumer.unacked = 0
            consumer.is_blocked = False
            self._wake(consumer)

    # --- time ---

    @property
    def deadline_ms(self) -> int | None:
        """See Dispatcher."""
        return self._delayed.deadline_ms

    def expire(self, now_ms: int) -> None:
        """See Dispatcher."""
        for entry in self._delayed.due(now_ms):
            self._await_turn(entry)

    def _await_turn(self, entry: Entry) -> None:
        heappush(self._waiting, entry)
