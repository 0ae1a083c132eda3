"""Sensible requests to groups, in any version: each to a group of its own with a live member.

Knows how a member comes into a group; must not know what the broker answers to the request itself.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kafka.protocol.consumer.metadata import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)

from gateway.kafka import codec

# ask(request, version): the broker's answer, decoded.
Ask = Callable[[Any, int], Any]

APIS = (
    "OffsetCommit",
    "OffsetFetch",
    "JoinGroup",
    "Heartbeat",
    "LeaveGroup",
    "SyncGroup",
    "DescribeGroups",
    "ListGroups",
    "DeleteGroups",
    "OffsetDelete",
    "ConsumerGroupHeartbeat",
    "ConsumerGroupDescribe",
)
PROTOCOL = "range"
SESSION_MS, REBALANCE_MS = 10_000, 30_000


@dataclass(frozen=True, slots=True)
class Subject:
    """The topic that members subscribe to, and the name of a group that nobody has used."""

    topic: str
    topic_id: uuid.UUID
    group: str


def join(subject: Subject, member_id: str, version: int) -> Any:
    """JoinGroup, as a consumer says it."""
    subscription = ConsumerProtocolSubscription(1, topics=[subject.topic], user_data=None)
    return codec.JoinGroupRequest(
        group_id=subject.group,
        session_timeout_ms=SESSION_MS,
        rebalance_timeout_ms=REBALANCE_MS,
        member_id=member_id,
        group_instance_id=None,
        protocol_type="consumer",
        protocols=[
            codec.JoinGroupRequest.JoinGroupRequestProtocol(
                name=PROTOCOL, metadata=subscription.encode(version=1)
            )
        ],
        reason="rejoining" if version >= 8 else None,
    )


def sync(subject: Subject, member_id: str, generation: int) -> Any:
    """SyncGroup of a leader that is alone: it gets everything."""
    assignment = ConsumerProtocolAssignment(
        1, assigned_partitions=[(subject.topic, [0, 1])], user_data=b""
    )
    return codec.SyncGroupRequest(
        group_id=subject.group,
        generation_id=generation,
        member_id=member_id,
        group_instance_id=None,
        protocol_type="consumer",
        protocol_name=PROTOCOL,
        assignments=[
            codec.SyncGroupRequest.SyncGroupRequestAssignment(
                member_id=member_id, assignment=assignment.encode(version=1)
            )
        ],
    )


def joined(ask: Ask, subject: Subject) -> tuple[str, int]:
    """Member id and generation of a member that is the group's only one, its leader."""
    answer = ask(join(subject, "", 3), 3)
    return answer.member_id, answer.generation_id


def stable(ask: Ask, subject: Subject) -> tuple[str, int]:
    """The same, and it has its assignment."""
    member_id, generation = joined(ask, subject)
    ask(sync(subject, member_id, generation), 3)
    return member_id, generation


def commit(subject: Subject, member_id: str, generation: int) -> Any:
    """OffsetCommit of both partitions."""
    Topic = codec.OffsetCommitRequest.OffsetCommitRequestTopic
    parts = [
        Topic.OffsetCommitRequestPartition(
            partition_index=0,
            committed_offset=1,
            committed_leader_epoch=0,
            committed_metadata="noted",
        ),
        Topic.OffsetCommitRequestPartition(
            partition_index=1,
            committed_offset=0,
            committed_leader_epoch=-1,
            committed_metadata=None,
        ),
    ]
    return codec.OffsetCommitRequest(
        group_id=subject.group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        group_instance_id=None,
        retention_time_ms=86_400_000,
        topics=[Topic(name=subject.topic, topic_id=subject.topic_id, partitions=parts)],
    )


def fetch(subject: Subject) -> Any:
    """OffsetFetch of two partitions of a group, and (from v8 on) of all that another group has."""
    Topic = codec.OffsetFetchRequest.OffsetFetchRequestTopic
    Group = codec.OffsetFetchRequest.OffsetFetchRequestGroup
    some = Group.OffsetFetchRequestTopics(
        name=subject.topic, topic_id=subject.topic_id, partition_indexes=[0, 1]
    )
    return codec.OffsetFetchRequest(
        group_id=subject.group,
        topics=[Topic(name=subject.topic, partition_indexes=[0, 1])],
        groups=[
            Group(group_id=subject.group, member_id=None, member_epoch=-1, topics=[some]),
            Group(group_id=f"{subject.group}-other", member_id=None, member_epoch=-1, topics=None),
        ],
        require_stable=True,
    )


def consumer_heartbeat(subject: Subject, version: int) -> Any:
    """The first ConsumerGroupHeartbeat of a member. From v1 on members make their own ids."""
    return codec.ConsumerGroupHeartbeatRequest(
        group_id=subject.group,
        member_id=str(uuid.uuid4()) if version >= 1 else "",
        member_epoch=0,
        instance_id=None,
        rack_id=None,
        rebalance_timeout_ms=REBALANCE_MS,
        subscribed_topic_names=[subject.topic],
        subscribed_topic_regex=None,
        server_assignor="uniform",
        topic_partitions=[],
    )


def request(name: str, subject: Subject, version: int, ask: Ask) -> Any:
    """A request of API `name`, after everything that has to come before it."""
    group = subject.group
    match name:
        case "JoinGroup":
            member_id = ""
            if version >= 4:  # the first answer is MEMBER_ID_REQUIRED (KIP-394)
                member_id = ask(join(subject, "", version), version).member_id
            return join(subject, member_id, version)
        case "SyncGroup":
            return sync(subject, *joined(ask, subject))
        case "Heartbeat":
            member_id, generation = stable(ask, subject)
            return codec.HeartbeatRequest(
                group_id=group,
                generation_id=generation,
                member_id=member_id,
                group_instance_id=None,
            )
        case "LeaveGroup":
            member_id, _ = stable(ask, subject)
            leaving = codec.LeaveGroupRequest.MemberIdentity(
                member_id=member_id, group_instance_id=None, reason="the consumer is being closed"
            )
            return codec.LeaveGroupRequest(group_id=group, member_id=member_id, members=[leaving])
        case "OffsetCommit":
            return commit(subject, *stable(ask, subject))
        case "OffsetFetch":
            ask(commit(subject, "", -1), 8)
            return fetch(subject)
        case "ListGroups":
            stable(ask, subject)
            return codec.ListGroupsRequest(states_filter=["Stable"], types_filter=["classic"])
        case "DescribeGroups":
            stable(ask, subject)
            return codec.DescribeGroupsRequest(
                groups=[group, "no-such-group"], include_authorized_operations=True
            )
        case "DeleteGroups":
            ask(commit(subject, "", -1), 8)
            return codec.DeleteGroupsRequest(groups_names=[group, "no-such-group"])
        case "OffsetDelete":
            ask(commit(subject, "", -1), 8)
            Topic = codec.OffsetDeleteRequest.OffsetDeleteRequestTopic
            parts = [Topic.OffsetDeleteRequestPartition(partition_index=0)]
            return codec.OffsetDeleteRequest(
                group_id=group, topics=[Topic(name=subject.topic, partitions=parts)]
            )
        case "ConsumerGroupHeartbeat":
            return consumer_heartbeat(subject, version)
        case "ConsumerGroupDescribe":
            ask(consumer_heartbeat(subject, 1), 1)
            return codec.ConsumerGroupDescribeRequest(
                group_ids=[group], include_authorized_operations=True
            )
    raise ValueError(f"no request written for {name}")
