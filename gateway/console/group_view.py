"""A group as its page shows it: what was read of it, put together.

Pure: rows of `core.ports.console.groups` in, what templates and `core.group.why` take out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from core.group.progress import Group, GroupView, HeldPartition, Member, Progress, Waiting
from core.group.why import HIDDEN
from core.ports.console.groups import GroupFacts, GroupMember, GroupPlace, Place
from gateway.console.plots import Plot, plot
from gateway.console.rendering import count, duration

if TYPE_CHECKING:
    from gateway.console.plots import Series

_LINES_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """A partition of a group. behind: offsets up to the end, as Kafka's tools count. records: those
    of them that a reader of committed data gets now; None where they are not counted. held: by
    which open transaction it is."""

    place: GroupPlace
    behind: int | None
    records: int | None
    owner: GroupMember | None
    held: HeldPartition | None


def assigned_places(members: Iterable[GroupMember]) -> list[Place]:
    """Partitions that members have."""
    return [
        (topic, number)
        for each in members
        for topic, numbers in each.assigned.items()
        for number in numbers
    ]


def visible(member: GroupMember, may_see: Collection[str]) -> GroupMember:
    """As it is shown to who may see these topics."""

    def seen(places: Mapping[str, Sequence[int]]) -> Mapping[str, Sequence[int]]:
        return {topic: numbers for topic, numbers in places.items() if topic in may_see}

    return replace(
        member,
        assigned=seen(member.assigned),
        revoking=seen(member.revoking),
        target=seen(member.target),
        subscribed=[topic for topic in member.subscribed if topic in may_see],
    )


def hidden(held: HeldPartition) -> HeldPartition:
    """As it is shown to who may not see the transaction."""
    return replace(held, transactional_id=HIDDEN, host=None)


def rows_of(
    places: Sequence[GroupPlace],
    members: Iterable[GroupMember],
    lags: Mapping[Place, int],
    held: Iterable[HeldPartition],
) -> list[PartitionRow]:
    """A row for each place."""
    owners = {where: each for each in members for where in assigned_places([each])}
    held_at = {(each.topic, each.partition): each for each in held}
    rows = []
    for place in places:
        where = (place.topic, place.partition)
        row = PartitionRow(
            place, _behind(place), lags.get(where), owners.get(where), held_at.get(where)
        )
        rows.append(row)
    return rows


def _behind(place: GroupPlace) -> int | None:
    if place.committed_offset is None:
        return None
    return max(0, place.end_offset - max(place.committed_offset, place.log_start_offset))


def view_of(
    facts: GroupFacts,
    members: Iterable[GroupMember],
    rows: Iterable[PartitionRow],
    now: datetime,
) -> GroupView:
    """What `core.group.why` says something about."""
    is_consumer = facts.protocol == "consumer"
    group = Group(
        facts.group_id,
        state=facts.state,
        coordinator=facts.coordinator or "which is not there now",
        members=tuple(
            Member(
                each.member_id,
                each.instance_id,
                each.client_id,
                each.host,
                {topic: list(numbers) for topic, numbers in each.assigned.items()},
                target={topic: list(numbers) for topic, numbers in each.target.items()}
                if is_consumer
                else None,
            )
            for each in members
        ),
    )
    return GroupView(group, tuple(_progress(row, now) for row in rows))


def _progress(row: PartitionRow, now: datetime) -> Progress:
    place, owner = row.place, row.owner
    age = None if place.committed_at is None else (now - place.committed_at).total_seconds()
    return Progress(
        place.topic,
        place.partition,
        place.committed_offset,
        place.log_start_offset,
        place.end_offset,
        # Its last offset may be a marker's, which is no record and never committed.
        row.behind if row.records is None else row.records,
        None if owner is None else owner.member_id,
        None if owner is None else owner.client_id,
        None if owner is None else owner.host,
        age,
    )


def waiting_of(facts: GroupFacts) -> Waiting:
    """Whom it waits for."""
    return Waiting(facts.state, facts.leader, tuple(facts.waiting_for))


def listed(places: Mapping[str, Sequence[int]]) -> str:
    """Partitions in short: `orders 0-3,7; payments 1`."""
    return "; ".join(f"{topic} {_numbers(numbers)}" for topic, numbers in sorted(places.items()))


def _numbers(numbers: Iterable[int]) -> str:
    ordered = sorted(numbers)
    starts = [n for before, n in pairwise([-2, *ordered]) if n != before + 1]
    ends = [n for n, after in pairwise([*ordered, -2]) if after != n + 1]
    both = zip(starts, ends, strict=True)
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in both)


def lag_plot(history: Mapping[str, Series], until: float, span_s: float) -> Plot:
    """How far a group is behind over time: a line for each partition, or, of many, their sum."""
    if not history:
        return plot([], "How far it is behind over time: looking…", until, span_s)
    now = {name: round(line[-1][1]) for name, line in history.items() if line}
    begun = min(line[0][0] for line in history.values() if line)
    since = f"over the last {duration(max(1.0, until - begun))}"
    if len(history) > _LINES_MAX:
        sums: dict[float, float] = {}
        for line in history.values():
            for at, value in line:
                sums[at] = sums.get(at, 0) + value
        words = f"Offsets behind in all {len(history)} partitions {since}: "
        return plot([sorted(sums.items())], words + count(sum(now.values())), until, span_s)
    each = ", ".join(f"{name}: {count(value)}" for name, value in now.items())
    lines = [line for line in history.values() if line]
    return plot(lines, f"Offsets behind {since}. {each}", until, span_s, list(now))
