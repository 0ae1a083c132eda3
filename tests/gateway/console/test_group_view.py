"""gateway.console.group_view: a group as its page shows it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from core.group.progress import HeldPartition
from core.ports.console.groups import GroupFacts, GroupMember, GroupPlace
from gateway.console.group_view import (
    assigned_places,
    lag_plot,
    listed,
    rows_of,
    view_of,
    visible,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
READER = GroupMember(
    "r-1", None, "reader", "/10.0.0.1", "consumer", "Stable", 3, False, 45.0,
    {"t": [0, 1], "secret": [0]}, {}, {"t": [0]}, ["t", "secret"], None,
)  # fmt: skip
FACTS = GroupFacts("g", "consumer", None, "Stable", NOW, "uniform", 3, 3, None, (), "here:9092")


def place(partition: int, committed: int | None, end: int = 10) -> GroupPlace:
    at = None if committed is None else NOW - timedelta(seconds=90)
    return GroupPlace("t", partition, committed, 2, end, end, at, None, None, None, None)


def test_partitions_are_written_in_short() -> None:
    assert listed({"b": [3, 1, 2, 7], "a": [0]}) == "a 0; b 1-3,7"
    assert listed({}) == ""


def test_only_topics_that_may_be_seen_are_shown() -> None:
    seen = visible(READER, {"t"})
    assert (seen.assigned, list(seen.subscribed)) == ({"t": [0, 1]}, ["t"])
    assert assigned_places([seen]) == [("t", 0), ("t", 1)]


def test_a_partition_has_its_owner_its_lag_and_what_holds_it() -> None:
    held = HeldPartition("t", 1, "tx", 4, 10, 1)
    rows = rows_of([place(0, 1), place(1, 4), place(2, None)], [READER], {("t", 1): 5}, [held])
    assert [(each.behind, each.records) for each in rows] == [(8, None), (6, 5), (None, None)]
    assert [each.owner for each in rows] == [READER, READER, None]
    assert [each.held for each in rows] == [None, held, None]
    view = view_of(FACTS, [READER], rows, NOW)
    assert [each.lag for each in view.progress] == [8, 5, None]
    assert [each.committed_age_s for each in view.progress] == [90.0, 90.0, None]
    assert view.group.members[0].target == {"t": [0]}


def test_few_partitions_have_lines_and_many_their_sum() -> None:
    few = {f"t-{n}": [(0.0, 1.0), (5.0, 3.0)] for n in range(2)}
    drawn = lag_plot(few, 10.0, 600.0)
    assert (len(drawn.lines), drawn.words) == (
        2,
        "Offsets behind over the last 10 s. t-0: 3, t-1: 3",
    )
    many = {f"t-{n}": [(0.0, 1.0), (5.0, 3.0)] for n in range(9)}
    drawn = lag_plot(many, 10.0, 600.0)
    assert len(drawn.lines) == 1
    assert drawn.words == "Offsets behind in all 9 partitions over the last 10 s: 27"
