"""CreateTopics: what is created, what is refused, and with which of Kafka's codes."""

import asyncio

import pytest
from sqlalchemy import text

from gateway.kafka.codec import CreateTopicsRequest, CreateTopicsResponse
from tests.gateway.kafka.handlers.conftest import Broker, MakeBroker
from tests.kafka_codes import Code

VERSIONS = range(2, 8)


def new(name: str, partitions: int = 1, factor: int = 1, **more: object) -> object:
    configs = [
        CreateTopicsRequest.CreatableTopic.CreatableTopicConfig(name=key, value=value)
        for key, value in more.get("configs", {}).items()
    ]
    assignments = [
        CreateTopicsRequest.CreatableTopic.CreatableReplicaAssignment(
            partition_index=partition, broker_ids=brokers
        )
        for partition, brokers in more.get("assignments", [])
    ]
    return CreateTopicsRequest.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        assignments=assignments,
        configs=configs,
    )


async def create(
    broker: Broker, *topics: object, version: int = 7, validate_only: bool = False
) -> CreateTopicsResponse:
    request = CreateTopicsRequest(topics=topics, timeout_ms=1000, validate_only=validate_only)
    return await broker.ask(request, version)


async def refusal(broker: Broker, *topics: object) -> tuple[int, str]:
    (result,) = (await create(broker, *topics)).topics
    return result.error_code, result.error_message


@pytest.mark.parametrize("version", VERSIONS)
async def test_topic_is_created_with_partitions_and_settings(broker: Broker, version: int) -> None:
    topic = new("flights", 3, configs={"retention.ms": "60000", "cleanup.policy": "compact"})
    (result,) = (await create(broker, topic, version=version)).topics
    assert (result.name, result.error_code, result.error_message) == ("flights", Code.NONE, None)
    if version >= 5:
        assert (result.num_partitions, result.replication_factor) == (3, 1)
        configs = {entry.name: entry for entry in result.configs}
        assert configs["retention.ms"].value == "60000"
        assert configs["retention.ms"].config_source == 1
        assert configs["segment.bytes"].config_source == 5
    created = await broker.topics.get("flights")
    assert created is not None
    assert len(created.partition_ids) == len(set(created.partition_ids)) == 3
    assert created.leader_epochs == (0, 0, 0)
    assert created.overrides == {"retention.ms": "60000", "cleanup.policy": "compact"}
    assert created.config.retention_ms == 60000
    if version >= 7:
        assert result.topic_id == created.topic_id
    async with broker.database.begin("test") as connection:
        epochs = await connection.execute(
            text(
                "SELECT partition_id, leader_epoch, start_offset FROM penstock.leader_epoch"
                " ORDER BY 1"
            )
        )
        assert [tuple(row) for row in epochs] == [(each, 0, 0) for each in created.partition_ids]


async def test_minus_one_takes_the_brokers_defaults(make_broker: MakeBroker) -> None:
    broker = await make_broker({"num.partitions": "4"})
    (result,) = (await create(broker, new("t", -1, -1))).topics
    assert (result.error_code, result.num_partitions) == (Code.NONE, 4)


async def test_validate_only_creates_nothing(broker: Broker) -> None:
    (result,) = (await create(broker, new("t"), validate_only=True)).topics
    assert result.error_code == Code.NONE
    assert await broker.topics.get("t") is None


async def test_ten_thousand_partitions_in_one_call(broker: Broker) -> None:
    (result,) = (await create(broker, new("wide", 10_000))).topics
    assert result.error_code == Code.NONE
    topic = await broker.topics.get("wide")
    assert topic is not None
    assert len(set(topic.partition_ids)) == 10_000


async def test_more_partitions_than_one_commit_should_hold_are_refused(broker: Broker) -> None:
    results = (await create(broker, new("a", 9_999), new("b", 2))).topics
    assert {result.error_code for result in results} == {Code.POLICY_VIOLATION}
    assert await broker.topics.all() == ()
    code, _ = await refusal(broker, new("huge", 2**31 - 1))
    assert code == Code.POLICY_VIOLATION


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "the empty string is not allowed"),
        (".", "'.' is not allowed"),
        ("..", "'..' is not allowed"),
        ("a/b", "contains one or more characters other than"),
        ("nul\0", "contains one or more characters other than"),
        ("é", "contains one or more characters other than"),
        ("line\n", "contains one or more characters other than"),
        ("x" * 250, "is longer than the max allowed length 249"),
    ],
)
async def test_illegal_name_is_refused(broker: Broker, name: str, reason: str) -> None:
    code, message = await refusal(broker, new(name))
    assert code == Code.INVALID_TOPIC_EXCEPTION
    assert reason in message


async def test_name_of_249_characters_is_legal(broker: Broker) -> None:
    code, _ = await refusal(broker, new("x" * 249))
    assert code == Code.NONE


