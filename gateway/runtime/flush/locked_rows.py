"""Work that is parked, in order, because another broker holds its rows for too long.

A row key says what work waits for: a partition's id, a transaction's key, or a publication's guard.
Knows no store; `flusher.py` tries again.
"""

from __future__ import annotations

from core.staging.values import Guard
from core.transaction.key import TransactionKey
from gateway.runtime.flush.work import Pending, PendingAppend, PendingPublication

RowKey = int | TransactionKey | Guard


class LockedRows:
    """The parked work, by row."""

    def __init__(self) -> None:
        self._waiting: dict[RowKey, list[Pending]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def takes(self, pending: Pending) -> bool:
        """Whether work is parked for its row, or being retried, so that it must queue, too."""
        return bool(self._waiting) and _row_key(pending) in self._waiting

    def is_waited_for(self, pending: Pending) -> bool:
        """Whether other work is parked for the same row at this moment."""
        return bool(self._waiting.get(_row_key(pending)))

    def add(self, pending: Pending, now: float) -> bool:
        """Parks it; returns whether it is the first for its row."""
        pending.parked_at = pending.parked_at or now
        row_key = _row_key(pending)
        is_first = row_key not in self._waiting
        self._waiting.setdefault(row_key, []).append(pending)
        return is_first

    def arrivals(self) -> set[int]:
        """The arrival numbers of all parked work."""
        return {pending.arrival for waiting in self._waiting.values() for pending in waiting}

    def row_keys(self) -> list[RowKey]:
        """The places with parked work."""
        return list(self._waiting)

    def take_out(self, row_key: RowKey) -> list[Pending]:
        """All work parked for a row, in order of arrival; the row stays taken until `tidy`."""
        work = sorted(self._waiting[row_key], key=lambda pending: pending.arrival)
        self._waiting[row_key] = []
        return work

    def tidy(self, row_key: RowKey) -> None:
        """Frees a row_key if nothing is parked for it any more."""
        if not self._waiting[row_key]:
            del self._waiting[row_key]


def _row_key(pending: Pending) -> RowKey:
    if isinstance(pending, PendingAppend):
        return pending.partition_id
    if isinstance(pending, PendingPublication):
        return pending.publication.guard
    return pending.key
