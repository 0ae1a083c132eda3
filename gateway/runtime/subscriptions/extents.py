"""Where entries end: an acknowledgement names an entry by its first offset only.

Remembers what was read lately: which stretches, and of the entries in them those with more than one
message. What is not known here has to be looked up in the log. Knows no cursor.
"""

from __future__ import annotations

from collections import OrderedDict

from core.subscription.offset_ranges import OffsetRanges

_MOST_REMEMBERED = 10_000
_MOST_STRETCHES = 10_000


class Extents:
    """Ends of entries, by base offset."""

    def __init__(self) -> None:
        self._ends: OrderedDict[int, int] = OrderedDict()
        self._split: set[int] = set()
        self._read = OffsetRanges()
        self._forgotten_below = 0

    def add(self, base_offset: int, last_offset: int) -> None:
        """An entry that is about to be told as read."""
        if last_offset > base_offset:
            self._ends[base_offset] = last_offset + 1
            if len(self._ends) > _MOST_REMEMBERED:
                base, _ = self._ends.popitem(last=False)
                self._split.discard(base)
                self._forgotten_below = max(self._forgotten_below, base + 1)

    def split(self, base_offset: int) -> None:
        """This one, told before, is given to consumers that share out by keys in pieces of one
        message."""
        self._split.add(base_offset)

    def read(self, start: int, end: int) -> None:
        """All entries in here have been told."""
        if start < end:
            self._read.add(start, end)
        if len(self._read) > _MOST_STRETCHES:
            self._read.clear()

    def end_of(self, base_offset: int, *, is_by_key: bool = False) -> int | None:
        """Where the entry that begins here ends; the next offset where none begins here, as between
        two; None where it is not known. is_by_key: for consumers that share out by keys."""
        if is_by_key and base_offset in self._split:
            return base_offset + 1
        end = self._ends.get(base_offset)
        if end is not None:
            return end
        if base_offset < self._forgotten_below:
            return None
        is_read = not self._read.missing(base_offset, base_offset + 1)
        return base_offset + 1 if is_read else None
