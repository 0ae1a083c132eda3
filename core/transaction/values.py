"""What the transaction coordinator is asked, what it remembers, and what a decision brings about.

Values only. Every time is milliseconds since the epoch, of the database's clock.
"""

from dataclasses import dataclass
from enum import Enum

from core.errors import Error
from core.transaction.key import Participant, TransactionKey
from core.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP


class TransactionState(Enum):
    """Kafka's TransactionState; the value is the text that the store and the tools show.

    One commit passes Prepare… and Complete… together, so the store shows Prepare… only where a
    later two-phase commit (KIP-939) stops there. Which state may follow which is in `state.py`.
    """

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"


class TransactionVersion(Enum):
    """Kafka's feature `transaction.version`, as one producer uses it (KIP-890).

    Rules ask for what a version means to them, not for its number.
    """

    V1 = 1
    V2 = 2

    @property
    def end_raises_epoch(self) -> bool:
        """Whether the marker of an end has a new epoch, with which the producer goes on: so an
        epoch says which transaction it belongs to, and nothing late fits the next one."""
        return self is TransactionVersion.V2

    @property
    def joins_with_write(self) -> bool:
        """Whether what is written to takes part by that; otherwise it must have joined before."""
        return self is TransactionVersion.V2

    @property
    def starts_at_zero(self) -> bool:
        """Whether a transaction's first batch in a partition has sequence 0."""
        return self is TransactionVersion.V2


@dataclass(frozen=True, slots=True)
class ProducerIdAndEpoch:
    """Who writes; (-1, -1) is nobody."""

    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


@dataclass(frozen=True, slots=True)
class TransactionMetadata:
    """A transaction's row, by its key. Immutable, replaced as a whole.

    version: of the row, 0 where it is not stored yet; the store raises it with each change, and
    guards with it. It never comes twice for one key (`first_version`). Joining a partition or a
    group is a row of its own and raises nothing.
    previous_producer_id: the one before the last rollover, or -1; last_producer_epoch: the epoch
    before the last bump by InitProducerId or EndTxn, or -1: both so that a retry is recognised.
    started_at: of the open transaction, else -1. updated_at: of the last change.
    coordinator_epoch: goes into markers; rises with each change of the database's history.
    """

    key: TransactionKey
    producer_id: int
    producer_epoch: int
    state: TransactionState
    transaction_version: TransactionVersion = TransactionVersion.V1
    timeout_ms: int = 60_000
    previous_producer_id: int = NO_PRODUCER_ID
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    started_at: int = NO_TIMESTAMP
    updated_at: int = NO_TIMESTAMP
    coordinator_epoch: int = 0
    client_id: str = ""
    client_host: str = ""
    version: int = 0


@dataclass(frozen=True, slots=True)
class Marker:
    """A control batch to be appended to every partition that joined, and the offsets' fate.

    producer_epoch: the marker's own (bumped where the end bumps).
    """

    producer_id: int
    producer_epoch: int
    is_commit: bool
    coordinator_epoch: int


@dataclass(frozen=True, slots=True)
class InitProducerId:
    """InitProducerId. current: what the client had (KIP-360), or (-1, -1)."""

    key: TransactionKey
    timeout_ms: int
    current: ProducerIdAndEpoch
    client_id: str
    client_host: str


@dataclass(frozen=True, slots=True)
class EndTransaction:
    """EndTxn. transaction_version: V2 from EndTxn v5 on.

    open_version: of the row, where it was known to hold an open transaction when the request came;
    None where it was not. With V1 that is the one to be ended, and no later one.
    """

    producer: ProducerIdAndEpoch
    is_commit: bool
    transaction_version: TransactionVersion
    open_version: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What is answered: an error, or the producer id and epoch that hold from now on."""

    error: Error = Error.NONE
    producer: ProducerIdAndEpoch = ProducerIdAndEpoch()
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Transition:
    """A decision of the coordinator. It takes effect as a whole, in one commit, or not at all.

    put: the row anew (with `version` as it was decided on), or None where nothing changes.
    marker: ends the open transaction: markers on every joined partition, pending offsets committed
    or dropped, joins forgotten. is_deleted: the row goes (an idle id). answer: for whoever asked.
    """

    answer: Answer
    put: TransactionMetadata | None = None
    marker: Marker | None = None
    is_deleted: bool = False


@dataclass(frozen=True, slots=True)
class Joining:
    """Whether a partition or a group may take part, and what that changes.

    put: the row anew, where this opens the transaction. joins: whether a row of joining is to be
    written; False where the partition has joined before, or where refused.
    """

    error: Error = Error.NONE
    message: str | None = None
    put: TransactionMetadata | None = None
    joins: bool = False


@dataclass(frozen=True, slots=True)
class StoredTransaction:
    """A transaction's row with what takes part in what is open, as it was read.

    partitions: partition ids. participants: those with something pending.
    """

    metadata: TransactionMetadata
    partitions: frozenset[int] = frozenset()
    participants: frozenset[Participant] = frozenset()


def first_version(producer_id: int) -> int:
    """The version of a row made anew, with a producer id that nobody has had.

    Brokers may still remember the row that the key had before it expired. What they know of that
    one must not pass the guard of this one.
    """
    return (producer_id << 24) + 1


@dataclass(frozen=True, slots=True)
class TransactionEffects:
    """What a flush changes of one transaction.

    expected_version: of the row, as decided on; the store refuses the flush if it is another one by
    then. put: the row anew; None where it is only held still while partitions append or join.
    joined: partitions that take part from now on. marker: how the transaction ends (pending
    offsets, joins); None where it does not. partitions, participants: all that take part, as
    decided on, where it ends: the store refuses if it knows of others.
    """

    key: TransactionKey
    expected_version: int
    put: TransactionMetadata | None = None
    joined: tuple[int, ...] = ()
    marker: Marker | None = None
    partitions: frozenset[int] = frozenset()
    participants: frozenset[Participant] = frozenset()
    is_deleted: bool = False
