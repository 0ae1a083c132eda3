"""The cursor: acknowledgements in any order, gaps, seeks, and what is stored of it."""

import pytest

from core.subscription.cursor import Cursor, CursorEffects, StoredCursor
from core.subscription.offset_ranges import OffsetRange

Pairs = tuple[tuple[int, int], ...]


def cursor_with(mark_delete: int, *acked: tuple[int, int]) -> Cursor:
    return Cursor.load(StoredCursor(mark_delete, tuple(OffsetRange(*each) for each in acked)))


def rows(cursor: Cursor) -> tuple[int, Pairs]:
    cursor.take_effects()
    return cursor.taken().mark_delete, tuple(tuple(each) for each in cursor.taken().ranges)


@pytest.mark.parametrize(
    ("start", "end", "new", "after"),
    [
        (10, 11, 1, (11, ((20, 30), (40, 50)))),
        (12, 14, 2, (10, ((12, 14), (20, 30), (40, 50)))),
        (30, 32, 2, (10, ((20, 32), (40, 50)))),
        (30, 40, 10, (10, ((20, 50),))),
        (10, 20, 10, (30, ((40, 50),))),
        (5, 20, 10, (30, ((40, 50),))),
        (5, 9, 0, (10, ((20, 30), (40, 50)))),
        (22, 25, 0, (10, ((20, 30), (40, 50)))),
        (25, 22, 0, (10, ((20, 30), (40, 50)))),
    ],
)
def test_an_individual_acknowledgement(
    start: int, end: int, new: int, after: tuple[int, Pairs]
) -> None:
    cursor = cursor_with(10, (20, 30), (40, 50))
    assert cursor.acknowledge(start, end) == new
    assert rows(cursor) == after


@pytest.mark.parametrize(
    ("end", "new", "after"),
    [
        (5, 0, (10, ((20, 30), (40, 50)))),
        (10, 0, (10, ((20, 30), (40, 50)))),
        (15, 5, (15, ((20, 30), (40, 50)))),
        (20, 10, (30, ((40, 50),))),
        (25, 10, (30, ((40, 50),))),
        (35, 15, (35, ((40, 50),))),
        (60, 30, (60, ())),
    ],
)
def test_a_cumulative_acknowledgement_never_moves_back(
    end: int, new: int, after: tuple[int, Pairs]
) -> None:
    cursor = cursor_with(10, (20, 30), (40, 50))
    assert cursor.acknowledge_up_to(end) == new
    assert rows(cursor) == after


def test_an_entry_is_done_once_each_of_its_messages_is() -> None:
    cursor = Cursor(100)
    assert cursor.unacknowledged(100, 110) == ((100, 110),)
    cursor.acknowledge(103, 104)
    cursor.acknowledge(105, 110)
    assert cursor.unacknowledged(100, 110) == ((100, 103), (104, 105))
    assert cursor.count_unacknowledged(100, 110) == 4
    cursor.acknowledge(104, 105)
    cursor.acknowledge(100, 103)
    assert cursor.unacknowledged(100, 110) == ()
    assert rows(cursor) == (110, ())


def test_from_untouched_on_nothing_is_acknowledged() -> None:
    cursor = Cursor(10)
    assert cursor.untouched_from == 10
    cursor.acknowledge(20, 22)
    assert cursor.untouched_from == 22
    cursor.pass_gap(30, 31)
    assert cursor.untouched_from == 31


class TestGaps:
    """Offsets that are no messages count as acknowledged and need no row."""

    def test_one_at_the_mark_delete_offset_moves_it(self) -> None:
        cursor = Cursor(10)
        cursor.pass_gap(10, 12)
        assert cursor.mark_delete == 12

    def test_one_above_waits_for_what_is_before_it(self) -> None:
        cursor = Cursor(10)
        cursor.pass_gap(11, 12)
        assert rows(cursor) == (10, ())
        assert cursor.unacknowledged(10, 13) == ((10, 11), (12, 13))
        assert cursor.acknowledge(10, 11) == 1
        assert cursor.mark_delete == 12

    def test_one_that_touches_a_range_becomes_part_of_it(self) -> None:
        cursor = cursor_with(10, (20, 30))
        cursor.pass_gap(30, 31)
        assert cursor.acknowledge(31, 32) == 1
        assert rows(cursor) == (10, ((20, 32),))

    def test_a_range_that_comes_to_touch_gaps_takes_them_in(self) -> None:
        cursor = Cursor(10)
        cursor.pass_gap(19, 20)
        cursor.pass_gap(21, 22)
        assert cursor.acknowledge(20, 21) == 1
        assert rows(cursor) == (10, ((19, 22),))

    def test_an_acknowledged_gap_is_nothing_new(self) -> None:
        cursor = Cursor(10)
        cursor.pass_gap(20, 30)
        assert cursor.acknowledge(22, 32) == 2
        assert rows(cursor) == (10, ((20, 32),))

    def test_they_are_no_backlog(self) -> None:
        cursor = cursor_with(10, (20, 30))
        cursor.pass_gap(15, 16)
        assert cursor.backlog(40) == 19
        assert cursor.backlog(5) == 0


