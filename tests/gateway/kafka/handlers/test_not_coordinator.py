"""A broker that has not the lease of a group says so, in every API, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gateway.kafka import codec
from tests.gateway.kafka.handlers.conftest import Broker
from tests.gateway.kafka.handlers.grouping import (
    Member,
    commit,
    commit_request,
    committed,
    consumer_heartbeat_request,
    heartbeat,
    join_request,
    stable,
    sync_request,
    topic_of,
)
from tests.kafka_codes import Code


def leave_request(member: Member) -> Any:
    leaving = codec.LeaveGroupRequest.MemberIdentity(
        member_id=member.member_id, group_instance_id=None
    )
    return codec.LeaveGroupRequest(group_id="g", members=[leaving])


def heartbeat_request(member: Member) -> Any:
    return codec.HeartbeatRequest(
        group_id="g",
        generation_id=member.generation,
        member_id=member.member_id,
        group_instance_id=None,
    )


def delete_offset_request(member: Member) -> Any:
    topic = codec.OffsetDeleteRequest.OffsetDeleteRequestTopic
    partition = topic.OffsetDeleteRequestPartition(partition_index=0)
    return codec.OffsetDeleteRequest(group_id="g", topics=[topic(name="t", partitions=[partition])])


# What is asked, in which version, and where the error is in the answer (OffsetFetch: see its test).
REQUESTS: dict[str, tuple[Callable[[Member], Any], int, Callable[[Any], int]]] = {
    "join": (lambda m: join_request(member_id=m.member_id), 9, lambda a: a.error_code),
    "sync": (sync_request, 5, lambda a: a.error_code),
    "heartbeat": (heartbeat_request, 4, lambda a: a.error_code),
    "leave": (leave_request, 5, lambda a: a.error_code),
    "commit": (
        lambda m: commit_request({"t": {0: 9}}, member=m),
        9,
        lambda a: a.topics[0].partitions[0].error_code,
    ),
    "consumer heartbeat": (lambda m: consumer_heartbeat_request(), 1, lambda a: a.error_code),
    "delete": (
        lambda m: codec.DeleteGroupsRequest(groups_names=["g"]),
        2,
        lambda a: a.results[0].error_code,
    ),
    "delete offsets": (delete_offset_request, 0, lambda a: a.error_code),
    "describe": (
        lambda m: codec.DescribeGroupsRequest(groups=["g"], include_authorized_operations=False),
        5,
        lambda a: a.groups[0].error_code,
    ),
    "describe consumer group": (
        lambda m: codec.ConsumerGroupDescribeRequest(
            group_ids=["g"], include_authorized_operations=False
        ),
        1,
        lambda a: a.groups[0].error_code,
    ),
}


@pytest.mark.parametrize("name", REQUESTS)
async def test_request_to_another_broker_is_refused_and_changes_nothing(
    two_group_brokers: tuple[Broker, Broker], name: str
) -> None:
    coordinator, other = two_group_brokers
    await topic_of(coordinator)
    member = await stable(coordinator)
    await commit(coordinator, {"t": {0: 5}}, member=member)
    request, version, error_of = REQUESTS[name]
    assert error_of(await other.ask(request(member), version)) == Code.NOT_COORDINATOR
    assert await heartbeat(coordinator, member) == Code.NONE
    assert await committed(coordinator) == {"t": {0: 5}}


async def test_a_broker_that_stops_lets_the_others_go_on(
    two_group_brokers: tuple[Broker, Broker],
) -> None:
    coordinator, other = two_group_brokers
    await topic_of(coordinator)
    member = await stable(coordinator)
    await commit(coordinator, {"t": {0: 5}}, member=member)
    await coordinator.groups.stop()
    assert await heartbeat(coordinator, member) == Code.NOT_COORDINATOR
    assert await heartbeat(other, member) == Code.NONE, "same member, same generation"
    assert await committed(other) == {"t": {0: 5}}
    synced = await other.ask(sync_request(member, assignments={}), 5)
    assert (synced.error_code, synced.assignment) == (Code.NONE, b"mine")
