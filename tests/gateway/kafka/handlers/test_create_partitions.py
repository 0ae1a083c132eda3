"""CreatePartitions: topics grow, and never shrink."""

import pytest

from core.topic.rules import NewTopic
from gateway.kafka.codec import CreatePartitionsRequest, CreatePartitionsResponse
from tests.gateway.kafka.handlers.conftest import Broker
from tests.kafka_codes import Code

VERSIONS = range(4)


def grow(name: str, count: int, assignments: list[list[int]] | None = None) -> object:
    kind = CreatePartitionsRequest.CreatePartitionsTopic
    if assignments is not None:
        assignments = [kind.CreatePartitionsAssignment(broker_ids=each) for each in assignments]
    return kind(name=name, count=count, assignments=assignments)


async def ask(
    broker: Broker, *topics: object, version: int = 3, validate_only: bool = False
) -> CreatePartitionsResponse:
    request = CreatePartitionsRequest(topics=topics, timeout_ms=1, validate_only=validate_only)
    return await broker.ask(request, version)


@pytest.mark.parametrize("version", VERSIONS)
async def test_partitions_are_added_behind_the_others(broker: Broker, version: int) -> None:
    await broker.topics.create([NewTopic("t", 2)])
    before = await broker.topics.get("t")
    (result,) = (await ask(broker, grow("t", 5), version=version)).results
    assert (result.name, result.error_code, result.error_message) == ("t", 0, None)
    after = await broker.topics.get("t")
    assert before is not None
    assert after is not None
    assert after.partition_ids[:2] == before.partition_ids
    assert len(set(after.partition_ids)) == 5
    assert after.leader_epochs == (0,) * 5


async def test_validate_only_adds_nothing(broker: Broker) -> None:
    await broker.topics.create([NewTopic("t", 2)])
    (result,) = (await ask(broker, grow("t", 5), validate_only=True)).results
    assert result.error_code == 0
    topic = await broker.topics.get("t")
    assert topic is not None
    assert len(topic.partition_ids) == 2


@pytest.mark.parametrize(
    ("wish", "code", "message"),
    [
        (("t", 2), Code.INVALID_PARTITIONS, "Topic already has 2 partition(s)."),
        (
            ("t", 1),
            Code.INVALID_PARTITIONS,
            "The topic t currently has 2 partition(s); 1 would not be an increase.",
        ),
        (("t", -1), Code.INVALID_PARTITIONS, "would not be an increase"),
        (("none", 3), Code.UNKNOWN_TOPIC_OR_PARTITION, "does not host this topic-partition"),
        (("nul\0", 3), Code.UNKNOWN_TOPIC_OR_PARTITION, "does not host this topic-partition"),
        (
            ("t", 4, [[1]]),
            Code.INVALID_REPLICA_ASSIGNMENT,
            "but only 1 assignment(s) were specified.",
        ),
        (("t", 3, [[7]]), Code.INVALID_REPLICA_ASSIGNMENT, "includes broker 7, but no such broker"),
        (("t", 3, [[]]), Code.INVALID_REPLICA_ASSIGNMENT, "an empty replica list"),
        (("t", 100_000), Code.POLICY_VIOLATION, "excessively large"),
    ],
)
async def test_bad_wish_is_refused(
    broker: Broker, wish: tuple[object, ...], code: int, message: str
) -> None:
    await broker.topics.create([NewTopic("t", 2)])
    (result,) = (await ask(broker, grow(*wish))).results
    assert result.error_code == code
    assert message in result.error_message


async def test_topic_twice_in_one_request_is_refused(broker: Broker) -> None:
    await broker.topics.create([NewTopic("t", 1), NewTopic("u", 1)])
    results = (await ask(broker, grow("t", 2), grow("t", 3), grow("u", 2))).results
    assert [(each.name, each.error_code) for each in results] == [
        ("t", Code.INVALID_REQUEST),
        ("u", 0),
    ]


async def test_assignment_to_a_live_broker_is_accepted(broker: Broker) -> None:
    await broker.topics.create([NewTopic("t", 1)])
    (result,) = (await ask(broker, grow("t", 2, [[broker.cluster.broker_id]]))).results
    assert result.error_code == 0


async def test_without_a_database_clients_are_told_to_try_again(cut_off: Broker) -> None:
    (result,) = (await ask(cut_off, grow("t", 2))).results
    assert result.error_code == Code.NOT_CONTROLLER
