"""What the runtime asks of the log's store, and the outcomes it may get.

Implemented by `storage`; only what `gateway.runtime` really calls. Knows no SQL. Topics, settings
and brokers have their ports in `core.ports.topics`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple, Protocol
from uuid import UUID

from core.inbox.values import InboxMove
from core.log.aborted_txns import AbortedTransaction
from core.log.effects import LogEffects
from core.log.named_sequences import NamedSequence
from core.log.partition_log import PartitionState
from core.log.producer_state import ProducerState
from core.ports.leases import Lease
from core.staging.values import Guard, PublicationEffects, TokenBatch
from core.transaction.key import TransactionKey
from core.transaction.values import StoredTransaction, TransactionEffects
from core.types import NO_PRODUCER_ID, BatchFormat, Payload

BATCH_ROW_BYTES = 138
"""About how many bytes a flush sends to the store for a batch, beside its payload."""


class StoreUnavailable(Exception):
    """The database cannot be reached, or went away; nothing of the call took effect."""


class CommitUnknown(StoreUnavailable):
    """The connection was lost after COMMIT was sent: the call may or may not have taken effect."""


class VersionMismatch(Exception):
    """A row's version differs from the one decided on; nothing took effect."""


class RowLocked(Exception):
    """A row stayed locked by another broker for longer than `lock_timeout`; nothing took effect."""


class SegmentGone(Exception):
    """The segment's table has been dropped meanwhile; nothing took effect. Try again."""


