"""The partitions as this process serves them: append, read, wait for more, look up offsets.

Holds only caches: a fresh read confirms a refusal before it is given. Knows no protocol and no SQL;
payload is opaque here.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import structlog

from core.config.values import TopicConfig
from core.errors import Error
from core.log.aborted_txns import AbortedTransaction
from core.log.effects import IncomingBatch, LogEffects, StoredBytes
from core.log.named_sequences import NamedSequence, SequencedBatch
from core.log.partition_log import PartitionLog, PartitionState
from core.log.retention import retention_class
from core.ports.leases import Lease
from core.ports.log import (
    EpochStart,
    LogStore,
    ReadRange,
    SegmentGone,
    StoredBatch,
)
from core.transaction.key import TransactionKey
from core.transaction.values import TransactionVersion
from core.types import IsolationLevel, Payload, RecordBatch
from gateway.runtime.flush.flusher import Flusher
from gateway.runtime.flush.outcomes import Unconfirmed
from gateway.runtime.flush.work import (
    AppendResult,
    QueuedAppend,
    Stream,
)
from gateway.runtime.log.append_gate import AppendGate
from gateway.runtime.log.read_ahead import ReadAhead
from gateway.runtime.log.tail_cache import TailCache
from gateway.runtime.log.unready_appends import UnreadyAppends
from gateway.runtime.topics.shared_read import SharedRead

log = structlog.get_logger(__name__)

READ_AHEAD_BYTES = 32 * 2**20
FIRST_EPOCH = (EpochStart(0, 0),)
ROUNDS_GROW_BY = 8
_DRAINED_WITHIN_S = 2.0
_NOT_LEADER = AppendResult(Error.NOT_LEADER_OR_FOLLOWER, "This broker stops; others lead")
_CLAIMS = 2**63 - 1  # that two of a name are alike has to be as good as impossible


@dataclass(frozen=True, slots=True)
class Want:
    """What a reader asks of one partition, from `offset` on."""

    partition_id: int
    offset: int
    max_bytes: int
    isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED


@dataclass(frozen=True, slots=True)
class Found:
    """What a reader gets: the partition's state at that moment, and batches, if any.

    state: None if the partition does not exist. leader_epochs: the partition's, oldest first.
    aborted: transactions that a reader of committed data must skip, by last offset.
    """

    error: Error
    state: PartitionState | None
    batches: Sequence[StoredBatch] = ()
    leader_epochs: Sequence[EpochStart] = FIRST_EPOCH
    aborted: Sequence[AbortedTransaction] = ()

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches."""
        return sum(len(batch.payload) for batch in self.batches)


_NOT_THERE = Found(Error.UNKNOWN_TOPIC_OR_PARTITION, None)
_Readable = tuple[int, Want, int]  # index of the want, the want, and the offset it ends at


