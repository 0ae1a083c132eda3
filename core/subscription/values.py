"""The nouns of dispatch: entries, consumers that come, deliveries, refusals. Values only.

Knows no protocol: an entry is a stored batch, named by its offsets.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from core.subscription.offset_ranges import OffsetRange

MAX_PERMITS = 2**31 - 1
"""More are not counted; no client can mean them."""

HASH_SLOTS = 65_536
"""Hashes of keys are below this (Pulsar's DEFAULT_RANGE_SIZE)."""

ConsumerId = Hashable
"""Whatever names a consumer for the runtime, as long as it is there; never reused while it is."""


class SubscriptionType(Enum):
    """Who of several consumers gets an entry."""

    EXCLUSIVE = auto()
    FAILOVER = auto()
    SHARED = auto()
    KEY_SHARED = auto()

    @property
    def has_one_active(self) -> bool:
        """Whether one consumer gets everything, in order. Only then does a cumulative
        acknowledgement mean what its sender thinks, and a delivery time is not waited for."""
        return self in (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER)


class Entry(NamedTuple):
    """A stored batch, as dispatch has to know it; sorts by its offset.

    Each of its offsets is a message, but for those that the cursor knows as gaps.
    key_hash: below HASH_SLOTS; None: no key, so nobody minds the order.
    deliver_at_ms: not before this time, on types with several active consumers.
    chunk_group: what entries have in common that only one consumer can put together.
    """

    base_offset: int
    last_offset: int
    key_hash: int | None = None
    deliver_at_ms: int | None = None
    chunk_group: str | None = None

    @property
    def offsets(self) -> OffsetRange:
        """Its offsets."""
        return OffsetRange(self.base_offset, self.last_offset + 1)


class Delivery(NamedTuple):
    """An entry is the consumer's now. Deliveries of one consumer are sent in the order given.

    redelivery_count: how often it was somebody's before. remaining: what of it is not acknowledged
    yet; None: all.
    """

    consumer_id: ConsumerId
    entry: Entry
    redelivery_count: int
    remaining: tuple[OffsetRange, ...] | None = None


class ActiveChange(NamedTuple):
    """What a consumer is to be told: whether it is the one that gets everything."""

    consumer_id: ConsumerId
    is_active: bool


class HashRange(NamedTuple):
    """Hashes of keys from `first` to `last`, both included."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class KeySharing:
    """How consumers of a KEY_SHARED subscription share the hashes; all have to say the same.

    is_sticky: each consumer brings the ranges it wants (Pulsar's STICKY; otherwise AUTO_SPLIT).
    is_ordered: a hash changes hands only when nothing of it is outstanding (Pulsar's
    allowOutOfOrderDelivery lifts that).
    """

    is_sticky: bool = False
    is_ordered: bool = True


@dataclass(frozen=True, slots=True)
class Joining:
    """A consumer that wants to come.

    priority_level: the lowest number is served first. epoch: what it says of itself; deliveries
    bear the latest (EXCLUSIVE and FAILOVER). hash_ranges: those it wants, on a sticky KEY_SHARED
    subscription; on EXCLUSIVE it gets only what has a key in them, if there are any.
    """

    consumer_id: ConsumerId
    type: SubscriptionType
    name: str = ""
    priority_level: int = 0
    epoch: int = 0
    hash_ranges: tuple[HashRange, ...] = ()
    key_sharing: KeySharing = KeySharing()


class Reason(Enum):
    """Why a consumer may not come."""

    CONSUMER_BUSY = auto()
    """Somebody has the subscription for himself."""
    OTHER_TYPE = auto()
    """It has consumers of another type, or that share keys in another way."""
    RANGE_CONFLICT = auto()
    """Its hash ranges are missing, empty, out of bounds or another consumer's."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The consumer may not come; the sentence is for people."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class DispatchSettings:
    """Limits; 0 = none. Names and defaults are Pulsar's.

    max_unacked_per_consumer, max_unacked: messages delivered and not acknowledged, of a consumer
    and of all (maxUnackedMessagesPerConsumer, …PerSubscription). Who reaches the limit gets nothing
    until half of it is left. SHARED and KEY_SHARED only.
    look_ahead_per_consumer, look_ahead: entries that wait for a certain consumer while reading goes
    on for the others (keySharedLookAheadMsgInReplayThresholdPerConsumer, …PerSubscription).
    max_delayed: entries whose time has not come; with so many, reading stops. Ours: Pulsar's
    tracker in memory has no bound.
    """

    max_unacked_per_consumer: int = 50_000
    max_unacked: int = 200_000
    look_ahead_per_consumer: int = 2_000
    look_ahead: int = 20_000
    max_delayed: int = 200_000


@dataclass(frozen=True, slots=True)
class ConsumerStatus:
    """A consumer as people are told of it. permits may be below 0, after a batch that overdrew."""

    consumer_id: ConsumerId
    name: str
    priority_level: int
    permits: int
    unacked: int
    is_blocked: bool
    is_active: bool
    epoch: int
