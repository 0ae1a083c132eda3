"""A member of a consumer group: its row, its states, and the rules that need no other member.

The row is the member: it is replaced as a whole, never changed. Knows no other member.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from core.errors import Error, Refusal
from core.group.expressions import read_expression
from core.group.records import MemberRow, Partitions
from core.group.values import ClientIdentity, DescribedConsumer, Note

CLASSIC = "classic"
CONSUMER = "consumer"
"""MemberRow.protocol: which protocol the member speaks."""

STABLE = "Stable"
UNREVOKED_PARTITIONS = "UnrevokedPartitions"
UNRELEASED_PARTITIONS = "UnreleasedPartitions"
"""MemberRow.state (Kafka's MemberState): has all partitions of its epoch; must give back some
first; waits for partitions that others must give back."""

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2
"""Of a static member that has left and may come back within its session."""


@dataclass(frozen=True, slots=True)
class Entrant:
    """A member that an event is about. replaces: the id of the static member it takes over from."""

    row: MemberRow
    replaces: str | None = None


def newcomer(member_id: str, protocol: str) -> MemberRow:
    """A new member's empty row."""
    return MemberRow(
        member_id, protocol, previous_member_epoch=-1, state=STABLE, rebalance_timeout_ms=-1
    )


def successor(static: MemberRow, member_id: str) -> Entrant:
    """A static member under its new member id: it keeps its predecessor's partitions."""
    row = replace(
        static, member_id=member_id, member_epoch=JOIN_EPOCH, previous_member_epoch=JOIN_EPOCH
    )
    return Entrant(row, static.member_id)


def described(row: MemberRow) -> DescribedConsumer:
    """As ConsumerGroupDescribe shows it."""
    return DescribedConsumer(
        member_id=row.member_id,
        instance_id=row.group_instance_id,
        rack_id=row.rack_id,
        member_epoch=row.member_epoch,
        client=ClientIdentity(row.client_id, row.client_host),
        subscribed_topic_names=row.subscribed_topic_names,
        subscribed_topic_regex=(
            row.subscribed_topic_regex and read_expression(row.subscribed_topic_regex)[0]
        ),
        assigned=row.assigned,
        target=row.target,
        is_classic=speaks_classic(row),
    )


def note(event: str, row: MemberRow, **fields: object) -> Note:
    """A line of the log about a member."""
    return event, {"member_id": row.member_id, "instance_id": row.group_instance_id, **fields}


def speaks_classic(row: MemberRow) -> bool:
    """Whether it joined with JoinGroup."""
    return row.protocol == CLASSIC


def is_reconciled(row: MemberRow, epoch: int) -> bool:
    """Whether it has reached the target assignment of this epoch."""
    return row.state == STABLE and row.member_epoch == epoch


def is_within(owned: Partitions | None, assigned: Partitions) -> bool:
    """Whether everything owned is assigned. None: it is not known what is owned."""
    if owned is None:
        return False
    return all(
        topic_id in assigned and set(held) <= set(assigned[topic_id])
        for topic_id, held in owned.items()
    )


def overlap(one: Partitions, other: Partitions) -> bool:
    """Whether any partition is in both."""
    return any(
        not set(held).isdisjoint(other[topic_id])
        for topic_id, held in one.items()
        if topic_id in other
    )


def union(one: Partitions, other: Partitions) -> dict[str, tuple[int, ...]]:
    """All partitions of both."""
    merged = dict(one)
    for topic_id, held in other.items():
        merged[topic_id] = tuple(sorted({*merged.get(topic_id, ()), *held}))
    return merged


def ascending(partitions: Mapping[str, set[int]]) -> dict[str, tuple[int, ...]]:
    """As rows have it: partitions ascending, no topic without any."""
    return {topic_id: tuple(sorted(held)) for topic_id, held in partitions.items() if held}


def fenced_instance(static: MemberRow, member_id: str) -> Refusal:
    """The refusal for the predecessor of a static member."""
    return Refusal(
        Error.FENCED_INSTANCE_ID,
        f"Static member {member_id} with instance id {static.group_instance_id} was fenced by "
        f"member {static.member_id}.",
    )


def epoch_refusal(row: MemberRow, epoch: int, owned: Partitions | None) -> Refusal | None:
    """The refusal of a heartbeat with a stale or unknown epoch; None if the epoch is right.

    The previous epoch is accepted from a member that owns only what it may own: the answer with
    its new epoch may have been lost. Epoch 0 is a member that (re)joins, for whatever reason.
    """
    if epoch in (JOIN_EPOCH, row.member_epoch):
        return None
    if epoch > row.member_epoch:
        return _fenced("greater", epoch, row)
    if epoch == row.previous_member_epoch and is_within(owned, row.assigned):
        return None
    return _fenced("smaller", epoch, row)


def _fenced(word: str, epoch: int, row: MemberRow) -> Refusal:
    return Refusal(
        Error.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {word} member epoch ({epoch}) than the one known by the "
        f"group coordinator ({row.member_epoch}). The member must abandon all its partitions and "
        "rejoin.",
    )


def offset_refusal(row: MemberRow, epoch: int) -> Error:
    """Whether a member with this epoch may commit or fetch offsets."""
    if epoch == row.member_epoch:
        return Error.NONE
    return Error.ILLEGAL_GENERATION if speaks_classic(row) else Error.STALE_MEMBER_EPOCH
