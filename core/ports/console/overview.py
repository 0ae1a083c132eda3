"""The cluster as a whole, and what numbers are drawn over time."""

from collections.abc import Collection, Mapping
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
    """Of all topics. appended: offsets ever given out; committed: offsets of groups, summed up: how
    much both grow is what is produced and consumed."""

    topics: int
    partitions: int
    size_bytes: int
    appended: int
    groups: int
    subscriptions: int
    committed: int


class OverviewReads(Protocol):
    """Of the cluster as a whole."""

    async def brokers(self) -> list[BrokerRow]:
        """By id."""

    async def database(self) -> DatabaseState:
        """As it is now."""

    async def totals(self) -> Totals:
        """As they are now."""

    async def appended(self, topics: Collection[str]) -> Mapping[str, int]:
        """How many offsets these topics have ever given out."""

    async def unread(self, groups: Collection[str]) -> Mapping[str, Mapping[str, int]]:
        """Of these groups, by topic and partition (`orders-3`): offsets behind the log's end."""
