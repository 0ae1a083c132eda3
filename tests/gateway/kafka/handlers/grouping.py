"""What tests of the group APIs share: members, commits, and Kafka's numbers for the errors.

What is expected of each was asked of Apache Kafka 4.1.1 first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from core.topic.topic import Topic
from gateway.kafka import codec
from tests.captures import group_requests
from tests.captures.group_requests import Subject
from tests.gateway.kafka.handlers.conftest import Broker
from tests.gateway.kafka.handlers.producing import create
from tests.kafka_codes import Code

ALL_OPERATIONS = 3400  # READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS
NOT_ASKED = -(2**31)


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a group, as its coordinator knows it. generation: or member epoch."""

    member_id: str
    generation: int


async def topic_of(broker: Broker, partitions: int = 2) -> Topic:
    """Topic `t`, made anew."""
    return await create(broker, "t", partitions)


def subject(topic: Topic, group: str = "g") -> Subject:
    return Subject(topic.name, topic.topic_id, group)


def join_request(group: str = "g", member_id: str = "", **fields: Any) -> Any:
    """JoinGroup of a consumer of topic `t`."""
    protocol = codec.JoinGroupRequest.JoinGroupRequestProtocol
    return codec.JoinGroupRequest(
        **{
            "group_id": group,
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 30_000,
            "member_id": member_id,
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": [protocol(name="range", metadata=subscription("t"))],
            "reason": None,
            **fields,
        }
    )


def subscription(*topics: str) -> bytes:
    """What a consumer says in JoinGroup's metadata."""
    said = group_requests.ConsumerProtocolSubscription(1, topics=list(topics), user_data=None)
    return bytes(said.encode(version=1))


def sync_request(member: Member, group: str = "g", **fields: Any) -> Any:
    """SyncGroup of a leader that has assigned itself b"mine"; assignments: by member id."""
    assignments = fields.pop("assignments", {member.member_id: b"mine"})
    kind = codec.SyncGroupRequest.SyncGroupRequestAssignment
    return codec.SyncGroupRequest(
        **{
            "group_id": group,
            "generation_id": member.generation,
            "member_id": member.member_id,
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [kind(member_id=k, assignment=v) for k, v in assignments.items()],
            **fields,
        }
    )


async def joined(broker: Broker, group: str = "g", **fields: Any) -> Member:
    """A member that leads the group, alone."""
    answer = await broker.ask(join_request(group, **fields), 3 if not fields else 5)
    if answer.error_code == Code.MEMBER_ID_REQUIRED:
        answer = await broker.ask(join_request(group, answer.member_id, **fields), 5)
    assert answer.error_code == Code.NONE
    assert answer.leader == answer.member_id
    return Member(answer.member_id, answer.generation_id)


async def stable(broker: Broker, group: str = "g", **fields: Any) -> Member:
    """The same, with its assignment."""
    member = await joined(broker, group, **fields)
    instance = fields.get("group_instance_id")
    answer = await broker.ask(sync_request(member, group, group_instance_id=instance), 3)
    assert answer.error_code == Code.NONE
    return member


async def heartbeat(broker: Broker, member: Member, group: str = "g", **fields: Any) -> int:
    request = codec.HeartbeatRequest(
        **{
            "group_id": group,
            "generation_id": member.generation,
            "member_id": member.member_id,
            "group_instance_id": None,
            **fields,
        }
    )
    code: int = (await broker.ask(request, 4)).error_code
    return code


def consumer_heartbeat_request(group: str = "g", member_id: str = "m", **fields: Any) -> Any:
    """ConsumerGroupHeartbeat of a member that joins and subscribes to topic `t`."""
    return codec.ConsumerGroupHeartbeatRequest(
        **{
            "group_id": group,
            "member_id": member_id,
            "member_epoch": 0,
            "instance_id": None,
            "rack_id": None,
            "rebalance_timeout_ms": 30_000,
            "subscribed_topic_names": ["t"],
            "subscribed_topic_regex": None,
            "server_assignor": None,
            "topic_partitions": [],
            **fields,
        }
    )


async def consumer(broker: Broker, group: str = "g", member_id: str = "m") -> Member:
    """A member of a consumer group (KIP-848), alone in it."""
    answer = await broker.ask(consumer_heartbeat_request(group, member_id), 1)
    assert answer.error_code == Code.NONE
    return Member(answer.member_id, answer.member_epoch)


def commit_request(
    offsets: dict[str | Any, dict[int, int]],
    group: str = "g",
    member: Member | None = None,
    metadata: str | None = "",
    **fields: Any,
) -> Any:
    """OffsetCommit. offsets: by partition number, by topic name or id."""
    kind = codec.OffsetCommitRequest.OffsetCommitRequestTopic
    topics = [
        kind(
            **({"name": key} if isinstance(key, str) else {"name": "", "topic_id": key}),
            partitions=[
                kind.OffsetCommitRequestPartition(
                    partition_index=number,
                    committed_offset=offset,
                    committed_leader_epoch=-1,
                    committed_metadata=metadata,
                )
                for number, offset in numbers.items()
            ],
        )
        for key, numbers in offsets.items()
    ]
    return codec.OffsetCommitRequest(
        **{
            "group_id": group,
            "generation_id_or_member_epoch": member.generation if member else -1,
            "member_id": member.member_id if member else "",
            "group_instance_id": None,
            "retention_time_ms": -1,
            "topics": topics,
            **fields,
        }
    )


def errors_of(answer: Any) -> dict[Any, dict[int, int]]:
    """The error codes in an answer to OffsetCommit or OffsetDelete, by topic and partition."""
    return {
        topic.name or topic.topic_id: {p.partition_index: p.error_code for p in topic.partitions}
        for topic in answer.topics
    }


async def commit(
    broker: Broker, offsets: dict[str | Any, dict[int, int]], version: int = 9, **how: Any
) -> dict[Any, dict[int, int]]:
    """Commits; error codes by topic and partition."""
    return errors_of(await broker.ask(commit_request(offsets, **how), version))


async def committed(broker: Broker, group: str = "g") -> dict[str, dict[int, int]]:
    """Everything a group has committed."""
    kind = codec.OffsetFetchRequest.OffsetFetchRequestGroup
    asked = kind(group_id=group, member_id=None, member_epoch=-1, topics=None)
    answer = await broker.ask(codec.OffsetFetchRequest(groups=[asked]), 8)
    [found] = answer.groups
    assert found.error_code == Code.NONE
    return {
        topic.name: {p.partition_index: p.committed_offset for p in topic.partitions}
        for topic in found.topics
    }
