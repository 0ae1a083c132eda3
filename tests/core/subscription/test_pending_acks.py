"""Who holds what in open transactions, and each kind of conflict."""

import pytest

from core.subscription.cursor import Cursor, StoredCursor
from core.subscription.offset_ranges import OffsetRange
from core.subscription.pending_acks import PendingAckHandle, Released

Pairs = list[tuple[int, int]]


def ranges(*pairs: tuple[int, int]) -> tuple[OffsetRange, ...]:
    return tuple(OffsetRange(*each) for each in pairs)


def ids(*pairs: tuple[int, int]) -> list[tuple[OffsetRange, ...]]:
    """Each names one range."""
    return [ranges(each) for each in pairs]


@pytest.fixture
def cursor() -> Cursor:
    return Cursor.load(StoredCursor(10, ranges((20, 25))))


@pytest.fixture
def pending(cursor: Cursor) -> PendingAckHandle:
    """t1 holds 30-34."""
    pending = PendingAckHandle(cursor)
    assert pending.take("t1", ids((30, 35))) == [(30, 35)]
    return pending


@pytest.mark.parametrize(
    ("owner", "wanted", "taken"),
    [
        ("t2", [(12, 14)], [(12, 14)]),
        ("t2", [(28, 30), (35, 36)], [(28, 30), (35, 36)]),  # the rest of its batch
        ("t2", [(34, 36)], None),
        ("t2", [(32, 33)], None),
        ("t2", [(12, 14), (30, 31)], None),
        ("t2", [(9, 11)], None),  # below the mark-delete offset
        ("t2", [(24, 26)], None),
        ("t2", [(25, 26)], [(25, 26)]),
        ("t2", [(12, 14), (14, 15)], [(12, 15)]),
        ("t2", [(12, 14), (13, 15)], [(12, 15)]),
        ("t2", [(12, 15), (13, 15)], None),  # two copies of 13 at once
        ("t2", [(12, 14), (12, 14)], None),
        ("t1", [(28, 30), (35, 37)], [(28, 30), (35, 37)]),
        ("t1", [(30, 35)], None),  # a second copy
        ("t1", [(32, 34)], None),
        ("t1", [(28, 37)], [(28, 30), (35, 37)]),  # the rest of its batch, and what it has done
        ("t1", [(34, 36), (35, 37)], [(35, 37)]),
        ("t1", [(34, 36), (35, 36)], None),
        ("t1", [(30, 35), (24, 26)], None),
        ("t2", [], []),
    ],
)
def test_single_offsets_are_one_s_and_not_acknowledged(
    pending: PendingAckHandle, owner: str, wanted: Pairs, taken: Pairs | None
) -> None:
    before = pending.of(owner)
    assert pending.take(owner, ids(*wanted)) == taken
    if not taken:
        assert pending.of(owner) == before
    assert pending.owners == ({"t1", owner} if taken else {"t1"})


@pytest.mark.parametrize(
    ("wanted", "taken"),
    [
        ([[(28, 30), (32, 33)]], [(28, 30)]),  # both by one id, as clients repeat bits of a batch
        ([[(28, 30)], [(32, 33)]], None),
        ([[(32, 33), (33, 34)]], None),
        ([[(28, 30), (32, 33)], [(29, 31)]], None),
        ([[(28, 30), (32, 33)], [(27, 31)]], [(27, 30)]),
    ],
)
def test_an_id_has_to_name_something_new(
    pending: PendingAckHandle, wanted: list[Pairs], taken: Pairs | None
) -> None:
    assert pending.take("t1", [ranges(*each) for each in wanted]) == taken


@pytest.mark.parametrize(
    ("wanted", "taken"),
    [
        ([[(28, 30), (35, 36)]], [(28, 30), (35, 36)]),
        ([[(28, 30), (32, 33)]], None),
        ([[(28, 31)]], None),
        ([[(26, 28)], [(27, 29)]], None),
        ([[(26, 28), (27, 29)]], None),
        ([[(26, 27), (26, 27)]], None),
    ],
)
def test_who_is_exact_names_nothing_twice(
    pending: PendingAckHandle, wanted: list[Pairs], taken: Pairs | None
) -> None:
    named = [ranges(*each) for each in wanted]
    assert pending.take("t1", named, is_exact=True) == taken
    pending.leave_unanswered("t1", ranges((30, 35)), 0)
    again = [ranges((30, 33), (40, 41))]
    assert pending.take("t1", again, is_exact=True) == [(40, 41)]
    assert pending.take("t1", again, is_exact=True) is None


@pytest.mark.parametrize(
    ("owner", "end", "is_taken"),
    [
        ("t2", 9, False),
        ("t2", 10, False),  # all below is acknowledged
        ("t2", 11, True),
        ("t2", 30, True),
        ("t2", 31, False),  # the other one's
        ("t2", 40, False),
        ("t1", 40, True),  # its own
    ],
)
def test_all_below_an_offset(
    pending: PendingAckHandle, owner: str, end: int, is_taken: bool
) -> None:
    assert pending.take_up_to(owner, end) is is_taken
    assert pending.of(owner)[1] == (end if is_taken else None)


