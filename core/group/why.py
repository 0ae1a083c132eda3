"""Why does a group not go on: what is known of it, put into sentences, the weightiest first.

Pure: a group, what holds back its partitions and, if the database was asked, whom it waits for, in;
findings, out. Says as well what is not known. How a cure is done is up to who shows it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from core.group.progress import (
    DEAD,
    EMPTY,
    Group,
    GroupView,
    HeldPartition,
    Member,
    Progress,
    Waiting,
)

HIDDEN: Final = ""
"""Instead of the id of a transaction that who looks may not see."""
STANDS_STILL_S: Final = 60.0
"""A member that has committed nothing for so long, and has something to read, does not go on."""
COMMITTED_JUST_NOW_S: Final = 10.0
"""Who has committed within this time reads on: twice Kafka's auto.commit.interval.ms."""
_NAMED_MAX: Final = 5  # of a kind; a group may have thousands of partitions


@dataclass(frozen=True, slots=True)
class Finding:
    """kind: for machines. text: sentences. held: the transaction that has to end. lacks: the
    database knows more of it than was asked."""

    kind: str
    text: str
    held: HeldPartition | None = None
    lacks: bool = False


def findings(
    view: GroupView, held: Sequence[HeldPartition], waiting: Waiting | None = None
) -> list[Finding]:
    """held: where open transactions hold up readers, of this group or others."""
    held_at = {(each.topic, each.partition): each for each in held}
    found = [
        *_of_state(view.group, waiting),
        *_few(_gone(view), "partition"),
        *_few(_held_back(view, held_at), "partition"),
        *_few(_unread(view), "partition"),
        *_few(_behind(view, held_at), "partition"),
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


def _of_state(group: Group, waiting: Waiting | None) -> Iterator[Finding]:
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
            text = f"It rebalances. {_joining(group, waiting)}"
            yield Finding("rebalance", text, lacks=waiting is None)
        case "CompletingRebalance":
            text = f"It rebalances. {_assigning(group, waiting)}"
            yield Finding("rebalance", text, lacks=waiting is None)
        case "Assigning":
            yield Finding("rebalance", "It rebalances: its coordinator makes a new assignment.")
    yield from _late_members(group)


def _joining(group: Group, waiting: Waiting | None) -> str:
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
    if waiting is not None:
        return f"{coordinator} waits a moment for more members to join."
    return (
        f"{coordinator} waits until every member has joined again: {_members(group.members)}. The "
        f"classic protocol does not tell clients which member is late. {what_then}"
    )


def _assigning(group: Group, waiting: Waiting | None) -> str:
    begin = "All members have joined. They wait until their leader"
    if waiting is not None and waiting.leader:
        leader = _members_of(group, [waiting.leader])
        return f"{begin}, {leader}, has made the assignment. If it lasts, restart the leader."
    return (
        f"{begin} has made the assignment: {_members(group.members)}. The classic protocol does "
        "not tell clients which member leads. If it lasts, restart it."
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
                f"{each.end_offset}: the topic was made anew. Reset its offsets.",
            )


def _held_back(
    view: GroupView, held_at: Mapping[tuple[str, int], HeldPartition]
) -> Iterator[Finding]:
    for each in view.progress:
        held = held_at.get((each.topic, each.partition))
        if held is None:
            continue
        yield Finding(
            "transaction",
            f"{each.topic} {each.partition}: {_whose(held)}{_since(held)} holds back consumers "
            f"that read committed data only. They get nothing from offset {held.first_offset} on; "
            f"{held.waiting} offsets wait so far. Kafka does not tell whether this group reads so.",
            held,
        )


def _whose(held: HeldPartition) -> str:
    host = f" of {held.host.lstrip('/')}" if held.host else ""
    if held.transactional_id == HIDDEN:
        return "a transaction that you may not see"
    if held.transactional_id is None:
        return f"a transaction of producer {held.producer_id}"
    return f"transaction {held.transactional_id}{host}"


def _since(held: HeldPartition) -> str:
    if held.age_s is None or held.timeout_left_s is None:
        return ""
    left = max(0, held.timeout_left_s)
    return f", open for {held.age_s:.0f} s and aborted by its timeout in {left:.0f} s,"


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


def _behind(view: GroupView, held_at: Mapping[tuple[str, int], HeldPartition]) -> Iterator[Finding]:
    behind = [
        each
        for each in view.progress
        if each.member_id is not None
        and each.lag != 0
        and (each.topic, each.partition) not in held_at
    ]
    for each in sorted(behind, key=lambda each: -(each.lag or 0)):
        if each.end_offset:
            age = each.committed_age_s
            yield Finding(
                "reads" if age is not None and age <= COMMITTED_JUST_NOW_S else "lag",
                f"{each.topic} {each.partition} belongs to {each.client_id} at "
                f"{(each.host or '').lstrip('/')}, and {_lag(each)}. {_pace(age)}",
            )


def _pace(age: float | None) -> str:
    if age is not None and age > STANDS_STILL_S:
        return (
            f"Nothing was committed there for {age:.0f} s: that process hangs on a record, gets "
            "none, or never commits."
        )
    if age is not None and age <= COMMITTED_JUST_NOW_S:
        return f"It goes on: its last commit there was {age:.0f} s ago."
    return (
        "Look again in some seconds: if the committed offset stands still, that process hangs on a "
        "record or never commits; if it moves, it is slow."
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
