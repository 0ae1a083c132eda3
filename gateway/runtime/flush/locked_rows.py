"""Work that is parked, in order, because another broker holds its rows for too long.

A row key says what work waits for: a partition's id, a transaction's key, or a publication's guard.
Knows no store; `flusher.py` tries again.
"""

from __future__ import annotations

from core.staging.values import Guard
from core.transaction.key import TransactionKey
from gateway.runtime.flush.work import (
    QueuedAppend,
    QueuedBite,
    QueuedPublication,
    QueuedWork,
)

RowKey = int | str | TransactionKey | Guard

_INBOX = "inbox"


class LockedRows:
    """The parked work, by row."""

    def __init__(self) -> None:
        self._waiting: dict[RowKey, list[QueuedWork]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def takes(self, queued: QueuedWork) -> bool:
        """Whether work is parked for its row, or being retried, so that it must queue, too."""
        return bool(self._waiting) and _row_key(queued) in self._waiting

    def is_waited_for(self, queued: QueuedWork) -> bool:
        """Whether other work is parked for the same row at this moment."""
        return bool(self._waiting.get(_row_key(queued)))

    def add(self, queued: QueuedWork, now: float) -> bool:
        """Parks it; returns whether it is the first for its row."""
        queued.parked_at = queued.parked_at or now
        row_key = _row_key(queued)
        is_first = row_key not in self._waiting
        self._waiting.setdefault(row_key, []).append(queued)
        return is_first

    def arrivals(self) -> set[int]:
        """The arrival numbers of all parked work."""
        return {queued.arrival for waiting in self._waiting.values() for queued in waiting}

    def row_keys(self) -> list[RowKey]:
        """The places with parked work."""
        return list(self._waiting)

    def take_out(self, row_key: RowKey) -> list[QueuedWork]:
        """All work parked for a row, in order of arrival; the row stays taken until `tidy`."""
        work = sorted(self._waiting[row_key], key=lambda queued: queued.arrival)
        self._waiting[row_key] = []
        return work

    def tidy(self, row_key: RowKey) -> None:
        """Frees a row_key if nothing is parked for it any more."""
        if not self._waiting[row_key]:
            del self._waiting[row_key]


def _row_key(queued: QueuedWork) -> RowKey:
    if isinstance(queued, QueuedAppend):
        return queued.partition_id
    if isinstance(queued, QueuedPublication):
        return queued.publication.guard
    if isinstance(queued, QueuedBite):
        return _INBOX
    return queued.key
