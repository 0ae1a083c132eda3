"""Reads the next stretch of a partition while its reader is busy with the last one.

For readers that catch up: a reader that has read twice in a row will probably go on. One that
could not use all that it got gives the rest back, and finds it there when it comes again. The log's
contents do not change, so a stretch read ahead is as good as a fresh read, as long as the caller
checks log start and end itself. Knows no protocol and no SQL.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from core.ports.log import LogStore, ReadRange, SegmentGone, StoredBatch, StoreUnavailable

READERS_REMEMBERED = 10_000

_At = tuple[int, int]  # partition id, offset


@dataclass(slots=True)
class _Stretch:
    """A stretch being read ahead. bytes: its limit, which it takes from the budget."""

    batches: asyncio.Future[list[StoredBatch]]
    bytes: int


class ReadAhead:
    """`LogStore.read`, often answered at once. Keeps at most `budget_bytes` for later reads."""

    def __init__(self, store: LogStore, budget_bytes: int) -> None:
        self._store = store
        self._budget = budget_bytes
        self._used = 0
        self._expected: OrderedDict[_At, None] = OrderedDict()  # where readers would go on
        self._stretches: OrderedDict[_At, _Stretch] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    def clear(self) -> None:
        """Forgets everything: the database has another history."""
        self._expected.clear()
        self._stretches.clear()
        self._used = 0

    async def close(self) -> None:
        """Ends all reads under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def read(self, ranges: Sequence[ReadRange], max_bytes: int) -> list[list[StoredBatch]]:
        """See LogStore.read."""
        found: dict[int, list[StoredBatch]] = {}
        for n, wanted in enumerate(ranges):
            place = (wanted.partition_id, wanted.from_offset)
            if place in self._stretches and (batches := await self._ahead(wanted)):
                found[n] = batches
                max_bytes -= sum(len(batch.payload) for batch in batches)
        rest = [n for n in range(len(ranges)) if n not in found]
        if rest and (max_bytes > 0 or not found):
            answers = await self._store.read([ranges[n] for n in rest], max_bytes)
            found |= dict(zip(rest, answers, strict=True))
        answer = [found.get(n, []) for n in range(len(ranges))]
        self._go_on(ranges, answer)
        return answer

    def give_back(self, partition_id: int, offset: int, batches: Sequence[StoredBatch]) -> None:
        """Keeps batches that their reader has no use for yet; it will ask for them at `offset`."""
        place = (partition_id, offset)
        # A batch keeps all alive that was read in one piece with it.
        size = sum(dict(map(_buffer, batches)).values())
        if place in self._stretches or not self._make_room(size):
            return
        kept: asyncio.Future[list[StoredBatch]] = asyncio.get_running_loop().create_future()
        kept.set_result(list(batches))
        self._stretches[place] = _Stretch(kept, size)
        self._used += size

    async def _ahead(self, wanted: ReadRange) -> list[StoredBatch]:
        """Batches read ahead for this range, cut to it; empty if there are none."""
        stretch = self._stretches.pop((wanted.partition_id, wanted.from_offset), None)
        if stretch is None:
            return []
        self._used -= stretch.bytes
        try:
            batches = await stretch.batches
        except (SegmentGone, StoreUnavailable):
            return []  # the caller then reads the store, and gets its error
        size = 0
        cut: list[StoredBatch] = []
        for batch in batches:
            size += len(batch.payload)
            if batch.last_offset >= wanted.to_offset or (cut and size > wanted.max_bytes):
                break
            cut.append(batch)
        return cut

    def _go_on(self, ranges: Sequence[ReadRange], answer: Sequence[Sequence[StoredBatch]]) -> None:
        """Reads ahead for readers that have come to an expected place."""
        ahead: list[ReadRange] = []
        for wanted, batches in zip(ranges, answer, strict=True):
            if not batches:
                continue
            is_going_on = self._expected.pop((wanted.partition_id, wanted.from_offset), 0) is None
            offset = batches[-1].last_offset + 1
            place = (wanted.partition_id, offset)
            if offset >= wanted.to_offset or place in self._stretches:
                continue
            self._expected[place] = None
            fits = self._used + wanted.max_bytes <= self._budget
            if is_going_on and (fits or self._make_room(wanted.max_bytes)):
                self._used += wanted.max_bytes
                ahead.append(
                    ReadRange(wanted.partition_id, offset, wanted.to_offset, wanted.max_bytes)
                )
        while len(self._expected) > READERS_REMEMBERED:
            self._expected.popitem(last=False)
        if ahead:
            futures = [asyncio.get_running_loop().create_future() for _ in ahead]
            for wanted, future in zip(ahead, futures, strict=True):
                place = (wanted.partition_id, wanted.from_offset)
                self._stretches[place] = _Stretch(future, wanted.max_bytes)
            task = asyncio.create_task(self._fill(ahead, futures))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _make_room(self, size: int) -> bool:
        """Forgets the oldest unused stretches."""
        while self._stretches and self._used + size > self._budget:
            _, oldest = self._stretches.popitem(last=False)
            self._used -= oldest.bytes
        return self._used + size <= self._budget

    async def _fill(
        self,
        ranges: Sequence[ReadRange],
        futures: Sequence[asyncio.Future[list[StoredBatch]]],
    ) -> None:
        try:
            answers = await self._store.read(ranges, self._budget)
        except (SegmentGone, StoreUnavailable):
            answers = [[] for _ in ranges]
        except BaseException:
            for future in futures:
                future.cancel()
            raise
        for future, batches in zip(futures, answers, strict=True):
            if not future.done():
                future.set_result(batches)


def _buffer(batch: StoredBatch) -> tuple[int, int]:
    """Which buffer its payload lies in, and how many bytes that has."""
    payload = batch.payload
    buffer = payload.obj if isinstance(payload, memoryview) else payload
    return id(buffer), memoryview(buffer).nbytes
