"""ListPartitionReassignments: there are none."""

import pytest

from core.topic.rules import NewTopic
from gateway.kafka.codec import ListPartitionReassignmentsRequest
from tests.gateway.kafka.handlers.conftest import Broker

Topic = ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics


@pytest.mark.parametrize("names", [None, ["t"], ["none"], []])
async def test_nothing_is_being_reassigned(broker: Broker, names: list[str] | None) -> None:
    await broker.topics.create([NewTopic("t")])
    topics = None if names is None else [Topic(name=name, partition_indexes=[0]) for name in names]
    answer = await broker.ask(ListPartitionReassignmentsRequest(timeout_ms=1, topics=topics), 0)
    assert (answer.error_code, answer.error_message, list(answer.topics)) == (0, None, [])
