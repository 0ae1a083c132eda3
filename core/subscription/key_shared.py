"""KEY_SHARED: a hash of keys is one consumer's at a time, and its entries keep their order.

When consumers come and go, hashes change hands; entries of a hash wait until its former owner has
nothing of it outstanding, while those of other hashes go on (Pulsar 4's DrainingHashesTracker,
PIP-379). Entries without a key go to anybody. Rules: Pulsar's
PersistentStickyKeyDispatcherMultipleConsumers.
"""

from __future__ import annotations

from collections.abc import Hashable

from core.subscription.cursor import Cursor
from core.subscription.dispatch import Changes
from core.subscription.key_ranges import KeyOwners, SplitKeys, StickyKeys
from core.subscription.shared import SharedDispatcher
from core.subscription.sharing import Lane, SharingConsumer
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
    """Each hash is a lane. Its next entry is its owner's, once nobody else has any of it."""

    type = SubscriptionType.KEY_SHARED

    def __init__(self, cursor: Cursor, settings: DispatchSettings, key_sharing: KeySharing) -> None:
        super().__init__(cursor, settings)
        self.key_sharing: KeySharing = key_sharing
        self._is_ordered = key_sharing.is_ordered
        self._owners: KeyOwners[SharingConsumer] = (
            StickyKeys() if key_sharing.is_sticky else SplitKeys()
        )
        self._unclaimed: dict[Hashable, Lane] = {}  # lanes that wait, of hashes that nobody owns

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