@pytest.mark.parametrize(
    ("count", "offset"), [(0, 10), (5, 15), (10, 20), (11, 31), (30, 60), (31, 60), (99, 60)]
)
def test_the_offset_behind_the_next_messages(count: int, offset: int) -> None:
    assert cursor_with(10, (20, 30), (40, 50)).behind_next(count, 60) == offset


@pytest.mark.parametrize("offset", [0, 10, 25, 90])
def test_a_seek_forgets_everything(offset: int) -> None:
    cursor = cursor_with(10, (20, 30), (40, 50))
    cursor.pass_gap(60, 61)
    cursor.seek(offset)
    assert cursor.range_count == 0
    assert cursor.untouched_from == offset
    assert cursor.take_effects() == CursorEffects(offset, gone=(20, 40))


class TestEffects:
    """Only what has changed since the last were taken."""

    def test_nothing_changed_nothing_to_store(self) -> None:
        cursor = cursor_with(10, (20, 30))
        assert cursor.take_effects() is None
        cursor.acknowledge(22, 25)
        cursor.pass_gap(40, 41)
        assert cursor.take_effects() is None

    def test_a_growing_range_changes_only_its_row(self) -> None:
        cursor = cursor_with(10, (20, 30), (40, 50))
        cursor.acknowledge(30, 31)
        assert cursor.take_effects() == CursorEffects(10, put=(OffsetRange(20, 31),))

    def test_a_range_that_grows_downwards_has_a_new_row(self) -> None:
        cursor = cursor_with(10, (20, 30))
        cursor.acknowledge(19, 20)
        assert cursor.take_effects() == CursorEffects(10, gone=(20,), put=(OffsetRange(19, 30),))

    def test_ranges_that_meet_are_one_row(self) -> None:
        cursor = cursor_with(10, (20, 30), (40, 50))
        cursor.acknowledge(30, 40)
        assert cursor.take_effects() == CursorEffects(10, gone=(40,), put=(OffsetRange(20, 50),))

    def test_what_came_and_went_in_between_is_not_told(self) -> None:
        cursor = Cursor(10)
        cursor.acknowledge(11, 12)
        cursor.acknowledge(10, 11)
        assert cursor.take_effects() == CursorEffects(12)

    def test_a_row_that_went_and_came_as_it_was_is_not_told(self) -> None:
        cursor = cursor_with(10, (20, 30))
        cursor.seek(10)
        cursor.acknowledge(20, 30)
        assert cursor.take_effects() is None

    def test_replayed_they_give_the_rows(self) -> None:
        stored = StoredCursor(10, (OffsetRange(20, 30), OffsetRange(40, 50)))
        cursor = Cursor.load(stored)
        cursor.acknowledge(30, 40)
        cursor.acknowledge(60, 61)
        effects = cursor.take_effects()
        assert effects is not None
        assert stored.replay(effects) == cursor.taken()


