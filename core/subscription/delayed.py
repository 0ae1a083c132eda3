"""Entries whose time has not come. Holds no clock: times are arguments."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from core.subscription.values import Entry


class DelayedEntries:
    """A heap by time, then offset."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[tuple[int, Entry]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, entry: Entry) -> None:
        """Puts in an entry that has a time."""
        assert entry.deliver_at_ms is not None
        heappush(self._heap, (entry.deliver_at_ms, entry))

    @property
    def deadline_ms(self) -> int | None:
        """When the first one is due; None where there is none."""
        return self._heap[0][0] if self._heap else None

    def due(self, now_ms: int) -> list[Entry]:
        """Takes out those whose time has come."""
        found = []
        while self._heap and self._heap[0][0] <= now_ms:
            found.append(heappop(self._heap)[1])
        return found

    def forget_below(self, offset: int) -> None:
        """Takes out those that lie below this offset."""
        self._heap = [each for each in self._heap if each[1].last_offset >= offset]
        heapify(self._heap)

    def clear(self) -> None:
        """Takes all out."""
        self._heap.clear()
