"""Why does a group not go on: what is known of it, put into sentences, the weightiest first.

Pure: a group as `group_reads` has it and what holds back its partitions, in; findings, out. Says as
well what a client cannot know.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cli.group_reads import DEAD, EMPTY, Group, GroupView, Member, Progress

_NAMED_MAX: Final = 5  # of a kind; a group may have thousands of partitions


@dataclass(frozen=True, slots=True)
class Finding:
    """kind: for machines. text: sentences."""

    kind: str
    text: str


def findings(view: GroupView, blocking: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """blocking: rows of `txn blocking`, which say where an open transaction holds up readers."""
    found = [
        *_of_state(view.group),
        *_few(_gone(view), "partition"),
        *_few(_held_back(view, blocking), "partition"),
        *_few(_unread(view), "partition"),
        *_few(_behind(view, blocking), "partition"),
    ]
    return found or [_nothing(view)]


def _few(found: Iterator[Finding], noun: str) -> Iterator[Finding]:
    everything = list(found)
    yield from everything[:_NAMED_MAX]
    more = len(everything) - _NAMED_MAX
    if more > 0:
        kind = everything[0].kind
        yield Finding(kind, f"The same of {more} more {noun}{'s' * (more > 1)}.")


# --- the group ---


def _of_state(group: Group) -> Iterator[Finding]:
    match group.state:
        case "Empty" | "Dead":
            yield Finding(
                "empty",
                "It has no members: nobody reads for it. Start a consumer with "
                f"group.id={group.group_id}. (One that takes its partitions by assign() is no "
                "member, and is not seen from here.)",
            )
        case "PreparingRebalance":
            yield Finding(
                "rebalance",
                f"It rebalances: its coordinator, {group.coordinator}, waits until every member "
                f"has joined again ({_members(group.members)}). Who has not is not told to "
                "clients: ask Penstock's database, SELECT waiting_for FROM v_group. It is one that "
                "does not poll; it is dropped after its max.poll.interval.ms.",
            )
        case "CompletingRebalance":
            yield Finding(
                "rebalance",
                "It rebalances: all members have joined, and wait for their leader, which has to "
                f"make the assignment ({_members(group.members)}). Who leads is not told to "
                "clients: ask Penstock's database, SELECT leader FROM v_group. If it lasts, "
                "restart that one.",
            )
        case "Assigning":
            yield Finding("rebalance", "It rebalances: its coordinator makes a new assignment.")
    yield from _late_members(group)


def _members(members: Sequence[Member]) -> str:
    named = ", ".join(_name(member) for member in members[:_NAMED_MAX])
    more = len(members) - _NAMED_MAX
    return f"{named} and {more} more" if more > 0 else named or "none is known"


def _name(member: Member) -> str:
    return f"{member.instance_id or member.client_id} at {member.host.lstrip('/')}"


def _late_members(group: Group) -> Iterator[Finding]:
    """Of KIP-848's protocol, which tells what each has and where it is going."""
    for member in group.members:
        if member.target is None:
            continue
        has, wanted = _places(member.partitions), _places(member.target)
        if to_give := sorted(has - wanted):
            yield Finding(
                "reassignment",
                f"{_name(member)} has to give back {_listed(to_give)}: it does so when it polls. "
                "If it does not come, it is dropped after its session timeout or its "
                "max.poll.interval.ms.",
            )
        if to_take := sorted(wanted - has):
            holders = [
                _name(other)
                for other in group.members
                if other is not member and _places(other.partitions) & set(to_take)
            ]
            whom = f", which {' and '.join(holders)} still has" if holders else ""
            yield Finding("reassignment", f"{_name(member)} waits for {_listed(to_take)}{whom}.")


def _places(partitions: Mapping[str, list[int]]) -> set[tuple[str, int]]:
    return {(topic, number) for topic, numbers in partitions.items() for number in numbers}


def _listed(places: Sequence[tuple[str, int]]) -> str:
    named = ", ".join(f"{topic} {number}" for topic, number in places[:_NAMED_MAX])
    more = len(places) - _NAMED_MAX
    return f"{named} and {more} more" if more > 0 else named


# --- its partitions ---


def _gone(view: GroupView) -> Iterator[Finding]:
    for each in view.progress:
        place, committed = f"{each.topic} {each.partition}", each.committed_offset
        if each.end_offset is None or each.start_offset is None:
            yield Finding(
                "no_partition", f"{place} does not exist any more; the group has offsets of it."
            )
        elif committed is not None and committed < each.start_offset:
            yield Finding(
                "retention",
                f"{place}: the group is at offset {committed}, and the log begins at "
                f"{each.start_offset}: what is between was deleted (retention, or DeleteRecords). "
                "Its auto.offset.reset decides where it goes on; 'none' ends the consumer.",
            )
        elif committed is not None and committed > each.end_offset:
            yield Finding(
                "beyond_end",
                f"{place}: the group is at offset {committed}, beyond the log's end "
                f"{each.end_offset}: the topic was made anew. Put it back with "
                "'penstock groups reset-offsets'.",
            )


def _held_back(view: GroupView, blocking: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    rows = {(row["topic"], row["partition"]): row for row in blocking}
    for each in view.progress:
        row = rows.get((each.topic, each.partition))
        if row is None:
            continue
        name = row["transactional_id"]
        whose = f"transaction {name}" if name else f"a transaction of producer {row['producer_id']}"
        yield Finding(
            "transaction",
            f"{each.topic} {each.partition}: {whose}{_since(row)} holds back who reads committed "
            f"data only: they get nothing from offset {row['first_offset']} on, "
            f"{row['waiting']} offsets so far. Whether this group reads so is not told to others. "
            f"To end it: 'penstock txn abort {name or 'ID'}'.",
        )


def _since(row: Mapping[str, Any]) -> str:
    if row["age_ms"] is None:
        return ""
    left = max(0, row["timeout_left_ms"]) / 1000
    return f", open for {row['age_ms'] / 1000:.0f} s and aborted by its timeout in {left:.0f} s,"


def _unread(view: GroupView) -> Iterator[Finding]:
    if view.group.state != "Stable":
        return
    for each in view.progress:
        if each.member_id is None and each.end_offset is not None and each.lag != 0:
            yield Finding(
                "no_member",
                f"{each.topic} {each.partition} belongs to no member, and {_lag(each)}: no member "
                "subscribes to its topic any more.",
            )


def _behind(view: GroupView, blocking: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    held = {(row["topic"], row["partition"]) for row in blocking}
    behind = [
        each
        for each in view.progress
        if each.member_id is not None and each.lag != 0 and (each.topic, each.partition) not in held
    ]
    for each in sorted(behind, key=lambda each: -(each.lag or 0)):
        if each.end_offset:
            yield Finding(
                "lag",
                f"{each.topic} {each.partition} belongs to {each.client_id} at "
                f"{(each.host or '').lstrip('/')}, and {_lag(each)}. Look again in some seconds: "
                "if the committed offset stands still, that process hangs on a record or never "
                "commits; if it moves, it is slow.",
            )


def _lag(each: Progress) -> str:
    if each.committed_offset is None:
        return f"nothing is committed there (the log ends at {each.end_offset})"
    return f"is {each.lag} behind, at offset {each.committed_offset} of {each.end_offset}"


def _nothing(view: GroupView) -> Finding:
    if not view.progress and view.group.state not in {EMPTY, DEAD}:
        return Finding(
            "no_partitions",
            "Its members have no partitions, and nothing is committed: do their topics exist?",
        )
    return Finding(
        "up_to_date",
        "Nothing holds it back: it has read all that is there. If more should be there, ask who "
        "produces.",
    )
