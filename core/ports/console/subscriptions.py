"""Pulsar's subscriptions, their consumers, and what they have not acknowledged."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Protocol


class SubscriptionKey(NamedTuple):
    """A subscription of a topic, in all of its partitions. topic: by the log's name."""

    topic: str
    name: str


@dataclass(frozen=True, slots=True)
class SubscriptionPlace:
    """A subscription in one partition. ranges: acknowledged stretches behind mark_delete. backlog:
    messages that it can be given; pending: of them, those that open transactions have acknowledged.
    owner: the address of who dispatches it, for Pulsar's clients."""

    topic: str
    partition: int
    subscription: str
    type: str | None
    mark_delete: int
    ranges: int
    backlog: int
    pending: int
    log_start_offset: int
    last_stable_offset: int
    end_offset: int
    owner: str | None
    properties: Mapping[str, str]
    created_at: datetime


@dataclass(frozen=True, slots=True)
class ConsumerRow:
    """A connected consumer of one partition, as its broker has seen it some moments ago. permits:
    messages it asks for. is_blocked: it gets no more before it acknowledges some."""

    topic: str
    partition: int
    subscription: str
    consumer: str
    type: str
    permits: int
    unacknowledged: int
    is_active: bool
    is_blocked: bool
    priority_level: int
    address: str
    client: str
    broker: int
    connected_at: datetime
    seen_at: datetime


@dataclass(frozen=True, slots=True)
class PendingAckRow:
    """What a transaction has acknowledged: [start_offset, end_offset), or all below end_offset.
    transactional_id: None where it is forgotten."""

    partition: int
    transactional_id: str | None
    producer_id: int
    state: str
    start_offset: int | None
    end_offset: int
    age_s: float | None


class SubscriptionReads(Protocol):
    """Of subscriptions."""

    async def keys(self, search: str) -> list[SubscriptionKey]:
        """Those that have this text in their names, or their topics', by topic and name."""

    async def places(
        self, topics: Collection[str], names: Collection[str]
    ) -> list[SubscriptionPlace]:
        """Of subscriptions with these names of these topics, by topic, name and partition."""

    async def backlogs(
        self, keys: Collection[SubscriptionKey]
    ) -> Mapping[SubscriptionKey, Mapping[str, int]]:
        """Messages in the backlogs of these, by partition (`3`); perhaps those of others, too."""

    async def consumers(self, topics: Collection[str], names: Collection[str]) -> list[ConsumerRow]:
        """The same."""

    async def pending_acks(self, key: SubscriptionKey, most: int) -> list[PendingAckRow]:
        """Of one, by partition and offset; not more than `most`."""
