"""Which aborted transactions a read_committed reader must skip (Kafka's TransactionIndex).

The abort marker makes an entry, so entries are in order of their last offset. This process
remembers the newest; older ones are rows in the store. Knows no marker and no producer's state.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

ABORTED_IN_MEMORY = 1_000
"""Aborted transactions that a partition keeps in memory; the store has the older ones."""

_LAST_OFFSET = attrgetter("last_offset")


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """A producer's records in [first_offset, last_offset], the latter being the abort marker's."""

    producer_id: int
    first_offset: int
    last_offset: int

    def holds(self, producer_id: int, offset: int) -> bool:
        """Whether what this producer has written at this offset was aborted with it."""
        return producer_id == self.producer_id and self.first_offset <= offset <= self.last_offset


@dataclass(frozen=True, slots=True)
class AbortedIndex:
    """All aborted transactions of a partition that end at or after `known_from`, by last offset.

    Immutable, like the PartitionState it belongs to. It may be newer than the state a reader began
    with: entries added later begin at or after that state's last stable offset.
    """

    known_from: int = 0
    transactions: tuple[AbortedTransaction, ...] = ()

    def overlapping(self, from_offset: int, to_offset: int) -> Sequence[AbortedTransaction] | None:
        """Those that touch [from_offset, to_offset), or None if only the store knows."""
        if from_offset < self.known_from:
            return None
        known = self.transactions
        start = bisect_left(known, from_offset, key=_LAST_OFFSET)
        return [each for each in known[start:] if each.first_offset < to_offset]

    def with_newer(self, aborted: Sequence[AbortedTransaction]) -> "AbortedIndex":
        """The index with newer aborted transactions added."""
        return _bounded(self.known_from, (*self.transactions, *aborted)) if aborted else self


def _bounded(known_from: int, transactions: tuple[AbortedTransaction, ...]) -> AbortedIndex:
    """An index without the oldest entries if there are too many."""
    excess = len(transactions) - ABORTED_IN_MEMORY
    if excess > 0:
        known_from = transactions[excess - 1].last_offset + 1
        transactions = transactions[excess:]
    return AbortedIndex(known_from, transactions)