class EffectRefused(Exception):
    """The database refused a row for a reason of its own; nothing took effect.

    out_of_space: it has no room left, so that it would refuse all other effects, too.
    """

    def __init__(self, message: str, *, out_of_space: bool = False) -> None:
        super().__init__(message)
        self.out_of_space = out_of_space


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch as it is in the log; `payload` is its writer's bytes, in `format`.

    is_control: a marker that ends a transaction, which no consumer is given. producer_id: -1 where
    its producer is not idempotent; by it readers of committed data know what was aborted.
    """

    base_offset: int
    last_offset: int
    payload: Payload
    format: BatchFormat
    is_control: bool = False
    producer_id: int = NO_PRODUCER_ID

    @property
    def record_count(self) -> int:
        """Offsets it takes, whatever compaction has left at them."""
        return self.last_offset - self.base_offset + 1


@dataclass(frozen=True, slots=True)
class ReadRange:
    """A stretch of one partition to read: batches that end in [from_offset, to_offset).

    At most max_bytes, but the first batch is always part of the answer.
    """

    partition_id: int
    from_offset: int
    to_offset: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class EpochStart:
    """The first offset of a leader epoch."""

    leader_epoch: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class ToLock:
    """The rows that a flush is decided on.

    producers: (partition, producer) pairs. names: (partition, name) pairs. transactions: those to
    be changed; the partitions that joined them are locked too. producer_ids: of transactional
    appends; the row of their transaction is locked if it exists. guards, tokens: of publications;
    the partitions that tokens hold batches for are locked too.
    """

    partition_ids: Sequence[int]
    producers: Sequence[tuple[int, int]] = ()
    transactions: Sequence[TransactionKey] = ()
    producer_ids: Sequence[int] = ()
    guards: Sequence[Guard] = ()
    tokens: Sequence[UUID] = ()
    names: Sequence[tuple[int, str]] = ()


@dataclass(frozen=True, slots=True)
class Locked:
    """What was read under the lock; rows that are missing or locked elsewhere are omitted.

    producers: those asked for, and those of the transactions in the partitions that joined them.
    names: those asked for.
    held_elsewhere (only with `skip_locked`): transactions asked for, if another broker holds their
    row or one of their partitions. held_producers: the same, if it holds their transaction's row.
    published: the batch ids of guards that have one. tokens: the batches of each, in order.
    held_guards, held_tokens: rows that another broker holds, or for a token one of its partitions.
    """

    partitions: Mapping[int, PartitionState]
    producers: Mapping[tuple[int, int], ProducerState]
    transactions: Sequence[StoredTransaction] = ()
    held_elsewhere: frozenset[TransactionKey] = frozenset()
    held_producers: frozenset[int] = frozenset()
    published: Mapping[Guard, int] = field(default_factory=dict)
    tokens: Mapping[UUID, Sequence[TokenBatch]] = field(default_factory=dict)
    held_guards: frozenset[Guard] = frozenset()
    held_tokens: frozenset[UUID] = frozenset()
    names: Mapping[tuple[int, str], NamedSequence] = field(default_factory=dict)


class Loaded(NamedTuple):
    """What was read in one snapshot, by partition id and by pairs of it and a producer."""

    partitions: Mapping[int, PartitionState]
    producers: Mapping[tuple[int, int], ProducerState]
    names: Mapping[tuple[int, str], NamedSequence]


class Flush(Protocol):
    """One database transaction at a time, for appends. After an exception nothing took effect
    (CommitUnknown apart), and the object serves the next flush."""

    async def prepare(self, retention_classes: Iterable[str]) -> None:
        """Gets ready to store batches of these classes, so that `commit` waits for nothing else
        while rows are locked. Raises StoreUnavailable."""

    async def lock(self, wanted: ToLock, *, skip_locked: bool = False) -> Locked:
        """Locks transactions, guards, tokens, then partitions, each by id, and reads all of it
        under the lock."""

    async def commit(
        self,
        effects: Sequence[LogEffects],
        transactions: Sequence[TransactionEffects] = (),
        publications: PublicationEffects | None = None,
        inbox: Sequence[InboxMove] = (),
    ) -> None:
        """Stores new payload, applies and commits; then all that was committed before is durable,
        too, even if there is nothing to apply. Or raises VersionMismatch, RowLocked, SegmentGone,
        EffectRefused, StoreUnavailable, CommitUnknown; InboxOvertaken."""

    async def rollback(self) -> None:
        """Releases all locks."""

    async def close(self) -> None:
        """Gives the connection back for good."""


class LogStore(Protocol):
    """The logs of all partitions. Every method may raise StoreUnavailable."""

    def open_flush(self) -> Flush:
        """A new flush; it connects when it is first used."""

    async def allocate_producer_ids(self, count: int) -> range:
        """A block of producer ids that are never given out again."""

    async def load(
        self,
        partition_ids: Sequence[int],
        producers: Sequence[tuple[int, int]] = (),
        names: Sequence[tuple[int, str]] = (),
    ) -> Loaded:
        """Partitions, (partition, producer) and (partition, name) pairs, in one snapshot; missing
        ones are omitted."""

    async def claim_name(self, partition_id: int, name: str, claim: int) -> NamedSequence | None:
        """Makes `claim` the latest of the name, which is remembered from now on if it was not, and
        gives what is known of it: nothing of an earlier claim is stored after this. None if there
        is no such partition."""

    async def raise_topic_epoch(self, lease: Lease, partition_id: int, topic_epoch: int) -> None:
        """The partition's topic epoch is this one at least; batches of writers that were told an
        earlier one are stored no more, by any broker. lease: of the partition's shard. Raises
        VersionMismatch where that is another's."""

    async def load_transactions(
        self, producer_ids: Sequence[int]
    ) -> Mapping[int, StoredTransaction]:
        """Transactions by producer id; producers without a transaction are omitted."""

    async def aborted(
        self, ranges: Sequence[tuple[int, int, int]]
    ) -> list[Sequence[AbortedTransaction]]:
        """Per (partition id, from offset, to offset): the aborted transactions in that range."""

    async def count_aborted(self, partition_id: int, producer_id: int | None = None) -> int:
        """How many aborted transactions the partition still has; of this producer, if one is
        given."""

    async def read(self, ranges: Sequence[ReadRange], max_bytes: int) -> list[list[StoredBatch]]:
        """Batches of each range by offset, at most max_bytes in all, but always the first one.

        Raises SegmentGone if retention has dropped one meanwhile.
        """

    async def find_timestamp(
        self, partition_id: int, timestamp: int, from_offset: int
    ) -> StoredBatch | None:
        """The first live batch that ends at or after `from_offset` with max_timestamp (ms) at least
        `timestamp`."""

    async def find_max_timestamp(self, partition_id: int) -> StoredBatch | None:
        """The first live batch with the greatest max_timestamp."""

    async def epoch_starts(self, partition_id: int) -> list[EpochStart]:
        """The partition's leader epochs, oldest first."""

    async def advance_log_start(self, partition_id: int, offset: int) -> PartitionState | None:
        """Moves the log start offset up to `offset` (never back, never past the end)."""

    async def terminate(self, partition_id: int) -> PartitionState | None:
        """No record is appended from now on, by anybody; the partition as it is then."""


class News(Enum):
    """News from another broker. RECONNECTED comes first, and again whenever news may have been
    missed: everything watched must be read again. PARTITIONS: these have grown or changed. WATCHED:
    requests wait for these there. ENDED_ACKS: transactions with acknowledgements of these
    subscriptions have ended."""

    PARTITIONS = auto()
    WATCHED = auto()
    METADATA = auto()
    BROKERS = auto()
    ENDED_ACKS = auto()
    USERS = auto()
    ACLS = auto()
    QUOTAS = auto()
    DELEGATION_TOKENS = auto()
    INBOX = auto()
    RECONNECTED = auto()


class ChangeFeed(Protocol):
    """News between brokers. It may be lost, so every reader also looks by itself."""

    async def publish(self, news: News, ids: Sequence[int]) -> None:
        """Tells other brokers. news: PARTITIONS, WATCHED or ENDED_ACKS. Raises StoreUnavailable."""

    async def listen(self, on_news: Callable[[News, Sequence[int]], None]) -> None:
        """Calls `on_news(news, ids of partitions or subscriptions)` until cancelled. Raises
        StoreUnavailable when the connection is lost."""

    async def close(self) -> None:
        """Ends its connections for good."""
