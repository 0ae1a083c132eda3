"""Reads records from the log, a little at a time: forwards, backwards, by time, what is new.

What a step reads is bounded, and is opened in a thread. Knows no filter and no page.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from core.errors import Error
from core.log.aborted_txns import AbortedTransaction
from core.log.partition_log import PartitionState
from core.log.records import Record, RecordSet
from core.ports.log import StoredBatch
from core.types import NO_PRODUCER_ID, IsolationLevel
from gateway.console.records.budget import Budget
from gateway.console.records.seen import Fate, Seen
from gateway.runtime.log.partitions import Found, Partitions, Want

if TYPE_CHECKING:
    from core.ports.console.records import RecordReads
    from gateway.runtime.log.translation import Translations

Wants = Callable[[Record | None], bool]
"""Whether a record is wanted, or a marker (None)."""

Turn = Callable[[], AbstractAsyncContextManager[None]]
"""Waits for a turn of all who read."""

STEP_BYTES: Final = 256 * 1024
_STEP_RECORDS: Final = 5_000
_MOST_TIME_BATCHES: Final = 20
_RECORD_BYTES: Final = 200  # of memory, besides its key and value

_NO_MORE: Final[dict[Error, str]] = {
    Error.UNKNOWN_TOPIC_OR_PARTITION: "The partition is not there any more.",
    Error.KAFKA_STORAGE_ERROR: "The database lacks the bytes of a batch: see the broker's log.",
}


@dataclass(slots=True)
class Stretch:
    """Offsets of a partition that are still to be looked at: [start, end). end: None while what is
    new is followed. wrong: why nothing more can be read there. is_held: whether an open transaction
    holds up those who read committed data, and it is read so."""

    number: int
    partition_id: int
    start: int
    end: int | None
    wrong: str = ""
    is_held: bool = False

    @property
    def left(self) -> int:
        """How many offsets are left."""
        return 0 if self.wrong or self.end is None else max(0, self.end - self.start)

    def leave(self, offset: int, *, is_taken: bool, is_backward: bool) -> None:
        """Has it looked at only as far as up to this offset, in the order in which it is read."""
        if is_backward:
            self.end = max(self.end or 0, offset if is_taken else offset + 1)
        else:
            self.start = min(self.start, offset + 1 if is_taken else offset)


@dataclass(frozen=True, slots=True)
class Part:
    """What a step has read of one partition, in order of offsets."""

    stretch: Stretch
    batches: Sequence[StoredBatch]
    start: int
    end: int
    aborted: Sequence[AbortedTransaction]
    state: PartitionState


@dataclass(frozen=True, slots=True)
class News:
    """What is new, and what it was read by: `wait` waits for a change of that."""

    parts: Sequence[Part]
    wants: Sequence[Want] = field(default=())
    found: Sequence[Found] = field(default=())

    @property
    def held(self) -> int:
        """In how many partitions an open transaction holds up those who read committed data."""
        states = [each.state for each in self.found if each.state is not None]
        return sum(1 for each in states if each.last_stable_offset < each.high_watermark)


class LogReader:
    """One per process. Every call may raise StoreUnavailable."""

    def __init__(
        self, partitions: Partitions, translations: Translations, reads: RecordReads
    ) -> None:
        self._partitions = partitions
        self._translations = translations
        self._reads = reads

    async def states(self, partition_ids: Sequence[int]) -> dict[int, PartitionState]:
        """As they are now; partitions that are gone are left out."""
        return await self._partitions.refresh_together(partition_ids)

    async def forward(self, stretch: Stretch, *, committed: bool) -> Part | None:
        """The next of a stretch that is left something, and begins behind it afterwards; None where
        nothing is there."""
        assert stretch.end is not None, "it is left something"
        start = stretch.start
        want = Want(stretch.partition_id, start, STEP_BYTES, _level(committed))
        (found,) = await self._partitions.read([want], STEP_BYTES)
        part = await self._part(stretch, found, stretch.end, committed=committed)
        if part is not None:
            stretch.start = part.end
        elif stretch.start == start:  # the rest is empty
            stretch.start = stretch.end
        return part

    async def backward(
        self, stretch: Stretch, *, committed: bool, most_records: int = _STEP_RECORDS
    ) -> Part | None:
        """The last of a stretch that is left something, and ends before it afterwards; None where
        nothing is there."""
        end = stretch.end
        assert end is not None, "it is left something"
        found = await self._reads.stretch_before(
            stretch.partition_id, end, STEP_BYTES, min(most_records, _STEP_RECORDS)
        )
        start = end if found is None else max(found, stretch.start)
        within = Stretch(stretch.number, stretch.partition_id, start, end)
        parts: list[Part] = []
        while within.left:  # more than once only where bytes are more than was said
            part = await self.forward(within, committed=committed)
            parts += [] if part is None else [part]
        stretch.end = stretch.start if found is None else start
        stretch.wrong = within.wrong
        if not parts:
            return None
        batches = [batch for each in parts for batch in each.batches]
        aborted = {each: None for part in parts for each in part.aborted}
        return Part(stretch, batches, start, end, list(aborted), parts[-1].state)

    async def news(self, stretches: Sequence[Stretch], *, committed: bool) -> News:
        """What has come since, of all of them, which begin behind it afterwards."""
        alive = [each for each in stretches if not each.wrong]
        wants = [
            Want(each.partition_id, each.start, STEP_BYTES, _level(committed)) for each in alive
        ]
        found = await self._partitions.read(wants, STEP_BYTES)
        parts = []
        for stretch, each in zip(alive, found, strict=True):
            part = await self._part(stretch, each, None, committed=committed)
            if part is not None:
                stretch.start = part.end
                parts.append(part)
        return News(parts, wants, found)

    async def wait(self, news: News, timeout_s: float, until: asyncio.Future[None]) -> None:
        """Until there may be more, or `until`, or for a while."""
        await self._partitions.wait_for_more(news.wants, news.found, timeout_s, until)

    async def _part(
        self, stretch: Stretch, found: Found, end: int | None, *, committed: bool
    ) -> Part | None:
        state = found.state
        if state is not None and found.error is Error.OFFSET_OUT_OF_RANGE:
            # Deleted meanwhile, or the database is another one.
            stretch.start = max(stretch.start, state.log_start_offset)
            if stretch.start > state.high_watermark:
                stretch.wrong = "The log ends earlier than before: the database was restored."
            return None
        if state is None or found.error is not Error.NONE:
            stretch.wrong = _NO_MORE.get(found.error, found.error.name)
            return None
        batches = [each for each in found.batches if end is None or each.base_offset < end]
        if not batches:
            return None
        start, behind = stretch.start, batches[-1].last_offset + 1
        behind = behind if end is None else min(behind, end)
        aborted = found.aborted
        if not committed:
            aborted = await self._partitions.find_aborted(stretch.partition_id, start, behind)
        return Part(stretch, batches, start, behind, aborted, state)

    def open(
        self, part: Part, wants: Wants, budget: Budget, *, committed: bool, is_backward: bool
    ) -> Iterator[Seen]:
        """The records of a part that are wanted, in order; markers only where what is not committed
        is. What the budget does not suffice for is left to the stretch. Takes long: for a
        thread."""
        for batch in reversed(part.batches) if is_backward else part.batches:
            if not budget.may_open:
                first = (
                    min(batch.last_offset, part.end - 1)
                    if is_backward
                    else (max(batch.base_offset, part.start))
                )
                part.stretch.leave(first, is_taken=False, is_backward=is_backward)
                return
            fate = _fate(batch, part)
            if committed and (batch.is_control or fate is Fate.ABORTED):
                continue
            records = self._translations.read(batch)
            budget.opened(_size(records))
            if fate is Fate.NONE and (records.is_transactional or batch.is_control):
                fate = Fate.COMMITTED
            indexes = range(len(records.records))
            for index in reversed(indexes) if is_backward else indexes:
                offset, record = batch.base_offset + index, records.records[index]
                if record is None or not part.start <= offset < part.end:
                    continue
                shown = None if batch.is_control else record
                if not wants(shown):
                    continue
                if not budget.may_look:
                    part.stretch.leave(offset, is_taken=False, is_backward=is_backward)
                    return
                yield Seen(
                    part.stretch.number,
                    offset,
                    shown,
                    records,
                    batch.format,
                    batch.producer_id,
                    fate,
                )

    async def find_time(self, state: PartitionState, timestamp: int, turn: Turn) -> int:
        """The first offset with this timestamp (ms) or a later one; the log's end without one. An
        offset before it where many batches only seem to have it. Each batch takes a turn."""
        start = state.log_start_offset
        for _ in range(_MOST_TIME_BATCHES):
            async with turn():
                batch = await self._partitions.find_timestamp(state.partition_id, timestamp, start)
                if batch is None:
                    return state.high_watermark
                records = await asyncio.to_thread(self._translations.read, batch)
            for offset, record in enumerate(records.records, batch.base_offset):
                if record is None or offset < start:
                    continue
                stamp = records.timestamp if record.event_time is None else record.event_time
                if stamp >= timestamp:
                    return offset
            start = batch.last_offset + 1
        return start


def _size(records: RecordSet) -> int:
    """About how many bytes of memory they take."""
    return sum(
        _RECORD_BYTES + len(each.key or b"") + len(each.value or b"")
        for each in records.records
        if each is not None
    )


def _level(committed: bool) -> IsolationLevel:
    return IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED


def _fate(batch: StoredBatch, part: Part) -> Fate:
    """NONE: it was in no transaction, or in one that was committed."""
    if batch.producer_id == NO_PRODUCER_ID:
        return Fate.NONE
    if any(each.holds(batch.producer_id, batch.base_offset) for each in part.aborted):
        return Fate.ABORTED
    is_open = any(
        each.producer_id == batch.producer_id and each.first_offset <= batch.base_offset
        for each in part.state.open_transactions
    )
    return Fate.OPEN if is_open else Fate.NONE
