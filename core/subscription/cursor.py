"""A subscription's cursor in one partition: which offsets it has acknowledged.

All below the mark-delete offset are, and ranges above it. An entry (a stored batch) of which some
messages are done is no case of its own: the message i of a batch has the offset base + i. What is
decided counts in memory at once, since whoever holds the cursor has a lease; what is to be stored
is the difference to what was taken last. Must not know messages, ids or bit sets of a protocol.
Rules: Pulsar's ManagedCursorImpl.
"""

from __future__ import annotations

from dataclasses import dataclass

from core.subscription.offset_ranges import NO_OFFSET_ABOVE, OffsetRange, OffsetRanges

MAX_STORED_RANGES = 10_000
"""Pulsar's managedLedgerMaxUnackedRangesToPersist."""


@dataclass(frozen=True, slots=True)
class CursorEffects:
    """What has changed since the last were taken; rows are keyed by their range's start.

    mark_delete: as it is now. gone: starts whose rows go. put: rows that are new or have another
    end; both in order. A store applies them in this order, or only all.
    """

    mark_delete: int
    gone: tuple[int, ...] = ()
    put: tuple[OffsetRange, ...] = ()


@dataclass(frozen=True, slots=True)
class StoredCursor:
    """A cursor's rows. ranges: in order, all above mark_delete, none touching another."""

    mark_delete: int = 0
    ranges: tuple[OffsetRange, ...] = ()

    def replay(self, effects: CursorEffects) -> StoredCursor:
        """The rows once effects are stored: what a store does, said once."""
        rows = dict(self.ranges)
        for start in effects.gone:
            del rows[start]
        rows.update(effects.put)
        return StoredCursor(
            effects.mark_delete, tuple(OffsetRange(*row) for row in sorted(rows.items()))
        )


