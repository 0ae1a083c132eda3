"""Group commit: what waits is staged, decided in order of arrival, committed at once, answered.

decide (core) → persist (store) → replay (core) → answer. Knows no protocol and no SQL. A decision
is released only once it is committed or, where it changes nothing, confirmed by a fresh read.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from core.errors import Error
from core.log.effects import LogEffects, StagedBatch
from core.log.partition_log import (
    Appended,
    Decision,
    Duplicate,
    LogDraft,
    PartitionLog,
    PartitionState,
    Refused,
)
from core.log.producer_state import ProducerState
from core.log.turned_away import TurnedAway
from core.ports import (
    CommitUnknown,
    EffectRefused,
    Flush,
    LogStore,
    Payload,
    RowLocked,
    SegmentGone,
    StoreUnavailable,
    VersionMismatch,
)
from core.types import NO_OFFSET, NO_TIMESTAMP, RecordBatch

log = structlog.get_logger(__name__)

BATCH_ID_BLOCK = 10_000
CONTENDED_FOR_S = 1.0
LOAD_ATTEMPTS = 20
PARKED_RETRY_S = 0.2
PARKED_LIMIT_S = 30.0


@dataclass(frozen=True, slots=True)
class AppendResult:
    """What became of one batch.

    base_offset: where it lies, or -1. log_append_time is the caller's own; `duplicate_timestamp`
    is the stored batch's where this one had been appended before.
    """

    error: Error = Error.NONE
    message: str | None = None
    base_offset: int = NO_OFFSET
    log_start_offset: int = NO_OFFSET
    duplicate_timestamp: int = NO_TIMESTAMP


@dataclass(slots=True)
class PendingAppend:
    """A batch on its way into a partition.

    history: which history of the database it was queued under. arrival, parked_at: its place among
    the others, and since when it waits for a locked partition (the loop's seconds).
    """

    partition_id: int
    retention_class: str
    batch: RecordBatch
    payload: Payload
    done: asyncio.Future[AppendResult]
    history: int = 0
    staged: StagedBatch | None = None
    arrival: int = 0
    parked_at: float = 0.0

    def resolve(self, result: AppendResult) -> None:
        """Answers, unless whoever asked has gone."""
        if not self.done.done():
            self.done.set_result(result)


OnAppended = Callable[[LogEffects, Sequence[PendingAppend]], None]
"""Called after each commit with a partition's effects and the batches appended, in order."""


class Appender:
    """All appends of this process."""

    def __init__(
        self,
        store: LogStore,
        logs: dict[int, PartitionLog],
        on_appended: OnAppended,
        *,
        max_flush_bytes: int,
    ) -> None:
        self._store = store
        self._logs = logs
        self._on_appended = on_appended
        self._max_bytes = max_flush_bytes
        self._queue: deque[PendingAppend] = deque()
        self._arrivals = itertools.count()
        self._wake = asyncio.Event()
        self._settling = asyncio.Lock()  # one flush at a time decides and commits
        self._batch_ids: deque[int] = deque()
        self._contended_until: dict[int, float] = {}
        self._parked: dict[int, list[PendingAppend]] = {}
        self._turned_away = TurnedAway()
        self._tasks: list[asyncio.Task[None]] = []
        self._closing = False
        self._is_flushed = False

    def start(self) -> None:
        """Starts the work in the background."""
        self._tasks.append(asyncio.create_task(self._run_flusher()))
        self._tasks.append(asyncio.create_task(self._run_parked()))

    async def close(self) -> None:
        """Finishes what is queued, then stops."""
        self._closing = True
        self._wake.set()
        await asyncio.gather(*self._tasks)

    def submit(self, pending: PendingAppend) -> None:
        """Queues a batch; its place among the others is that of this call."""
        pending.arrival = next(self._arrivals)
        if pending.partition_id in self._parked:
            self._park([pending])
            return
        self._queue.append(pending)
        self._wake.set()

    def forget_ids(self) -> None:
        """Drops the block of batch ids (after a failover, another history may hand them out)."""
        self._batch_ids.clear()
        self._turned_away.forget_everything()

    # The flusher.

    async def _run_flusher(self) -> None:
        flush = self._store.open_flush()
        try:
            while group := await self._next_group():
                async with self._settling:
                    await self._flush_group(flush, group)
        finally:
            self._is_flushed = True
        await flush.close()

    async def _next_group(self) -> list[PendingAppend]:
        """Everything queued, up to the flush's limit; empty once the appender closes."""
        while not self._queue:
            if self._closing:
                return []
            self._wake.clear()
            await self._wake.wait()
        group: list[PendingAppend] = []
        size = 0
        while self._queue and (not group or size + self._queue[0].batch.size <= self._max_bytes):
            pending = self._queue.popleft()
            size += pending.batch.size
            group.append(pending)
        return group

    async def _flush_group(
        self, flush: Flush, group: list[PendingAppend], *, from_parked: bool = False
    ) -> None:
        """Stages, decides, commits and answers, one way or another."""
        try:
            try:
                await self._stage(flush, group)
            except EffectRefused as error:
                await self._find_culprit(flush, group, error, from_parked=from_parked)
            else:
                await self._settle(flush, group, from_parked=from_parked)
        except (StoreUnavailable, RowLocked) as error:
            await self._give_up(flush, group, error)
        except Exception:  # a bug must not stop every later append
            log.exception("flush_failed", batches=len(group))
            group = self._still_ours(group)
            self._forget(group)
            _refuse(group, Error.UNKNOWN_SERVER_ERROR, "the broker failed; see its log")
            await flush.rollback()

    async def _give_up(
        self, flush: Flush, group: Sequence[PendingAppend], error: StoreUnavailable | RowLocked
    ) -> None:
        """Retriable refusals: in one the batch is certainly not stored, in the other it may be.

        RowLocked comes here where a whole table is locked (by hand), so that parking cannot help.
        """
        group = self._still_ours(group)
        self._forget(group)
        self._turn_away(group)
        await flush.rollback()
        if isinstance(error, CommitUnknown):
            log.warning("commit_unknown", batches=len(group), reason=str(error))
            _refuse(
                group, Error.NOT_ENOUGH_REPLICAS_AFTER_APPEND, "the commit's outcome is unknown"
            )
        else:
            log.warning("database_unavailable", batches=len(group), reason=str(error))
            _refuse(group, Error.NOT_ENOUGH_REPLICAS, "the database is not available")

    def _still_ours(self, group: Sequence[PendingAppend]) -> list[PendingAppend]:
        """Without those parked meanwhile, which will be stored, or refused, later."""
        parked = {pending.arrival for waiting in self._parked.values() for pending in waiting}
        return [pending for pending in group if pending.arrival not in parked]

    def _turn_away(self, group: Iterable[PendingAppend]) -> None:
        """The producers will try again; what is on its way behind these batches has to wait."""
        now = asyncio.get_running_loop().time()
        for pending in group:
            if not pending.done.done():
                self._turned_away.note(pending.partition_id, pending.batch, now)

    async def _stage(self, flush: Flush, group: Sequence[PendingAppend]) -> None:
        for attempt in range(5):
            for pending in group:
                pending.staged = StagedBatch(
                    pending.batch,
                    await self._next_batch_id(),
                    await self._store.current_segment(pending.retention_class),
                )
            # Side by side in the payload what will be read together.
            by_partition = sorted(group, key=lambda pending: pending.partition_id)
            try:
                await flush.stage([(p.staged, p.payload) for p in by_partition if p.staged])
            except SegmentGone:
                self._store.forget_segments()
                if attempt == 4:
                    raise StoreUnavailable("segments are dropped faster than written") from None
            else:
                return

    async def _next_batch_id(self) -> int:
        while not self._batch_ids:
            self._batch_ids.extend(await self._store.allocate_batch_ids(BATCH_ID_BLOCK))
        return self._batch_ids.popleft()

    # Deciding and committing.

    async def _settle(
        self, flush: Flush, group: list[PendingAppend], *, from_parked: bool = False
    ) -> None:
        """Decides on a staged group, commits, replays and answers, however often it takes."""
        skip_locked = from_parked
        under_lock = from_parked or self._is_contended(group)
        fresh: set[int] = set()
        absent: set[int] = set()
        while True:
            if not from_parked:
                group = self._without_parked(group)
            if not group:
                await flush.rollback()
                return
            if under_lock:
                group = await self._load_under_lock(flush, group, skip_locked=skip_locked)
                fresh = {pending.partition_id for pending in group}
            else:
                await self._load_missing(group, absent)
            decisions, effects = self._decide(group)
            moved = {effect.partition_id for effect in effects}
            unconfirmed = {p.partition_id for p in group} - moved - fresh
            if unconfirmed:
                absent |= await self._reload([p for p in group if p.partition_id in unconfirmed])
                fresh |= unconfirmed
                continue
            if not effects:
                await flush.rollback()
                self._answer(group, decisions, ())
                return
            try:
                await flush.commit(effects)
            except VersionMismatch:
                until = asyncio.get_running_loop().time() + CONTENDED_FOR_S
                self._contended_until.update(dict.fromkeys(moved, until))
                under_lock = True
            except RowLocked:
                under_lock = skip_locked = True
            except SegmentGone:
                self._store.forget_segments()
            except EffectRefused as error:
                await self._find_culprit(flush, group, error, from_parked=from_parked)
                return
            else:
                self._answer(group, decisions, effects)
                return
            fresh = set()
            try:
                await self._stage(flush, group)
            except EffectRefused as error:
                await self._find_culprit(flush, group, error, from_parked=from_parked)
                return

    def _decide(self, group: Sequence[PendingAppend]) -> tuple[list[Decision], list[LogEffects]]:
        drafts = {
            partition_id: self._logs[partition_id].draft()
            for partition_id in {pending.partition_id for pending in group}
            if partition_id in self._logs
        }
        decisions: list[Decision] = []
        for pending in group:
            draft = drafts.get(pending.partition_id)
            assert pending.staged is not None
            if draft is None:
                decisions.append(_NO_PARTITION)
            elif self._comes_too_early(pending, draft):
                decisions.append(_TOO_EARLY)
            else:
                decisions.append(draft.prepare_append(pending.staged))
        effects = [effect for draft in drafts.values() if (effect := draft.effects())]
        return decisions, effects

    def _comes_too_early(self, pending: PendingAppend, draft: LogDraft) -> bool:
        batch = pending.batch
        if not batch.has_producer_id:
            return False
        now = asyncio.get_running_loop().time()
        state = draft.producer(batch.producer_id)
        return self._turned_away.must_wait(pending.partition_id, batch, state, now)

    def _answer(
        self,
        group: Sequence[PendingAppend],
        decisions: Sequence[Decision],
        effects: Sequence[LogEffects],
    ) -> None:
        """Replays committed effects, then lets every waiting answer go."""
        for effect in effects:
            if known := self._logs.get(effect.partition_id):
                known.replay(effect)
                known.trim()
            appended = [
                pending
                for pending, decision in zip(group, decisions, strict=True)
                if pending.partition_id == effect.partition_id and isinstance(decision, Appended)
            ]
            self._on_appended(effect, appended)
        for pending, decision in zip(group, decisions, strict=True):
            match decision:
                case Appended(base_offset):
                    self._turned_away.settle(pending.partition_id, pending.batch, is_new=True)
                    start = self._log_start(pending.partition_id)
                    pending.resolve(AppendResult(Error.NONE, None, base_offset, start))
                case Duplicate(base_offset, timestamp):
                    self._turned_away.settle(pending.partition_id, pending.batch, is_new=False)
                    start = self._log_start(pending.partition_id)
                    pending.resolve(AppendResult(Error.NONE, None, base_offset, start, timestamp))
                case Refused(error, message):
                    pending.resolve(AppendResult(error, message))

    def _log_start(self, partition_id: int) -> int:
        known = self._logs.get(partition_id)
        return known.state.log_start_offset if known else NO_OFFSET

    async def _find_culprit(
        self,
        flush: Flush,
        group: Sequence[PendingAppend],
        error: EffectRefused,
        *,
        from_parked: bool = False,
    ) -> None:
        """The database refused something: each batch goes alone, so that only one is refused."""
        if error.out_of_space:
            log.error("database_out_of_space", reason=str(error))
            self._forget(group)
            self._turn_away(group)
            _refuse(group, Error.KAFKA_STORAGE_ERROR, "the database has no space left")
        elif len(group) == 1:
            log.error(
                "append_refused_by_database", partition=group[0].partition_id, reason=str(error)
            )
            self._forget(group)
            _refuse(group, Error.UNKNOWN_SERVER_ERROR, str(error))
        else:
            for index, pending in enumerate(group):
                if from_parked and self._parked.get(pending.partition_id):
                    self._park(group[index:])  # one before it is locked out again
                    return
                try:
                    await self._stage(flush, [pending])
                    await self._settle(flush, [pending], from_parked=from_parked)
                except EffectRefused as refusal:
                    await self._find_culprit(flush, [pending], refusal)

    # Loading.

    async def _load_missing(self, group: Sequence[PendingAppend], absent: set[int]) -> None:
        """Reads what a decision needs and memory lacks.

        More than once where a notification has meanwhile shown that a partition moved on, which
        forgets its producers. Adds partitions that do not exist to `absent`.
        """
        for _ in range(LOAD_ATTEMPTS):
            missing = [
                pending
                for pending in group
                if pending.partition_id not in absent
                and (
                    (known := self._logs.get(pending.partition_id)) is None
                    or known.missing_producers((pending.batch.producer_id,))
                )
            ]
            if not missing:
                return
            absent |= await self._reload(missing)
        raise StoreUnavailable("partitions move faster than they can be read")

    async def _reload(self, group: Sequence[PendingAppend]) -> set[int]:
        """Reads all that the group touches; returns the partitions that do not exist."""
        pairs = _producer_pairs(group)
        ids = sorted({pending.partition_id for pending in group})
        states, producers = await self._store.load(ids, pairs)
        self._take_over(ids, pairs, states, producers)
        return set(ids) - set(states)

    def _take_over(
        self,
        ids: Iterable[int],
        pairs: Iterable[tuple[int, int]],
        states: Mapping[int, PartitionState],
        producers: Mapping[tuple[int, int], ProducerState],
    ) -> None:
        """Remembers what was read of `ids`; a partition that is not there any more is forgotten."""
        for partition_id in ids:
            state = states.get(partition_id)
            if state is None:
                self._logs.pop(partition_id, None)
                continue
            known = self._logs.setdefault(partition_id, PartitionLog(state))
            known.load(
                state,
                {
                    producer_id: producers.get((partition_id, producer_id))
                    for of_partition, producer_id in pairs
                    if of_partition == partition_id
                },
            )

    async def _load_under_lock(
        self, flush: Flush, group: list[PendingAppend], *, skip_locked: bool
    ) -> list[PendingAppend]:
        """Loads all that the group touches, under the lock; what another broker holds is parked."""
        pairs = _producer_pairs(group)
        ids = sorted({pending.partition_id for pending in group})
        try:
            states, producers = await flush.lock(ids, pairs, skip_locked=skip_locked)
        except RowLocked:
            await self._stage(flush, group)
            states, producers = await flush.lock(ids, pairs, skip_locked=True)
        absent = [partition_id for partition_id in ids if partition_id not in states]
        held = set((await self._store.load(absent))[0]) if absent else set()
        self._take_over([i for i in ids if i not in held], pairs, states, producers)
        if not held:
            return group
        self._park([pending for pending in group if pending.partition_id in held])
        return [pending for pending in group if pending.partition_id not in held]

    def _is_contended(self, group: Sequence[PendingAppend]) -> bool:
        """Whether another broker has lately written to one of the partitions: then locking first
        costs a round trip, and not locking costs a flush."""
        if not self._contended_until:
            return False
        now = asyncio.get_running_loop().time()
        for partition_id in [i for i, until in self._contended_until.items() if until < now]:
            del self._contended_until[partition_id]
        return any(pending.partition_id in self._contended_until for pending in group)

    def _forget(self, group: Iterable[PendingAppend]) -> None:
        """Drops what was known of the partitions; the next flush reads them again."""
        for pending in group:
            self._logs.pop(pending.partition_id, None)

    # Partitions whose row another broker holds for longer than `lock_timeout`: their batches wait
    # here, in order, and everybody else goes on.

    def _park(self, group: Iterable[PendingAppend]) -> None:
        now = asyncio.get_running_loop().time()
        for pending in group:
            pending.parked_at = pending.parked_at or now
            if pending.partition_id not in self._parked:
                log.warning("partition_locked", partition=pending.partition_id)
                self._parked[pending.partition_id] = self._unqueue(pending.partition_id)
            self._parked[pending.partition_id].append(pending)

    def _unqueue(self, partition_id: int) -> list[PendingAppend]:
        queued = [pending for pending in self._queue if pending.partition_id == partition_id]
        for pending in queued:
            pending.parked_at = asyncio.get_running_loop().time()
            self._queue.remove(pending)
        return queued

    def _without_parked(self, group: list[PendingAppend]) -> list[PendingAppend]:
        if not self._parked:
            return group
        self._park([pending for pending in group if pending.partition_id in self._parked])
        return [pending for pending in group if pending.partition_id not in self._parked]

    async def _run_parked(self) -> None:
        flush = self._store.open_flush()
        # Until the very last flush is done, something may still come to be parked.
        while not (self._is_flushed and not self._parked):
            await asyncio.sleep(PARKED_RETRY_S)
            for partition_id in list(self._parked):
                # A flush under way may hold batches of the partition that came before those
                # parked so far. Once it is done there are none: they are parked as they come.
                async with self._settling:
                    await self._retry_parked(flush, partition_id)
        await flush.close()

    async def _retry_parked(self, flush: Flush, partition_id: int) -> None:
        group = sorted(self._parked[partition_id], key=lambda pending: pending.arrival)
        self._parked[partition_id] = []
        limit = asyncio.get_running_loop().time() - PARKED_LIMIT_S
        overdue = [pending for pending in group if pending.parked_at < limit]
        self._turn_away(overdue)
        _refuse(overdue, Error.REQUEST_TIMED_OUT, "another broker holds the partition")
        group = [pending for pending in group if pending.parked_at >= limit]
        if group:
            await self._flush_group(flush, group, from_parked=True)
        if not self._parked[partition_id]:
            del self._parked[partition_id]


_TOO_EARLY = Refused(
    Error.NOT_ENOUGH_REPLICAS, "An earlier batch of this producer was refused and has to come first"
)
_NO_PARTITION = Refused(
    Error.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition."
)


def _producer_pairs(group: Iterable[PendingAppend]) -> list[tuple[int, int]]:
    return sorted(
        {
            (pending.partition_id, pending.batch.producer_id)
            for pending in group
            if pending.batch.has_producer_id
        }
    )


def _refuse(group: Iterable[PendingAppend], error: Error, message: str) -> None:
    for pending in group:
        pending.resolve(AppendResult(error, message))
