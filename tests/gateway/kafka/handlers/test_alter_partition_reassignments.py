"""AlterPartitionReassignments: what is so already is granted, everything else refused."""

from typing import Any

import pytest

from core.topic.rules import NewTopic
from gateway.kafka.codec import AlterPartitionReassignmentsRequest
from tests.gateway.kafka.handlers.conftest import Broker, MakeBroker
from tests.kafka_codes import Code

VERSIONS = range(2)
Topic = AlterPartitionReassignmentsRequest.ReassignableTopic


def request(topic: str, wanted: dict[int, list[int] | None]) -> Any:
    parts = [
        Topic.ReassignablePartition(partition_index=number, replicas=replicas)
        for number, replicas in wanted.items()
    ]
    return AlterPartitionReassignmentsRequest(
        timeout_ms=1000, topics=[Topic(name=topic, partitions=parts)]
    )


def told(answer: Any) -> dict[int, tuple[int, str | None]]:
    return {
        part.partition_index: (part.error_code, part.error_message)
        for each in answer.responses
        for part in each.partitions
    }


@pytest.mark.parametrize("version", VERSIONS)
async def test_each_list_of_replicas_has_its_answer(make_broker: MakeBroker, version: int) -> None:
    one, two = await make_broker(), await make_broker()
    await one.cluster.heartbeat()
    assert {one.cluster.broker_id, two.cluster.broker_id} == {1, 2}
    await one.topics.create([NewTopic("t", 8)])
    topic = await one.topics.get("t")
    assert topic is not None
    leader = one.cluster.leader_of(topic.partition_ids[0])
    lists = [[leader], [3 - leader], [1, 2], [], [9], [1, 1], None]
    answer = await one.ask(request("t", {0: lists[0]}), version)
    assert (answer.error_code, told(answer)) == (0, {0: (0, None)})
    refusals = {}
    for replicas in lists[1:]:
        (refusals[str(replicas)],) = told(
            await one.ask(request("t", {0: replicas}), version)
        ).values()
    assert {name: code for name, (code, _) in refusals.items()} == {
        str([3 - leader]): Code.INVALID_REPLICA_ASSIGNMENT,
        "[1, 2]": Code.INVALID_REPLICATION_FACTOR,
        "[]": Code.INVALID_REPLICA_ASSIGNMENT,
        "[9]": Code.INVALID_REPLICA_ASSIGNMENT,
        "[1, 1]": Code.INVALID_REPLICA_ASSIGNMENT,
        "None": Code.NO_REASSIGNMENT_IN_PROGRESS,
    }
    assert "any broker can serve it" in str(refusals[str([3 - leader])])
    assert "no such broker is registered" in str(refusals["[9]"])


async def test_an_unknown_partition_is_refused_before_its_replicas(broker: Broker) -> None:
    await broker.topics.create([NewTopic("t")])
    answer = await broker.ask(request("t", {0: None, 1: [9], -1: None}), 1)
    assert told(answer) == {
        0: (Code.NO_REASSIGNMENT_IN_PROGRESS, None),
        1: (Code.UNKNOWN_TOPIC_OR_PARTITION, "Unable to find partition t:1."),
        -1: (Code.UNKNOWN_TOPIC_OR_PARTITION, "Unable to find partition t:-1."),
    }
    answer = await broker.ask(request("nul\0", {0: [1]}), 1)
    assert told(answer) == {
        0: (Code.UNKNOWN_TOPIC_OR_PARTITION, "Unable to find a topic named nul\0.")
    }


async def test_without_a_database_clients_are_told_to_try_again(cut_off: Broker) -> None:
    for version in VERSIONS:
        assert (
            await cut_off.ask(request("t", {0: [1]}), version)
        ).error_code == Code.NOT_CONTROLLER
