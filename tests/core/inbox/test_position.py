"""What follows from a look, in each case."""

from __future__ import annotations

from core.inbox.position import Bite, LookAgain, TooLarge, next_step
from core.inbox.values import EVERYTHING, NOTHING, InboxPosition, Look, WaitingRecord

FROM = InboxPosition(7, 2, "100:120:105")
NOW = "110:200:150"
IN_A_BACKLOG = InboxPosition(7, 2, "100:120:105", "90:190:", 40)


def record(stamp: int, number: int = 0) -> WaitingRecord:
    """Of a transaction that has the id of its stamp."""
    return WaitingRecord(stamp, number, stamp, bytes(16), "t", None, 0, b"key", b"value")


def look(
    *records: WaitingRecord,
    era: int = 2,
    is_cut: bool = False,
    is_crowded: bool = False,
    last_stamp: int | None = None,
) -> Look:
    last = records[-1].stamp if records else 0
    return Look(NOW, era, records, is_cut, is_crowded, 0.0, last_stamp or last)


def test_nothing_waits() -> None:
    assert next_step(FROM, look()) is None


def test_all_that_waits_is_published_up_to_the_look() -> None:
    records = (record(41), record(42))
    assert next_step(FROM, look(*records)) == Bite(records, InboxPosition(8, 2, NOW))


def test_of_a_cut_look_the_last_transaction_is_left() -> None:
    """More of it may follow."""
    records = (record(41), record(42, 1), record(42, 2), record(43))
    step = next_step(FROM, look(*records, is_cut=True))
    assert step == Bite(records[:3], InboxPosition(8, 2, FROM.published, NOW, 42))


def test_a_cut_look_at_one_transaction_is_too_large() -> None:
    records = (record(41, 1), record(41, 2))
    step = next_step(FROM, look(*records, is_cut=True))
    assert step == TooLarge(41, 41, InboxPosition(8, 2, FROM.published, NOW, 41))


def test_a_cut_look_may_end_with_a_transaction_without_records() -> None:
    """It is looked at again; those before it are whole."""
    records = (record(41), record(42))
    step = next_step(FROM, look(*records, is_cut=True, last_stamp=43))
    assert step == Bite(records, InboxPosition(8, 2, FROM.published, NOW, 42))


def test_a_cut_look_at_transactions_without_records_goes_on_behind_them() -> None:
    step = next_step(FROM, look(is_cut=True, last_stamp=43))
    assert step == Bite((), InboxPosition(8, 2, FROM.published, NOW, 43))


def test_a_crowd_is_looked_at_in_order_up_to_the_look() -> None:
    """That is not stored: the version stays."""
    step = next_step(FROM, look(is_crowded=True))
    assert step == LookAgain(InboxPosition(7, 2, FROM.published, NOW, 0))


def test_in_a_backlog_the_target_stays() -> None:
    records = (record(41), record(42))
    step = next_step(IN_A_BACKLOG, look(*records, is_cut=True))
    assert step == Bite(records[:1], InboxPosition(8, 2, FROM.published, "90:190:", 41))


def test_the_end_of_a_backlog_is_its_target() -> None:
    """Not the look: of what came later the order is not known yet."""
    for records in ((), (record(41),)):
        step = next_step(IN_A_BACKLOG, look(*records))
        assert step == Bite(records, InboxPosition(8, 2, "90:190:"))


def test_an_era_that_is_over_is_published_to_its_end() -> None:
    step = next_step(FROM, look(record(41), era=3))
    assert step == LookAgain(InboxPosition(7, 2, FROM.published, EVERYTHING, 0))


def test_a_backlog_of_an_era_that_is_over_comes_first() -> None:
    records = (record(41),)
    step = next_step(IN_A_BACKLOG, look(*records, era=3))
    assert step == Bite(records, InboxPosition(8, 2, "90:190:"))


def test_behind_an_era_the_next_one_begins() -> None:
    everything = InboxPosition(7, 2, FROM.published, EVERYTHING, 0)
    assert next_step(everything, look(era=4)) == Bite((), InboxPosition(8, 3, NOTHING))
