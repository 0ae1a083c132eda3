"""DeleteGroups: groups without members go, with their offsets."""

from __future__ import annotations

import pytest

from gateway.kafka.codec import DeleteGroupsRequest
from tests.gateway.kafka.handlers.conftest import Broker
from tests.gateway.kafka.handlers.grouping import commit, committed, consumer, stable, topic_of
from tests.kafka_codes import Code


@pytest.mark.parametrize("version", range(3))
async def test_each_group_has_its_result(group_broker: Broker, version: int) -> None:
    await topic_of(group_broker)
    for group in ("simple", ""):
        await commit(group_broker, {"t": {0: 5}}, group=group)
    await stable(group_broker, "classic")
    await consumer(group_broker, "consumer")
    asked = ["none", "simple", "", "classic", "consumer", "simple", "a\0b"]
    answer = await group_broker.ask(DeleteGroupsRequest(groups_names=asked), version)
    assert {each.group_id: each.error_code for each in answer.results} == {
        "none": Code.GROUP_ID_NOT_FOUND,
        "simple": Code.NONE,
        "": Code.NONE,
        "classic": Code.NON_EMPTY_GROUP,
        "consumer": Code.NON_EMPTY_GROUP,
        "a\0b": Code.INVALID_GROUP_ID,
    }
    assert len(answer.results) == 6, "a group named twice is answered once"
    assert await committed(group_broker, "simple") == {}
    again = await group_broker.ask(DeleteGroupsRequest(groups_names=["simple"]), version)
    assert again.results[0].error_code == Code.GROUP_ID_NOT_FOUND


async def test_empty_request_has_an_empty_answer(group_broker: Broker) -> None:
    answer = await group_broker.ask(DeleteGroupsRequest(groups_names=[]), 2)
    assert answer.results == []
