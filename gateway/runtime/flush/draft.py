"""Decides on the work of a flush, in order of arrival, on loaded state.

Combines core's drafts for one flush. It changes nothing in memory and stores nothing: `decisions`
are released only once `effects` and `transactions` are committed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from core.errors import Error
from core.inbox.bite import BiteAnswer, append_bite, with_left_out
from core.inbox.values import InboxMove
from core.log.effects import IncomingBatch, LogEffects
from core.log.partition_log import Decision, LogDraft, PartitionLog, Refused
from core.log.retention import CONTROL
from core.staging.publication import PublicationDraft
from core.staging.values import Outcome, PublicationAnswer, PublicationEffects, TokenBatch
from core.transaction.draft import TransactionDraft
from core.transaction.key import TransactionKey
from core.transaction.values import (
    Marker,
    ProducerIdAndEpoch,
    StoredTransaction,
    TransactionEffects,
    Transition,
    TransitionAnswer,
)
from core.types import BatchFormat, RecordBatch
from gateway.runtime.flush.outcomes import Reason, Unconfirmed
from gateway.runtime.flush.work import (
    QueuedAppend,
    QueuedBite,
    QueuedPublication,
    QueuedTransition,
    QueuedWork,
)

NO_PARTITION = Refused(
    Error.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition."
)
TOO_EARLY = Unconfirmed(
    Reason.TOO_EARLY, "An earlier batch of this producer was refused and has to come first"
)

_NOT_ITS = Refused(
    Error.INVALID_PRODUCER_ID_MAPPING, "The producer id is not that of the transactional id."
)

MakeMarker = Callable[[Marker, int], bytes]
"""The bytes of a control batch, from a marker and a timestamp (ms); a front-end makes them."""

MustWait = Callable[[QueuedAppend, LogDraft], bool]
"""Whether an earlier batch of the same producer must come first (`core.log.retry_order`)."""


FlushDecision = Decision | Unconfirmed | TransitionAnswer | PublicationAnswer | BiteAnswer
"""On one piece of work."""


class FlushDraft:
    """The decisions of one flush.

    transactions: known ones by producer id (None: there is no such row) and, for transitions, by
    key. is_locked: whether they were read under the lock; else they are from memory, and only
    decisions that change something may be released (see `needs_lock`). publications: a draft on
    rows read under the lock.
    """

    def __init__(
        self,
        logs: Mapping[int, PartitionLog],
        by_producer: Mapping[int, StoredTransaction | None],
        by_key: Mapping[TransactionKey, StoredTransaction],
        publications: PublicationDraft,
        *,
        is_locked: bool,
        fresh_producers: frozenset[int],
        make_marker: MakeMarker,
        must_wait: MustWait,
        now_ms: int,
    ) -> None:
        self._logs = logs
        self._by_producer = by_producer
        self._by_key = by_key
        self._publications = publications
        self._is_locked = is_locked
        self._fresh = fresh_producers
        self._make_marker = make_marker
        self._must_wait = must_wait
        self._now_ms = now_ms
        self._drafts: dict[int, LogDraft] = {}
        self._transactions: dict[TransactionKey | int, TransactionDraft] = {}
        self.decisions: list[FlushDecision] = []
        self.moves: list[InboxMove] = []
        """Of the inbox's position."""
        self.doubtful: set[int] = set()
        """Producers: their transactions must be read again before a refusal may be given."""
        self.needs_lock = False
        """Whether, by memory alone, a transition changes nothing, or a name was claimed again."""

    def decide(self, work: Sequence[QueuedWork]) -> None:
        """Decides on all of it, in turn."""
        for queued in work:
            if isinstance(queued, QueuedTransition):
                self.decisions.append(self._decide_transition(queued).answer)
            elif isinstance(queued, QueuedPublication):
                left_out: list[TokenBatch] | None = None if queued.move is None else []
                answer = self._publications.prepare_publish(queued.publication, self._log, left_out)
                self.decisions.append(answer)
                if queued.move is not None and answer.outcome is Outcome.PUBLISHED:
                    self.moves.append(with_left_out(queued.move, left_out or (), self._log))
            elif isinstance(queued, QueuedBite):
                bite = append_bite(queued.batches, queued.move, self._log)
                self.decisions.append(bite)
                self.moves.append(bite.move)
            else:
                self.decisions.append(self._decide_append(queued))

    def effects(self) -> list[LogEffects]:
        """The changes to partitions."""
        return [effect for draft in self._drafts.values() if (effect := draft.effects())]

    def transactions(self) -> list[TransactionEffects]:
        """The changes to transactions, and the versions that appends to them rest on."""
        return [effect for each in self._transactions.values() if (effect := each.effects())]

    def publications(self) -> PublicationEffects | None:
        """The changes to guards and tokens."""
        return self._publications.effects()

    def committed(self) -> list[StoredTransaction]:
        """The transactions as they are once the effects are stored."""
        return [stored for each in self._transactions.values() if (stored := each.committed())]

    def _log(self, partition_id: int) -> LogDraft | None:
        draft = self._drafts.get(partition_id)
        if draft is None and (known := self._logs.get(partition_id)) is not None:
            draft = self._drafts[partition_id] = known.draft()
        return draft

    def _decide_append(self, queued: QueuedAppend) -> Decision | Unconfirmed:
        draft = self._log(queued.partition_id)
        if draft is None:
            return NO_PARTITION
        if self._must_wait(queued, draft):
            return TOO_EARLY
        sequenced = queued.sequenced
        if sequenced is not None and (known := draft.find_sequenced(sequenced)):
            # A claim does not move the partition, so memory of one may be old and no guard tells.
            self.needs_lock |= not self._is_locked and isinstance(known, Refused)
            return known
        if queued.batch.is_transactional and (refused := self._join(queued, draft)):
            return refused
        starts_at_zero = queued.transaction_version.starts_at_zero
        return draft.prepare_append(
            queued.incoming,
            starts_at_zero=starts_at_zero,
            sequenced=sequenced,
            topic_epoch=queued.topic_epoch,
        )

    def _join(self, queued: QueuedAppend, draft: LogDraft) -> Refused | None:
        """Why the batch may not join its transaction, or None. A duplicate has joined already."""
        batch = queued.batch
        known = draft.producer_of(batch)
        if known.find_duplicate(batch):
            return None
        transaction = self._transaction_of(batch.producer_id)
        is_first = known.txn_first_offset is None
        if queued.transaction not in (None, transaction.key) and (
            # If a transaction is open here, its producer was checked before (as in Kafka). One
            # whose key is used once names it with each batch.
            is_first or _is_used_once(queued.transaction) or _is_used_once(transaction.key)
        ):
            return self._not_joined(transaction, batch.producer_id, _NOT_ITS)
        joining = transaction.prepare_append(
            queued.partition_id,
            ProducerIdAndEpoch(batch.producer_id, batch.producer_epoch),
            queued.transaction_version,
            self._now_ms,
            is_first=is_first,
        )
        if joining.error is Error.NONE:
            return None
        refused = Refused(joining.error, joining.message or "")
        return self._not_joined(transaction, batch.producer_id, refused)

    def _not_joined(
        self, transaction: TransactionDraft, producer_id: int, refused: Refused
    ) -> Refused:
        if not transaction.is_fresh:
            self.doubtful.add(producer_id)
        return refused

    def _transaction_of(self, producer_id: int) -> TransactionDraft:
        stored = self._by_producer.get(producer_id)
        # A producer without a row gets its own draft, which changes nothing.
        key = stored.metadata.key if stored else None
        place = producer_id if key is None else key
        draft = self._transactions.get(place)
        if draft is None:
            is_fresh = producer_id in self._fresh
            draft = self._transactions[place] = TransactionDraft(key, stored, is_fresh=is_fresh)
        return draft

    def _decide_transition(self, queued: QueuedTransition) -> Transition:
        key = queued.key
        draft = self._transactions.get(key)
        if draft is None:
            draft = TransactionDraft(key, self._by_key.get(key), is_fresh=self._is_locked)
            self._transactions[key] = draft
        transition, partitions = draft.prepare_transition(queued.decide)
        self.needs_lock |= not self._is_locked and transition.put is None
        if transition.marker is not None and partitions:
            self._write_markers(transition.marker, partitions)
        return transition

    def _write_markers(self, marker: Marker, partitions: frozenset[int]) -> None:
        """One control batch serves all partitions; its bytes are stored once."""
        payload = self._make_marker(marker, self._now_ms)
        batch = RecordBatch(
            record_count=1,
            max_timestamp=self._now_ms,
            size=len(payload),
            format=BatchFormat.KAFKA_V2,
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            is_transactional=True,
            is_control=True,
        )
        incoming = IncomingBatch(batch, payload, CONTROL)
        for partition_id in sorted(partitions):
            # The partition may have been deleted since it joined.
            if (log := self._log(partition_id)) is not None:
                log.prepare_marker(marker, incoming)


def _is_used_once(key: TransactionKey | None) -> bool:
    return key is not None and key.kind.is_used_once