class Cursor:
    """mark_delete: the first offset that is not acknowledged; all before it are.

    max_stored_ranges: only so many ranges, the lowest, are ever stored. The others live in memory,
    are stored as soon as there is room, and are delivered again after a crash. 0 for a cursor that
    is not durable.

    Offsets that are no messages (control records, aborted ones) are *gaps*: they count as
    acknowledged but need no row, because whoever reads the log finds them again. A gap that touches
    an acknowledged range becomes part of it.

    Offsets may be *hidden*: nobody is to get them now, but they are not acknowledged. They may be
    meanwhile, and stay hidden; neither that nor a seek shows them. Nothing is stored of it.
    """

    __slots__ = (
        "_acked",
        "_gaps",
        "_hidden",
        "_max_stored",
        "_stored",
        "_taken_mark_delete",
        "mark_delete",
    )

    def __init__(self, mark_delete: int = 0, *, max_stored_ranges: int = MAX_STORED_RANGES) -> None:
        self.mark_delete = mark_delete
        self._max_stored = max_stored_ranges
        self._acked = OffsetRanges(NO_OFFSET_ABOVE if max_stored_ranges else 0)
        self._gaps = OffsetRanges()
        self._hidden: OffsetRanges | None = None  # None where there are none: the quick way
        self._stored: dict[int, int] = {}  # rows as they were taken: start → end
        self._taken_mark_delete = mark_delete

    @classmethod
    def load(cls, stored: StoredCursor, *, max_stored_ranges: int = MAX_STORED_RANGES) -> Cursor:
        """The cursor as it was stored."""
        cursor = cls(stored.mark_delete, max_stored_ranges=max_stored_ranges)
        acked = cursor._acked
        for start, end in stored.ranges:
            acked.add(start, end)
        acked.changed.clear()
        if stored.ranges:
            acked.watched_below = NO_OFFSET_ABOVE  # all that are there have a row
        cursor._stored = dict(stored.ranges)
        return cursor

    # --- acknowledging ---

    def acknowledge(self, start: int, end: int) -> int:
        """Acknowledges the offsets from `start` on and below `end`; how many are new.

        Whoever calls sees to it that `end` is not beyond the log's end: what comes there later
        would be lost to the subscription.
        """
        mark_delete = self.mark_delete
        if start <= mark_delete:
            return self.acknowledge_up_to(end)
        if start >= end:
            return 0
        gaps = self._gaps
        if not gaps:
            return self._acked.add(start, end)
        known = gaps.offset_count
        start, end = gaps.drop_touching(start, end)
        return self._acked.add(start, end) - (known - gaps.offset_count)

    def acknowledge_up_to(self, end: int) -> int:
        """Acknowledges all below `end` (a cumulative acknowledgement); how many are new.

        It never moves back. `end` need not be an entry's.
        """
        mark_delete = self.mark_delete
        if end <= mark_delete:
            return 0
        acked, gaps = self._acked, self._gaps
        known = acked.offset_count + gaps.offset_count
        # No gap touches an acknowledged range, so that at most one of the two goes further.
        reached = max(acked.drop_through(end), gaps.drop_through(end))
        self.mark_delete = reached
        return reached - mark_delete - (known - acked.offset_count - gaps.offset_count)

    def pass_gap(self, start: int, end: int) -> None:
        """These offsets are no messages: they count as acknowledged, and nobody gets them."""
        if start <= self.mark_delete:
            self.acknowledge_up_to(end)
        elif start < end:
            if self._acked.touches(start, end):
                self.acknowledge(start, end)
            else:
                self._gaps.add(start, end)

    def seek(self, offset: int) -> None:
        """Everything below is acknowledged, nothing from here on, whatever was before."""
        self._acked.clear()
        self._gaps.clear()
        self.mark_delete = offset

    # --- hiding ---

    def hide(self, start: int, end: int) -> None:
        """Nobody is to get these offsets, which may be hidden already. start < end."""
        if self._hidden is None:
            self._hidden = OffsetRanges()
        self._hidden.add(start, end)

    def show(self, start: int, end: int) -> None:
        """These offsets are hidden no longer. start < end."""
        if self._hidden is not None:
            self._hidden.remove(start, end)
            if not self._hidden:
                self._hidden = None

    # --- asking ---

    @property
    def untouched_from(self) -> int:
        """From here on nothing is acknowledged or hidden, and no gap known: the quick answer."""
        acked, gaps, hidden = self._acked, self._gaps, self._hidden
        if hidden is not None:
            return max(self.mark_delete, acked.end, gaps.end, hidden.end)
        if not acked and not gaps:
            return self.mark_delete
        return max(acked.end, gaps.end)

    def unacknowledged(self, start: int, end: int) -> tuple[OffsetRange, ...]:
        """What of these offsets is neither acknowledged nor hidden."""
        missing = self._missing(start, end)
        if self._hidden is not None:
            missing = [part for each in missing for part in self._hidden.missing(*each)]
        return tuple(missing)

    def _missing(self, start: int, end: int) -> list[OffsetRange]:
        """What of these offsets is not acknowledged, hidden or not."""
        start = max(start, self.mark_delete)
        if start >= end:
            return []
        missing = self._acked.missing(start, end)
        if self._gaps:
            missing = [part for each in missing for part in self._gaps.missing(*each)]
        return missing

    def count_unacknowledged(self, start: int, end: int) -> int:
        """How many of these offsets are neither acknowledged nor hidden."""
        if self._hidden is not None:
            return sum(e - s for s, e in self.unacknowledged(start, end))
        start = max(start, self.mark_delete)
        if start >= end:
            return 0
        acked = self._acked.count_within(start, end) if self._acked else 0
        return end - start - acked - (self._gaps.count_within(start, end) if self._gaps else 0)

    def count_acknowledged(self, start: int, end: int) -> int:
        """How many of these offsets are acknowledged, hidden or not. Gaps are not, unless they
        touch what is."""
        below = max(min(end, self.mark_delete) - start, 0)
        return below + self._acked.count_within(start, end)

    def count_hidden(self, start: int = 0, end: int = NO_OFFSET_ABOVE) -> int:
        """How many of these offsets are hidden, and not acknowledged."""
        hidden = self._hidden
        if hidden is None:
            return 0
        return sum(hidden.count_within(*each) for each in self._missing(start, end))

    def backlog(self, log_end: int) -> int:
        """Messages in the log that are not acknowledged, hidden or not; gaps that nobody has read
        yet count."""
        known = self._acked.offset_count + self._gaps.offset_count
        return max(log_end - self.mark_delete - known, 0)

    def behind_next(self, count: int, log_end: int) -> int:
        """The offset behind the next `count` messages that are not acknowledged; log_end where
        there are fewer. Gaps that nobody has read yet count as messages, hidden ones too."""
        position = self.mark_delete
        for start, end in self._missing(position, log_end):
            position = min(end, start + count)
            count -= position - start
            if count <= 0:
                return position
        return log_end if count > 0 else position

    @property
    def range_count(self) -> int:
        """Acknowledged ranges above mark_delete, stored or not (Pulsar's
        totalNonContiguousDeletedMessagesRange)."""
        return len(self._acked)

    # --- storing ---

    @property
    def is_wholly_stored(self) -> bool:
        """Whether effects that are taken now leave no range to memory alone."""
        return len(self._acked) <= self._max_stored

    def take_effects(self) -> CursorEffects | None:
        """What is to be stored, or None where nothing has changed.

        Costs what has changed, not what is there. Whoever takes them must store them: where that
        fails the cursor has to be loaded again.
        """
        acked, stored = self._acked, self._stored
        watched = acked.watched_below
        bound = acked.start_at(self._max_stored)
        if bound is None:
            bound = NO_OFFSET_ABOVE
        gone: list[int] = []
        put: list[OffsetRange] = []
        for start in acked.changed:
            end = acked.end_of(start) if start < bound else None
            if end == stored.get(start):
                continue
            if end is None:
                gone.append(start)
                del stored[start]
            else:
                put.append(OffsetRange(start, end))
                stored[start] = end
        acked.changed.clear()
        # What lies between the old bound and the new one has not changed and yet goes, or comes.
        gone += [
            row.start
            for row in acked.beginning_within(bound, watched)
            if stored.pop(row.start, None) is not None
        ]
        fresh = list(acked.beginning_within(watched, bound))
        put += fresh
        stored.update(fresh)
        acked.watched_below = bound
        if not gone and not put and self.mark_delete == self._taken_mark_delete:
            return None
        self._taken_mark_delete = self.mark_delete
        return CursorEffects(self.mark_delete, tuple(sorted(gone)), tuple(sorted(put)))

    def taken(self) -> StoredCursor:
        """Rows as the store has them once all effects taken so far are in it."""
        return StoredCursor(
            self._taken_mark_delete,
            tuple(OffsetRange(*row) for row in sorted(self._stored.items())),
        )
