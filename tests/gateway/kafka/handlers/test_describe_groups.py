"""DescribeGroups: classic groups with their members."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.kafka.codec import DescribeGroupsRequest
from tests.gateway.kafka.handlers.conftest import Broker
from tests.gateway.kafka.handlers.grouping import (
    ALL_OPERATIONS,
    NOT_ASKED,
    commit,
    consumer,
    joined,
    stable,
    subscription,
    topic_of,
)
from tests.kafka_codes import Code

VERSIONS = range(7)


async def describe(broker: Broker, version: int, *groups: str, operations: bool = False) -> Any:
    request = DescribeGroupsRequest(
        groups=list(groups), include_authorized_operations=operations and version >= 3
    )
    return (await broker.ask(request, version)).groups


def operations_of(group: Any) -> int:
    """As the wire has it; the field is unsigned to kafka-python."""
    bits: int = group.authorized_operations
    return bits - 2**32 if bits >= 2**31 else bits


@pytest.mark.parametrize("version", VERSIONS)
async def test_stable_group_is_described_with_its_member(
    group_broker: Broker, version: int
) -> None:
    member = await stable(group_broker, group_instance_id="i")
    [group] = await describe(group_broker, version, "g", operations=True)
    assert (group.error_code, group.group_id, group.group_state) == (Code.NONE, "g", "Stable")
    assert (group.protocol_type, group.protocol_data) == ("consumer", "range")
    [found] = group.members
    assert found.member_id == member.member_id
    assert found.group_instance_id == ("i" if version >= 4 else None)
    assert (found.client_id, found.client_host) == ("tester", "/127.0.0.1")
    assert (found.member_metadata, found.member_assignment) == (subscription("t"), b"mine")
    if version >= 3:
        assert operations_of(group) == ALL_OPERATIONS
    [group] = await describe(group_broker, version, "g")
    if version >= 3:
        assert operations_of(group) == NOT_ASKED


async def test_an_unstable_group_shows_no_metadata(group_broker: Broker) -> None:
    member = await joined(group_broker)
    [group] = await describe(group_broker, 5, "g")
    assert (group.group_state, group.protocol_data) == ("CompletingRebalance", "")
    [found] = group.members
    assert (found.member_id, found.member_metadata) == (member.member_id, b"")


@pytest.mark.parametrize("version", VERSIONS)
async def test_groups_without_members(group_broker: Broker, version: int) -> None:
    await topic_of(group_broker)
    for name in ("simple", ""):
        await commit(group_broker, {"t": {0: 5}}, group=name)
    for group in await describe(group_broker, version, "simple", ""):
        assert (group.error_code, group.group_state, group.members) == (Code.NONE, "Empty", [])
        assert (group.protocol_type, group.protocol_data) == ("", "")


@pytest.mark.parametrize("version", VERSIONS)
async def test_missing_and_consumer_groups_are_dead(group_broker: Broker, version: int) -> None:
    await topic_of(group_broker)
    await consumer(group_broker, "new")
    none, new = await describe(group_broker, version, "none", "new", operations=True)
    assert [none.group_state, new.group_state] == ["Dead", "Dead"]
    if version < 6:
        assert (none.error_code, new.error_code) == (Code.NONE, Code.NONE)
        if version >= 3:
            assert operations_of(none) == ALL_OPERATIONS
    else:
        for group, message in (
            (none, "Group none not found."),
            (new, "Group new is not a classic group."),
        ):
            assert (group.error_code, group.error_message) == (Code.GROUP_ID_NOT_FOUND, message)
            assert operations_of(group) == NOT_ASKED


async def test_a_group_asked_for_twice_is_described_twice(group_broker: Broker) -> None:
    await stable(group_broker)
    assert len(await describe(group_broker, 6, "g", "g")) == 2
    assert await describe(group_broker, 6) == []
