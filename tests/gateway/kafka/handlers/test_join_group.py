"""JoinGroup: what each version says and hears; who is refused, and in which words."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from tests.gateway.kafka.handlers.conftest import Broker
from tests.gateway.kafka.handlers.grouping import (
    Member,
    heartbeat,
    join_request,
    joined,
    stable,
    subscription,
    sync_request,
)
from tests.kafka_codes import Code

VERSIONS = range(10)


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_member_that_is_alone_leads(group_broker: Broker, version: int) -> None:
    answer = await group_broker.ask(join_request(), version, client_id="me")
    if version >= 4:
        assert answer.error_code == Code.MEMBER_ID_REQUIRED
        assert (answer.generation_id, answer.leader, answer.members) == (-1, "", [])
        answer = await group_broker.ask(join_request(member_id=answer.member_id), version)
    assert answer.error_code == Code.NONE
    assert (answer.generation_id, answer.protocol_name) == (1, "range")
    assert answer.protocol_type == ("consumer" if version >= 7 else None)
    assert answer.skip_assignment is False
    assert answer.member_id.startswith("me-")
    assert answer.leader == answer.member_id
    [member] = answer.members
    assert (member.member_id, member.metadata) == (answer.member_id, subscription("t"))
    assert member.group_instance_id is None


@pytest.mark.parametrize("version", VERSIONS[5:])
async def test_a_static_member_joins_at_once(group_broker: Broker, version: int) -> None:
    answer = await group_broker.ask(join_request(group_instance_id="i"), version)
    assert answer.error_code == Code.NONE
    assert answer.member_id.startswith("i-")
    [member] = answer.members
    assert member.group_instance_id == "i"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"group": "", "member_id": "me"}, Code.INVALID_GROUP_ID),
        ({"group": "a\0b", "member_id": "me"}, Code.INVALID_GROUP_ID),
        ({"member_id": "me", "session_timeout_ms": 1}, Code.INVALID_SESSION_TIMEOUT),
        ({"member_id": "me", "session_timeout_ms": 2**31 - 1}, Code.INVALID_SESSION_TIMEOUT),
        ({"member_id": "me"}, Code.UNKNOWN_MEMBER_ID),
        ({"protocols": []}, Code.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": ""}, Code.INCONSISTENT_GROUP_PROTOCOL),
    ],
    ids=["no group id", "NUL", "short session", "long session", "unknown", "no way", "no type"],
)
@pytest.mark.parametrize("version", [0, 5, 9])
async def test_invalid_join_is_refused(
    group_broker: Broker, version: int, fields: dict[str, Any], code: Code
) -> None:
    answer = await group_broker.ask(join_request(**fields), version)
    assert answer.error_code == code
    assert answer.member_id == fields.get("member_id", "")
    assert (answer.generation_id, answer.leader, answer.members) == (-1, "", [])
    assert answer.protocol_name == (None if version >= 7 else "")


async def test_another_kind_of_group_is_refused(group_broker: Broker) -> None:
    await stable(group_broker)
    answer = await group_broker.ask(join_request(protocol_type="connect"), 3)
    assert answer.error_code == Code.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize(("version", "timeout_ms"), [(0, 7_000), (1, 20_000)])
async def test_version_0_has_the_session_for_its_rebalance_timeout(
    group_broker: Broker, database_url: str, version: int, timeout_ms: int
) -> None:
    request = join_request(session_timeout_ms=7_000, rebalance_timeout_ms=20_000)
    answer = await group_broker.ask(request, version)
    await group_broker.ask(sync_request(Member(answer.member_id, answer.generation_id)), 0)
    with psycopg.connect(database_url) as connection:
        found = connection.execute("SELECT rebalance_timeout_ms FROM group_member").fetchall()
    assert found == [(timeout_ms,)]


async def test_rebalance_gives_the_leader_all_members(group_broker: Broker) -> None:
    first = await stable(group_broker)
    second = asyncio.create_task(group_broker.ask(join_request(), 3))
    while await heartbeat(group_broker, first) == Code.NONE:
        await asyncio.sleep(0.01)
    assert await heartbeat(group_broker, first) == Code.REBALANCE_IN_PROGRESS
    leading = await group_broker.ask(join_request(member_id=first.member_id), 3)
    following = await second
    assert leading.generation_id == following.generation_id == first.generation + 1
    assert leading.leader == following.leader == first.member_id
    assert {each.member_id for each in leading.members} == {first.member_id, following.member_id}
    assert following.members == []


@pytest.mark.parametrize("version", [8, 9])
async def test_static_leader_comes_back_without_a_rebalance(
    group_broker: Broker, version: int
) -> None:
    old = await stable(group_broker, group_instance_id="i")
    answer = await group_broker.ask(join_request(group_instance_id="i"), version)
    assert (answer.error_code, answer.generation_id) == (Code.NONE, old.generation)
    assert answer.member_id != old.member_id
    assert answer.skip_assignment is (version >= 9)  # KIP-814
    # Before v9 it is told that somebody else leads, so that it assigns nothing.
    assert answer.leader == (answer.member_id if version >= 9 else old.member_id)
    fenced = await heartbeat(group_broker, old, group_instance_id="i")
    assert fenced == Code.FENCED_INSTANCE_ID


async def test_names_of_any_length_and_character(group_broker: Broker) -> None:
    group, client = "ü" * 16_000, "c\0" * 10_000
    answer = await group_broker.ask(join_request(group), 3, client_id=client)
    assert answer.error_code == Code.NONE
    assert answer.member_id.startswith("c\0c\0")
    member = Member(answer.member_id, answer.generation_id)
    synced = await group_broker.ask(sync_request(member, group), 3)
    assert (synced.error_code, synced.assignment) == (Code.NONE, b"mine")


async def test_a_join_that_is_given_up_leaves_its_member(group_broker: Broker) -> None:
    leader = await stable(group_broker)
    waiting = asyncio.create_task(group_broker.ask(join_request(), 3))
    while await heartbeat(group_broker, leader) == Code.NONE:
        await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    answer = await group_broker.ask(join_request(member_id=leader.member_id), 3)
    assert answer.error_code == Code.NONE
    assert len(answer.members) == 2


async def test_members_vote_on_the_assignor(group_broker: Broker) -> None:
    kind = type(join_request().protocols[0])
    ways = [kind(name=name, metadata=b"x") for name in ("sticky", "range")]
    member = await joined(group_broker, protocols=ways)
    other = asyncio.create_task(group_broker.ask(join_request(), 3))
    while await heartbeat(group_broker, member) == Code.NONE:
        await asyncio.sleep(0.01)
    again = join_request(member_id=member.member_id, protocols=ways)
    mine, others = await asyncio.gather(group_broker.ask(again, 3), other)
    assert mine.protocol_name == others.protocol_name == "range"
