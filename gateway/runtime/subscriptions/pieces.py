"""Entries of batches that were taken apart for those who share out by keys, remembered.

Of such a batch a few messages are given at a time, again and again; taking it apart costs as much
as giving all. Shared by all partitions of a broker, so that its memory has a bound. Knows no
format.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from core.subscription.values import Entry

if TYPE_CHECKING:
    from core.ports.log import StoredBatch
    from core.types import Payload
    from gateway.runtime.subscriptions.values import Describe, Split

MAX_BYTES: Final = 32 * 1024 * 1024
_OVERHEAD: Final = 400  # bytes of a piece, beside its own


class Piece(NamedTuple):
    """One message of a batch, as an entry of its own."""

    entry: Entry
    payload: Payload


class Pieces:
    """The pieces of batches that were asked for lately."""

    def __init__(self, describe: Describe, split: Split, max_bytes: int = MAX_BYTES) -> None:
        self._describe = describe
        self._split = split
        self._max_bytes = max_bytes
        self._known: OrderedDict[tuple[int, int], Sequence[Piece]] = OrderedDict()
        self._bytes = 0

    def of(
        self, partition_id: int, stored: StoredBatch, translated: StoredBatch
    ) -> Sequence[Piece]:
        """See Split; nothing where the batch stays whole."""
        if stored.record_count == 1:
            return ()
        key = partition_id, stored.base_offset
        found = self._known.get(key)
        if found is not None:
            self._known.move_to_end(key)
            return found
        pieces = tuple(
            Piece(self._describe(each, has_to_have_key=True), each.payload)
            for each in self._split(stored, translated)
        )
        if pieces:
            self._known[key] = pieces
            self._bytes += _size(pieces)
            while self._bytes > self._max_bytes and len(self._known) > 1:
                self._bytes -= _size(self._known.popitem(last=False)[1])
        return pieces

    def forget_everything(self) -> None:
        """The database has another history."""
        self._known.clear()
        self._bytes = 0


def _size(pieces: Sequence[Piece]) -> int:
    return sum(len(each.payload) + _OVERHEAD for each in pieces)
