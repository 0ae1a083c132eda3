"""Topics, their partitions, and who reads them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Protocol


class Rank(Enum):
    """By what of their records topics can be put in order."""

    OFFSETS = "offsets"
    SIZE = "size"
    NEWEST = "newest"


@dataclass(frozen=True, slots=True)
class TopicFigures:
    """What a topic holds. offsets: between start and end of its partitions' logs, so that there are
    no more records. size_bytes: also of records that are deleted, as long as retention has not
    freed them. newest_record: of partitions that hold any; None where none does."""

    name: str
    offsets: int
    size_bytes: int
    newest_record: datetime | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """A partition. terminated_offset: where it was ended for good (Pulsar's), else None."""

    partition: int
    partition_id: int
    log_start_offset: int
    last_stable_offset: int
    high_watermark: int
    size_bytes: int
    newest_record: datetime | None
    leader_epoch: int
    terminated_offset: int | None


@dataclass(frozen=True, slots=True)
class GroupReading:
    """A group that has committed offsets of a topic: of how many partitions, how many offsets it
    is behind their ends, and when it committed last."""

    group_id: str
    partitions: int
    behind: int
    committed_at: datetime | None


@dataclass(frozen=True, slots=True)
class SubscriptionReading:
    """A subscription of a topic, in all its partitions. backlog: messages not acknowledged.
    furthest: the partition in which most are."""

    name: str
    partitions: int
    backlog: int
    furthest: int


@dataclass(frozen=True, slots=True)
class HeldBack:
    """An open transaction that holds back partitions of a topic: how many, the first of them, and
    how many records wait there. transactional_id: None where no coordinator knows it (hanging)."""

    transactional_id: str | None
    protocol: str | None
    producer_id: int
    partitions: int
    partition: int
    records_waiting: int
    age_s: float


class TopicReads(Protocol):
    """Of topics by name; rows of topics that are not there are not there either."""

    async def figures(self, topics: Collection[str]) -> Mapping[str, TopicFigures]:
        """What they hold, by name."""

    async def ranked(self, rank: Rank) -> Sequence[str]:
        """All topics in this order, the least first, equal ones by name."""

    async def partitions(self, topic: str, first: int, last: int) -> list[PartitionRow]:
        """Those from `first` to `last`."""

    async def groups(self, topic: str) -> list[GroupReading]:
        """All of them, by id."""

    async def subscriptions(self, topic: str) -> list[SubscriptionReading]:
        """All of them, by name."""

    async def held_back(self, topic: str) -> list[HeldBack]:
        """By the oldest transactions that are open, the oldest first; fifty at most."""
