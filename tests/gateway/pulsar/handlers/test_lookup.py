"""LOOKUP, PARTITIONED_METADATA, GET_TOPICS_OF_NAMESPACE."""

from __future__ import annotations

from typing import Any

import pytest

from core.topic.rules import NewTopic
from gateway.pulsar.commands import (
    CommandType,
    LookupResult,
    PartitionedMetadataResult,
    ServerError,
    TopicMode,
)
from gateway.pulsar.commands_pb2 import (
    CommandGetTopicsOfNamespace,
    CommandLookupTopic,
    CommandPartitionedTopicMetadata,
)
from gateway.pulsar.topic_lists import topics_hash
from tests.gateway.pulsar.conftest import Broker
from tests.gateway.pulsar.conversing import Conversation

FAILED = PartitionedMetadataResult.FAILED


@pytest.fixture
async def client(broker: Broker) -> Conversation:
    wanted = [("one", 1), ("p", 3), ("pulsar.a.b.c", 1), ("x-partition-1", 1)]
    await broker.runtime.topics.create([NewTopic(name, count) for name, count in wanted])
    return await broker.client()


async def partitions(client: Conversation, topic: str, **asked: Any) -> int | ServerError:
    command = CommandPartitionedTopicMetadata(topic=topic, **asked)
    answer = await client.ask(command, CommandType.PARTITIONED_METADATA_RESPONSE)
    return ServerError(answer.error) if answer.response == FAILED else answer.partitions


@pytest.mark.parametrize(
    ("topic", "answer"),
    [
        ("one", 0),
        ("p", 3),
        ("persistent://a/b/c", 0),
        ("p-partition-1", 0),
        ("p-partition-3", ServerError.TOPIC_NOT_FOUND),
        ("not-yet", 0),
        ("not-yet-partition-0", ServerError.TOPIC_NOT_FOUND),
        ("persistent://pulsar/system/transaction_coordinator_assign", 16),
        ("persistent://pulsar/system/transaction_coordinator_assign-partition-3", 0),
        ("non-persistent://public/default/one", ServerError.NOT_ALLOWED_ERROR),
        ("a/b", ServerError.INVALID_TOPIC_NAME),
    ],
)
async def test_how_many_partitions(
    client: Conversation, broker: Broker, topic: str, answer: int | ServerError
) -> None:
    before = await broker.runtime.topics.all()
    assert await partitions(client, topic) == answer
    assert await broker.runtime.topics.all() == before  # asking makes nothing


async def test_a_client_may_ask_without_making(client: Conversation) -> None:
    for topic, answer in [("p", 3), ("not-yet", ServerError.TOPIC_NOT_FOUND)]:
        assert await partitions(client, topic, metadata_auto_creation_enabled=False) == answer


async def lookup(client: Conversation, topic: str) -> Any:
    return await client.ask(CommandLookupTopic(topic=topic), CommandType.LOOKUP_RESPONSE)


@pytest.mark.parametrize("topic", ["one", "p-partition-2", "p", "not-yet"])
async def test_alone_it_is_this_broker_by_whatever_address(
    client: Conversation, topic: str
) -> None:
    answer = await lookup(client, topic)
    assert (answer.response, answer.authoritative) == (LookupResult.CONNECT, True)
    assert answer.broker_service_url == "pulsar://127.0.0.1:6650"
    assert answer.proxy_through_service_url


async def test_the_last_of_several_is_reached_by_its_own_address(make_broker: Any) -> None:
    """What the client has is a list of addresses, of which some are dead."""
    first, second = [await make_broker() for _ in range(2)]
    await first.runtime.cluster.heartbeat()
    await second.runtime.cluster.leave()
    await first.runtime.cluster.heartbeat()
    assert first.runtime.cluster.is_alone
    answer = await lookup(await first.client(), "not-yet")
    assert answer.broker_service_url == "pulsar://127.0.0.1:6650"
    assert not answer.proxy_through_service_url


