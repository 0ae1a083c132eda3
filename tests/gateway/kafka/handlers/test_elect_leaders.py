"""ElectLeaders: no election is needed, ever."""

from typing import Any

import pytest

from core.topic.rules import NewTopic
from gateway.kafka.codec import ElectLeadersRequest
from tests.gateway.kafka.handlers.conftest import Broker
from tests.kafka_codes import Code

VERSIONS = range(3)
PREFERRED, UNCLEAN = 0, 1


def request(partitions: dict[str, list[int]] | None, kind: int = PREFERRED) -> Any:
    asked = None
    if partitions is not None:
        asked = [
            ElectLeadersRequest.TopicPartitions(topic=topic, partitions=numbers)
            for topic, numbers in partitions.items()
        ]
    return ElectLeadersRequest(election_type=kind, topic_partitions=asked, timeout_ms=1000)


def told(answer: Any) -> dict[tuple[str, int], tuple[int, str | None]]:
    return {
        (each.topic, part.partition_id): (part.error_code, part.error_message)
        for each in answer.replica_election_results
        for part in each.partition_result
    }


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", [PREFERRED, UNCLEAN])
async def test_a_partition_needs_no_election(broker: Broker, version: int, kind: int) -> None:
    await broker.topics.create([NewTopic("t", 2)])
    asked = request({"t": [0, 1, 2, -1], "none": [0], "nul\0": [0]}, kind)
    answer = await broker.ask(asked, version)
    not_needed = (Code.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")
    assert told(answer) == {
        ("t", 0): not_needed,
        ("t", 1): not_needed,
        ("t", 2): (Code.UNKNOWN_TOPIC_OR_PARTITION, "No such partition as t-2"),
        ("t", -1): (Code.UNKNOWN_TOPIC_OR_PARTITION, "No such partition as t--1"),
        ("none", 0): (Code.UNKNOWN_TOPIC_OR_PARTITION, "No such topic as none"),
        ("nul\0", 0): (Code.UNKNOWN_TOPIC_OR_PARTITION, "No such topic as nul\0"),
    }
    if version >= 1:
        assert answer.error_code == 0


@pytest.mark.parametrize("version", VERSIONS)
async def test_election_of_all_partitions_omits_those_that_need_none(
    broker: Broker, version: int
) -> None:
    await broker.topics.create([NewTopic("a", 2), NewTopic("b")])
    answer = await broker.ask(request(None), version)
    assert [
        (each.topic, list(each.partition_result)) for each in answer.replica_election_results
    ] == [("a", []), ("b", [])]


@pytest.mark.parametrize("version", [1, 2])
async def test_an_unknown_type_of_election_is_refused(broker: Broker, version: int) -> None:
    answer = await broker.ask(request({"t": [0]}, 7), version)
    assert answer.error_code == Code.INVALID_REQUEST
    assert told(answer) == {("t", 0): (Code.INVALID_REQUEST, "Unknown election type 7")}
    assert (await broker.ask(request(None, 7), version)).error_code == Code.INVALID_REQUEST


async def test_without_a_database_clients_are_told_to_try_again(cut_off: Broker) -> None:
    for version in VERSIONS:
        answer = await cut_off.ask(request({"t": [0]}), version)
        assert told(answer)["t", 0][0] == Code.NOT_CONTROLLER
