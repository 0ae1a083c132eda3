"""Work that is parked, in order, because another broker holds its rows for too long.

A place is what the work waits for: a partition's id, a transaction's key, or a publication's guard.
Knows no store; `flusher.py` tries again.
"""

from __future__ import annotations

from core.staging.values import Guard
from core.transaction.key import TransactionKey
from gateway.runtime.flush.work import Pending, PendingAppend, PendingPublication

Place = int | TransactionKey | Guard


class LockedRows:
    """The parked work, by place."""

    def __init__(self) -> None:
        self._places: dict[Place, list[Pending]] = {}

    def __bool__(self) -> bool:
        return bool(self._places)

    def takes(self, pending: Pending) -> bool:
        """Whether work is parked for its place, or being retried, so that it must queue, too."""
        return bool(self._places) and _place(pending) in self._places

    def is_waited_for(self, pending: Pending) -> bool:
        """Whether other work is parked for the same place at this moment."""
        return bool(self._places.get(_place(pending)))

    def add(self, pending: Pending, now: float) -> bool:
        """Parks it; returns whether it is the first for its place."""
        pending.parked_at = pending.parked_at or now
        place = _place(pending)
        is_first = place not in self._places
        self._places.setdefault(place, []).append(pending)
        return is_first

    def arrivals(self) -> set[int]:
        """The arrival numbers of all parked work."""
        return {pending.arrival for waiting in self._places.values() for pending in waiting}

    def places(self) -> list[Place]:
        """The places with parked work."""
        return list(self._places)

    def take_out(self, place: Place) -> list[Pending]:
        """All work parked for a place, in order of arrival; the place stays taken until `tidy`."""
        work = sorted(self._places[place], key=lambda pending: pending.arrival)
        self._places[place] = []
        return work

    def tidy(self, place: Place) -> None:
        """Frees a place if nothing is parked for it any more."""
        if not self._places[place]:
            del self._places[place]


def _place(pending: Pending) -> Place:
    if isinstance(pending, PendingAppend):
        return pending.partition_id
    if isinstance(pending, PendingPublication):
        return pending.publication.guard
    return pending.key
