"""LeaveGroup: one member before v3, any number of them after."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.kafka.codec import LeaveGroupRequest
from tests.gateway.kafka.handlers.conftest import Broker
from tests.gateway.kafka.handlers.grouping import heartbeat, stable
from tests.kafka_codes import Code


def leaving(*members: tuple[str, str | None], group: str = "g") -> Any:
    """LeaveGroup of (member id, instance id); the first one's id stands where there is one only."""
    return LeaveGroupRequest(
        group_id=group,
        member_id=members[0][0] if members else "",
        members=[
            LeaveGroupRequest.MemberIdentity(
                member_id=member_id, group_instance_id=instance_id, reason="why not"
            )
            for member_id, instance_id in members
        ],
    )


def told(answer: Any) -> list[tuple[str, str | None, int]]:
    return [(m.member_id, m.group_instance_id, m.error_code) for m in answer.members]


@pytest.mark.parametrize("version", range(6))
async def test_a_member_leaves_and_is_gone(group_broker: Broker, version: int) -> None:
    member = await stable(group_broker)
    answer = await group_broker.ask(leaving((member.member_id, None)), version)
    assert answer.error_code == Code.NONE
    if version >= 3:
        assert told(answer) == [(member.member_id, None, Code.NONE)]
    assert await heartbeat(group_broker, member) == Code.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", range(3))
async def test_one_member_has_one_error(group_broker: Broker, version: int) -> None:
    await stable(group_broker)
    for group, code in (
        ("", Code.INVALID_GROUP_ID),
        ("none", Code.UNKNOWN_MEMBER_ID),
        ("g", Code.UNKNOWN_MEMBER_ID),
    ):
        answer = await group_broker.ask(leaving(("x", None), group=group), version)
        assert answer.error_code == code


@pytest.mark.parametrize("version", range(3, 6))
async def test_each_leaving_member_has_its_own_result(group_broker: Broker, version: int) -> None:
    for group, code, members in (
        ("", Code.INVALID_GROUP_ID, []),
        ("none", Code.NONE, [("x", None, Code.UNKNOWN_MEMBER_ID)]),
    ):
        answer = await group_broker.ask(leaving(("x", None), group=group), version)
        assert (answer.error_code, told(answer)) == (code, members)
    mine = (await stable(group_broker)).member_id
    asked = [("x", None), ("", "i"), (mine, "i"), (mine, None)]
    answer = await group_broker.ask(leaving(*asked), version)
    codes = [Code.UNKNOWN_MEMBER_ID] * 3 + [Code.NONE]
    assert told(answer) == [(*each, code) for each, code in zip(asked, codes, strict=True)]
    assert answer.error_code == Code.NONE


async def test_empty_request_removes_no_member(group_broker: Broker) -> None:
    member = await stable(group_broker)
    for group in ("g", "none"):
        answer = await group_broker.ask(leaving(group=group), 5)
        assert (answer.error_code, answer.members) == (Code.NONE, [])
    assert await heartbeat(group_broker, member) == Code.NONE


async def test_an_administrator_removes_a_static_member(group_broker: Broker) -> None:
    member = await stable(group_broker, group_instance_id="i")
    fenced = await group_broker.ask(leaving(("other", "i")), 5)
    assert told(fenced) == [("other", "i", Code.FENCED_INSTANCE_ID)]
    removed = await group_broker.ask(leaving(("", "i")), 5)
    assert [error for _, _, error in told(removed)] == [Code.NONE]
    gone = await heartbeat(group_broker, member, group_instance_id="i")
    assert gone == Code.UNKNOWN_MEMBER_ID
