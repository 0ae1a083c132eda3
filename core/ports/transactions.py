"""What the runtime asks of the store for transactions, beside the flush that ends them.

Implemented by `storage`; knows no SQL. Every method may raise `core.ports.log.StoreUnavailable`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from core.group.records import CommittedOffset
from core.ports.leases import Lease
from core.transaction.key import Participant, TransactionKey
from core.transaction.values import StoredTransaction, TransactionMetadata


@dataclass(frozen=True, slots=True)
class TransactionJoin:
    """What takes part from now on, and the version this was decided on.

    put: the transaction's row anew, where this opens it; else the row is only held still.
    """

    key: TransactionKey
    expected_version: int
    put: TransactionMetadata | None = None
    partitions: tuple[int, ...] = ()
    participants: tuple[Participant, ...] = ()


@dataclass(frozen=True, slots=True)
class OpenTransactions:
    """Transactions that have had their time by the database's clock.

    now_ms: what that clock said. keys: the longest overdue first. open_count and oldest_ms: how
    many are open at all, and for how long the oldest one.
    """

    now_ms: int
    keys: Sequence[TransactionKey]
    open_count: int = 0
    oldest_ms: int = 0


@dataclass(frozen=True, slots=True)
class PendingOffsets:
    """Offsets of a group that a transaction commits if it is itself committed.

    lease: under which the group's coordinator let them pass. join: the group takes part, and the
    version this was decided on.
    """

    lease: Lease
    join: TransactionJoin
    producer_id: int
    group_id: str
    offsets: Sequence[CommittedOffset]


class TransactionStore(Protocol):
    """The transactions' rows."""

    async def load(
        self, keys: Sequence[TransactionKey]
    ) -> Mapping[TransactionKey, StoredTransaction]:
        """Transactions by key; what is not there lacks. One round trip."""

    async def join(self, join: TransactionJoin) -> int:
        """Writes what takes part, visible to every broker when it returns; gives the row's version.

        Not durable by itself: it is with the next commit that is. So a crash of the database may
        lose it, and never anything that was committed after it. What is lost is never decided on
        again: where this opens the transaction, the version is one that does not come twice.
        Raises VersionMismatch, EffectRefused, CommitUnknown.
        """

    async def put_pending(self, pending: Sequence[PendingOffsets]) -> None:
        """All or nothing, durable when it returns. One round trip.

        Raises VersionMismatch where a lease or a transaction has moved on; EffectRefused,
        CommitUnknown.
        """

    async def pending_partitions(self, group_ids: Sequence[str]) -> list[frozenset[int]]:
        """Per group: partitions with offsets of an open transaction. One round trip."""

    async def overdue(self, limit: int) -> OpenTransactions:
        """Open transactions that are older than their timeout."""

    async def idle(self, expiration_ms: int, limit: int) -> OpenTransactions:
        """Transactions of which none is open, not changed for `expiration_ms`."""

    async def list_all(self) -> tuple[int, Sequence[TransactionMetadata]]:
        """All transactions, and the time by the database's clock (ms)."""
