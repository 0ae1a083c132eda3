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
from core.subscription.shared import Lane, SharedDispatcher, SharingConsumer
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

    def add_consumer(self, joining: Joining) -> Changes | Refused:
        """See Dispatcher."""
        consumer = SharingConsumer(joining)
        if refusal := self._owners.add(consumer, joining):
            return refusal
        self._consumers[joining.consumer_id] = consumer
        self._reassign()
        return ()

    def remove_consumer(self, consumer_id: ConsumerId) -> Changes:
        """See Dispatcher."""
        changes = super().remove_consumer(consumer_id)
        self._reassign()
        return changes

    def _left(self, consumer: SharingConsumer) -> None:
        self._owners.remove(consumer)

    def _reassign(self) -> None:
        """Hashes have other owners."""
        for consumer in self._consumers.values():
            consumer.lanes.clear()
        self._runnable.clear()
        for lane in self._lanes.values():
            if lane.waiting:
                self._announce(lane)

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
            return self._owners.owner_of(lane.key)
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
