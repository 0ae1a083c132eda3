"""Entries of which nothing is left but what open transactions acknowledge: nobody gets them until
one of those ends. State only."""

from __future__ import annotations

from core.subscription.sorted_offsets import SortedOffsets
from core.subscription.values import Entry


class StashedEntries:
    """entries: by base offset; at most as many as there are pending acknowledgements."""

    __slots__ = ("_order", "entries")

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self._order = SortedOffsets()

    def add(self, entry: Entry) -> None:
        """Puts in an entry that is not there."""
        self.entries[entry.base_offset] = entry
        self._order.add(entry.base_offset)

    def remove(self, entry: Entry) -> None:
        """Takes out an entry that is there."""
        del self.entries[entry.base_offset]
        self._order.remove(entry.base_offset)

    def within(self, start: int, end: int) -> list[Entry]:
        """Those that have some of these offsets, in order."""
        found = (self.entries[base] for base in self._order.within(start, end))
        return [entry for entry in found if entry.last_offset >= start]

    def clear(self) -> None:
        """Takes all out."""
        self.entries.clear()
        self._order.clear()