class Partitions:
    """All partitions, as this broker knows them.

    append_gate: appends go through it, so that they keep their order even if a topic must be looked
    up first. unready: by partition, those whose batches have to be made ready first.
    """

    def __init__(
        self,
        store: LogStore,
        flusher: Flusher,
        *,
        tail_cache_bytes: int,
        announce: Callable[[Iterable[int]], None],
    ) -> None:
        """announce: called after each commit with the changed partitions, to tell other brokers."""
        self._store = store
        self._flusher = flusher
        self._announce = announce
        self._logs = flusher.logs
        self._tail = TailCache(tail_cache_bytes)
        self._read_ahead = ReadAhead(store, READ_AHEAD_BYTES)
        self._epochs: dict[tuple[int, int], tuple[EpochStart, ...]] = {}
        self._waiters: dict[int, set[asyncio.Future[None]]] = {}
        self._behind: set[int] = set()  # changed elsewhere since memory was read
        self._starts_known: tuple[object, set[int]] = (None, set())
        self._fresh = SharedRead(self._read_fresh)
        self._names_in_use: Counter[tuple[int, str]] = Counter()
        self._is_stopping = False
        self.append_gate = AppendGate(flusher.retry_order)
        self.unready = UnreadyAppends()
        flusher.on_appended(self._on_appended)

    @property
    def tail_cache_bytes(self) -> int:
        """Memory that the cached newest batches take."""
        return self._tail.size_bytes

    async def drain(self) -> None:
        """Returns when what was taken in so far is stored or refused, or after a while.

        Before other brokers are named as leaders: else a client that goes on there would have its
        next batch stored before the one that is still on its way here.
        """
        try:
            async with asyncio.timeout(_DRAINED_WITHIN_S):
                await self.unready.drain()
                await self._flusher.drain()
        except TimeoutError:
            log.info("appends_left_unsettled")

    @property
    def is_stopping(self) -> bool:
        """Whether others lead."""
        return self._is_stopping

    async def stop(self) -> None:
        """Others lead: what comes from now on is refused, and who waits for more is woken. Drains
        what came before."""
        self._is_stopping = True
        for partition_id in list(self._waiters):
            self._wake(partition_id)
        await self.drain()

    async def close(self) -> None:
        """Ends reading ahead. Close the flusher first."""
        await self._read_ahead.close()

    def forget_everything(self) -> None:
        """Drops every cache: the database has another history. Let the flusher forget first."""
        self._tail.clear()
        self._read_ahead.clear()
        self._epochs.clear()
        self._behind.clear()
        self._starts_known = (None, set())
        for partition_id in list(self._waiters):
            self._wake(partition_id)

    # Appending.

    def append(
        self,
        partition_id: int,
        config: TopicConfig,
        batch: RecordBatch,
        payload: Payload,
        transaction_version: TransactionVersion = TransactionVersion.V1,
        transaction: TransactionKey | None = None,
        sequenced: SequencedBatch | None = None,
        stream: Stream | None = None,
        topic_epoch: int | None = None,
    ) -> asyncio.Future[AppendResult | Unconfirmed]:
        """Queues a batch at once; batches are in the order of these calls.

        The future resolves when the batch is committed or refused. If it is transactional:
        transaction_version: how its producer joins partitions. transaction: the one it belongs to.
        sequenced: if batches of the producer's name are to be stored once; see `claim_name`.
        stream: if none may be stored after one before it was turned away. topic_epoch: as its
        writer was told; it is refused once another has had the partition for itself since.
        """
        done: asyncio.Future[AppendResult | Unconfirmed]
        done = asyncio.get_running_loop().create_future()
        if self._is_stopping:
            done.set_result(_NOT_LEADER)
            return done
        self._flusher.submit(
            QueuedAppend(
                partition_id,
                IncomingBatch(batch, payload, retention_class(config)),
                done,
                transaction_version,
                transaction,
                sequenced,
                stream,
                topic_epoch,
            )
        )
        return done

    async def claim_name(self, partition_id: int, name: str) -> NamedSequence | None:
        """Begins to write under a producer's name: what is known of it, with the claim that its
        batches must bear. What was sent under an earlier claim is stored by now, or never will be.
        None if there is no such partition. Raises StoreUnavailable.
        """
        claim = secrets.randbelow(_CLAIMS) + 1
        claimed = await self._store.claim_name(partition_id, name, claim)
        if known := self._logs.get(partition_id):
            known.forget_name(name)
        return claimed

    async def raise_topic_epoch(self, lease: Lease, partition_id: int, topic_epoch: int) -> None:
        """Stores a topic epoch, if it is a higher one: see LogStore. Raises StoreUnavailable,
        VersionMismatch."""
        await self._store.raise_topic_epoch(lease, partition_id, topic_epoch)
        if known := self._logs.get(partition_id):
            known.raise_topic_epoch(topic_epoch)

    def use_name(self, partition_id: int, name: str, count: int) -> None:
        """So many more producers are there under a name (fewer, where negative)."""
        self._names_in_use[partition_id, name] += count
        if not self._names_in_use[partition_id, name]:
            del self._names_in_use[partition_id, name]

    def names_in_use(self) -> list[tuple[int, str]]:
        """(Partition, name) pairs that must not be forgotten."""
        return list(self._names_in_use)

    def _on_appended(self, effects: LogEffects, is_current: bool) -> None:
        partition_id = effects.partition_id
        for row in effects.rows if is_current else ():
            content, batch = row.incoming.content, row.incoming.batch
            if not isinstance(content, StoredBytes):
                self._tail.append(
                    partition_id,
                    StoredBatch(
                        row.base_offset,
                        row.last_offset,
                        content,
                        batch.format,
                        batch.is_control,
                        batch.producer_id,
                    ),
                )
        self._wake(partition_id)
        self._announce((partition_id,))

    # Reading.

    async def read(self, wants: Sequence[Want], max_bytes: int) -> list[Found]:
        """Batches from each wanted offset on, in the order of the wants.

        At most max_bytes in all and Want.max_bytes of each partition, but always the first batch
        found, however large (KIP-74). Raises StoreUnavailable.
        """
        await self._confirm(wants)
        found: list[Found] = []
        readable: list[_Readable] = []
        for position, want in enumerate(wants):
            known = self._logs.get(want.partition_id)
            if known is None:
                found.append(_NOT_THERE)
                continue
            state = known.state
            if not state.log_start_offset <= want.offset <= state.next_offset:
                found.append(Found(Error.OFFSET_OUT_OF_RANGE, state))
                continue
            found.append(Found(Error.NONE, state))
            end = _end_offset(state, want.isolation_level)
            if want.offset < end:
                readable.append((position, want, end))
        if not readable:
            return found
        await self._read_in_rounds(readable, found, max_bytes)
        hold_to_limits(wants, found, max_bytes)
        await self._with_aborted(wants, found)
        await self._with_epochs(found)
        return found

    def give_back(self, partition_id: int, offset: int, batches: Sequence[StoredBatch]) -> None:
        """Takes batches back that were read too early: their reader will ask for them at `offset`.

        They need not be read again, unless memory for them runs short.
        """
        end = batches[-1].last_offset + 1
        if self._tail.read(partition_id, offset, end, 0) is None:
            self._read_ahead.give_back(partition_id, offset, batches)

    async def _read_in_rounds(
        self, readable: Sequence[_Readable], found: list[Found], max_bytes: int
    ) -> None:
        """Puts the batches into what is found.

        A partition's size is unknown until it is read. So the first round reads only as many
        partitions as fit if each fills its limit. If they had less, the next round reads more
        partitions at once: thousands with a few records each take four or five rounds.
        """
        left, likely = max_bytes, 1.0  # how much of its limit a partition is likely to have
        at = 0
        while at < len(readable) and (left > 0 or at == 0):
            promised = 0
            from_store: list[tuple[int, ReadRange]] = []
            while at < len(readable):
                room = left - int(promised * likely)
                if room <= 0 < at:
                    break
                position, want, end = readable[at]
                at += 1
                limit = max(0, min(want.max_bytes, room))
                batches = self._tail.read(want.partition_id, want.offset, end, limit)
                if batches is None:
                    wanted = ReadRange(want.partition_id, want.offset, end, limit)
                    from_store.append((position, wanted))
                    promised += max(1, limit)
                else:
                    found[position] = each = replace(found[position], batches=batches)
                    left -= each.size_bytes
            if from_store:
                size = await self._read_store(found, from_store, left)
                left -= size
                likely = max(likely / ROUNDS_GROW_BY, size / promised)

    async def _with_aborted(self, wants: Sequence[Want], found: list[Found]) -> None:
        """Adds the aborted transactions that touch what was found, for readers of committed data.

        Read after the batches: a transaction aborted later begins at or after the last stable
        offset, where the batches end, so it touches none of them.
        """
        unknown: list[tuple[int, tuple[int, int, int]]] = []
        for position, (want, each) in enumerate(zip(wants, found, strict=True)):
            if not each.batches or want.isolation_level is not IsolationLevel.READ_COMMITTED:
                continue
            end = each.batches[-1].last_offset + 1
            known = self._logs.get(want.partition_id)
            aborted = known.aborted.overlapping(want.offset, end) if known else None
            if aborted is None:
                unknown.append((position, (want.partition_id, want.offset, end)))
            elif aborted:
                found[position] = replace(each, aborted=aborted)
        if unknown:
            answers = await self._store.aborted([read for _, read in unknown])
            for (position, _), aborted in zip(unknown, answers, strict=True):
                if aborted:
                    found[position] = replace(found[position], aborted=aborted)

    async def _confirm(self, wants: Sequence[Want]) -> None:
        """Reads partitions that are unknown, or would be refused, so that refusals are up to date.

        Reads again if memory was dropped meanwhile: the read may have met another history.
        """
        confirmed: set[int] = set()
        while True:
            doubtful = {want.partition_id for want in wants if not self._is_in_range(want)}
            if doubtful <= confirmed:
                return
            confirmed = doubtful
            await self.refresh(sorted(doubtful))

    async def _with_epochs(self, found: list[Found]) -> None:
        """Adds each partition's history of leader epochs, if it has one."""
        for position, each in enumerate(found):
            state = each.state
            if state is None or not each.batches or state.leader_epoch == 0:
                continue
            key = (state.partition_id, state.leader_epoch)
            if key not in self._epochs:
                self._epochs[key] = tuple(await self._store.epoch_starts(state.partition_id))
            found[position] = replace(each, leader_epochs=self._epochs[key] or FIRST_EPOCH)

    async def _read_store(
        self, found: list[Found], from_store: Sequence[tuple[int, ReadRange]], max_bytes: int
    ) -> int:
        """Adds batches from the store, at most max_bytes in all; returns how many bytes."""
        try:
            answers = await self._read_ahead.read([read for _, read in from_store], max_bytes)
        except SegmentGone:
            for position, read in from_store:
                found[position] = await self._read_alone(read)
        else:
            for (position, _), batches in zip(from_store, answers, strict=True):
                if batches:
                    found[position] = replace(found[position], batches=batches)
        return sum(found[position].size_bytes for position, _ in from_store)

    async def _read_alone(self, read: ReadRange) -> Found:
        """Reads one range alone after payload was missing, so that only its partition fails.

        As a rule retention has deleted it meanwhile, as the log start shows. Missing payload of a
        live batch is damage: an error, never an empty answer for ever.
        """
        state = (await self.refresh([read.partition_id])).get(read.partition_id)
        if state is None:
            return Found(Error.UNKNOWN_TOPIC_OR_PARTITION, None)
        if read.from_offset < state.log_start_offset:
            return Found(Error.OFFSET_OUT_OF_RANGE, state)
        try:
            (batches,) = await self._store.read([read], read.max_bytes)
        except SegmentGone as gone:
            log.error("payload_missing", partition=read.partition_id, reason=str(gone))
            return Found(Error.KAFKA_STORAGE_ERROR, state)
        return Found(Error.NONE, state, batches)

    def _is_in_range(self, want: Want) -> bool:
        known = self._logs.get(want.partition_id)
        return (
            known is not None
            and want.partition_id not in self._behind
            and known.state.log_start_offset <= want.offset <= known.state.next_offset
        )

    # Waiting.

    async def wait_for_more(
        self,
        wants: Sequence[Want],
        seen: Sequence[Found],
        timeout_s: float,
        interrupted: asyncio.Future[None] | None = None,
    ) -> None:
        """Sleeps until a partition differs from what was `seen` (by `read`), or time is up.

        interrupted: also ends the sleep.
        """
        for want, found in zip(wants, seen, strict=True):
            known = self._logs.get(want.partition_id)
            state = known.state if known else None
            if state is not found.state or want.partition_id in self._behind:
                return
        waiter = asyncio.get_running_loop().create_future()
        partition_ids = {want.partition_id for want in wants}
        for partition_id in partition_ids:
            self._waiters.setdefault(partition_id, set()).add(waiter)
        try:
            ends = (waiter,) if interrupted is None else (waiter, interrupted)
            await asyncio.wait(ends, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for partition_id in partition_ids:
                waiters = self._waiters.get(partition_id)
                if waiters is not None:
                    waiters.discard(waiter)
                    if not waiters:
                        del self._waiters[partition_id]

    def watched(self) -> list[int]:
        """Partitions that a request waits for."""
        return list(self._waiters)

    async def on_changed_elsewhere(self, partition_ids: Iterable[int]) -> None:
        """Another broker has changed these: reads those known here, and wakes waiting requests.

        Those that nobody waits for are left until somebody asks, if flushes read them anyway.
        Raises StoreUnavailable.
        """
        wanted: list[int] = []
        for partition_id in partition_ids:
            if partition_id in self._waiters:
                wanted.append(partition_id)
            elif partition_id in self._logs:
                is_read = self._flusher.is_contended(partition_id)
                (self._behind.add if is_read else wanted.append)(partition_id)
        if wanted:
            await self.refresh(wanted)

    def _wake(self, partition_id: int) -> None:
        for waiter in self._waiters.pop(partition_id, ()):
            if not waiter.done():
                waiter.set_result(None)

    # States and lookups.

    async def refresh(self, partition_ids: Sequence[int]) -> dict[int, PartitionState]:
        """A fresh read, also put into memory; partitions that do not exist are omitted.

        Raises StoreUnavailable.
        """
        behind = self._behind.intersection(partition_ids)
        self._behind -= behind  # before the read: what changes meanwhile is not in it
        try:
            states = dict((await self._store.load(partition_ids))[0])
        except BaseException:
            self._behind |= behind
            raise
        for partition_id in partition_ids:
            state = states.get(partition_id)
            if state is None:
                self._logs.pop(partition_id, None)
                self._tail.drop(partition_id)
                self._wake(partition_id)
                continue
            known = self._logs.get(partition_id)
            if known is None:
                self._logs[partition_id] = PartitionLog(state)
            else:
                before = known.state
                known.advance(state)
                if known.state != before:
                    self._wake(partition_id)
        return states

    async def refresh_together(self, partition_ids: Collection[int]) -> dict[int, PartitionState]:
        """As `refresh`, in one read with all who ask before it begins. Raises StoreUnavailable."""
        return await self._fresh.find(partition_ids)

    async def _read_fresh(self, partition_ids: Collection[int]) -> dict[int, PartitionState]:
        return await self.refresh(sorted(partition_ids))

    async def with_log_starts(
        self, partition_ids: Sequence[int], alone_since: object
    ) -> dict[int, PartitionState]:
        """States with a log start, but nothing else, as good as a fresh read's.

        alone_since: a new object whenever brokers have come or gone, None while others are live.
        While this broker is alone, no other moves log starts, so states read since then need not be
        read again. A new broker may move one before it is noticed: then a read there is out of
        range, as if the records had been deleted a moment later. Raises StoreUnavailable.
        """
        if alone_since is None:
            return await self.refresh_together(partition_ids)
        if self._starts_known[0] is not alone_since:
            self._starts_known = (alone_since, set())
        known = self._starts_known[1]
        logs = self._logs
        if all(each in known and each in logs for each in partition_ids):
            return {each: logs[each].state for each in partition_ids}
        states = await self.refresh_together(partition_ids)
        known.update(states)
        return states

    async def find_timestamp(
        self, partition_id: int, timestamp: int, from_offset: int
    ) -> StoredBatch | None:
        """The first batch that ends at `from_offset` or later and has `timestamp` or a later one.

        Raises StoreUnavailable.
        """
        return await self._store.find_timestamp(partition_id, timestamp, from_offset)

    async def find_max_timestamp(self, partition_id: int) -> StoredBatch | None:
        """The first batch with the greatest timestamp. Raises StoreUnavailable."""
        return await self._store.find_max_timestamp(partition_id)

    async def find_aborted(
        self, partition_id: int, from_offset: int, to_offset: int
    ) -> Sequence[AbortedTransaction]:
        """Aborted transactions that touch [from_offset, to_offset), by last offset, for who reads
        what is not committed as well. Raises StoreUnavailable."""
        known = self._logs.get(partition_id)
        aborted = known.aborted.overlapping(from_offset, to_offset) if known else None
        if aborted is None:
            (aborted,) = await self._store.aborted([(partition_id, from_offset, to_offset)])
        return aborted

    async def count_aborted(self, partition_id: int, producer_id: int | None = None) -> int:
        """Aborted transactions that readers of committed data leave out; of this producer, if one
        is given. Raises StoreUnavailable."""
        return await self._store.count_aborted(partition_id, producer_id)

    async def epoch_starts(self, partition_id: int) -> list[EpochStart]:
        """The partition's leader epochs, oldest first. Raises StoreUnavailable."""
        return await self._store.epoch_starts(partition_id)

    async def delete_records(self, partition_id: int, offset: int) -> tuple[Error, int]:
        """Moves the log start offset up to `offset` (-1: the high watermark).

        Returns the log start offset after that. Raises StoreUnavailable.
        """
        states = await self.refresh([partition_id])
        state = states.get(partition_id)
        if state is None:
            return Error.UNKNOWN_TOPIC_OR_PARTITION, -1
        target = state.high_watermark if offset == -1 else offset
        if target < 0 or target > state.high_watermark:
            return Error.OFFSET_OUT_OF_RANGE, -1
        moved = await self._store.advance_log_start(partition_id, target)
        if moved is None:
            return Error.UNKNOWN_TOPIC_OR_PARTITION, -1
        if known := self._logs.get(partition_id):
            known.advance(moved)
        self._announce((partition_id,))
        return Error.NONE, moved.log_start_offset

    async def terminate(self, partition_id: int) -> PartitionState | None:
        """No record is appended from now on, at any broker; the partition as it is then, None where
        there is none. Raises StoreUnavailable."""
        state = await self._store.terminate(partition_id)
        if state is not None:
            if known := self._logs.get(partition_id):
                known.advance(state)
            self._announce((partition_id,))
        return state

    def is_known_terminated(self, partition_id: int) -> bool:
        """Whether it is terminated, as far as memory knows."""
        known = self._logs.get(partition_id)
        return known is not None and known.state.is_terminated


def hold_to_limits(wants: Sequence[Want], found: list[Found], max_bytes: int) -> None:
    """Cuts what was found to the limits, of each partition and of all (KIP-74).

    The first batch of all is kept, however large; any other only if it fits.
    """
    left = max_bytes
    is_first = True
    for position, each in enumerate(found):
        if not each.batches:
            continue
        limit = min(wants[position].max_bytes, left)
        size = count = 0
        for batch in each.batches:
            if size + len(batch.payload) > limit and not is_first:
                break
            is_first = False
            size += len(batch.payload)
            count += 1
        left -= size
        if count < len(each.batches):
            found[position] = replace(each, batches=each.batches[:count])


def _end_offset(state: PartitionState, isolation_level: IsolationLevel) -> int:
    if isolation_level is IsolationLevel.READ_COMMITTED:
        return state.last_stable_offset
    return state.high_watermark