async def test_a_name_that_is_none(client: Conversation) -> None:
    answer = await lookup(client, "non-persistent://public/default/x")
    assert (answer.response, answer.error) == (LookupResult.FAILED, ServerError.NOT_ALLOWED_ERROR)


async def test_of_several_it_is_the_one_that_leads(make_broker: Any) -> None:
    brokers = [await make_broker() for _ in range(2)]
    for broker in brokers:
        await broker.runtime.cluster.heartbeat()
    await brokers[0].runtime.topics.create([NewTopic("p", 16)])
    topic = await brokers[0].runtime.topics.get("p")
    told = []
    for broker in brokers:
        client = await broker.client()
        answers = [await lookup(client, f"p-partition-{each}") for each in range(16)]
        assert not any(each.proxy_through_service_url for each in answers)
        told.append([each.broker_service_url for each in answers])
    assert told[0] == told[1]
    cluster = brokers[0].runtime.cluster
    ports = [
        cluster.find(cluster.leader_of(each)).at("pulsar").port for each in topic.partition_ids
    ]
    assert told[0] == [f"pulsar://127.0.0.1:{port}" for port in ports]
    assert len(set(ports)) == 2


async def topics(client: Conversation, **asked: Any) -> Any:
    command = CommandGetTopicsOfNamespace(**{"namespace": "public/default", **asked})
    return await client.ask(command, CommandType.GET_TOPICS_OF_NAMESPACE_RESPONSE)


ALL = ["one", "p-partition-0", "p-partition-1", "p-partition-2"]


@pytest.mark.parametrize(
    ("asked", "names", "is_filtered"),
    [
        ({}, ALL, False),
        ({"mode": TopicMode.ALL}, ALL, False),
        ({"mode": TopicMode.NON_PERSISTENT}, [], False),
        ({"topics_pattern": "persistent://public/default/o.*"}, ALL[:1], True),
        ({"topics_pattern": "public/default/p"}, ALL[1:], True),
        ({"topics_pattern": "public/default/"}, [], True),
        ({"topics_pattern": "public/default/(?=o).*"}, ALL, False),  # RE2 has no lookahead
        ({"topics_pattern": "x" * 51}, ALL, False),
    ],
)
async def test_names_of_a_namespace(
    client: Conversation, asked: dict[str, Any], names: list[str], is_filtered: bool
) -> None:
    answer = await topics(client, **asked)
    assert list(answer.topics) == [f"persistent://public/default/{name}" for name in names]
    assert (answer.filtered, answer.changed) == (is_filtered, True)
    again = await topics(client, topics_hash=answer.topics_hash, **asked)
    assert (list(again.topics), again.changed) == ([], False)


async def test_another_namespace(client: Conversation) -> None:
    assert list((await topics(client, namespace="a/b")).topics) == ["persistent://a/b/c"]
    error = await client.ask(CommandGetTopicsOfNamespace(namespace="public"), CommandType.ERROR)
    assert error.error == ServerError.INVALID_TOPIC_NAME


def test_the_hash_is_guavas() -> None:
    assert topics_hash(["123456789"]) == "839206e3"  # 0xe3069283, the check value of CRC-32C


async def test_the_database_is_away(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    from core.ports.log import StoreUnavailable

    async def away(*_: object) -> None:
        raise StoreUnavailable("gone")

    client = await broker.client()
    monkeypatch.setattr(broker.runtime.topics, "get", away)
    monkeypatch.setattr(broker.runtime.topics, "all", away)
    assert await partitions(client, "t") == ServerError.SERVICE_NOT_READY
    assert (await lookup(client, "t")).error == ServerError.SERVICE_NOT_READY
    error = await client.ask(
        CommandGetTopicsOfNamespace(namespace="public/default"), CommandType.ERROR
    )
    assert error.error == ServerError.SERVICE_NOT_READY
