"""The transaction coordinator's requests, memory and decisions.

Values only. Every time is milliseconds since the epoch, by the database's clock.
"""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from core.errors import Error
from core.transaction.key import Participant, TransactionKey
from core.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP


class TransactionState(Enum):
    """Kafka's TransactionState; the value is the text that the store and the tools show.

    One commit passes Prepare… and Complete… together, so the store shows Prepare… only if a later
    two-phase commit (KIP-939) stops there. `state.py` says which state may follow which.
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

    Rules ask what a version means, never for its number.
    """

    V1 = 1
    V2 = 2

    @property
    def end_raises_epoch(self) -> bool:
        """Whether the marker of an end has a new epoch, which the producer then uses: so an epoch
        says which transaction it belongs to, and no late request fits the next one."""
        return self is TransactionVersion.V2

    @property
    def joins_with_write(self) -> bool:
        """Whether a write joins its partition or group; otherwise it must have joined before."""
        return self is TransactionVersion.V2

    @property
    def starts_at_zero(self) -> bool:
        """Whether a transaction's first batch in a partition has sequence 0."""
        return self is TransactionVersion.V2


@dataclass(frozen=True, slots=True)
class ProducerIdAndEpoch:
    """A producer; (-1, -1) is none."""

    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


class OpenTransaction(NamedTuple):
    """One of the transactions of a producer. version: of its key's row while it is open, which no
    other transaction has."""

    producer_id: int
    version: int


@dataclass(frozen=True, slots=True)
class TransactionMetadata:
    """A transaction's row, by its key. Immutable, replaced as a whole.

    version: of the row, 0 if it is not stored yet; the store raises it with each change, and guards
    with it. It never comes twice for one key (`first_version`). A join of a partition or a group is
    a row of its own and does not raise it.
    previous_producer_id: the one before the last rollover, or -1; last_producer_epoch: the epoch
    before the last bump by InitProducerId or EndTxn, or -1. By these two a retry is recognised.
    started_at: of the open transaction, else -1. updated_at: of the last change.
    coordinator_epoch: goes into markers; rises with each change of the database's history.
    owner: the principal that has begun it, or has its producer ("User:alice"); "" where nobody was
    asked who he is.
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
    owner: str = ""
    version: int = 0


@dataclass(frozen=True, slots=True)
class Marker:
    """A control batch for every partition that joined; it also decides on what is pending.

    producer_epoch: the marker's own (bumped if the end bumps it). is_last: whether its producer id
    is not used any more, so that partitions forget it.
    """

    producer_id: int
    producer_epoch: int
    is_commit: bool
    coordinator_epoch: int
    is_last: bool = False


@dataclass(frozen=True, slots=True)
class InitProducerId:
    """InitProducerId. current: what the client had (KIP-360), or (-1, -1). owner: see
    TransactionMetadata."""

    key: TransactionKey
    timeout_ms: int
    current: ProducerIdAndEpoch
    client_id: str
    client_host: str
    owner: str = ""


@dataclass(frozen=True, slots=True)
class EndTransaction:
    """EndTxn. transaction_version: V2 from EndTxn v5 on.

    open_version: the row's version, if an open transaction was known when the request came; else
    None. With V1 the request ends that transaction, and no later one.
    """

    producer: ProducerIdAndEpoch
    is_commit: bool
    transaction_version: TransactionVersion
    open_version: int | None = None


@dataclass(frozen=True, slots=True)
class TransitionAnswer:
    """To a transition: an error, or the producer id and epoch to use from now on."""

    error: Error = Error.NONE
    producer: ProducerIdAndEpoch = ProducerIdAndEpoch()
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Transition:
    """A decision of the coordinator. It takes effect as a whole, in one commit, or not at all.

    put: the new row (with `version` as it was decided on), or None if nothing changes.
    marker: ends the open transaction: markers in every joined partition, pending offsets committed
    or dropped, joins forgotten. is_deleted: deletes the row (an idle id). answer: for the caller.
    """

    answer: TransitionAnswer
    put: TransactionMetadata | None = None
    marker: Marker | None = None
    is_deleted: bool = False


@dataclass(frozen=True, slots=True)
class Joining:
    """Whether a partition or a group may join, and what that changes.

    put: the new row, if this opens the transaction. joins: whether a join must be written; False
    if the partition has joined before, or if it is refused.
    """

    error: Error = Error.NONE
    message: str | None = None
    put: TransactionMetadata | None = None
    joins: bool = False


@dataclass(frozen=True, slots=True)
class StoredTransaction:
    """A transaction's row, with all that has joined the open transaction, as it was read.

    partitions: partition ids. participants: those with pending offsets.
    """

    metadata: TransactionMetadata
    partitions: frozenset[int] = frozenset()
    participants: frozenset[Participant] = frozenset()


def first_version(producer_id: int) -> int:
    """The version of a new row, with a producer id that was never used before.

    Brokers may still remember the row that the key had before it expired. What they know of that
    row must not pass the guard of this one.
    """
    return (producer_id << 24) + 1


@dataclass(frozen=True, slots=True)
class TransactionEffects:
    """What a flush changes in one transaction.

    expected_version: of the row, as decided on; the store refuses the flush if it has changed by
    then. put: the new row; None if it is only held still while partitions append or join.
    joined: partitions that join. marker: how the transaction ends (pending offsets, joins); None if
    it does not. partitions, participants: if it ends, all that had joined when that was decided:
    the store refuses if it knows of others.
    """

    key: TransactionKey
    expected_version: int
    put: TransactionMetadata | None = None
    joined: tuple[int, ...] = ()
    marker: Marker | None = None
    partitions: frozenset[int] = frozenset()
    participants: frozenset[Participant] = frozenset()
    is_deleted: bool = False
