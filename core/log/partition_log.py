"""The log of one partition: decides on appends, and remembers decisions once they are stored.

Decide → persist → replay: a `LogDraft` decides on loaded state plus its own overlay and changes
nothing; only effects that the store has committed are replayed into the `PartitionLog`.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from core.errors import Error
from core.log.aborted_txns import AbortedIndex, AbortedTransaction
from core.log.effects import AppendedRow, IncomingBatch, LogEffects, OpenTransaction
from core.log.named_sequences import (
    NamedSequence,
    NamedSequenceDraft,
    Sequenced,
    SequencedBatch,
)
from core.log.producer_state import ProducerState
from core.transaction.values import Marker
from core.types import NO_OFFSET, NO_PRODUCER_ID, NO_TIMESTAMP, NO_TOPIC_EPOCH, RecordBatch

MAX_OFFSET = 2**63 - 1
PRODUCERS_IN_MEMORY = 1_000
"""Producers a partition keeps loaded, by id and by name each; others are read again when they come
back."""


@dataclass(frozen=True, slots=True)
class PartitionState:
    """A partition's row: immutable, replaced as a whole, so that readers see one moment.

    next_offset: the log end offset, and the high watermark too, since everything visible is
    committed. max_timestamp: greatest of all batches ever appended, or -1. open_transactions: those
    that have written here, oldest first. They change only when next_offset moves, so it is their
    version too; a read of the row must read them in the same snapshot. terminated_offset: the log
    end when it was terminated, or -1; no record follows, but markers of transactions may.
    topic_epoch: how many writers had it for themselves so far (`core.topic.writers`), less one.
    Both are part of the version: an append rests on them.
    """

    partition_id: int
    next_offset: int = 0
    log_start_offset: int = 0
    leader_epoch: int = 0
    max_timestamp: int = NO_TIMESTAMP
    open_transactions: tuple[OpenTransaction, ...] = ()
    terminated_offset: int = NO_OFFSET
    topic_epoch: int = NO_TOPIC_EPOCH

    @property
    def is_terminated(self) -> bool:
        """Whether no record may be appended any more."""
        return self.terminated_offset != NO_OFFSET

    @property
    def high_watermark(self) -> int:
        """The first offset that no reader may see yet."""
        return self.next_offset

    @property
    def last_stable_offset(self) -> int:
        """The first offset that a read_committed reader may not see yet: the first record of the
        oldest open transaction, if there is one. Never below the log start."""
        if not self.open_transactions:
            return self.next_offset
        first = min(each.first_offset for each in self.open_transactions)
        return max(first, self.log_start_offset)


@dataclass(frozen=True, slots=True)
class Appended:
    """The batch gets `base_offset` once its effects are committed."""

    base_offset: int


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The batch is in the log already, from `base_offset` on; -1, and no timestamp, where only its
    producer's name and sequence id tell."""

    base_offset: int = NO_OFFSET
    timestamp: int = NO_TIMESTAMP


@dataclass(frozen=True, slots=True)
class Refused:
    """The batch may not enter the log."""

    error: Error
    message: str


Decision = Appended | Duplicate | Refused

TERMINATED = Refused(Error.POLICY_VIOLATION, "The topic is terminated: nothing is added to it")

FENCED = Refused(Error.PRODUCER_FENCED, "Another producer has had the topic for itself since")

NO_NAMES: Mapping[str, NamedSequence | None] = {}


