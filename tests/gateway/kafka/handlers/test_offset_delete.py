"""OffsetDelete: what a group does not read may go."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.kafka.codec import OffsetDeleteRequest
from tests.gateway.kafka.handlers.conftest import Broker
from tests.gateway.kafka.handlers.grouping import (
    commit,
    committed,
    consumer,
    errors_of,
    stable,
    topic_of,
)
from tests.gateway.kafka.handlers.producing import create
from tests.kafka_codes import Code

Topic = OffsetDeleteRequest.OffsetDeleteRequestTopic


async def delete(broker: Broker, topics: dict[str, list[int]], group: str = "g") -> Any:
    asked = [
        Topic(
            name=name,
            partitions=[Topic.OffsetDeleteRequestPartition(partition_index=n) for n in numbers],
        )
        for name, numbers in topics.items()
    ]
    return await broker.ask(OffsetDeleteRequest(group_id=group, topics=asked), 0)


async def test_offsets_go_one_by_one(group_broker: Broker) -> None:
    await topic_of(group_broker)
    await commit(group_broker, {"t": {0: 5, 1: 6}})
    answer = await delete(group_broker, {"t": [0, 5], "no": [0]})
    assert answer.error_code == Code.NONE
    unknown = Code.UNKNOWN_TOPIC_OR_PARTITION
    assert errors_of(answer) == {"t": {0: Code.NONE, 5: unknown}, "no": {0: unknown}}
    assert await committed(group_broker) == {"t": {1: 6}}
    again = await delete(group_broker, {"t": [0]})  # what is not there is gone as well
    assert errors_of(again) == {"t": {0: Code.NONE}}


async def test_missing_or_invalid_group_is_refused(group_broker: Broker) -> None:
    await topic_of(group_broker)
    for group, code in (("", Code.INVALID_GROUP_ID), ("none", Code.GROUP_ID_NOT_FOUND)):
        for topics in ({"t": [0], "no": [0]}, {}):
            answer = await delete(group_broker, topics, group)
            assert (answer.error_code, answer.topics) == (code, [])


@pytest.mark.parametrize("become_member", [stable, consumer], ids=["classic", "consumer"])
async def test_offsets_of_subscribed_topics_stay(group_broker: Broker, become_member: Any) -> None:
    await topic_of(group_broker)
    await create(group_broker, "other")
    member = await become_member(group_broker)
    await commit(group_broker, {"t": {0: 5}, "other": {0: 6}}, member=member)
    answer = await delete(group_broker, {"t": [0, 5], "other": [0]})
    assert answer.error_code == Code.NONE
    assert errors_of(answer) == {
        "t": {0: Code.GROUP_SUBSCRIBED_TO_TOPIC, 5: Code.UNKNOWN_TOPIC_OR_PARTITION},
        "other": {0: Code.NONE},
    }
    assert await committed(group_broker) == {"t": {0: 5}}


async def test_a_group_that_is_not_of_consumers_keeps_all(group_broker: Broker) -> None:
    """What its members read is not known."""
    await topic_of(group_broker)
    member = await stable(group_broker, protocol_type="connect")
    await commit(group_broker, {"t": {0: 5}}, member=member)
    answer = await delete(group_broker, {"t": [0]})
    assert (answer.error_code, answer.topics) == (Code.NON_EMPTY_GROUP, [])