def test_only_one_holds_all_below_and_may_move_on(pending: PendingAckHandle) -> None:
    assert pending.take_up_to("t2", 15)
    assert not pending.take_up_to("t1", 13)
    assert not pending.take_up_to("t1", 40)
    for end, is_taken in ((15, False), (12, False), (18, True), (18, False)):
        assert pending.take_up_to("t2", end) is is_taken
    assert pending.of("t2") == ((), 18)
    assert pending.take("t1", ids((17, 19))) is None
    assert pending.take("t1", ids((18, 19))) == [(18, 19)]
    assert pending.take("t2", ids((12, 14))) is None
    assert pending.take("t2", ids((19, 20))) == [(19, 20)]
    assert not pending.take_up_to("t2", 19)


@pytest.mark.parametrize("is_acknowledged", [False, True])
def test_who_was_not_answered_may_ask_once_more(
    pending: PendingAckHandle, cursor: Cursor, is_acknowledged: bool
) -> None:
    """Whatever became of it."""
    if is_acknowledged:
        cursor.acknowledge_up_to(40)
    pending.leave_unanswered("t1", ranges((31, 34)), 0)
    assert pending.take("t1", ids((30, 33))) is None  # of 30 it was told
    assert pending.take("t2", ids((31, 33))) is None
    assert pending.take("t1", ids((31, 33))) == []
    assert pending.take("t1", ids((31, 34))) is None
    assert pending.take("t1", ids((33, 34), (41, 42))) == [(41, 42)]
    assert pending.take("t1", ids((33, 34))) is None


def test_who_was_not_answered_may_ask_for_all_below_once_more(
    pending: PendingAckHandle, cursor: Cursor
) -> None:
    assert pending.take_up_to("t1", 45)
    cursor.acknowledge_up_to(50)
    pending.leave_unanswered("t1", (), 45)
    assert pending.take_up_to("t1", 45)
    assert not pending.take_up_to("t1", 45)
    assert not pending.take_up_to("t1", 46)


@pytest.mark.parametrize("goes_on", [False, True])
def test_nothing_is_unanswered_of_what_is_over(pending: PendingAckHandle, goes_on: bool) -> None:
    pending.leave_unanswered("t1", ranges((30, 35)), 0)
    pending.release("t1", goes_on=goes_on)
    pending.load("t1", ranges((30, 35)), 0)
    assert pending.take("t1", ids((30, 35))) == ([] if goes_on else None)


@pytest.mark.parametrize("up_to", [0, 36])
def test_who_has_ended_holds_nothing(pending: PendingAckHandle, up_to: int) -> None:
    if up_to:
        assert pending.take_up_to("t1", up_to)
    free = ranges((0, 36)) if up_to else ranges((30, 35))
    assert pending.release("t1") == Released(ranges((30, 35)), up_to, free)
    assert pending.release("t1") == Released((), 0, ())
    assert pending.owners == set()
    assert pending.take("t2", ids((30, 35))) == [(30, 35)]
    assert pending.take_up_to("t2", 50)


def test_what_another_one_holds_too_is_not_free(pending: PendingAckHandle, cursor: Cursor) -> None:
    """Below the mark-delete offset single ones are in nobody's way; a seek may go back there."""
    cursor.acknowledge_up_to(32)
    assert not pending.take_up_to("t2", 40)
    cursor.acknowledge_up_to(35)
    assert pending.take_up_to("t2", 40)
    assert pending.take("t1", ids((42, 44))) == [(42, 44)]
    other = PendingAckHandle(cursor)
    for owner in pending.owners:
        held, up_to = pending.of(owner)
        other.load(owner, held, up_to or 0)
    assert pending.release("t1").free == ((42, 44),)
    assert pending.release("t2").free == ((0, 40),)
    assert other.release("t2").free == ((0, 30), (35, 40))
    assert other.release("t1").free == ((30, 35), (42, 44))


def test_what_is_loaded_is_not_asked_for(cursor: Cursor) -> None:
    pending = PendingAckHandle(cursor)
    pending.load("t1", ranges((5, 7), (22, 28)), 15)
    pending.load("t2", ranges((27, 30)), 0)
    assert pending.of("t1") == (((5, 7), (22, 28)), 15)
    assert pending.of("t2") == (((28, 30),), None)
    assert pending.of("t3") == ((), None)
    assert pending.owners == {"t1", "t2"}
    assert not pending.take_up_to("t2", 16)


def test_any_name_will_do_for_a_transaction(cursor: Cursor) -> None:
    pending = PendingAckHandle(cursor)
    assert pending.take_up_to(0, 12)
    assert not pending.take_up_to(None, 12)
    assert pending.take(None, ids((11, 12))) is None
    assert pending.take(0, ids((12, 13))) == [(12, 13)]
