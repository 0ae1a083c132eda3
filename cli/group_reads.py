"""What a group is and how far it has come, read through an admin client.

Knows kafka-python, and the messages of KIP-848 that it lacks; nothing of the server, nothing of a
terminal. Works with any Kafka.
"""

import struct
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from cli.client import EARLIEST, LATEST, send
from cli.errors import sentence
from core.group.progress import Group, GroupView, Member, Progress

if TYPE_CHECKING:
    from kafka import KafkaAdminClient, TopicPartition
    from kafka.structs import OffsetAndMetadata

NO_EPOCH: Final = -1
GROUP_ID_NOT_FOUND: Final = 69
UNSUPPORTED_VERSION: Final = 35


def as_json(view: GroupView) -> dict[str, Any]:
    """A group with its progress, as JSON knows it."""
    described = {name: value for name, value in asdict(view.group).items() if name != "error"}
    if view.group.error is not None:
        return {"group_id": view.group.group_id, "error": view.group.error}
    return {
        **described,
        "error": None,
        "lag": view.lag,
        "partitions": [_told(each) for each in view.progress],
    }


def _told(progress: Progress) -> dict[str, Any]:
    return {name: each for name, each in asdict(progress).items() if name != "committed_age_s"}


def describe(client: "KafkaAdminClient", group_ids: Collection[str]) -> dict[str, Group]:
    """Each group by its id; one that nobody knows is Dead."""
    groups: dict[str, Group] = {}
    for broker_id, ids in by_coordinator(client, group_ids).items():
        address = _address(client, broker_id)
        groups |= _describe_consumer(client, ids, broker_id, address)
        if rest := [group_id for group_id in ids if group_id not in groups]:
            groups |= _describe_classic(client, rest, broker_id, address)
    return {group_id: groups[group_id] for group_id in group_ids}


def by_coordinator(client: "KafkaAdminClient", group_ids: Collection[str]) -> dict[int, list[str]]:
    """The groups by the id of the broker that coordinates them."""
    groups: dict[int, list[str]] = defaultdict(list)
    for group_id, broker_id in client._manager.run(
        client._find_coordinator_ids, list(group_ids)
    ).items():
        groups[broker_id].append(group_id)
    return groups


def _address(client: "KafkaAdminClient", broker_id: int) -> str:
    broker = client._manager.cluster.broker_metadata(broker_id)
    return f"{broker.host}:{broker.port} (id {broker_id})" if broker else f"id {broker_id}"


def raise_if_retriable(code: int, message: str | None = None) -> None:
    """What is so for the moment only is worth asking again."""
    from kafka.errors import for_code

    error = for_code(code)
    if getattr(error, "retriable", False):
        raise error(message or "")


def _describe_consumer(
    client: "KafkaAdminClient", group_ids: list[str], broker_id: int, address: str
) -> dict[str, Group]:
    """Those of the groups that use KIP-848's protocol; none where the broker does not know it."""
    from kafka.errors import IncompatibleBrokerVersion

    from gateway.kafka.codec import ConsumerGroupDescribeRequest

    request = ConsumerGroupDescribeRequest(group_ids=group_ids, include_authorized_operations=False)
    try:
        answer = send(client, request, broker_id)
    except IncompatibleBrokerVersion:
        return {}
    groups = {}
    for each in answer.groups:
        raise_if_retriable(each.error_code, each.error_message)
        if each.error_code in {GROUP_ID_NOT_FOUND, UNSUPPORTED_VERSION}:
            continue
        if each.error_code:
            error = sentence(each.error_code, each.error_message)
            groups[each.group_id] = Group(each.group_id, error)
            continue
        groups[each.group_id] = Group(
            group_id=each.group_id,
            type="consumer",
            state=each.group_state,
            protocol_type="consumer",
            assignor=each.assignor_name,
            epoch=each.group_epoch,
            coordinator=address,
            members=tuple(_consumer_member(member) for member in each.members),
        )
    return groups


def _consumer_member(member: Any) -> Member:
    def partitions(assignment: Any) -> dict[str, list[int]]:
        return {
            each.topic_name: sorted(each.partitions)
            for each in sorted(assignment.topic_partitions, key=lambda each: each.topic_name)
        }

    return Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        host=member.client_host,
        partitions=partitions(member.assignment),
        # A member of the classic protocol has none (KIP-1099).
        epoch=member.member_epoch if member.member_type != 0 else None,
        target=partitions(member.target_assignment),
    )


