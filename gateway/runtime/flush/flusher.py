"""The flush: decides on all waiting work in order of arrival, commits it at once, and answers.

decide (core) → persist (store) → replay (core) → answer. Knows no protocol and no SQL. A decision
is released only once it is committed or, if it changes nothing, confirmed by a fresh read. A
decision that says that something is stored already also waits for a commit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence

import structlog

from core.errors import Error
from core.inbox.bite import BiteAnswer
from core.inbox.values import BiteBatch, InboxMove
from core.log.effects import LogEffects
from core.log.named_sequences import BrokenClaims
from core.log.partition_log import (
    Appended,
    Decision,
    Duplicate,
    LogDraft,
    PartitionLog,
    Refused,
)
from core.log.retention import CONTROL
from core.log.retry_order import RetryOrder
from core.ports.inbox import InboxOvertaken
from core.ports.log import (
    CommitUnknown,
    EffectRefused,
    Flush,
    Locked,
    LogStore,
    RowLocked,
    SegmentGone,
    StoreUnavailable,
    VersionMismatch,
)
from core.staging.publication import PublicationDraft
from core.staging.values import Publication, PublicationAnswer
from core.transaction.draft import Decide
from core.transaction.key import TransactionKey
from core.transaction.values import StoredTransaction, TransitionAnswer
from core.types import NO_OFFSET
from gateway.runtime.flush.coalescing import Coalescing
from gateway.runtime.flush.draft import FlushDecision, FlushDraft, MakeMarker
from gateway.runtime.flush.gathering import Gathering
from gateway.runtime.flush.locked_rows import LockedRows
from gateway.runtime.flush.memory import FlushMemory, transactional_producers
from gateway.runtime.flush.outcomes import Reason, Unconfirmed
from gateway.runtime.flush.queue import FlushQueue
from gateway.runtime.flush.work import (
    AppendResult,
    QueuedAppend,
    QueuedBite,
    QueuedPublication,
    QueuedTransition,
    QueuedWork,
    appends,
    bites,
    moves_inbox,
    publications,
    resolve_all,
    transaction_of,
)

log = structlog.get_logger(__name__)

CONTENDED_FOR_S = 1.0
PARKED_RETRY_S = 0.2
PARKED_LIMIT_S = 30.0
MISMATCHES_UNDER_LOCK = 10
"""A row that did not exist could not be locked, and may cause one. So many are a bug: give up."""

OnAppended = Callable[[LogEffects, bool], None]
"""Called after each commit with a partition's effects, and whether they belong to the database's
present history."""


class Flusher:
    """All appends, transitions and publications of this process.

    logs: the partitions as committed, by id; readers may add what they have read.
    make_marker: the bytes of a control batch.
    """

    def __init__(self, store: LogStore, *, max_flush_bytes: int, make_marker: MakeMarker) -> None:
        self._store = store
        self.logs: dict[int, PartitionLog] = {}
        self._memory = FlushMemory(store, self.logs)
        self._on_appended: OnAppended = lambda effects, is_current: None
        self._make_marker = make_marker
        self.gathering = Gathering()
        self._queue = FlushQueue(
            self._settle_queued,
            limit=max_flush_bytes,
            weigh=lambda queued: queued.size,
            gather=self._gather,
        )
        self._flush = store.open_flush()
        self.arrived = 0  # work so far, of all kinds
        self._settling = asyncio.Lock()  # one flush at a time decides and commits
        self._contended_until: dict[int, float] = {}
        self._locked_rows = LockedRows()
        self._coalescing = Coalescing(self._enqueue)
        self._wake_parked = asyncio.Event()  # something is parked, or nothing will be any more
        self.retry_order = RetryOrder()
        self._broken_claims = BrokenClaims()
        self.fenced = 0  # batches refused for their producer's epoch
        self._history = 0
        self._parked: asyncio.Task[None] | None = None
        self._is_flushed = False

    def on_appended(self, listener: OnAppended) -> None:
        """Registers a listener; it is called after each commit."""
        self._on_appended = listener

    def start(self) -> None:
        """Starts the work in the background."""
        self._parked = asyncio.create_task(self._run_parked())

    async def close(self) -> None:
        """Finishes what is queued, then stops."""
        self._coalescing.release_all()
        await self._queue.close()
        self._is_flushed = True
        self._wake_parked.set()
        if self._parked is not None:
            await self._parked
        await self._flush.close()

    async def drain(self) -> None:
        """Returns when all that was queued so far is stored or refused."""
        self._coalescing.release_all()
        # Whoever gives up waiting must not end the flush.
        await asyncio.shield(asyncio.ensure_future(self._queue.close()))
        while self._locked_rows:  # noqa: ASYNC110 - looked at as often as they are tried
            await asyncio.sleep(PARKED_RETRY_S)

    def submit(self, queued: QueuedWork) -> None:
        """Queues a batch, a transition or a publication; the order of these calls is the order
        within a partition and a producer."""
        producer_id = transaction_of(queued)
        if producer_id is not None:
            self.gathering.note(producer_id)
        if not self._coalescing.keeps(queued):
            self._enqueue(queued)

    def _gather(self, queued: QueuedWork, count: int) -> float:
        """See FlushQueue: only transactions' work waits for more, and only for other such."""
        return 0 if transaction_of(queued) is None else self.gathering.wait_s(count)

    def transition(
        self, key: TransactionKey, decide: Decide, producer_id: int | None = None
    ) -> asyncio.Future[TransitionAnswer | Unconfirmed]:
        """Queues a decision on a transaction; resolves once it is stored.

        decide: called in its turn with what is stored then; may be called more than once.
        producer_id: of the transaction, if memory may stand in for the stored row.
        """
        done: asyncio.Future[TransitionAnswer | Unconfirmed]
        done = asyncio.get_running_loop().create_future()
        self.submit(QueuedTransition(key, decide, done, producer_id))
        return done

    def publish(
        self, publication: Publication, move: InboxMove | None = None
    ) -> asyncio.Future[PublicationAnswer | Unconfirmed]:
        """Queues a publication of what is staged; resolves once it is stored. move: of the inbox's
        position, with it."""
        done: asyncio.Future[PublicationAnswer | Unconfirmed]
        done = asyncio.get_running_loop().create_future()
        self.submit(QueuedPublication(publication, done, move))
        return done

    def publish_bite(
        self, batches: Sequence[BiteBatch], move: InboxMove
    ) -> asyncio.Future[BiteAnswer | Unconfirmed]:
        """Queues what waited in the inbox; resolves once it is stored."""
        done: asyncio.Future[BiteAnswer | Unconfirmed]
        done = asyncio.get_running_loop().create_future()
        self.submit(QueuedBite(batches, move, done))
        return done

    def expect_writes(
        self, key: TransactionKey, producer_id: int, partition_ids: Iterable[int]
    ) -> None:
        """A transaction's batches for these partitions are on their way in separate requests:
        they wait for each other, for a moment."""
        self._coalescing.expect(key, producer_id, partition_ids)

    def _enqueue(self, queued: QueuedWork) -> None:
        queued.arrival = self.arrived
        self.arrived += 1
        queued.history = self._history
        if self._locked_rows.takes(queued):
            self._park([queued])
            return
        self._queue.put(queued)

    def known_transaction(self, producer_id: int) -> StoredTransaction | None:
        """A producer's transaction in memory; the stored row may be newer."""
        return self._memory.transactions.get(producer_id)

    def note_transaction(self, stored: StoredTransaction) -> None:
        """Takes over a transaction that was read, or has just been committed."""
        self._memory.remember({stored.metadata.producer_id: stored})

    def forget_everything(self) -> None:
        """Drops all partitions and transactions: after a failover, another history may give their
        ids out again."""
        self._history += 1
        self.logs.clear()
        self._memory.transactions.clear()
        self.retry_order.forget_everything()

    # The flusher.

    async def _settle_queued(self, work: list[QueuedWork]) -> None:
        async with self._settling:
            await self._flush_work(self._flush, work)

    async def _flush_work(
        self, flush: Flush, work: list[QueuedWork], *, from_parked: bool = False
    ) -> None:
        """Decides, commits and answers; if that fails, it answers all the same."""
        try:
            await self._settle(flush, work, from_parked=from_parked)
        except (StoreUnavailable, RowLocked) as error:
            await self._give_up(flush, work, error)
        except Exception:  # a bug must not stop every later append
            log.exception("flush_failed", batches=len(work))
            work = self._still_ours(work)
            self._memory.forget(work)
            self._break_claims(work)
            resolve_all(work, Unconfirmed(Reason.FAILED, "the broker failed; see its log"))
            await flush.rollback()
        finally:
            self._memory.trim()

    async def _give_up(
        self, flush: Flush, work: Sequence[QueuedWork], error: StoreUnavailable | RowLocked
    ) -> None:
        """Asks clients to try again, whether the batch is certainly not stored or may be stored.

        RowLocked gets here if a whole table is locked (by hand): then parking cannot help.
        """
        work = self._still_ours(work)
        self._memory.forget(work)
        self._turn_away(work)
        await flush.rollback()
        if isinstance(error, CommitUnknown):
            log.warning("commit_unknown", batches=len(work), reason=str(error))
            resolve_all(work, Unconfirmed(Reason.UNKNOWN, "the commit's outcome is unknown"))
        else:
            log.warning("database_unavailable", batches=len(work), reason=str(error))
            resolve_all(work, Unconfirmed(Reason.NOT_STORED, "the database is not available"))

    def _still_ours(self, work: Sequence[QueuedWork]) -> list[QueuedWork]:
        """The work without what was parked meanwhile; that is stored or refused later."""
        parked = self._locked_rows.arrivals()
        return [queued for queued in work if queued.arrival not in parked]

    def _turn_away(self, work: Iterable[QueuedWork]) -> None:
        """The producers will send these batches again; those behind them must wait."""
        now = asyncio.get_running_loop().time()
        for queued in appends(work):
            if not queued.done.done():
                self.retry_order.note(queued.partition_id, queued.batch, now)
        self._break_claims(work)

    def _break_claims(self, work: Iterable[QueuedWork]) -> None:
        """Named producers will send these batches again, too, under a claim of then."""
        now = asyncio.get_running_loop().time()
        for queued in appends(work):
            if queued.stream is not None:
                queued.stream.is_broken = True
            if queued.sequenced is not None:
                self._broken_claims.note(queued.sequenced, now)

    # Deciding and committing.

    async def _settle(
        self, flush: Flush, work: list[QueuedWork], *, from_parked: bool = False
    ) -> None:
        """Decides on the work of a flush, commits, replays and answers; repeats if it must."""
        skip_locked = from_parked
        under_lock = from_parked or bool(publications(work)) or self._is_contended(work)
        fresh: set[int] = set()
        fresh_producers: set[int] = set()
        absent: set[int] = set()
        failures = segments_gone = 0
        await flush.prepare(_retention_classes(work))
        while True:
            if not from_parked:
                work = self._without_parked(work)
            if not work:
                await flush.rollback()
                return
            ending = None if under_lock else self._memory.ending(work)
            if ending is None:
                under_lock = True
                work, away, locked = await self._memory.load_under_lock(
                    flush, work, skip_locked=skip_locked
                )
                self._park(away)
                fresh = {queued.partition_id for queued in appends(work)}
                fresh_producers = set(transactional_producers(work))
            else:
                locked = Locked({}, {}, ending)
                await self._memory.load_missing(work, ending, absent)
                if self._memory.ending(work) != ending:
                    under_lock = True  # a partition or group joined during the read
                    continue
            draft = self._decide(work, locked, fresh_producers, is_locked=under_lock)
            if draft.needs_lock:
                under_lock = True
                continue
            history = self._history
            effects, transactions = draft.effects(), draft.transactions()
            published = draft.publications()
            inbox = draft.moves
            moved = {effect.partition_id for effect in effects}
            unconfirmed = {p.partition_id for p in appends(work)} - moved - fresh
            doubtful = draft.doubtful - fresh_producers
            if unconfirmed or doubtful:
                absent |= await self._memory.reload(
                    [p.place for p in appends(work) if p.partition_id in unconfirmed]
                )
                await self._memory.reload_transactions(doubtful)
                fresh |= unconfirmed
                fresh_producers |= doubtful
                continue
            moves = any(each.put or each.is_deleted for each in transactions)
            if not (
                effects or moves or published or inbox or any(map(_is_stored, draft.decisions))
            ):
                await flush.rollback()
                self._answer(work, draft, ())
                return
            try:
                await flush.commit(effects, transactions, published, inbox)
            except InboxOvertaken as error:
                resolve_all(filter(moves_inbox, work), Unconfirmed(Reason.NOT_STORED, str(error)))
                work = [queued for queued in work if not moves_inbox(queued)]
            except VersionMismatch:
                failures += under_lock
                if failures == MISMATCHES_UNDER_LOCK:
                    raise StoreUnavailable("rows move that are locked") from None
                until = asyncio.get_running_loop().time() + CONTENDED_FOR_S
                self._contended_until.update(dict.fromkeys(moved, until))
                under_lock = True
            except RowLocked:
                under_lock = skip_locked = True
            except SegmentGone:
                segments_gone += 1
                if segments_gone == 5:
                    raise StoreUnavailable("segments are dropped faster than written") from None
                await flush.prepare(_retention_classes(work))
            except EffectRefused as error:
                await self._find_culprit(flush, work, error, from_parked=from_parked)
                return
            else:
                if effects or moves or published or inbox or history == self._history:
                    self._answer(work, draft, effects)
                    return
                # Nothing was guarded, and the read was of another history than the commit.
            fresh, fresh_producers = set(), set()

    def _decide(
        self,
        work: Sequence[QueuedWork],
        locked: Locked,
        fresh_producers: set[int],
        *,
        is_locked: bool,
    ) -> FlushDraft:
        draft = FlushDraft(
            self._memory.logs,
            self._memory.transactions,
            {each.metadata.key: each for each in locked.transactions},
            PublicationDraft(locked.published, locked.tokens),
            is_locked=is_locked,
            fresh_producers=frozenset(fresh_producers),
            make_marker=self._make_marker,
            must_wait=self._comes_too_early,
            now_ms=time.time_ns() // 1_000_000,
        )
        draft.decide(work)
        return draft

    def _comes_too_early(self, queued: QueuedAppend, draft: LogDraft) -> bool:
        batch = queued.batch
        if queued.stream is not None and queued.stream.is_broken:
            return True
        if queued.sequenced is not None and queued.sequenced in self._broken_claims:
            return True
        if not self.retry_order or not batch.has_sequence:
            return False
        now = asyncio.get_running_loop().time()
        state = draft.producer(batch.producer_id)
        return self.retry_order.must_wait(queued.partition_id, batch, state, now)

    def _answer(
        self,
        work: Sequence[QueuedWork],
        draft: FlushDraft,
        effects: Sequence[LogEffects],
    ) -> None:
        """Replays committed effects, then sends all answers."""
        # Else they may have been committed to a lost history.
        is_current = all(queued.history == self._history for queued in work)
        if is_current:
            for stored in draft.committed():
                self._memory.remember({stored.metadata.producer_id: stored})
        for effect in effects:
            if known := self._memory.logs.get(effect.partition_id):
                known.replay(effect)
                known.trim()
            self._on_appended(effect, is_current)
        for queued, decision in zip(work, draft.decisions, strict=True):
            if isinstance(queued, QueuedAppend):
                assert not isinstance(
                    decision, TransitionAnswer | PublicationAnswer | BiteAnswer
                ), "not an append's"
                self._answer_append(queued, decision)
            elif isinstance(queued, QueuedBite):
                assert isinstance(decision, BiteAnswer), "not a bite's"
                queued.resolve(decision)
            elif isinstance(queued, QueuedPublication):
                assert isinstance(decision, PublicationAnswer), "not a publication's"
                queued.resolve(decision)
            else:
                assert isinstance(decision, TransitionAnswer), (
                    "a transition is answered by a coordinator"
                )
                if queued.producer_id is not None:
                    self.gathering.leave(queued.producer_id)
                queued.resolve(decision)

    def _answer_append(self, queued: QueuedAppend, decision: Decision | Unconfirmed) -> None:
        partition_id, batch = queued.partition_id, queued.batch
        match decision:
            case Appended(base_offset):
                self.retry_order.note_stored(partition_id, batch, is_new=True)
                start = self._log_start(partition_id)
                queued.resolve(AppendResult(Error.NONE, None, base_offset, start))
            case Duplicate() if queued.history != self._history:
                # The batch it repeats may be lost; this commit proves nothing about that one.
                self._break_claims([queued])
                message = "the database has another history now"
                queued.resolve(Unconfirmed(Reason.NOT_STORED, message))
            case Duplicate(base_offset, timestamp):
                self.retry_order.note_stored(partition_id, batch, is_new=False)
                start = self._log_start(partition_id)
                queued.resolve(AppendResult(Error.NONE, None, base_offset, start, timestamp))
            case Refused(error, message):
                self.fenced += error is Error.INVALID_PRODUCER_EPOCH
                queued.resolve(AppendResult(error, message))
            case Unconfirmed():
                queued.resolve(decision)

    def _log_start(self, partition_id: int) -> int:
        known = self._memory.logs.get(partition_id)
        return known.state.log_start_offset if known else NO_OFFSET

    async def _find_culprit(
        self,
        flush: Flush,
        work: Sequence[QueuedWork],
        error: EffectRefused,
        *,
        from_parked: bool = False,
    ) -> None:
        """The database refused something: tries each piece alone, to refuse only the culprit."""
        if error.out_of_space:
            log.error("database_out_of_space", reason=str(error))
            self._memory.forget(work)
            self._turn_away(work)
            message = "the database has no space left"
            resolve_all(work, Unconfirmed(Reason.OUT_OF_SPACE, message))
        elif len(work) == 1:
            log.error("effect_refused_by_database", of=_name(work[0]), reason=str(error))
            self._memory.forget(work)
            self._break_claims(work)
            work[0].resolve(Unconfirmed(Reason.FAILED, str(error)))
        else:
            for index, queued in enumerate(work):
                if from_parked and self._locked_rows.is_waited_for(queued):
                    self._park(work[index:])  # an earlier one was parked again
                    return
                try:
                    await self._settle(flush, [queued], from_parked=from_parked)
                except EffectRefused as refusal:
                    await self._find_culprit(flush, [queued], refusal)

    def is_contended(self, partition_id: int) -> bool:
        """Whether another broker has lately written to the partition between two flushes of this
        one, so that a flush reads it first."""
        until = self._contended_until.get(partition_id)
        return until is not None and until >= asyncio.get_running_loop().time()

    def _is_contended(self, work: Sequence[QueuedWork]) -> bool:
        """Whether one of the partitions is contended. Then locking first costs a round trip, but
        not locking costs a flush."""
        if not self._contended_until:
            return False
        now = asyncio.get_running_loop().time()
        for partition_id in [i for i, until in self._contended_until.items() if until < now]:
            del self._contended_until[partition_id]
        return not self._memory.touched_by(work).isdisjoint(self._contended_until)

    # Work on rows that another broker holds longer than `lock_timeout` waits, in order, alone.

    def _park(self, work: Iterable[QueuedWork]) -> None:
        now = asyncio.get_running_loop().time()
        for queued in work:
            if self._locked_rows.add(queued, now):
                log.warning("row_locked", of=_name(queued))
                self._wake_parked.set()
                for each in self._queue.withdraw(self._locked_rows.takes):
                    self._locked_rows.add(each, now)

    def _without_parked(self, work: list[QueuedWork]) -> list[QueuedWork]:
        if not self._locked_rows:
            return work
        self._park([queued for queued in work if self._locked_rows.takes(queued)])
        return [queued for queued in work if not self._locked_rows.takes(queued)]

    async def _run_parked(self) -> None:
        flush = self._store.open_flush()
        # Until the last flush is done, more work may be parked.
        while not (self._is_flushed and not self._locked_rows):
            if not self._locked_rows:
                self._wake_parked.clear()
                await self._wake_parked.wait()
                continue
            await asyncio.sleep(PARKED_RETRY_S)
            for row_key in self._locked_rows.row_keys():
                # A flush under way may hold earlier batches of the partition than the parked ones.
                # Once it is done there are none: newcomers are parked at once.
                async with self._settling:
                    work = self._locked_rows.take_out(row_key)
                    await self._retry_parked(flush, work)
                    self._locked_rows.tidy(row_key)
        await flush.close()

    async def _retry_parked(self, flush: Flush, work: list[QueuedWork]) -> None:
        limit = asyncio.get_running_loop().time() - PARKED_LIMIT_S
        overdue = [queued for queued in work if queued.parked_at < limit]
        self._turn_away(overdue)
        message = "another broker holds the partition"
        resolve_all(overdue, Unconfirmed(Reason.HELD_ELSEWHERE, message))
        work = [queued for queued in work if queued.parked_at >= limit]
        if work:
            await self._flush_work(flush, work, from_parked=True)


def _is_stored(decision: FlushDecision) -> bool:
    """Whether the answer says that something is stored.

    If it was stored before, that commit may not have reached a required standby yet. The client
    will rely on the answer, so it waits for a later commit.
    """
    if isinstance(decision, TransitionAnswer | PublicationAnswer):
        return decision.error is Error.NONE
    return not isinstance(decision, Refused | Unconfirmed)


def _name(queued: QueuedWork) -> int | str:
    """The partition's id, the transaction's name or the query's, for the log."""
    if isinstance(queued, QueuedAppend):
        return queued.partition_id
    if isinstance(queued, QueuedPublication):
        return queued.publication.guard.query_id
    return "the inbox" if isinstance(queued, QueuedBite) else queued.key.name


def _retention_classes(work: Sequence[QueuedWork]) -> set[str]:
    """The retention classes whose segments the work may write to."""
    classes = {queued.incoming.retention_class for queued in appends(work)}
    classes |= {each.incoming.retention_class for bite in bites(work) for each in bite.batches}
    if any(isinstance(queued, QueuedTransition) for queued in work):
        classes.add(CONTROL)  # its marker
    return classes
