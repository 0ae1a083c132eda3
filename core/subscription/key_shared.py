"""KEY_SHARED: a hash of keys is one consumer's at a time, and its entries keep their order.

When consumers come and go, hashes change hands; entries of a hash wait until its former owner has
nothing of it outstanding, while those of other hashes go on (Pulsar 4's DrainingHashesTracker,
PIP-379). What is pending is outstanding, too. For Pulsar it is not, so that an abort may break the
order there: Consumer.individualAckWithTransaction takes it off the list that the tracker goes by.
Entries without a key go to anybody. Rules: Pulsar's PersistentStickyKeyDispatcherMultipleConsumers.
"""

from __future__ import annotations

from collections.abc import Hashable

from core.subscription.cursor import Cursor
from core.subscription.dispatch import Changes
from core.subscription.key_ranges import KeyOwners, SplitKeys, StickyKeys
from core.subscription.shared import SharedDispatcher
from core.subscription.sharing import Held, Lane, SharingConsumer
from core.subscription.stashed import StashedEntries
from core.subscription.values import (
    ConsumerId,
    DispatchSettings,
    Entry,
    HashRange,
    Joining,
    KeySharing,
    Refused,
    SubscriptionType,
)


class KeySharedDispatcher(SharedDispatcher):
    """Each hash is a lane. Its next entry is its owner's, once nobody else has any of it.

    Where order is kept, who had what a transaction has acknowledged is its *keeper* until that
    ends, connected or not; of what nobody had (as after a restart) somebody is who is not there.
    So these hold of a hash:

    - Only one consumer has or keeps anything of it, and only its keeper is given more. Others wait
      for the transactions to end, at most as long as these may last. Kafka's consumers wait alike
      for a group's pending offsets (KIP-447).
    - What an abort frees goes out before all later entries that nobody has.

    Not promised: while a transaction is open its keeper goes on to get later entries, if the hash
    is still its own; an abort brings the earlier ones after those. What is pended though nobody has
    it (given back before, or delayed) holds up others from its turn on.
    """

    type = SubscriptionType.KEY_SHARED

    def __init__(self, cursor: Cursor, settings: DispatchSettings, key_sharing: KeySharing) -> None:
        super().__init__(cursor, settings)
        self.key_sharing: KeySharing = key_sharing
        self._is_ordered = key_sharing.is_ordered
        self._owners: KeyOwners[SharingConsumer] = (
            StickyKeys() if key_sharing.is_sticky else SplitKeys()
        )
        self._unclaimed: dict[Hashable, Lane] = {}  # lanes that wait, of hashes that nobody owns
        self._kept = StashedEntries()  # those that have keepers, wherever they are
        self._absent = SharingConsumer(Joining(None, self.type))

    def add_consumer(self, joining: Joining) -> Changes | Refused:
        """See Dispatcher. What waits for those who lose hashes to it, or for nobody, may be its."""
        consumer = SharingConsumer(joining)
        losers = self._owners.add(consumer, joining)
        if isinstance(losers, Refused):
            return losers
        self._consumers[joining.consumer_id] = consumer
        for claims in [self._unclaimed, *(each.claims for each in losers)]:
            for lane in list(claims.values()):
                if self._owner_of(lane) is consumer:
                    del claims[lane.key]
                    self._claim(lane)
        return ()

    def _left(self, consumer: SharingConsumer) -> None:
        """What waits for it has another owner now, who may have it, or none."""
        self._owners.remove(consumer)
        for lane in consumer.claims.values():
            self._claim(lane)

    def _owner_of(self, lane: Lane) -> SharingConsumer | None:
        assert isinstance(lane.key, int)
        return self._owners.owner_of(lane.key)

    def _claim(self, lane: Lane) -> None:
        """The lane waits, or has another owner."""
        lane.owner = owner = self._owner_of(lane)
        (self._unclaimed if owner is None else owner.claims)[lane.key] = lane
        if lane.waiting:
            self._announce(lane)

    def _wait_in(self, lane: Lane, entry: Entry) -> None:
        if not lane.waiting and isinstance(lane.key, int):
            self._claim(lane)
        super()._wait_in(lane, entry)

    def _nothing_waits(self, lane: Lane) -> None:
        if isinstance(lane.key, int):
            del (self._unclaimed if lane.owner is None else lane.owner.claims)[lane.key]
            lane.owner = None

    def _forget_outstanding(self) -> None:
        self._unclaimed.clear()
        self._kept.clear()
        super()._forget_outstanding()

    def hash_ranges(self) -> list[tuple[HashRange, ConsumerId]]:
        """Who owns what, in order."""
        return [(each, owner.consumer_id) for each, owner in self._owners.ranges()]

    def _await_turn(self, entry: Entry) -> None:
        """In its lane at once, so that later entries of its hash that wait there stay behind it."""
        key = entry.key_hash
        if key is None:
            super()._await_turn(entry)
            return
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(key)
        self._wait_in(lane, entry)

    def _lane_of(self, entry: Entry) -> Hashable | None:
        return entry.chunk_group if entry.key_hash is None else entry.key_hash

    def _owner(self, lane: Lane) -> SharingConsumer | None:
        if isinstance(lane.key, int):
            return lane.owner or self._owners.owner_of(lane.key)
        return super()._owner(lane)

    def _may_have(self, owner: SharingConsumer, lane: Lane) -> bool:
        keepers = lane.keepers
        if keepers and (len(keepers) > 1 or owner not in keepers):
            return False
        if not self._is_ordered and isinstance(lane.key, int):
            return True
        return lane.holder is None or lane.holder is owner

    def _drained(self, lane: Lane) -> None:
        if not isinstance(lane.key, int):
            super()._drained(lane)
        elif lane.waiting:
            self._announce(lane)
        else:
            del self._lanes[lane.key]

    # --- what is pending ---

    def hold_back(self, start: int, end: int) -> None:
        """See Dispatcher. Who has it keeps it."""
        for base in self._order.within(start, end):
            held = self._held[base]
            first, behind = max(base, start), min(held.entry.last_offset + 1, end)
            if held.lane is not None and self.cursor.count_unacknowledged(first, behind):
                self._keep(held.entry, held.lane, held.consumer)
        super().hold_back(start, end)

    def _puts_off(self, entry: Entry, count: int, lane: Lane | None) -> bool:
        """Also where something of it is pending that nobody had: then the lane waits."""
        is_kept = (
            lane is not None
            and self.cursor.count_hidden(*entry.offsets) > 0
            and self._keep(entry, lane, self._absent)
        )
        if super()._puts_off(entry, count, lane):
            return True
        if is_kept:
            assert lane is not None
            self._wait_in(lane, entry)
        return is_kept

    def _keep(self, entry: Entry, lane: Lane, keeper: SharingConsumer) -> bool:
        """Whether the lane has a keeper of the entry that it did not have before."""
        base = entry.base_offset
        if not self._is_ordered or not isinstance(lane.key, int) or base in self._keepers:
            return False
        self._kept.add(entry)
        self._keepers[base] = keeper
        lane.held += 1
        if lane.keepers is None:
            lane.keepers = {}
        lane.keepers[keeper] = lane.keepers.get(keeper, 0) + 1
        return True

    def _let_move(self, start: int, end: int) -> None:
        for entry in self._kept.within(start, end):
            if self.cursor.count_hidden(*entry.offsets):
                continue
            assert entry.key_hash is not None
            lane = self._lanes[entry.key_hash]
            keepers, keeper = lane.keepers, self._keepers.pop(entry.base_offset)
            assert keepers is not None
            self._kept.remove(entry)
            keepers[keeper] -= 1
            if not keepers[keeper]:
                del keepers[keeper]
            lane.held -= 1
            if not lane.held:
                lane.holder = None
                self._drained(lane)
            elif lane.waiting:
                self._announce(lane)

    def _lane_beside(self, held: Held) -> Lane:
        """Where order is given up others may have what waits in the hash's lane."""
        lane = held.lane
        if lane is not None and isinstance(lane.key, int) and not self._is_ordered:
            held.lane = None
            lane.held -= 1
            if not lane.held:
                lane.holder = None
                self._drained(lane)
        return super()._lane_beside(held)
