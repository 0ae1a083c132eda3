"""Work that waits for a flush: batches for a partition, decisions on a transaction, publications of
staged batches, and of what waits in the inbox.

Values and their answers only; `flusher.py` decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from core.errors import Error
from core.inbox.bite import BiteAnswer
from core.inbox.values import BiteBatch, InboxMove
from core.log.effects import IncomingBatch
from core.log.named_sequences import SequencedBatch
from core.ports.log import BATCH_ROW_BYTES
from core.staging.values import Publication, PublicationAnswer
from core.transaction.draft import Decide
from core.transaction.key import TransactionKey
from core.transaction.values import TransactionVersion, TransitionAnswer
from core.types import NO_OFFSET, NO_PRODUCER_ID, NO_TIMESTAMP, RecordBatch
from gateway.runtime.flush.outcomes import Unconfirmed


@dataclass(frozen=True, slots=True)
class AppendResult:
    """The decision on one batch: stored, or refused by a rule.

    base_offset: its offset, or -1; also -1 if it is a duplicate by its producer's name: then it is
    not known where it lies. log_append_time is up to the caller. duplicate_timestamp: the stored
    batch's, if this one is a duplicate of it.
    """

    error: Error = Error.NONE
    message: str | None = None
    base_offset: int = NO_OFFSET
    log_start_offset: int = NO_OFFSET
    duplicate_timestamp: int = NO_TIMESTAMP


class Stream:
    """Batches of one sender for one partition, which are stored in the order they came in or not at
    all. is_broken: one was turned away, and its sender will send it again with all behind it."""

    __slots__ = ("is_broken",)

    def __init__(self) -> None:
        self.is_broken = False


Place = tuple[int, int, str | None]
"""A partition, and the producer that writes there, if the partition's memory of it is asked: by its
id (-1: not asked), by its name (None)."""


@dataclass(slots=True)
class QueuedAppend:
    """A batch on its way into a partition.

    transaction_version, transaction: its producer's, for a transactional batch. sequenced: what
    tells it from others of a named producer, where they are deduplicated. stream: see Stream.
    topic_epoch: as its writer was told, if it is one that is admitted (`core.topic.writers`).
    history: the database's history when it was queued. arrival: its ticket, a number in order of
    arrival. parked_at: since when it waits for a locked partition (the loop's seconds).
    """

    partition_id: int
    incoming: IncomingBatch
    done: asyncio.Future[AppendResult | Unconfirmed]
    transaction_version: TransactionVersion = TransactionVersion.V1
    transaction: TransactionKey | None = None
    sequenced: SequencedBatch | None = None
    stream: Stream | None = None
    topic_epoch: int | None = None
    history: int = 0
    arrival: int = 0
    parked_at: float = 0.0

    @property
    def batch(self) -> RecordBatch:
        """What the log must know of it."""
        return self.incoming.batch

    @property
    def size(self) -> int:
        """Bytes of payload it adds to a flush."""
        return self.incoming.batch.size

    @property
    def place(self) -> Place:
        """What must be known to decide on it."""
        name = None if self.sequenced is None else self.sequenced.name
        batch = self.incoming.batch
        return self.partition_id, batch.producer_id if batch.has_sequence else NO_PRODUCER_ID, name

    def resolve(self, result: AppendResult | Unconfirmed) -> None:
        """Answers, unless the caller has gone."""
        if not self.done.done():
            self.done.set_result(result)


@dataclass(slots=True)
class QueuedTransition:
    """A decision on a transaction, made in its turn, on what is stored then.

    producer_id: if memory of this producer's transaction may be used, provided that the decision
    then changes something; None if the transaction must be read first.
    """

    key: TransactionKey
    decide: Decide
    done: asyncio.Future[TransitionAnswer | Unconfirmed]
    producer_id: int | None = None
    history: int = 0
    arrival: int = 0
    parked_at: float = 0.0

    size = 0

    def resolve(self, answer: TransitionAnswer | Unconfirmed) -> None:
        """Answers, unless the caller has gone."""
        if not self.done.done():
            self.done.set_result(answer)


@dataclass(slots=True)
class QueuedPublication:
    """Tokens to be published, decided on in their turn.

    move: of the inbox, if it is what is published. partition_ids: the tokens' partitions when they
    were last read, under the lock.
    """

    publication: Publication
    done: asyncio.Future[PublicationAnswer | Unconfirmed]
    move: InboxMove | None = None
    history: int = 0
    partition_ids: set[int] = field(default_factory=set)
    arrival: int = 0
    parked_at: float = 0.0

    @property
    def size(self) -> int:
        """Bytes that its batches' rows add to a flush, so that many publications are several."""
        return BATCH_ROW_BYTES * sum(wanted.batches for wanted in self.publication.tokens)

    def resolve(self, answer: PublicationAnswer | Unconfirmed) -> None:
        """Answers, unless the caller has gone."""
        if not self.done.done():
            self.done.set_result(answer)


@dataclass(slots=True)
class QueuedBite:
    """What waited in the inbox, to be appended at once, or nothing of it.

    move: of the inbox's position. Its answer has what had to be left out.
    """

    batches: Sequence[BiteBatch]
    move: InboxMove
    done: asyncio.Future[BiteAnswer | Unconfirmed]
    history: int = 0
    arrival: int = 0
    parked_at: float = 0.0

    @property
    def size(self) -> int:
        """Bytes of payload it adds to a flush."""
        return sum(each.incoming.batch.size for each in self.batches)

    @property
    def partition_ids(self) -> set[int]:
        """The partitions it writes to."""
        return {each.partition_id for each in self.batches}

    def resolve(self, answer: BiteAnswer | Unconfirmed) -> None:
        """Answers, unless the caller has gone."""
        if not self.done.done():
            self.done.set_result(answer)


QueuedWork = QueuedAppend | QueuedTransition | QueuedPublication | QueuedBite


def appends(work: Iterable[QueuedWork]) -> list[QueuedAppend]:
    """The batches among the work of a flush, in order."""
    return [queued for queued in work if isinstance(queued, QueuedAppend)]


def transitions(work: Iterable[QueuedWork]) -> list[QueuedTransition]:
    """The decisions on transactions among it, in order."""
    return [queued for queued in work if isinstance(queued, QueuedTransition)]


def publications(work: Iterable[QueuedWork]) -> list[QueuedPublication]:
    """The publications among it, in order."""
    return [queued for queued in work if isinstance(queued, QueuedPublication)]


def bites(work: Iterable[QueuedWork]) -> list[QueuedBite]:
    """What comes from the inbox among it."""
    return [queued for queued in work if isinstance(queued, QueuedBite)]


def moves_inbox(queued: QueuedWork) -> bool:
    """Whether it rests on the inbox's position."""
    if isinstance(queued, QueuedPublication):
        return queued.move is not None
    return isinstance(queued, QueuedBite)


def transaction_of(queued: QueuedWork) -> int | None:
    """The producer of the transaction that is written to, or ended; None: none, or not known."""
    if isinstance(queued, QueuedAppend):
        batch = queued.incoming.batch
        return batch.producer_id if batch.is_transactional else None
    return queued.producer_id if isinstance(queued, QueuedTransition) else None


def resolve_all(work: Iterable[QueuedWork], outcome: Unconfirmed) -> None:
    """Gives all of it the same answer."""
    for queued in work:
        queued.resolve(outcome)