class LogDraft:
    """Decisions of one flush on one partition: the loaded state and an overlay on top of it."""

    __slots__ = (
        "_aborted",
        "_bytes",
        "_forgotten",
        "_loaded",
        "_loaded_names",
        "_max_timestamp",
        "_names",
        "_next_offset",
        "_open",
        "_producers",
        "_rows",
        "state",
    )

    def __init__(
        self,
        state: PartitionState,
        producers: Mapping[int, ProducerState | None],
        names: Mapping[str, NamedSequence | None] = NO_NAMES,
    ) -> None:
        self.state = state
        self._loaded = producers
        self._loaded_names = names
        self._names: NamedSequenceDraft | None = None  # Kafka's batches need none
        self._next_offset = state.next_offset
        self._max_timestamp = state.max_timestamp
        self._bytes = 0
        self._rows: list[AppendedRow] = []
        self._producers: dict[int, ProducerState] = {}
        self._open: dict[int, int] = dict(state.open_transactions)
        self._aborted: list[AbortedTransaction] = []
        self._forgotten: set[int] = set()

    def prepare_append(
        self,
        incoming: IncomingBatch,
        *,
        starts_at_zero: bool = False,
        sequenced: SequencedBatch | None = None,
        topic_epoch: int | None = None,
    ) -> Decision:
        """Decides on one batch, in arrival order.

        The producer's state must be loaded if the batch has a sequence (KeyError otherwise: a bug
        in the caller). starts_at_zero: see ProducerState.refusal. sequenced: of a producer that is
        known by its name, if its partition is deduplicated. topic_epoch: as its writer was told, if
        it is one that is admitted.
        """
        batch = incoming.batch
        if topic_epoch is not None and topic_epoch < self.state.topic_epoch:
            return FENCED
        if sequenced is not None and (known := self.find_sequenced(sequenced)):
            return known
        if self.state.is_terminated:
            return self._known(incoming.batch) or TERMINATED
        base_offset = self._next_offset
        if base_offset > MAX_OFFSET - batch.record_count:
            return Refused(Error.INVALID_RECORD, "the partition has no offsets left")
        if batch.has_producer_id:
            state = self.producer_of(batch)
            if duplicate := state.find_duplicate(batch):
                return Duplicate(duplicate.base_offset, duplicate.timestamp)
            if refusal := state.refusal(batch, starts_at_zero=starts_at_zero):
                return Refused(*refusal)
            self._producers[batch.producer_id] = state.replay_append(batch, base_offset)
            if batch.is_transactional:
                self._open.setdefault(batch.producer_id, base_offset)
        if sequenced is not None:
            self._named().prepare(sequenced)
        return self._add(incoming)

    def _known(self, batch: RecordBatch) -> Duplicate | None:
        """The batch as it is in the log, if its producer is told that it is."""
        if not batch.has_sequence:
            return None
        found = self.producer(batch.producer_id).find_duplicate(batch)
        return None if found is None else Duplicate(found.base_offset, found.timestamp)

    def find_sequenced(self, sequenced: SequencedBatch) -> Duplicate | Refused | None:
        """Why a batch of a named producer does not enter the log; None if it is new. Changes
        nothing. Raises KeyError where the name is not loaded."""
        match self._named().verdict(sequenced):
            case Sequenced.NEW:
                return None
            case Sequenced.DUPLICATE:
                return Duplicate()
            case Sequenced.FENCED:
                return Refused(Error.PRODUCER_FENCED, "Another producer has taken its name since")

    def _named(self) -> NamedSequenceDraft:
        if self._names is None:
            self._names = NamedSequenceDraft(self._loaded_names)
        return self._names

    def prepare_marker(self, marker: Marker, incoming: IncomingBatch) -> Appended:
        """Appends a control batch of one record, whether the producer has written here or not.

        Nothing is refused: the transaction's row is the authority, and the caller holds it. For a
        marker of a transaction without a row, ask `ProducerState.marker_refusal` first. The
        producer's state must be loaded.
        """
        known = (
            self._unsequenced(marker.producer_id)
            if marker.is_last
            else self.producer(marker.producer_id)
        )
        offset = self._next_offset
        self._producers[marker.producer_id] = known.replay_marker(
            marker, incoming.batch.max_timestamp
        )
        if marker.is_last:
            self._forgotten.add(marker.producer_id)
        self._open.pop(marker.producer_id, None)
        if known.txn_first_offset is not None and not marker.is_commit:
            self._aborted.append(
                AbortedTransaction(marker.producer_id, known.txn_first_offset, offset)
            )
        return self._add(incoming)

    def _add(self, incoming: IncomingBatch) -> Appended:
        """Gives the batch the next offsets."""
        batch, base_offset = incoming.batch, self._next_offset
        if batch.max_timestamp > self._max_timestamp:
            self._max_timestamp = batch.max_timestamp
        self._rows.append(AppendedRow(incoming, base_offset, self._max_timestamp))
        self._next_offset += batch.record_count
        self._bytes += batch.size
        return Appended(base_offset)

    def producer(self, producer_id: int) -> ProducerState:
        """A producer's state, with the decisions of this flush. It must be loaded."""
        known = self._producers.get(producer_id)
        return known or self._loaded[producer_id] or ProducerState(producer_id)

    def producer_of(self, batch: RecordBatch) -> ProducerState:
        """The state of a batch's producer, which must be loaded if the batch has a sequence."""
        if batch.has_sequence:
            return self.producer(batch.producer_id)
        return self._unsequenced(batch.producer_id)

    def _unsequenced(self, producer_id: int) -> ProducerState:
        """The state of a producer whose batches have no sequences: all that a partition remembers
        of it is its open transaction, so nothing need be loaded."""
        known = self._producers.get(producer_id)
        if known is not None:
            return known
        return ProducerState(producer_id, txn_first_offset=self._open.get(producer_id))

    def effects(self) -> LogEffects | None:
        """What the decisions change, or None if they change nothing."""
        if not self._rows:
            return None
        return LogEffects(
            partition_id=self.state.partition_id,
            expected_offset=self.state.next_offset,
            next_offset=self._next_offset,
            max_timestamp=self._max_timestamp,
            added_bytes=self._bytes,
            rows=tuple(self._rows),
            producers=tuple(
                each for each in self._producers.values() if each.producer_id not in self._forgotten
            )
            if self._forgotten
            else tuple(self._producers.values()),
            open_transactions=tuple(OpenTransaction(*each) for each in self._open.items()),
            aborted=tuple(self._aborted),
            names=self._names.effects() if self._names is not None else (),
            terminated_offset=self.state.terminated_offset,
            forgotten=tuple(self._forgotten),
            topic_epoch=self.state.topic_epoch,
        )


