"""What the runtime asks of the store for subscriptions and their cursors.

Implemented by `storage`; knows no SQL. Failures are those of `core.ports.log`: StoreUnavailable,
CommitUnknown, VersionMismatch, RowLocked and EffectRefused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from core.ports.leases import Lease
from core.subscription.cursor import CursorEffects, StoredCursor
from core.subscription.values import SubscriptionType
from core.transaction.values import OpenTransaction


@dataclass(frozen=True, slots=True)
class StoredAck:
    """An acknowledgement in a transaction: of offsets from start on, below end; of all below end
    (is_cumulative). is_committed: the transaction is, so it counts; the cursor has not taken it in
    yet."""

    transaction: OpenTransaction
    start: int
    end: int
    is_cumulative: bool
    is_committed: bool


@dataclass(frozen=True, slots=True)
class StoredSubscription:
    """A durable subscription of one partition. type: of those who were there last, if anybody.
    pending: acknowledgements in transactions."""

    subscription_id: int
    name: str
    cursor: StoredCursor
    type: SubscriptionType | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    pending: tuple[StoredAck, ...] = ()


@dataclass(frozen=True, slots=True)
class NewSubscription:
    """A subscription that is to be there. mark_delete: where it begins."""

    partition_id: int
    name: str
    mark_delete: int
    type: SubscriptionType | None = None
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CursorWrite:
    """What has changed of one subscription. type: None leaves it as it is. taken_in: committed
    transactions whose acknowledgements the cursor has now."""

    subscription_id: int
    effects: CursorEffects
    type: SubscriptionType | None = None
    taken_in: tuple[OpenTransaction, ...] = ()


@dataclass(frozen=True, slots=True)
class GuardedWrites:
    """Writes of one shard's subscriptions, one each, and the lease they were decided under."""

    lease: Lease
    writes: tuple[CursorWrite, ...]


@dataclass(frozen=True, slots=True)
class LiveConsumer:
    """A consumer that is connected here, as people are shown it. number: of this process.

    connected_at: ms since the epoch. address, client: of who is at the other end.
    """

    number: int
    partition_id: int
    subscription: str
    consumer: str
    type: SubscriptionType
    address: str
    client: str
    connected_at: int
    priority_level: int
    permits: int
    unacknowledged: int
    is_active: bool
    is_blocked: bool


class SubscriptionFlush(Protocol):
    """A session of one's own for writes; one call at a time, one round trip each."""

    async def commit(self, writes: Sequence[GuardedWrites]) -> None:
        """All or nothing, durable when it returns. A subscription that is gone is passed over.

        Raises VersionMismatch where a lease has another generation (which of them is not told: then
        each shard can be tried alone); RowLocked, EffectRefused, StoreUnavailable, CommitUnknown.
        """

    async def close(self) -> None:
        """Gives the connection back for good."""


class SubscriptionStore(Protocol):
    """Durable subscriptions. Every method may raise StoreUnavailable."""

    def open_flush(self) -> SubscriptionFlush:
        """A flush of one's own; it connects when it is first used."""

    async def load(self, partition_id: int) -> list[StoredSubscription]:
        """All of a partition, with their cursors, from one snapshot."""

    async def read_pending(
        self, subscription_ids: Sequence[int]
    ) -> Mapping[int, Sequence[StoredAck]]:
        """Acknowledgements in transactions, by subscription; those that have none are omitted."""

    async def find_id(self, partition_id: int, name: str) -> int | None:
        """A subscription's id, if there is one of this name."""

    async def create(self, lease: Lease, new: NewSubscription) -> int | None:
        """Its id; None where the partition is gone. Raises VersionMismatch where the lease is
        another's, EffectRefused where there is one of this name."""

    async def show(
        self,
        broker_id: int,
        incarnation: UUID,
        changed: Sequence[LiveConsumer],
        gone: Sequence[int] | None,
    ) -> None:
        """Writes consumers that are new or have changed, and deletes others by their numbers; None:
        whatever else there is of this broker. Nobody but people reads it."""

    async def delete(self, lease: Lease, subscription_id: int) -> None:
        """Deletes one with its cursor, if it is there. Raises VersionMismatch as `create` does."""
