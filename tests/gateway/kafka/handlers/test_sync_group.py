"""SyncGroup: assignments come from the leader and reach every member."""

from __future__ import annotations

import asyncio

import pytest

from tests.gateway.kafka.handlers.conftest import Broker
from tests.gateway.kafka.handlers.grouping import (
    Member,
    heartbeat,
    join_request,
    joined,
    stable,
    sync_request,
)
from tests.kafka_codes import Code

VERSIONS = range(6)
NOBODY = Member("m", 1)


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_leader_gets_what_it_assigned_itself(group_broker: Broker, version: int) -> None:
    member = await joined(group_broker)
    for _ in range(2):  # who asks again is told again
        answer = await group_broker.ask(sync_request(member), version)
        assert (answer.error_code, answer.assignment) == (Code.NONE, b"mine")
        expected = ("consumer", "range") if version >= 5 else (None, None)
        assert (answer.protocol_type, answer.protocol_name) == expected


async def test_a_follower_waits_for_its_leader(group_broker: Broker) -> None:
    first = await stable(group_broker)
    joining = asyncio.create_task(group_broker.ask(join_request(), 3))
    while await heartbeat(group_broker, first) == Code.NONE:
        await asyncio.sleep(0.01)
    leading = await group_broker.ask(join_request(member_id=first.member_id), 3)
    following = await joining
    follower = Member(following.member_id, following.generation_id)
    leader = Member(leading.member_id, leading.generation_id)
    waiting = asyncio.create_task(group_broker.ask(sync_request(follower, assignments={}), 3))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    assignments = {leader.member_id: b"one", follower.member_id: b"two"}
    answer = await group_broker.ask(sync_request(leader, assignments=assignments), 3)
    assert (answer.assignment, (await waiting).assignment) == (b"one", b"two")


@pytest.mark.parametrize("version", VERSIONS)
async def test_unknown_group_member_or_generation_is_refused(
    group_broker: Broker, version: int
) -> None:
    for group, code in (("", Code.INVALID_GROUP_ID), ("none", Code.UNKNOWN_MEMBER_ID)):
        answer = await group_broker.ask(sync_request(NOBODY, group), version)
        assert (answer.error_code, answer.assignment) == (code, b"")
        assert (answer.protocol_type, answer.protocol_name) == (None, None)
    member = await stable(group_broker)
    stranger = await group_broker.ask(sync_request(NOBODY), version)
    assert stranger.error_code == Code.UNKNOWN_MEMBER_ID
    old = Member(member.member_id, member.generation - 1)
    assert (await group_broker.ask(sync_request(old), version)).error_code == (
        Code.ILLEGAL_GENERATION
    )


@pytest.mark.parametrize("field", ["protocol_type", "protocol_name"])
async def test_the_protocol_has_to_be_named_from_version_5_on(
    group_broker: Broker, field: str
) -> None:
    for group in ("none", ""):  # before anything else is looked at
        answer = await group_broker.ask(sync_request(NOBODY, group, **{field: None}), 5)
        assert answer.error_code == Code.INCONSISTENT_GROUP_PROTOCOL
    member = await joined(group_broker)
    answer = await group_broker.ask(sync_request(member, **{field: "other"}), 5)
    assert answer.error_code == Code.INCONSISTENT_GROUP_PROTOCOL
    assert (await group_broker.ask(sync_request(member), 5)).error_code == Code.NONE


async def test_missing_assignment_is_empty(group_broker: Broker) -> None:
    member = await joined(group_broker)
    answer = await group_broker.ask(sync_request(member, assignments={}), 5)
    assert (answer.error_code, answer.assignment) == (Code.NONE, b"")


async def test_large_assignment_comes_back_whole(group_broker: Broker) -> None:
    member = await joined(group_broker)
    large = bytes(range(256)) * (10 * 4096)
    for request in (sync_request(member, assignments={member.member_id: large}),) * 2:
        answer = await group_broker.ask(request, 5)
        assert answer.error_code == Code.NONE
        assert answer.assignment == large


async def test_an_assignment_of_50_mb_is_refused_and_the_group_lives_on(
    group_broker: Broker,
) -> None:
    member = await joined(group_broker)
    request = sync_request(member, assignments={member.member_id: bytes(50 << 20)})
    answer = await group_broker.ask(request, 5)
    assert (answer.error_code, answer.assignment) == (Code.UNKNOWN_SERVER_ERROR, b"")
    again = await group_broker.ask(join_request(member_id=member.member_id), 3)
    assert again.error_code == Code.NONE
    later = Member(again.member_id, again.generation_id)
    assert (await group_broker.ask(sync_request(later), 5)).assignment == b"mine"