def _describe_classic(
    client: "KafkaAdminClient", group_ids: list[str], broker_id: int, address: str
) -> dict[str, Group]:
    from kafka.protocol.admin import DescribeGroupsRequest

    groups = {}
    for each in send(client, DescribeGroupsRequest(groups=group_ids), broker_id).groups:
        message = getattr(each, "error_message", None)
        raise_if_retriable(each.error_code, message)
        if each.error_code == GROUP_ID_NOT_FOUND:
            groups[each.group_id] = Group(each.group_id, coordinator=address)
        elif each.error_code:
            groups[each.group_id] = Group(each.group_id, sentence(each.error_code, message))
        else:
            groups[each.group_id] = Group(
                group_id=each.group_id,
                type="classic",
                state=each.group_state,
                protocol_type=each.protocol_type,
                assignor=each.protocol_data,
                coordinator=address,
                members=tuple(_classic_member(m, each.protocol_type) for m in each.members),
            )
    return groups


def _classic_member(member: Any, protocol_type: str) -> Member:
    return Member(
        member_id=member.member_id,
        instance_id=getattr(member, "group_instance_id", None),
        client_id=member.client_id,
        host=member.client_host,
        partitions=_decoded(member.member_assignment) if protocol_type == "consumer" else {},
    )


def _decoded(assignment: bytes) -> dict[str, list[int]]:
    """What consumers' leaders write; a group of something else may write anything."""
    from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment

    if not assignment:
        return {}
    try:
        topics = ConsumerProtocolAssignment.decode(assignment).assigned_partitions
        return {each.topic: sorted(each.partitions) for each in sorted(topics, key=_topic)}
    except (struct.error, ValueError, IndexError):
        return {}


def _topic(each: Any) -> str:
    return str(each.topic)


# --- progress ---


def committed(
    client: "KafkaAdminClient", group_id: str
) -> dict["TopicPartition", "OffsetAndMetadata"]:
    """Everything the group has committed."""
    offsets = client.list_group_offsets({group_id: None})[group_id]
    return {where: each for where, each in offsets.items() if each.offset >= 0}


def partition_counts(client: "KafkaAdminClient", topics: Iterable[str]) -> dict[str, int]:
    """How many partitions those of the topics have that exist."""
    wanted = sorted(set(topics))
    found = client.describe_topics(wanted) if wanted else []
    return {each["name"]: len(each["partitions"]) for each in found if not each["error_code"]}


def ends(
    client: "KafkaAdminClient", partitions: Collection["TopicPartition"]
) -> dict["TopicPartition", tuple[int, int]]:
    """First and next offset of each partition; all of them must exist."""
    if not partitions:
        return {}
    first = client.list_partition_offsets(dict.fromkeys(partitions, EARLIEST))
    last = client.list_partition_offsets(dict.fromkeys(partitions, LATEST))
    return {where: (first[where].offset, last[where].offset) for where in partitions}


def with_progress(client: "KafkaAdminClient", group: Group) -> GroupView:
    """The group with how far it has come."""
    from kafka import TopicPartition

    if group.error is not None:
        return GroupView(group)
    offsets = committed(client, group.group_id)
    owners = {
        TopicPartition(topic, number): member
        for member in group.members
        for topic, numbers in member.partitions.items()
        for number in numbers
    }
    places = sorted(offsets.keys() | owners.keys())
    counts = partition_counts(client, {where.topic for where in places})
    known = ends(client, [w for w in places if w.partition < counts.get(w.topic, 0)])
    progress = []
    for where in places:
        commit, owner = offsets.get(where), owners.get(where)
        start, end = known.get(where, (None, None))
        progress.append(
            Progress(
                topic=where.topic,
                partition=where.partition,
                committed_offset=commit.offset if commit else None,
                start_offset=start,
                end_offset=end,
                lag=end - commit.offset if commit and end is not None else None,
                member_id=owner.member_id if owner else None,
                client_id=owner.client_id if owner else None,
                host=owner.host if owner else None,
            )
        )
    return GroupView(group, tuple(progress))