async def test_existing_topic_is_told(broker: Broker) -> None:
    await create(broker, new("t"))
    assert await refusal(broker, new("t", 5)) == (
        Code.TOPIC_ALREADY_EXISTS,
        "Topic 't' already exists.",
    )


async def test_names_that_collide_in_metrics_are_refused(broker: Broker) -> None:
    await create(broker, new("a.b"))
    message = "Topic 'a_b' collides with existing topic: a.b"
    assert await refusal(broker, new("a_b")) == (Code.INVALID_TOPIC_EXCEPTION, message)
    results = (await create(broker, new("c.d"), new("c_d"))).topics
    assert [result.error_code for result in results] == [Code.NONE, Code.INVALID_TOPIC_EXCEPTION]


async def test_name_twice_in_one_request_is_refused_once(broker: Broker) -> None:
    results = (await create(broker, new("t"), new("other"), new("t"))).topics
    assert [(each.name, each.error_code) for each in results] == [
        ("t", Code.INVALID_REQUEST),
        ("other", Code.NONE),
    ]
    assert results[0].error_message == "Duplicate topic name."
    assert await broker.topics.get("t") is None


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (new("t", 0), Code.INVALID_PARTITIONS),
        (new("t", -2), Code.INVALID_PARTITIONS),
        (new("t", 1, 0), Code.INVALID_REPLICATION_FACTOR),
        (new("t", 1, -2), Code.INVALID_REPLICATION_FACTOR),
        (new("t", 1, 2), Code.INVALID_REPLICATION_FACTOR),
        (new("t", configs={"retention.ms": "soon"}), Code.INVALID_CONFIG),
        (new("t", configs={"no.such": "1"}), Code.INVALID_CONFIG),
        (new("t", configs={"retention.ms": None}), Code.INVALID_CONFIG),
        (new("t", configs={"cleanup.policy": "delete\0"}), Code.INVALID_CONFIG),
        (new("__cluster_metadata"), Code.INVALID_REQUEST),
    ],
)
async def test_bad_wish_is_refused(broker: Broker, topic: object, code: int) -> None:
    assert (await refusal(broker, topic))[0] == code
    assert await broker.topics.all() == ()


async def test_replication_factor_is_held_against_the_live_brokers(
    make_broker: MakeBroker,
) -> None:
    broker = await make_broker()
    _, message = await refusal(broker, new("t", 1, 2))
    assert message == (
        "Unable to replicate the partition 2 time(s): The target replication factor of 2 cannot "
        "be reached because only 1 broker(s) are registered."
    )
    await make_broker()
    await broker.cluster.heartbeat()
    assert (await refusal(broker, new("t", 1, 2)))[0] == Code.NONE


async def test_manual_assignment_gives_the_number_of_partitions(broker: Broker) -> None:
    own = broker.cluster.broker_id
    topic = new("t", -1, -1, assignments=[(1, [own]), (0, [own])])
    (result,) = (await create(broker, topic)).topics
    assert (result.error_code, result.num_partitions) == (Code.NONE, 2)


@pytest.mark.parametrize(
    ("partitions", "factor", "assignments", "code"),
    [
        (1, -1, [(0, [1])], Code.INVALID_REQUEST),
        (-1, 1, [(0, [1])], Code.INVALID_REQUEST),
        (-1, -1, [(0, [99])], Code.INVALID_REPLICA_ASSIGNMENT),
        (-1, -1, [(0, [])], Code.INVALID_REPLICA_ASSIGNMENT),
        (-1, -1, [(0, [1, 1])], Code.INVALID_REPLICA_ASSIGNMENT),
        (-1, -1, [(0, [1]), (0, [1])], Code.INVALID_REPLICA_ASSIGNMENT),
        (-1, -1, [(0, [1]), (2, [1])], Code.INVALID_REPLICA_ASSIGNMENT),
    ],
)
async def test_bad_assignment_is_refused(
    broker: Broker, partitions: int, factor: int, assignments: object, code: int
) -> None:
    assert broker.cluster.broker_id == 1
    topic = new("t", partitions, factor, assignments=assignments)
    assert (await refusal(broker, topic))[0] == code


async def test_two_brokers_creating_one_topic_make_one(make_broker: MakeBroker) -> None:
    brokers = [await make_broker() for _ in range(3)]
    for round_ in range(5):
        answers = await asyncio.gather(
            *(create(broker, new(f"t{round_}", 2)) for broker in brokers)
        )
        codes = sorted(answer.topics[0].error_code for answer in answers)
        assert codes == [Code.NONE, Code.TOPIC_ALREADY_EXISTS, Code.TOPIC_ALREADY_EXISTS]
    assert len(await brokers[0].topics.all()) == 5


async def test_without_a_database_clients_are_told_to_try_again(cut_off: Broker) -> None:
    results = (await create(cut_off, new("t"), new("t"), new("u"))).topics
    assert [(each.name, each.error_code) for each in results] == [
        ("t", Code.NOT_CONTROLLER),
        ("u", Code.NOT_CONTROLLER),
    ]
