"""A cursor beside a plain set of offsets, with crashes at any effect.

Longer runs: PENSTOCK_CURSOR_MACHINE_EXAMPLES=3000 pytest tests/property/test_cursor_machine.py.
"""

from __future__ import annotations

import os

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from core.subscription.cursor import Cursor, StoredCursor
from tests.property.subscription_world import ranges_of

LOG_END = 80
EXAMPLES = int(os.environ.get("PENSTOCK_CURSOR_MACHINE_EXAMPLES", "100"))
OFFSETS = st.integers(0, LOG_END)
COUNTS = st.one_of(st.just(1), st.integers(0, 12))


class CursorMachine(RuleBasedStateMachine):
    """Invariants: what is acknowledged is what was said, no more and no less; it never moves back
    but by a seek or a crash; what is hidden is left out where it has to be, and nowhere else; the
    store has what was taken, exactly: the lowest ranges, up to the bound; what is loaded from it is
    what was taken.
    """

    @initialize(bound=st.sampled_from([0, 1, 2, 3, 10_000]), start=st.sampled_from([0, 7]))
    def start(self, bound: int, start: int) -> None:
        self.bound = bound
        self.store = StoredCursor(start)
        self.cursor = Cursor.load(self.store, max_stored_ranges=bound)
        self.acked = set(range(start))  # all that is acknowledged, gaps below the mark too
        self.gaps: set[int] = set()
        self.hidden: set[int] = set()

    @property
    def known(self) -> set[int]:
        return self.acked | self.gaps

    def mark_delete(self) -> int:
        known = self.known
        return next(each for each in range(LOG_END + 20) if each not in known)

    def catch_up(self) -> None:
        """What the mark-delete offset has passed is acknowledged."""
        self.acked |= set(range(self.mark_delete()))

    @rule(start=OFFSETS, count=COUNTS)
    def acknowledge(self, start: int, count: int) -> None:
        wanted = set(range(start, start + count))
        assert self.cursor.acknowledge(start, start + count) == len(wanted - self.known)
        self.acked |= wanted
        self.catch_up()

    @rule(base=OFFSETS, size=st.integers(1, 8), done=st.sets(st.integers(0, 7)))
    def acknowledge_messages_of_a_batch(self, base: int, size: int, done: set[int]) -> None:
        for index in done:
            if index < size:
                self.acknowledge(base + index, 1)
        left = {*range(base, base + size)} - self.known - self.hidden
        assert self.cursor.unacknowledged(base, base + size) == tuple(ranges_of(left))
        assert self.cursor.count_unacknowledged(base, base + size) == len(left)

    @rule(end=OFFSETS)
    def acknowledge_up_to(self, end: int) -> None:
        wanted = set(range(end))
        assert self.cursor.acknowledge_up_to(end) == len(wanted - self.known)
        self.acked |= wanted
        self.catch_up()

    @rule(start=OFFSETS, count=st.integers(1, 4))
    def pass_gap(self, start: int, count: int) -> None:
        self.cursor.pass_gap(start, start + count)
        self.gaps |= set(range(start, start + count))
        self.catch_up()

    @rule(count=st.integers(0, 30))
    def skip(self, count: int) -> None:
        offset = self.cursor.behind_next(count, LOG_END)
        left = [each for each in range(LOG_END) if each not in self.known]
        if count and self.mark_delete() < LOG_END:
            assert offset == (left[count - 1] + 1 if count <= len(left) else LOG_END)
        self.acknowledge_up_to(min(offset, LOG_END))

    @rule(offset=OFFSETS)
    def seek(self, offset: int) -> None:
        self.cursor.seek(offset)
        self.acked, self.gaps = set(range(offset)), set()

    @rule(start=OFFSETS, count=COUNTS, is_shown=st.booleans())
    def hide_or_show(self, start: int, count: int, is_shown: bool) -> None:
        offsets = set(range(start, start + count))
        if not offsets:
            return
        if is_shown:
            self.cursor.show(start, start + count)
            self.hidden -= offsets
        else:
            self.cursor.hide(start, start + count)
            self.hidden |= offsets

    @rule(start=OFFSETS, count=COUNTS)
    def ask_of_some(self, start: int, count: int) -> None:
        end = start + count
        offsets = set(range(start, end))
        undone = offsets - self.known
        assert self.cursor.count_hidden(start, end) == len(undone & self.hidden)
        assert self.cursor.unacknowledged(start, end) == tuple(ranges_of(undone - self.hidden))
        assert self.cursor.count_unacknowledged(start, end) == len(undone - self.hidden)
        # A gap counts where it has become part of a range; `flush` has the same rule.
        acked = {
            each
            for run in ranges_of(self.known)
            if self.acked & set(range(*run))
            for each in range(*run)
        }
        acked |= set(range(self.mark_delete()))
        assert self.cursor.count_acknowledged(start, end) == len(offsets & acked)

    @rule()
    def flush(self) -> None:
        effects = self.cursor.take_effects()
        if effects is not None:
            assert effects.put or effects.gone or effects.mark_delete != self.store.mark_delete
            before = self.store
            self.store = before.replay(effects)
            assert not set(effects.gone) & {row.start for row in effects.put}
            assert not set(effects.put) & set(before.ranges), "put a row as it was"
        assert self.cursor.taken() == self.store
        assert self.store.mark_delete == self.mark_delete()
        # A row is a whole run of what counts as acknowledged, if anybody acknowledged some of it.
        above = {each for each in self.known if each > self.mark_delete()}
        wanted = [run for run in ranges_of(above) if self.acked & set(range(*run))]
        assert list(self.store.ranges) == wanted[: self.bound]

    @rule()
    def crash_after_effects_were_taken(self) -> None:
        self.cursor.take_effects()
        self.crash(self.bound)

    @rule(bound=st.sampled_from([0, 1, 3, 10_000]))
    def crash(self, bound: int) -> None:
        self.bound = bound
        self.cursor = Cursor.load(self.store, max_stored_ranges=bound)
        self.acked, self.gaps = set(range(self.store.mark_delete)), set()
        self.hidden = set()
        for row in self.store.ranges:
            self.acked |= set(range(*row))
        assert self.cursor.taken() == self.store

    @invariant()
    def it_is_what_was_said(self) -> None:
        assert self.cursor.mark_delete == self.mark_delete()
        end = LOG_END + 20
        undone = {*range(end)} - self.known
        left = undone - self.hidden
        assert self.cursor.unacknowledged(0, end) == tuple(ranges_of(left))
        assert self.cursor.count_unacknowledged(0, end) == len(left)
        assert self.cursor.backlog(end) == len(undone)
        assert self.cursor.count_hidden() == len(undone & self.hidden)
        assert self.cursor.untouched_from == max(self.known | self.hidden, default=-1) + 1


TestCursorMachine = CursorMachine.TestCase
TestCursorMachine.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=40, deadline=None, print_blob=True
)
