"""gateway.console.positions: what a reset would do, before it is done."""

from __future__ import annotations

import json

import pytest

from core.group.offset_reset import NewOffset, Target, Way
from gateway.console.positions import Move, partitions_of, preview, read_moves
from gateway.web.call import ClientError

ENDS = {("t", 0): (2, 10), ("t", 1): (0, 10)}


@pytest.mark.parametrize(
    ("target", "new", "again", "skipped"),
    [
        (Target(Way.EARLIEST), [2, 0], 4 + 8, 0),
        (Target(Way.LATEST), [10, 10], 0, 4 + 2),
        (Target(Way.OFFSET, 7), [7, 7], 1, 1),
        (Target(Way.OFFSET, 99), [10, 10], 0, 4 + 2),
        (Target(Way.SHIFT, -5), [2, 3], 4 + 5, 0),
        (Target(Way.DATETIME, 1), [10, 5], 3, 4),
    ],
)
def test_what_is_read_again_and_what_is_skipped(
    target: Target, new: list[int], again: int, skipped: int
) -> None:
    old, by_time = {("t", 0): 6, ("t", 1): 8}, {("t", 0): -1, ("t", 1): 5}
    shown = preview(target, old, ENDS, by_time)
    assert [each.offset.new_offset for each in shown.moves] == new
    assert (shown.again, shown.skipped) == (again, skipped)
    assert read_moves(shown.told) == [
        NewOffset("t", number, old["t", number], new[number]) for number in (0, 1)
    ]


def test_what_retention_has_deleted_is_not_read_again() -> None:
    shown = preview(Target(Way.EARLIEST), {("t", 0): 1}, {("t", 0): (2, 10)}, {})
    assert (shown.again, shown.skipped) == (0, 0)


def test_what_has_no_offset_yet_begins_there() -> None:
    shown = preview(Target(Way.LATEST), {}, {("t", 0): (2, 10)}, {})
    assert shown.moves == [Move(NewOffset("t", 0, None, 10), 0, 0)]
    with pytest.raises(ClientError, match="t-0 cannot be shifted: nothing is committed"):
        preview(Target(Way.SHIFT, 1), {}, {("t", 0): (2, 10)}, {})


def test_partitions_are_written_as_lists_and_stretches() -> None:
    assert partitions_of("0, 2-4,7") == {0, 2, 3, 4, 7}
    assert partitions_of(" ") is None
    for wrong in ("a", "1-", "-1", "1-2-3", "5-2", "0-999999999", "9" * 12):
        with pytest.raises(ClientError):
            partitions_of(wrong)


@pytest.mark.parametrize("second", ["10000-20000", "0-10000"], ids=["others", "the same again"])
def test_of_partitions_all_stretches_together_are_bounded(second: str) -> None:
    assert len(partitions_of("0-9999,10000-19999") or ()) == 20_000
    with pytest.raises(ClientError, match="more than 20000 partitions"):
        partitions_of(f"0-9999,{second}")


@pytest.mark.parametrize(
    "told", ["", "{}", "[1]", '[["t", 0, 0]]', "[[1, 0, 0, 0]]", json.dumps([["t", 0, 0, 2**63]])]
)
def test_what_no_preview_has_told_is_refused(told: str) -> None:
    if told == "{}":
        assert read_moves(told) == []
        return
    with pytest.raises(ClientError):
        read_moves(told)