class PartitionLog:
    """A partition as this process remembers it. A cache: the store's row is the truth.

    aborted: the newest aborted transactions. It is replaced together with `state`.
    """

    __slots__ = ("_names", "_producers", "aborted", "state")

    def __init__(self, state: PartitionState) -> None:
        self.state = state
        self.aborted = AbortedIndex(known_from=state.next_offset)
        self._producers: OrderedDict[int, ProducerState | None] = OrderedDict()
        self._names: OrderedDict[str, NamedSequence | None] = OrderedDict()

    def missing_producers(self, producer_ids: Iterable[int]) -> set[int]:
        """The producers that must be loaded before a draft may decide on them."""
        return {
            producer_id
            for producer_id in producer_ids
            if producer_id > NO_PRODUCER_ID and producer_id not in self._producers
        }

    def is_name_missing(self, name: str) -> bool:
        """Whether a producer's name must be loaded before a draft may decide on it."""
        return name not in self._names

    def forget_name(self, name: str) -> None:
        """What is known of a name is not what the store has any more: it was claimed."""
        self._names.pop(name, None)

    def load(
        self,
        state: PartitionState,
        producers: Mapping[int, ProducerState | None],
        names: Mapping[str, NamedSequence | None] = NO_NAMES,
    ) -> None:
        """Takes over what a read of the store found.

        If next_offset has changed, other producers may have changed as well, and transactions may
        have been aborted, so all memory of them is dropped. A read that is older than memory is
        ignored.
        """
        if state.next_offset < self.state.next_offset:
            return
        if state.next_offset != self.state.next_offset:
            self._producers.clear()
            self._names.clear()
            self.aborted = AbortedIndex(known_from=state.next_offset)
        self._producers.update(producers)
        self._names.update(names)
        # These change without next_offset, so an earlier read may arrive later.
        self.state = replace(
            state,
            log_start_offset=max(state.log_start_offset, self.state.log_start_offset),
            leader_epoch=max(state.leader_epoch, self.state.leader_epoch),
            terminated_offset=max(state.terminated_offset, self.state.terminated_offset),
            topic_epoch=max(state.topic_epoch, self.state.topic_epoch),
        )

    def advance(self, state: PartitionState) -> None:
        """Takes over a row alone, from a read or a notification."""
        self.load(state, {})

    def raise_topic_epoch(self, topic_epoch: int) -> None:
        """Takes over a topic epoch that is stored."""
        self.state = replace(self.state, topic_epoch=max(topic_epoch, self.state.topic_epoch))

    def draft(self) -> LogDraft:
        """A fresh draft on what is known now."""
        return LogDraft(self.state, self._producers, self._names)

    def replay(self, effects: LogEffects) -> None:
        """Applies committed effects. Effects on another version than the known one are ignored:
        a later read has overtaken them."""
        if effects.expected_offset != self.state.next_offset:
            return
        for producer in effects.producers:
            self._producers[producer.producer_id] = producer
            self._producers.move_to_end(producer.producer_id)
        for producer_id in effects.forgotten:
            self._producers.pop(producer_id, None)
        for named in effects.names:
            self._names[named.name] = named
            self._names.move_to_end(named.name)
        self.aborted = self.aborted.with_newer(effects.aborted)
        self.state = PartitionState(
            partition_id=effects.partition_id,
            next_offset=effects.next_offset,
            log_start_offset=self.state.log_start_offset,
            leader_epoch=self.state.leader_epoch,
            max_timestamp=effects.max_timestamp,
            open_transactions=effects.open_transactions,
            terminated_offset=self.state.terminated_offset,
            topic_epoch=self.state.topic_epoch,
        )

    def trim(self) -> None:
        """Forgets the least recently used producers; between flushes, never under a draft."""
        while len(self._producers) > PRODUCERS_IN_MEMORY:
            self._producers.popitem(last=False)
        while len(self._names) > PRODUCERS_IN_MEMORY:
            self._names.popitem(last=False)
