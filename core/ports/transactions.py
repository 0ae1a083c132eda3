"""What the runtime asks of the store for transactions, beside the flush that ends them.

Implemented by `storage`; knows no SQL. Every method may raise `core.ports.log.StoreUnavailable`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from core.group.records import CommittedOffset
from core.ports.leases import Lease
from core.transaction.key import Participant, TransactionKey
from core.transaction.values import OpenTransaction, StoredTransaction, TransactionMetadata


@dataclass(frozen=True, slots=True)
class TransactionJoin:
    """New partitions or groups of a transaction, and the version this was decided on.

    put: the transaction's new row, if this opens it; otherwise the row is only held still.
    """

    key: TransactionKey
    expected_version: int
    put: TransactionMetadata | None = None
    partitions: tuple[int, ...] = ()
    participants: tuple[Participant, ...] = ()


@dataclass(frozen=True, slots=True)
class OpenTransactions:
    """Transactions that are overdue, or idle, by the database's clock.

    now_ms: that clock's time. keys: the longest overdue first. open_count and oldest_ms: how many
    are open at all, and for how long the oldest one. single_use_count: those of them whose key is
    used once.
    """

    now_ms: int
    keys: Sequence[TransactionKey]
    open_count: int = 0
    oldest_ms: int = 0
    single_use_count: int = 0


@dataclass(frozen=True, slots=True)
class PendingOffsets:
    """Offsets of a group that become committed if their transaction does.

    lease: under which the group's coordinator accepted them. join: the group, and the version this
    was decided on.
    """

    lease: Lease
    join: TransactionJoin
    producer_id: int
    group_id: str
    offsets: Sequence[CommittedOffset]


@dataclass(frozen=True, slots=True)
class PendingAcks:
    """Acknowledgements of a subscription that take effect if their transaction commits.

    lease: of the partition's shard, under which its holder accepted them. join: the subscription,
    and the transaction's version. ranges: offsets, from the first on, below the second of
    each pair. cumulative_end: all below it, too, unless None.
    """

    lease: Lease
    join: TransactionJoin
    transaction: OpenTransaction
    subscription_id: int
    ranges: Sequence[tuple[int, int]]
    cumulative_end: int | None = None


@dataclass(frozen=True, slots=True)
class AckingSubscription:
    """A subscription that takes part in an open transaction, as people are shown it.

    producer_id: of the transaction. cumulative_end: it acknowledges all below; None: only what it
    has named.
    """

    producer_id: int
    partition_id: int
    name: str
    cumulative_end: int | None


class TransactionStore(Protocol):
    """The transactions' rows."""

    async def load(
        self, keys: Sequence[TransactionKey]
    ) -> Mapping[TransactionKey, StoredTransaction]:
        """Transactions by key; missing ones are omitted. One round trip."""

    async def join(self, joins: Sequence[TransactionJoin]) -> Sequence[int]:
        """Writes joins, visible to every broker when it returns; returns each row's version. A row
        that is not there yet (version 0) is made, already open. All or nothing, one round trip.

        They become durable with the next durable commit. So a crash of the database may lose it,
        though nothing that was durably committed after it. No later decision can rest on a lost
        join: the version of an opening never comes twice.
        Raises VersionMismatch, EffectRefused, CommitUnknown.
        """

    async def put_pending(self, pending: Sequence[PendingOffsets]) -> Sequence[None]:
        """All or nothing, durable when it returns. One round trip. Gives a None for each.

        Raises VersionMismatch if a lease or a transaction has changed; EffectRefused,
        CommitUnknown.
        """

    async def put_pending_acks(self, pending: Sequence[PendingAcks]) -> Sequence[None]:
        """The same for acknowledgements. Raises VersionMismatch also where a subscription is
        gone."""

    async def pending_partitions(self, group_ids: Sequence[str]) -> list[frozenset[int]]:
        """Per group: partitions with offsets of an open transaction. One round trip."""

    async def overdue(self, limit: int) -> OpenTransactions:
        """Open transactions that are older than their timeout."""

    async def idle(self, expiration_ms: int, limit: int) -> OpenTransactions:
        """Transactions that are not open, and have not changed for `expiration_ms`; without those
        whose key is used once."""

    async def forget_ended(self, retention_ms: int, limit: int) -> None:
        """Deletes those whose key is used once, so long after their end; at most so many."""

    async def list_all(self) -> tuple[int, Sequence[TransactionMetadata]]:
        """All transactions, and the time by the database's clock (ms). Of those whose key is used
        once only the open ones: of the others there may be a hundred thousand."""

    async def newest_producer_id(self) -> int:
        """The highest producer id that a transaction has, or had some minutes ago; -1: none."""

    async def subscriptions_of(self, producer_ids: Sequence[int]) -> Sequence[AckingSubscription]:
        """Those that take part in these producers' open transactions, by partition and name."""
