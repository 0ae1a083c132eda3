"""Heartbeat: who lives, who is fenced, who must join again."""

from __future__ import annotations

import pytest

from gateway.kafka.codec import HeartbeatRequest
from tests.gateway.kafka.handlers.conftest import Broker
from tests.gateway.kafka.handlers.grouping import Member, heartbeat, joined, stable
from tests.kafka_codes import Code


@pytest.mark.parametrize("version", range(5))
async def test_heartbeat_of_a_stable_member_succeeds(group_broker: Broker, version: int) -> None:
    member = await stable(group_broker)
    request = HeartbeatRequest(
        group_id="g",
        generation_id=member.generation,
        member_id=member.member_id,
        group_instance_id=None,
    )
    assert (await group_broker.ask(request, version)).error_code == Code.NONE


async def test_stale_or_unknown_member_is_refused(group_broker: Broker) -> None:
    member = await stable(group_broker)
    assert await heartbeat(group_broker, member, group="") == Code.INVALID_GROUP_ID
    assert await heartbeat(group_broker, member, group="none") == Code.UNKNOWN_MEMBER_ID
    assert await heartbeat(group_broker, Member("x", 1)) == Code.UNKNOWN_MEMBER_ID
    for generation in (member.generation - 1, member.generation + 1, -1):
        late = Member(member.member_id, generation)
        assert await heartbeat(group_broker, late) == Code.ILLEGAL_GENERATION
    stranger = await heartbeat(group_broker, member, group_instance_id="i")
    assert stranger == Code.UNKNOWN_MEMBER_ID


async def test_the_leader_may_be_late_with_its_assignment(group_broker: Broker) -> None:
    member = await joined(group_broker)
    assert await heartbeat(group_broker, member) == Code.NONE


async def test_another_member_under_the_same_instance_id_is_fenced(group_broker: Broker) -> None:
    member = await stable(group_broker, group_instance_id="i")
    assert await heartbeat(group_broker, member, group_instance_id="i") == Code.NONE
    other = Member("x", member.generation)
    assert await heartbeat(group_broker, other, group_instance_id="i") == Code.FENCED_INSTANCE_ID
