"""A set of offsets as sorted ranges that neither overlap nor touch, for a million of them.

Ranges lie in chunks of two arrays, starts and ends, so that a change moves some kilobytes at most
and a range costs 16 bytes. Knows nothing of what the offsets mean.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import NamedTuple

NO_OFFSET_ABOVE = 2**63 - 1
"""Above all offsets of a log."""

_CHUNK = 1_024
"""Ranges in half a chunk; more of them would make a change dearer, fewer a search."""


class OffsetRange(NamedTuple):
    """Offsets from `start` on, up to but without `end`."""

    start: int
    end: int


class OffsetRanges:
    """changed: starts below `watched_below` whose range came, went or got another end.

    offset_count: offsets in all ranges together; `len` counts the ranges.
    """

    __slots__ = (
        "_count",
        "_ends",
        "_firsts",
        "_starts",
        "changed",
        "offset_count",
        "watched_below",
    )

    def __init__(self, watched_below: int = 0) -> None:
        self._firsts: list[int] = []  # of each chunk, so that one search finds it
        self._starts: list[array[int]] = []
        self._ends: list[array[int]] = []
        self._count = 0
        self.offset_count = 0
        self.changed: set[int] = set()
        self.watched_below = watched_below

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[OffsetRange]:
        for starts, ends in zip(self._starts, self._ends, strict=True):
            yield from map(OffsetRange, starts, ends)

    @property
    def end(self) -> int:
        """The first offset above all ranges; 0 where there is none."""
        return self._ends[-1][-1] if self._ends else 0

    def add(self, start: int, end: int) -> int:
        """Puts offsets in, which may be there already; how many are new. start < end."""
        firsts = self._firsts
        c = bisect_right(firsts, start) - 1
        before = self.offset_count
        if c >= 0:
            starts, ends = self._starts[c], self._ends[c]
            i = bisect_right(starts, start)
            known_end = ends[i - 1]
            if known_end >= start:
                if known_end >= end:
                    return 0
                end = self._absorb(c, i, end)
                ends[i - 1] = end
                self.offset_count += end - known_end
                if starts[i - 1] < self.watched_below:
                    self.changed.add(starts[i - 1])
                return self.offset_count - before
        elif firsts:
            c = i = 0
            starts, ends = self._starts[0], self._ends[0]
            firsts[0] = start
        else:
            c = i = 0
            starts, ends = array("q"), array("q")
            firsts.append(start)
            self._starts.append(starts)
            self._ends.append(ends)
        starts.insert(i, start)
        ends.insert(i, end)
        if i + 1 == len(starts) or starts[i + 1] <= end:
            end = ends[i] = self._absorb(c, i + 1, end)
        self._count += 1
        self.offset_count += end - start
        if start < self.watched_below:
            self.changed.add(start)
        if len(starts) > 2 * _CHUNK:
            self._split(c)
        return self.offset_count - before

    def remove(self, start: int, end: int) -> int:
        """Takes offsets out, which need not be there; how many were. start < end."""
        c, i = self._place(start + 1)  # what only touches stays
        if c == len(self._firsts) or self._starts[c][i] >= end:
            return 0
        before = self.offset_count
        first = self._starts[c][i]
        reached = self._absorb(c, i, end - 1)
        if first < start:
            self.add(first, start)
        if end < reached:
            self.add(end, reached)
        return before - self.offset_count

    def drop_through(self, end: int) -> int:
        """Takes out all ranges that begin at or before `end`; where the last of them ends, or
        `end` if that is higher."""
        if not self._firsts or self._firsts[0] > end:
            return end
        return self._absorb(0, 0, end)

    def drop_touching(self, start: int, end: int) -> OffsetRange:
        """Takes out all ranges that overlap or touch these offsets; what they are together."""
        c, i = self._place(start)
        if c < len(self._firsts) and self._starts[c][i] <= end:
            start = min(start, self._starts[c][i])
            end = self._absorb(c, i, end)
        return OffsetRange(start, end)

    def clear(self) -> None:
        """Takes everything out."""
        self.drop_through(NO_OFFSET_ABOVE)

    def touches(self, start: int, end: int) -> bool:
        """Whether a range overlaps these offsets or lies right beside them."""
        c, i = self._place(start)
        return c < len(self._firsts) and self._starts[c][i] <= end

    def missing(self, start: int, end: int) -> list[OffsetRange]:
        """What of these offsets is in no range."""
        found = []
        for known_start, known_end in self._overlapping(start, end):
            if known_start > start:
                found.append(OffsetRange(start, known_start))
            start = known_end
        if start < end:
            found.append(OffsetRange(start, end))
        return found

    def count_within(self, start: int, end: int) -> int:
        """How many of these offsets are in ranges."""
        return sum(min(e, end) - max(s, start) for s, e in self._overlapping(start, end))

    def end_of(self, start: int) -> int | None:
        """The end of the range that begins exactly here; None where none does."""
        c = bisect_right(self._firsts, start) - 1
        if c < 0:
            return None
        starts = self._starts[c]
        i = bisect_left(starts, start)
        return self._ends[c][i] if i < len(starts) and starts[i] == start else None

    def start_at(self, rank: int) -> int | None:
        """Where the range with so many others below it begins; None where there are fewer."""
        for starts in self._starts:
            if rank < len(starts):
                return starts[rank]
            rank -= len(starts)
        return None

    def beginning_within(self, start: int, end: int) -> Iterator[OffsetRange]:
        """The ranges that begin within these offsets."""
        c = max(bisect_right(self._firsts, start) - 1, 0)
        for starts, ends in zip(self._starts[c:], self._ends[c:], strict=True):
            for i in range(bisect_left(starts, start), len(starts)):
                if starts[i] >= end:
                    return
                yield OffsetRange(starts[i], ends[i])

    def _overlapping(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        c, i = self._place(start + 1)  # what only touches is left out
        while c < len(self._firsts):
            starts, ends = self._starts[c], self._ends[c]
            while i < len(starts):
                if starts[i] >= end:
                    return
                yield starts[i], ends[i]
                i += 1
            c, i = c + 1, 0

    def _place(self, offset: int) -> tuple[int, int]:
        """Chunk and index of the first range that ends at or after `offset`; the chunk may be one
        that is not there."""
        c = bisect_right(self._firsts, offset) - 1
        if c < 0:
            return 0, 0
        i = bisect_right(self._starts[c], offset) - 1
        if self._ends[c][i] < offset:
            i += 1
            if i == len(self._starts[c]):
                return c + 1, 0
        return c, i

    def _absorb(self, c: int, i: int, end: int) -> int:
        """Takes out the ranges from this one on that begin at or before `end`, which grows with
        them; where it is then."""
        while True:
            starts = self._starts[c]
            behind = bisect_right(starts, end, i)
            is_last = behind == len(starts)
            if behind > i:
                end = max(end, self._ends[c][behind - 1])
                is_emptied = behind - i == len(starts)
                self._remove(c, i, behind)
            else:
                is_emptied = False
            if not is_last:
                return end
            if not is_emptied:
                c += 1
            if c >= len(self._firsts) or self._firsts[c] > end:
                return end
            i = 0

    def _remove(self, c: int, i: int, behind: int) -> None:
        starts, ends = self._starts[c], self._ends[c]
        gone = starts[i:behind]
        if gone[0] < self.watched_below:
            self.changed.update(gone[: bisect_left(gone, self.watched_below)])
        self._count -= len(gone)
        self.offset_count -= sum(ends[i:behind]) - sum(gone)
        if len(gone) == len(starts):
            del self._firsts[c], self._starts[c], self._ends[c]
            return
        del starts[i:behind], ends[i:behind]
        if not i:
            self._firsts[c] = starts[0]

    def _split(self, c: int) -> None:
        starts, ends = self._starts[c], self._ends[c]
        self._firsts.insert(c + 1, starts[_CHUNK])
        self._starts.insert(c + 1, starts[_CHUNK:])
        self._ends.insert(c + 1, ends[_CHUNK:])
        del starts[_CHUNK:], ends[_CHUNK:]
