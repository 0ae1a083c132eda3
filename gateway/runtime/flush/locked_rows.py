"""What needs rows that another broker holds for too long waits here, in order.

A place is a partition's id, a transaction's key, or the guard of a publication. Knows no store;
`flusher.py` tries again.
"""

from __future__ import annotations

from core.staging.values import Guard
from core.transaction.key import TransactionKey
from gateway.runtime.flush.work import Pending, PendingAppend, PendingPublication

Place = int | TransactionKey | Guard


class LockedRows:
    """Who waits for which place."""

    def __init__(self) -> None:
        self._places: dict[Place, list[Pending]] = {}

    def __bool__(self) -> bool:
        return bool(self._places)

    def takes(self, pending: Pending) -> bool:
        """Whether its place is parked for, be it by those just taken out, so that it queues too."""
        return bool(self._places) and _place(pending) in self._places

    def is_waited_for(self, pending: Pending) -> bool:
        """Whether others wait for the same place at this moment."""
        return bool(self._places.get(_place(pending)))

    def add(self, pending: Pending, now: float) -> bool:
        """Parks it; returns whether it is the first for its place."""
        pending.parked_at = pending.parked_at or now
        place = _place(pending)
        is_first = place not in self._places
        self._places.setdefault(place, []).append(pending)
        return is_first

    def arrivals(self) -> set[int]:
        """The arrival numbers of all that wait."""
        return {pending.arrival for waiting in self._places.values() for pending in waiting}

    def places(self) -> list[Place]:
        """What is waited for."""
        return list(self._places)

    def take_out(self, place: Place) -> list[Pending]:
        """All that wait for a place, in order of arrival; the place stays taken until `tidy`."""
        work = sorted(self._places[place], key=lambda pending: pending.arrival)
        self._places[place] = []
        return work

    def tidy(self, place: Place) -> None:
        """Frees a place nobody waits for any more."""
        if not self._places[place]:
            del self._places[place]


def _place(pending: Pending) -> Place:
    if isinstance(pending, PendingAppend):
        return pending.partition_id
    if isinstance(pending, PendingPublication):
        return pending.publication.guard
    return pending.key
