"""Why does a group not go on: what is known of it, put into sentences, the weightiest first.

Pure: a group as `group_reads` has it, what holds back its partitions and, if it was read, whom its
database says it waits for, in; findings, out. Says as well what a client cannot know.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cli.group_reads import DEAD, EMPTY, Group, GroupView, Member, Progress

if TYPE_CHECKING:
    from storage.groups.waiting import Waiting

_NAMED_MAX: Final = 5  # of a kind; a group may have thousands of partitions
_ASK_THE_DATABASE: Final = "add --data or --database-url, as the broker has it"


@dataclass(frozen=True, slots=True)
class Finding:
    """kind: for machines. text: sentences."""

    kind: str
    text: str


def findings(
    view: GroupView, blocking: Sequence[Mapping[str, Any]], waiting: "Waiting | None" = None
) -> list[Finding]:
    """blocking: rows of `txn blocking`, which say where an open transaction holds up readers."""
    found = [
        *_of_state(view.group, waiting),
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


def _of_state(group: Group, waiting: "Waiting | None") -> Iterator[Finding]:
    if waiting is not None and waiting.state != group.state:
        waiting = None  # it has moved on between the two questions
    match group.state:
        case "Empty" | "Dead":
            yield Finding(
                "empty",
                "It has no members: no consumer reads for it. Start one with "
                f"group.id={group.group_id}. (A consumer that takes its partitions by assign() is "
                "no member. It is not seen from here.)",
            )
        case "PreparingRebalance":
            yield Finding("rebalance", f"It rebalances. {_joining(group, waiting)}")
        case "CompletingRebalance":
            yield Finding("rebalance", f"It rebalances. {_assigning(group, waiting)}")
        case "Assigning":
            yield Finding("rebalance", "It rebalances: its coordinator makes a new assignment.")
    yield from _late_members(group)


def _joining(group: Group, waiting: "Waiting | None") -> str:
    coordinator = f"Its coordinator, {group.coordinator},"
    what_then = (
        "A member that does not join again does not poll: it is busy with a record, or hangs. It "
        "is dropped after its max.poll.interval.ms."
    )
    if waiting is not None and waiting.waiting_for:
        late = _members_of(group, waiting.waiting_for)
        others = [each for each in group.members if each.member_id not in waiting.waiting_for]
        joined = f" These have joined: {_members(others)}." if others else ""
        return f"{coordinator} waits for {late} to join again.{joined} {what_then}"
    return (
        f"{coordinator} waits until every member has joined again: {_members(group.members)}. The "
        f"classic protocol does not tell clients which member is late: {_ASK_THE_DATABASE}. "
        f"{what_then}"
    )


def _assigning(group: Group, waiting: "Waiting | None") -> str:
    begin = "All members have joined. They wait until their leader"
    if waiting is not None and waiting.leader:
        leader = _members_of(group, [waiting.leader])
        return f"{begin}, {leader}, has made the assignment. If it lasts, restart the leader."
    return (
        f"{begin} has made the assignment: {_members(group.members)}. The classic protocol does "
        f"not tell clients which member leads: {_ASK_THE_DATABASE}. If it lasts, restart it."
    )


def _members_of(group: Group, member_ids: Sequence[str]) -> str:
    """Their names; the id of a member that the coordinator does not describe."""
    known = {each.member_id: _name(each) for each in group.members}
    return _few_of([known.get(each, each) for each in member_ids])


def _members(members: Sequence[Member]) -> str:
    return _few_of([_name(member) for member in members]) or "none is known"


def _few_of(names: Sequence[str]) -> str:
    named = ", ".join(names[:_NAMED_MAX])
    more = len(names) - _NAMED_MAX
    return f"{named} and {more} more" if more > 0 else named


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
    return _few_of([f"{topic} {number}" for topic, number in places])


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
            f"{each.topic} {each.partition}: {whose}{_since(row)} holds back consumers that read "
            f"committed data only. They get nothing from offset {row['first_offset']} on; "
            f"{row['waiting']} offsets wait so far. Kafka does not tell whether this group reads "
            f"so. To end the transaction: 'penstock txn abort {name or 'ID'}'.",
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
        "Nothing holds it back: it has read all that is there. If more should be there, look at "
        "the producers.",
    )