class TestBound:
    """Of many ranges only the lowest are stored."""

    def test_the_highest_are_left_out(self) -> None:
        cursor = Cursor(0, max_stored_ranges=2)
        for offset in (50, 10, 30, 70):
            cursor.acknowledge(offset, offset + 1)
        assert rows(cursor) == (0, ((10, 11), (30, 31)))
        assert cursor.range_count == 4

    def test_a_lower_one_drives_the_highest_out(self) -> None:
        cursor = Cursor(0, max_stored_ranges=2)
        for offset in (10, 30):
            cursor.acknowledge(offset, offset + 1)
        cursor.take_effects()
        cursor.acknowledge(20, 21)
        assert cursor.take_effects() == CursorEffects(0, gone=(30,), put=(OffsetRange(20, 21),))

    def test_what_is_left_out_may_change_without_effects(self) -> None:
        cursor = Cursor(0, max_stored_ranges=1)
        cursor.acknowledge(10, 11)
        cursor.acknowledge(20, 21)
        cursor.take_effects()
        cursor.acknowledge(21, 25)
        cursor.acknowledge(30, 35)
        assert cursor.take_effects() is None

    def test_when_room_frees_up_the_next_ones_are_stored(self) -> None:
        cursor = Cursor(0, max_stored_ranges=2)
        for offset in (10, 20, 30, 40):
            cursor.acknowledge(offset, offset + 1)
        cursor.take_effects()
        cursor.acknowledge(30, 35)
        cursor.acknowledge_up_to(10)
        assert cursor.take_effects() == CursorEffects(11, gone=(10,), put=(OffsetRange(30, 35),))
        cursor.acknowledge_up_to(20)
        assert cursor.take_effects() == CursorEffects(21, gone=(20,), put=(OffsetRange(40, 41),))

    def test_a_lower_bound_holds_from_the_next_flush_on(self) -> None:
        stored = StoredCursor(0, tuple(OffsetRange(each, each + 1) for each in (10, 20, 30)))
        cursor = Cursor.load(stored, max_stored_ranges=1)
        assert cursor.take_effects() == CursorEffects(0, gone=(20, 30))

    def test_none_are_stored_of_a_cursor_that_is_not_durable(self) -> None:
        cursor = Cursor(0, max_stored_ranges=0)
        cursor.acknowledge(10, 11)
        assert cursor.take_effects() is None


class TestHidden:
    """Nobody is to get these offsets; to the store and the backlog they are as they were."""

    def test_they_are_left_out_of_what_may_be_delivered(self) -> None:
        cursor = cursor_with(10, (20, 30))
        cursor.hide(12, 22)
        assert cursor.unacknowledged(0, 40) == ((10, 12), (30, 40))
        assert cursor.count_unacknowledged(0, 40) == 12
        assert cursor.count_hidden() == cursor.count_hidden(12, 25) == 8
        assert cursor.count_hidden(15, 16) == 1
        cursor.show(12, 15)
        assert cursor.unacknowledged(0, 40) == ((10, 15), (30, 40))
        cursor.show(0, 99)
        assert cursor.count_unacknowledged(0, 40) == 20
        assert cursor.count_hidden() == 0

    def test_nothing_is_stored_of_it_and_nothing_moves(self) -> None:
        cursor = cursor_with(10, (20, 30))
        cursor.hide(10, 20)
        assert cursor.take_effects() is None
        assert (cursor.mark_delete, cursor.backlog(40)) == (10, 20)
        assert cursor.behind_next(3, 40) == 13

    @pytest.mark.parametrize("end", [12, 40, 60])
    def test_the_quick_answer_knows_of_them(self, end: int) -> None:
        cursor = cursor_with(10, (20, 30))
        cursor.hide(10, end)
        assert cursor.untouched_from == max(end, 30)
        cursor.acknowledge_up_to(70)
        assert cursor.untouched_from == 70
        cursor.show(10, end)
        assert cursor.untouched_from == 70

    def test_they_may_be_acknowledged_and_stay_so_when_shown(self) -> None:
        cursor = cursor_with(10)
        cursor.hide(10, 14)
        assert cursor.acknowledge(12, 13) == 1
        assert cursor.count_hidden() == 3
        assert cursor.acknowledge_up_to(11) == 1
        cursor.show(10, 14)
        assert cursor.unacknowledged(10, 15) == ((11, 12), (13, 15))

    def test_a_seek_keeps_them(self) -> None:
        cursor = cursor_with(10)
        cursor.hide(12, 14)
        cursor.acknowledge_up_to(20)
        cursor.seek(5)
        assert cursor.unacknowledged(0, 20) == ((5, 12), (14, 20))

    def test_gaps_are_not_pending(self) -> None:
        cursor = cursor_with(10)
        cursor.pass_gap(12, 13)
        cursor.hide(11, 14)
        assert cursor.count_hidden() == 2

    def test_showing_what_is_not_hidden_changes_nothing(self) -> None:
        cursor = cursor_with(10)
        cursor.show(0, 99)
        cursor.hide(12, 14)
        cursor.show(14, 20)
        assert cursor.count_hidden() == 2


@pytest.mark.parametrize(
    ("start", "end", "count"),
    [(0, 5, 5), (5, 15, 5), (12, 20, 0), (15, 25, 5), (0, 60, 30), (33, 34, 0)],
)
def test_how_many_are_acknowledged_hidden_or_not_gaps_apart(
    start: int, end: int, count: int
) -> None:
    cursor = cursor_with(10, (20, 30), (40, 50))
    cursor.pass_gap(33, 34)
    cursor.hide(5, 45)
    assert cursor.count_acknowledged(start, end) == count
