"""The cluster as a whole, and what numbers are drawn over time."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True, slots=True)
class BrokerRow:
    """A broker that has ever been there and is not forgotten. state: live or gone."""

    broker_id: int
    address: str | None
    rack: str | None
    state: str
    started_at: datetime
    silent_s: float
    version: str


@dataclass(frozen=True, slots=True)
class DatabaseState:
    """PostgreSQL. snapshot_s: age of the oldest snapshot held open, and snapshot_holder who holds
    it; None: nobody that one may see. standby_bytes: what the slowest standby has still to replay,
    standby_s how long it takes; None without a standby."""

    version: str
    size_bytes: int
    connections: int
    max_connections: int
    snapshot_s: float | None
    snapshot_holder: str | None
    standbys: int
    standby_bytes: int | None
    standby_s: float | None


@dataclass(frozen=True, slots=True)
class Totals:
    """Of all topics. subscriptions: by topic and name. appended: offsets ever given out; committed:
    offsets of groups, summed up: how much both grow is what is produced and consumed."""

    topics: int
    partitions: int
    size_bytes: int
    appended: int
    groups: int
    subscriptions: int
    committed: int


@dataclass(frozen=True, slots=True)
class Hold:
    """The oldest open transaction of a partition. held_from: its first offset there, where readers
    of committed data stand. held_id: its transactional id, None where no coordinator knows it."""

    held_id: str | None
    held_producer_id: int
    held_from: int
    held_host: str | None
    held_s: float


@dataclass(frozen=True, slots=True)
class StuckPlace:
    """A partition where records have waited for a group, or a subscription, for a while.

    reader: the group's id, or the subscription's name. unread: offsets. waits_s: since there is
    something to read, or since it has last got on. hold: set where nothing can be read before a
    transaction ends. members: of the group; live consumers of the subscription. owner: of them, who
    reads this partition, and owner_host where from. waiting_for: members that a rebalance waits
    for. unacknowledged: messages that consumers have been given.
    """

    reader: str
    state: str
    topic: str
    partition: int
    offset: int
    unread: int
    waits_s: float
    hold: Hold | None
    members: int
    owner: str | None
    owner_host: str | None
    waiting_for: Sequence[str] = ()
    unacknowledged: int = 0
    is_blocked: bool = False


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """The oldest open transaction of a partition where readers of committed data wait.
    is_long_open: for longer than was asked about."""

    topic: str
    partition: int
    transactional_id: str | None
    producer_id: int
    state: str
    client_host: str | None
    records_waiting: int
    age_s: float
    timeout_left_s: float | None
    is_long_open: bool = False


@dataclass(frozen=True, slots=True)
class SlowGroup:
    """A group and how many offsets it is behind in all."""

    group_id: str
    unread: int


@dataclass(frozen=True, slots=True)
class InboxState:
    """Records that applications have produced by SQL: waiting for oldest_s, and refused lately."""

    waiting: int
    oldest_s: float | None
    refused: int


class OverviewReads(Protocol):
    """Of the cluster as a whole."""

    async def brokers(self) -> list[BrokerRow]:
        """By id."""

    async def database(self) -> DatabaseState:
        """As it is now."""

    async def totals(self) -> Totals:
        """As they are now."""

    async def stuck_groups(self, after_s: float) -> list[StuckPlace]:
        """Where groups that are in use have not got on for so long, a partition a row."""

    async def stuck_subscriptions(self, after_s: float) -> list[StuckPlace]:
        """The same of subscriptions."""

    async def open_transactions(self, after_s: float) -> list[OpenTransaction]:
        """All that are open, one a partition, the oldest first; some, if many. after_s: those
        that are open for so long say so."""

    async def slowest_groups(self) -> list[SlowGroup]:
        """The few that are most behind."""

    async def inbox(self) -> InboxState:
        """As it is now."""

    async def appended(self, topics: Collection[str]) -> Mapping[str, int]:
        """How many offsets these topics have ever given out."""

    async def unread(self, groups: Collection[str]) -> Mapping[str, Mapping[str, int]]:
        """Of these groups, by topic and partition (`orders-3`): offsets behind the log's end."""
