"""The checker itself: it finds each anomaly put into a good log, and nothing in a good one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.faults.history import (
    Flaw,
    History,
    Outcome,
    PartitionView,
    RecordId,
    StoredRecord,
    check,
    check_seen,
    compare,
    parse_value,
    value_of,
)

Records = list[StoredRecord]


def acknowledged(count: int = 10) -> tuple[History, Records]:
    """One producer, one partition, all acknowledged; the log as it should be."""
    history, records = History(), []
    for sequence in range(count):
        record = RecordId("p", 0, sequence)
        value = history.begin(record, 60)
        history.end(record, Outcome.ACKNOWLEDGED, offset=sequence)
        records.append(StoredRecord(0, sequence, value))
    return history, records


def flaws(history: History, records: Records, end: int | None = None, start: int = 0) -> set[Flaw]:
    end = start + len(records) if end is None else end
    view = PartitionView(start, end, tuple(records))
    return {anomaly.flaw for anomaly in check(history, {0: view})}


def renumbered(records: Records) -> Records:
    return [replace(record, offset=offset) for offset, record in enumerate(records)]


def test_a_good_log_has_no_anomaly() -> None:
    assert flaws(*acknowledged()) == set()


def test_a_deleted_prefix_is_no_anomaly() -> None:
    history, records = acknowledged()
    assert flaws(history, records[4:], start=4) == set()


def test_a_value_says_which_record_it_is() -> None:
    record = RecordId("p", 3, 7)
    assert parse_value(value_of(record, 500)) == (record, 500)
    assert len(value_of(record, 500)) == 500
    assert parse_value(b"anything") is None
    assert parse_value(b"p|x|7|1|") is None


def lose(records: Records) -> Records:
    return renumbered(records[:-1])


def duplicate(records: Records) -> Records:
    return [*records, replace(records[-1], offset=len(records))]


def reorder(records: Records) -> Records:
    return renumbered([*records[:3], records[4], records[3], *records[5:]])


def tear(records: Records) -> Records:
    torn = records[2].value[:30] + records[3].value[30:]
    return [*records[:2], replace(records[2], value=torn), *records[3:]]


def shorten(records: Records) -> Records:
    return [*records[:2], replace(records[2], value=records[2].value[:-1]), *records[3:]]


def garble(records: Records) -> Records:
    return [*records[:2], replace(records[2], value=b"\0" * 60), *records[3:]]


def invent(records: Records) -> Records:
    return [*records, StoredRecord(0, len(records), value_of(RecordId("nobody", 0, 0), 60))]


def move_to_another_partition(records: Records) -> Records:
    return [*records, StoredRecord(0, len(records), value_of(RecordId("p", 1, 0), 60))]


def leave_a_gap(records: Records) -> Records:
    return [*records[:-1], replace(records[-1], offset=len(records))]


def repeat_an_offset(records: Records) -> Records:
    return [*records[:5], replace(records[5], offset=4), *records[6:]]


def shift(records: Records) -> Records:
    return renumbered([StoredRecord(0, 0, value_of(RecordId("q", 0, 0), 60)), *records])


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lose, Flaw.LOST),
        (duplicate, Flaw.DUPLICATED),
        (reorder, Flaw.REORDERED),
        (tear, Flaw.TORN),
        (shorten, Flaw.TORN),
        (garble, Flaw.TORN),
        (invent, Flaw.INVENTED),
        (move_to_another_partition, Flaw.INVENTED),
        (leave_a_gap, Flaw.GAP),
        (repeat_an_offset, Flaw.GAP),
        (shift, Flaw.MISPLACED),
    ],
)
def test_each_damage_is_found(damage: Callable[[Records], Records], expected: Flaw) -> None:
    history, records = acknowledged()
    history.begin(RecordId("q", 0, 0), 60)
    history.begin(RecordId("p", 1, 0), 60)
    assert expected in flaws(history, damage(records))


def test_a_log_that_ends_early_or_late_has_a_gap() -> None:
    history, records = acknowledged()
    assert Flaw.GAP in flaws(history, records, end=11)
    assert Flaw.GAP in flaws(history, records, end=9)
    assert Flaw.GAP in flaws(history, records[1:], start=0, end=10)


@pytest.mark.parametrize("outcome", [Outcome.UNKNOWN, Outcome.PENDING])
def test_an_unknown_outcome_may_be_stored_once_or_not(outcome: Outcome) -> None:
    history, records = acknowledged()
    last = RecordId("p", 0, 9)
    history.end(last, outcome)
    assert flaws(history, records) == set()
    assert flaws(history, records[:-1]) == set()
    assert flaws(history, duplicate(records)) == {Flaw.DUPLICATED}


def test_without_idempotence_only_unknown_outcomes_may_come_late() -> None:
    history, records = acknowledged()
    history.unsequenced.add("p")
    for sequence, offset in ((3, 4), (4, 3)):
        history.end(RecordId("p", 0, sequence), Outcome.ACKNOWLEDGED, offset=offset)
    assert flaws(history, reorder(records)) == {Flaw.REORDERED}
    history.end(RecordId("p", 0, 3), Outcome.UNKNOWN)
    assert flaws(history, reorder(records)) == set()
    assert flaws(history, duplicate(reorder(records))) == {Flaw.DUPLICATED}
    history.unsequenced.clear()
    assert flaws(history, reorder(records)) == {Flaw.REORDERED}


def test_producer_that_may_repeat_may_not_reorder_or_lose() -> None:
    history, records = acknowledged()
    history.may_repeat.add("p")
    assert flaws(history, duplicate(records)) == set()
    assert Flaw.REORDERED in flaws(history, reorder(records))
    assert Flaw.LOST in flaws(history, lose(records))


def test_an_acknowledgement_without_an_offset_is_one() -> None:
    history, records = acknowledged()
    history.end(RecordId("p", 0, 9), Outcome.ACKNOWLEDGED)
    assert flaws(history, records) == set()
    assert flaws(history, records[:-1]) == {Flaw.LOST}
    assert flaws(history, duplicate(records)) == {Flaw.DUPLICATED}


def test_what_was_refused_must_not_be_there() -> None:
    history, records = acknowledged()
    history.end(RecordId("p", 0, 9), Outcome.REFUSED, error="no")
    assert flaws(history, records) == {Flaw.REFUSED_BUT_STORED}
    assert flaws(history, records[:-1]) == set()


def test_partial_reads_show_the_same_flaws() -> None:
    history, records = acknowledged()
    history.begin(RecordId("p", 1, 0), 60)

    def found(seen: Records) -> set[Flaw]:
        return {anomaly.flaw for anomaly in check_seen(history, seen)}

    assert found(records) == found(records[3:]) == found(records + records) == set()
    assert found(tear(records)) == found(garble(records)) == {Flaw.TORN}
    assert found(invent(records)) == found(move_to_another_partition(records)) == {Flaw.INVENTED}
    assert found(reorder(records)) == {Flaw.MISPLACED}


def test_readers_must_agree() -> None:
    _, records = acknowledged()
    one = {0: PartitionView(0, 10, tuple(records))}
    two = {0: PartitionView(0, 10, tuple(tear(records)))}
    three = {0: PartitionView(0, 9, tuple(records[:-1]))}
    assert compare({"one": one, "again": dict(one)}) == []
    assert [a.flaw for a in compare({"one": one, "two": two})] == [Flaw.READERS_DISAGREE]
    assert [a.flaw for a in compare({"one": one, "three": three})] == [Flaw.READERS_DISAGREE]
    assert [a.flaw for a in compare({"one": one, "none": {}})] == [Flaw.READERS_DISAGREE]


def test_a_record_is_tried_once() -> None:
    history, _ = acknowledged()
    with pytest.raises(ValueError, match="tried before"):
        history.begin(RecordId("p", 0, 0), 60)
