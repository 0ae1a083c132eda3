"""Acknowledgements in open transactions: who holds what of a subscription, and what conflicts.

They are *pending*: neither acknowledged, nor anybody else's to acknowledge, until their
transaction ends. Knows of the cursor only what it asks. Rules: Pulsar's PendingAckHandleImpl. A
transaction that acknowledges a message a second time has worked on a second copy of it, and
conflicts with itself; but who got no answer may ask again.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import NamedTuple, Protocol

from core.subscription.offset_ranges import OffsetRange, OffsetRanges

Owner = Hashable
"""Whatever names a transaction for the runtime; never another one, of the same producer either."""


class Acknowledged(Protocol):
    """What has to be known of the cursor; see Cursor."""

    mark_delete: int

    def count_acknowledged(self, start: int, end: int) -> int:
        """How many of these offsets are acknowledged."""


class Released(NamedTuple):
    """What a transaction held. up_to: it held all below; 0: nothing by that.

    ranges: single ones. free: of both, what no other transaction holds.
    """

    ranges: tuple[OffsetRange, ...]
    up_to: int
    free: tuple[OffsetRange, ...]


class PendingAckHandle:
    """The pending acknowledgements of one subscription, named as in Pulsar.

    Single offsets are one transaction's at most. Only one may hold all below an offset (a
    cumulative acknowledgement), and below the mark-delete offset both kinds may overlap, as nobody
    needs those any more; after a seek somebody may.
    """

    __slots__ = ("_cursor", "_owned", "_single", "_unanswered", "_up_to", "_up_to_owner")

    def __init__(self, cursor: Acknowledged) -> None:
        self._cursor = cursor
        self._owned: dict[Owner, OffsetRanges] = {}
        self._single = OffsetRanges()  # all of them together
        self._up_to = 0  # of the cumulative one; 0 where there is none
        self._up_to_owner: Owner = None
        self._unanswered: dict[Owner, OffsetRanges] = {}

    # --- taking ---

    def take(
        self, owner: Owner, ids: Iterable[Collection[OffsetRange]], *, is_exact: bool = False
    ) -> list[OffsetRange] | None:
        """The transaction acknowledges what these ids name: what it did not hold before. None: some
        of that is acknowledged, or another one's, or an id names nothing that is new, and the
        transaction was told of what it names; nothing was taken.

        An id may name what the transaction holds beside what is new: clients repeat what they have
        acknowledged of a batch. is_exact: not here.
        """
        fresh = OffsetRanges()
        again: list[OffsetRange] = []
        for ranges in ids:
            not_held = [part for each in ranges for part in self._not_held(owner, *each)]
            if any(self._is_taken(owner, *each) for each in not_held):
                return None
            new = sum(fresh.add(*each) for each in not_held)
            if not new or (is_exact and new < _length(ranges)):
                if new < _length(not_held):
                    return None  # twice at once
                held = _without(ranges, not_held)
                if not self._is_unanswered(owner, held):
                    return None
                again += held
        taken = list(fresh)
        for each in again:
            self._unanswered[owner].remove(*each)
        self._add(owner, taken)
        return taken

    def take_up_to(self, owner: Owner, end: int) -> bool:
        """The transaction acknowledges all below; False: nothing was taken, since all of it is
        acknowledged, or another one holds some of it, or holds all below another offset, or it has
        been told that it holds as much."""
        if self._up_to:
            if self._up_to_owner != owner:
                return False
            if end <= self._up_to:
                if not self._is_unanswered(owner, [OffsetRange(end - 1, end)]):
                    return False
                self._unanswered[owner].remove(0, end)
                return True
        start = self._cursor.mark_delete
        if end <= start:
            return False
        own = self._owned.get(owner)
        known = own.count_within(start, end) if own is not None else 0
        if self._single.count_within(start, end) > known:
            return False
        self._up_to, self._up_to_owner = end, owner
        if owner in self._unanswered:  # it is to hear of all of them now
            self._unanswered[owner].remove(0, end)
        return True

    def load(self, owner: Owner, ranges: Collection[OffsetRange], up_to: int) -> None:
        """It held these when that was stored; up_to: 0 for none. What another one holds stays
        the other's."""
        self._add(owner, [part for each in ranges for part in self._single.missing(*each)])
        if up_to and (not self._up_to or self._up_to_owner == owner):
            self._up_to, self._up_to_owner = max(up_to, self._up_to), owner

    def leave_unanswered(self, owner: Owner, ranges: Collection[OffsetRange], up_to: int) -> None:
        """Nobody has told the client whether these were taken: it may ask once more. up_to: 0 for
        none."""
        unanswered = self._unanswered.setdefault(owner, OffsetRanges())
        for each in [*ranges, *([OffsetRange(0, up_to)] if up_to else [])]:
            unanswered.add(*each)

    def _is_unanswered(self, owner: Owner, ranges: Iterable[OffsetRange]) -> bool:
        unanswered = self._unanswered.get(owner)
        return unanswered is not None and not any(unanswered.missing(*each) for each in ranges)

    def _not_held(self, owner: Owner, start: int, end: int) -> list[OffsetRange]:
        if self._up_to and self._up_to_owner == owner:
            start = max(start, self._up_to)
        if start >= end:
            return []
        own = self._owned.get(owner)
        return own.missing(start, end) if own is not None else [OffsetRange(start, end)]

    def _is_taken(self, owner: Owner, start: int, end: int) -> bool:
        """Whether some of what the owner does not hold is acknowledged, or another one's."""
        if start < self._up_to and self._up_to_owner != owner:
            return True
        return bool(
            self._cursor.count_acknowledged(start, end) or self._single.count_within(start, end)
        )

    def _add(self, owner: Owner, ranges: Sequence[OffsetRange]) -> None:
        if not ranges:
            return
        own = self._owned.get(owner)
        if own is None:
            own = self._owned[owner] = OffsetRanges()
        for start, end in ranges:
            own.add(start, end)
            self._single.add(start, end)

    # --- letting go ---

    def release(self, owner: Owner, *, goes_on: bool = False) -> Released:
        """The transaction holds nothing any more; what it held. goes_on: it is not over, and may
        still ask for what is unanswered."""
        ranges, up_to = self.of(owner)
        self._owned.pop(owner, None)
        if not goes_on:
            self._unanswered.pop(owner, None)
        for start, end in ranges:
            self._single.remove(start, end)
        if up_to is not None:
            self._up_to, self._up_to_owner = 0, None
            free = [*self._single.missing(0, up_to), *_above(up_to, ranges)]
        else:
            free = _above(self._up_to, ranges)
        return Released(ranges, up_to or 0, tuple(free))

    # --- asking ---

    def __contains__(self, owner: Owner) -> bool:
        """Whether the transaction holds something."""
        return owner in self._owned or bool(self._up_to and self._up_to_owner == owner)

    def __bool__(self) -> bool:
        """Whether any transaction does."""
        return bool(self._owned or self._up_to)

    @property
    def owners(self) -> set[Owner]:
        """Transactions that hold something."""
        owners = set(self._owned)
        if self._up_to:
            owners.add(self._up_to_owner)
        return owners

    def of(self, owner: Owner) -> tuple[tuple[OffsetRange, ...], int | None]:
        """What the transaction holds: single ranges, in order; and all below what (None: no)."""
        up_to = self._up_to if self._up_to and self._up_to_owner == owner else None
        return tuple(self._owned.get(owner, ())), up_to


def _length(ranges: Iterable[OffsetRange]) -> int:
    return sum(end - start for start, end in ranges)


def _without(ranges: Iterable[OffsetRange], others: Iterable[OffsetRange]) -> list[OffsetRange]:
    left_out = OffsetRanges()
    for each in others:
        left_out.add(*each)
    return [part for each in ranges for part in left_out.missing(*each)]


def _above(offset: int, ranges: Collection[OffsetRange]) -> list[OffsetRange]:
    return [OffsetRange(max(start, offset), end) for start, end in ranges if end > offset]
