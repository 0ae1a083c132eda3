"""ConsumerGroupDescribe: groups of KIP-848 with epochs and assignments."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.kafka.codec import ConsumerGroupDescribeRequest
from tests.gateway.kafka.handlers.conftest import Broker, MakeBroker
from tests.gateway.kafka.handlers.grouping import (
    ALL_OPERATIONS,
    NOT_ASKED,
    consumer_heartbeat_request,
    stable,
    topic_of,
)
from tests.kafka_codes import Code


async def describe(broker: Broker, version: int, *groups: str, operations: bool = False) -> Any:
    request = ConsumerGroupDescribeRequest(
        group_ids=list(groups), include_authorized_operations=operations
    )
    return (await broker.ask(request, version)).groups


def assignment(found: Any) -> list[tuple[Any, str, list[int]]]:
    return [(each.topic_id, each.topic_name, each.partitions) for each in found.topic_partitions]


@pytest.mark.parametrize("version", range(2))
async def test_group_is_described_with_its_member(group_broker: Broker, version: int) -> None:
    topic = await topic_of(group_broker)
    request = consumer_heartbeat_request(instance_id="i", rack_id="r", server_assignor="range")
    await group_broker.ask(request, 1)
    [group] = await describe(group_broker, version, "g", operations=True)
    assert (group.error_code, group.error_message, group.group_id) == (Code.NONE, None, "g")
    assert (group.group_state, group.assignor_name) == ("Stable", "range")
    assert (group.group_epoch, group.assignment_epoch) == (1, 1)
    assert group.authorized_operations == ALL_OPERATIONS
    [member] = group.members
    assert (member.member_id, member.instance_id, member.rack_id) == ("m", "i", "r")
    assert (member.member_epoch, member.member_type) == (1, 1 if version else -1)
    assert (member.client_id, member.client_host) == ("tester", "/127.0.0.1")
    assert (member.subscribed_topic_names, member.subscribed_topic_regex) == (["t"], "")
    everything = [(topic.topic_id, "t", [0, 1])]
    assert assignment(member.assignment) == assignment(member.target_assignment) == everything
    [group] = await describe(group_broker, version, "g")
    assert group.authorized_operations == NOT_ASKED


@pytest.mark.parametrize("version", range(2))
async def test_missing_and_classic_groups_are_not_found(group_broker: Broker, version: int) -> None:
    await stable(group_broker, "classic")
    groups = await describe(group_broker, version, "none", "classic", "", operations=True)
    assert [(each.group_id, each.error_code, each.error_message) for each in groups] == [
        ("none", Code.GROUP_ID_NOT_FOUND, "Group none not found."),
        ("classic", Code.GROUP_ID_NOT_FOUND, "Group classic is not a consumer group."),
        ("", Code.INVALID_GROUP_ID, None),
    ]
    for each in groups:
        assert (each.group_state, each.assignor_name, each.members) == ("", "", [])
        assert each.authorized_operations == NOT_ASKED


async def test_deleted_topic_is_left_out(group_broker: Broker) -> None:
    await topic_of(group_broker)
    await group_broker.ask(consumer_heartbeat_request(), 1)
    await group_broker.topics.delete(["t"], [])
    [group] = await describe(group_broker, 1, "g")
    [member] = group.members
    assert assignment(member.assignment) == assignment(member.target_assignment) == []


async def test_disabled_protocol_is_refused(make_broker: MakeBroker) -> None:
    broker = await make_broker({"group.coordinator.rebalance.protocols": "classic"})
    [group] = await describe(broker, 1, "g")
    assert (group.group_id, group.error_code) == ("g", Code.UNSUPPORTED_VERSION)
