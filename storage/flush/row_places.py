"""Where partitions' rows lie in their table (`ctid`), as the last flush of this process left them.

A row that every flush updates is found so in one step. Its index leads through all its versions,
and while anybody in the cluster holds a snapshot open, none of these is removed: after a minute at
250 flushes/s, 15,000. A place is a hint: who uses it looks at the row that is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

_KEPT: Final = 100_000


class RowPlaces:
    """The places of partitions' rows, in PostgreSQL's binary form (6 bytes)."""

    def __init__(self) -> None:
        self._places: dict[int, bytes] = {}

    def take(self, partition_ids: Iterable[int]) -> list[bytes]:
        """The place of each, or nothing if one is unknown. All are forgotten: until a commit is
        confirmed, nobody knows where it has left the rows."""
        found = [self._places.pop(each, b"") for each in partition_ids]
        return found if all(found) else []

    def put(self, partition_ids: Sequence[int], places: Sequence[bytes]) -> None:
        """Remembers where a commit has left the rows."""
        if len(self._places) > _KEPT:  # of deleted partitions, most of them
            self._places.clear()
        self._places.update(zip(partition_ids, places, strict=True))
