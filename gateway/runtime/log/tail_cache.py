"""The newest batches of each partition, in memory, so that readers at the tail cost no query.

A bounded cache of committed batches; knows no protocol. Its batches of a partition have no gaps and
end at the partition's newest known batch.
"""

from bisect import bisect_left
from collections import OrderedDict

from core.ports.log import StoredBatch


class TailCache:
    """Batches by partition, the oldest of all evicted first once `budget_bytes` are exceeded."""

    def __init__(self, budget_bytes: int) -> None:
        self._budget = budget_bytes
        self.size_bytes = 0
        self._batches: dict[int, list[StoredBatch]] = {}
        # (partition id, last offset) of every batch held, oldest first.
        self._order: OrderedDict[tuple[int, int], None] = OrderedDict()

    def append(self, partition_id: int, batch: StoredBatch) -> None:
        """Adds the partition's newest batch; after a gap, forgets the earlier ones."""
        batches = self._batches.setdefault(partition_id, [])
        if batches and batches[-1].last_offset + 1 != batch.base_offset:
            self.drop(partition_id)
            batches = self._batches.setdefault(partition_id, [])
        batches.append(batch)
        self._order[partition_id, batch.last_offset] = None
        self.size_bytes += len(batch.payload)
        while self.size_bytes > self._budget:
            self._evict_oldest()

    def read(
        self, partition_id: int, from_offset: int, to_offset: int, max_bytes: int
    ) -> list[StoredBatch] | None:
        """Batches that touch [from_offset, to_offset), at least one, at most `max_bytes` beyond it.

        None if the first of them is not in memory.
        """
        batches = self._batches.get(partition_id)
        if not batches or batches[0].base_offset > from_offset:
            return None
        first = bisect_left(batches, from_offset, key=_last_offset)
        size = 0
        end = first
        while end < len(batches) and batches[end].last_offset < to_offset:
            size += len(batches[end].payload)
            if size > max_bytes and end > first:
                break
            end += 1
        return batches[first:end] or None

    def drop(self, partition_id: int) -> None:
        """Forgets a partition."""
        for batch in self._batches.pop(partition_id, ()):
            self.size_bytes -= len(batch.payload)
            del self._order[partition_id, batch.last_offset]

    def clear(self) -> None:
        """Forgets everything."""
        self._batches.clear()
        self._order.clear()
        self.size_bytes = 0

    def _evict_oldest(self) -> None:
        (partition_id, _), _ = self._order.popitem(last=False)
        batches = self._batches[partition_id]
        self.size_bytes -= len(batches.pop(0).payload)
        if not batches:
            del self._batches[partition_id]


def _last_offset(batch: StoredBatch) -> int:
    return batch.last_offset
