"""confluent-kafka's admin client. Expectations are Apache Kafka 4.1's own."""

from __future__ import annotations

import os
import time
import warnings
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.compat.confluent import WAIT, producer, read_topic, send_all
from tests.compat.conftest import MakeTopic, create


def refusal(future: Future[Any]) -> int:
    """The error code a call failed with."""
    with pytest.raises(KafkaException) as raised:
        future.result(WAIT)
    return int(raised.value.args[0].code())


def configs_of(admin: AdminClient, kind: ResourceType, name: str) -> dict[str, ConfigEntry]:
    resource = ConfigResource(kind, name)
    return dict(admin.describe_configs([resource])[resource].result(WAIT))


def alter(
    admin: AdminClient, topic: str, *changes: tuple[str, str | None, AlterConfigOpType]
) -> None:
    entries = [ConfigEntry(name, value, incremental_operation=op) for name, value, op in changes]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(WAIT)


def test_create_and_delete(session_admin: AdminClient, topic_name: str) -> None:
    create(session_admin, topic_name, partitions=2, config={"retention.ms": "60000"})
    session_admin.delete_topics([topic_name], operation_timeout=10)[topic_name].result(WAIT)
    assert topic_name not in session_admin.list_topics(timeout=WAIT).topics


def test_defaults_for_partitions_and_replication(
    session_admin: AdminClient, topic_name: str
) -> None:
    new = NewTopic(topic_name)
    session_admin.create_topics([new])[topic_name].result(WAIT)
    session_admin.delete_topics([topic_name], operation_timeout=10)[topic_name].result(WAIT)


@pytest.mark.parametrize(
    ("name", "asked", "code"),
    [
        (None, {"num_partitions": 0}, KafkaError.INVALID_PARTITIONS),
        (
            None,
            {"num_partitions": 1, "replication_factor": 99},
            KafkaError.INVALID_REPLICATION_FACTOR,
        ),
        (None, {"num_partitions": 1, "config": {"no.such.config": "1"}}, KafkaError.INVALID_CONFIG),
        (
            None,
            {"num_partitions": 1, "config": {"retention.ms": "soon"}},
            KafkaError.INVALID_CONFIG,
        ),
        (None, {"num_partitions": 1, "config": {"retention.ms": "-2"}}, KafkaError.INVALID_CONFIG),
        ("not/allowed", {"num_partitions": 1}, KafkaError.TOPIC_EXCEPTION),
        ("..", {"num_partitions": 1}, KafkaError.TOPIC_EXCEPTION),
        ("n" * 250, {"num_partitions": 1}, KafkaError.TOPIC_EXCEPTION),
    ],
)
def test_create_is_refused(
    session_admin: AdminClient,
    topic_name: str,
    name: str | None,
    asked: dict[str, Any],
    code: int,
) -> None:
    new = NewTopic(name or topic_name, **asked)
    assert refusal(session_admin.create_topics([new])[new.topic]) == code
    assert new.topic not in session_admin.list_topics(timeout=WAIT).topics


def test_create_twice_is_refused(session_admin: AdminClient, topic: str) -> None:
    again = session_admin.create_topics([NewTopic(topic, 1, 1)])[topic]
    assert refusal(again) == KafkaError.TOPIC_ALREADY_EXISTS


def test_validate_only_creates_nothing(session_admin: AdminClient, topic_name: str) -> None:
    new = NewTopic(topic_name, 1, 1)
    session_admin.create_topics([new], validate_only=True)[topic_name].result(WAIT)
    assert topic_name not in session_admin.list_topics(timeout=WAIT).topics


def test_deleting_an_unknown_topic_is_refused(session_admin: AdminClient, topic_name: str) -> None:
    deleted = session_admin.delete_topics([topic_name])[topic_name]
    assert refusal(deleted) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_a_hundred_topics_at_once(session_admin: AdminClient, topic_name: str) -> None:
    names = [f"{topic_name}-{i}" for i in range(100)]
    for created in session_admin.create_topics([NewTopic(name, 1, 1) for name in names]).values():
        created.result(WAIT)
    try:
        described = session_admin.list_topics(timeout=WAIT).topics
        assert set(names) <= set(described)
    finally:
        for deleted in session_admin.delete_topics(names, operation_timeout=20).values():
            deleted.result(WAIT)


def test_create_partitions(session_admin: AdminClient, bootstrap: str, topic: str) -> None:
    send_all(producer(bootstrap), [{"topic": topic, "value": b"kept"}])
    session_admin.create_partitions([NewPartitions(topic, 4)])[topic].result(WAIT)
    send_all(
        producer(bootstrap, topic_metadata_refresh_interval_ms=100),
        [{"topic": topic, "partition": 0, "value": b"more"}],
    )
    assert len(session_admin.list_topics(topic, timeout=WAIT).topics[topic].partitions) == 4
    assert [message.value() for message in read_topic(bootstrap, topic, 4)] == [b"kept", b"more"]


@pytest.mark.parametrize("count", [1, 2])
def test_create_partitions_never_fewer(
    session_admin: AdminClient, make_topic: MakeTopic, count: int
) -> None:
    topic = make_topic(partitions=2)
    refused = session_admin.create_partitions([NewPartitions(topic, count)])[topic]
    assert refusal(refused) == KafkaError.INVALID_PARTITIONS


def test_create_partitions_of_an_unknown_topic(session_admin: AdminClient, topic_name: str) -> None:
    refused = session_admin.create_partitions([NewPartitions(topic_name, 2)])[topic_name]
    assert refusal(refused) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_topic_configs_tell_value_and_source(
    session_admin: AdminClient, make_topic: MakeTopic
) -> None:
    topic = make_topic(config={"retention.ms": "123456", "cleanup.policy": "compact,delete"})
    found = configs_of(session_admin, ResourceType.TOPIC, topic)
    assert found["retention.ms"].value == "123456"
    assert found["retention.ms"].source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    assert not found["retention.ms"].is_default
    assert found["cleanup.policy"].value == "compact,delete"
    assert found["max.message.bytes"].value == "1048588"
    assert found["max.message.bytes"].source == ConfigSource.DEFAULT_CONFIG.value
    assert found["max.message.bytes"].is_default
    assert {
        "cleanup.policy",
        "compression.type",
        "max.message.bytes",
        "message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms",
        "message.timestamp.type",
        "min.insync.replicas",
        "retention.bytes",
        "retention.ms",
        "segment.bytes",
    } <= set(found)


def test_broker_configs_are_described(session_admin: AdminClient) -> None:
    broker = next(iter(session_admin.list_topics(timeout=WAIT).brokers))
    found = configs_of(session_admin, ResourceType.BROKER, str(broker))
    assert {"auto.create.topics.enable", "message.max.bytes", "num.partitions"} <= set(found)


def test_a_brokers_properties_are_replaced_as_librdkafkas_own_test_does(
    session_admin: AdminClient,
) -> None:
    """do_test_AlterConfigs of librdkafka's 0081-admin.c."""
    broker = str(next(iter(session_admin.list_topics(timeout=WAIT).brokers)))
    for values in ({"sasl.kerberos.min.time.before.relogin": "58000"}, {}):
        resource = ConfigResource(ResourceType.BROKER, broker, set_config=values)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            session_admin.alter_configs([resource])[resource].result(WAIT)
        if values and "PENSTOCK_TEST_BOOTSTRAP" not in os.environ:  # Kafka shows it later
            found = configs_of(session_admin, ResourceType.BROKER, broker)
            assert {name: found[name].value for name in values} == values


def test_configs_of_an_unknown_topic(session_admin: AdminClient, topic_name: str) -> None:
    resource = ConfigResource(ResourceType.TOPIC, topic_name)
    refused = session_admin.describe_configs([resource])[resource]
    assert refusal(refused) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_incremental_alter_configs(session_admin: AdminClient, topic: str) -> None:
    op = AlterConfigOpType

    def wait_for(expected: dict[str, str]) -> None:  # Apache Kafka answers before it shows
        deadline = time.monotonic() + WAIT
        found: dict[str, str] = {}
        while found != expected and time.monotonic() < deadline:
            described = configs_of(session_admin, ResourceType.TOPIC, topic)
            found = {name: described[name].value for name in expected}
        assert found == expected

    alter(session_admin, topic, ("retention.ms", "1000", op.SET), ("segment.ms", "5000", op.SET))
    wait_for({"retention.ms": "1000", "segment.ms": "5000"})
    alter(session_admin, topic, ("retention.ms", None, op.DELETE))
    wait_for({"retention.ms": "604800000", "segment.ms": "5000"})
    alter(session_admin, topic, ("cleanup.policy", "compact", op.APPEND))
    wait_for({"cleanup.policy": "delete,compact"})
    alter(session_admin, topic, ("cleanup.policy", "delete", op.SUBTRACT))
    wait_for({"cleanup.policy": "compact"})


@pytest.mark.parametrize(
    ("name", "value", "op"),
    [
        ("no.such.config", "1", AlterConfigOpType.SET),
        ("retention.ms", "soon", AlterConfigOpType.SET),
        ("cleanup.policy", "shred", AlterConfigOpType.SET),
        ("retention.ms", "1", AlterConfigOpType.APPEND),
    ],
)
def test_incremental_alter_configs_is_refused(
    session_admin: AdminClient, topic: str, name: str, value: str, op: AlterConfigOpType
) -> None:
    with pytest.raises(KafkaException) as raised:
        alter(session_admin, topic, (name, value, op))
    assert raised.value.args[0].code() == KafkaError.INVALID_CONFIG


def test_altered_max_message_bytes_takes_effect(
    session_admin: AdminClient, bootstrap: str, topic: str
) -> None:
    client = producer(bootstrap, message_max_bytes=5_000_000)
    alter(session_admin, topic, ("max.message.bytes", "3000000", AlterConfigOpType.SET))
    send_all(client, [{"topic": topic, "value": b"x" * 2_000_000}])


def test_delete_records(session_admin: AdminClient, bootstrap: str, topic: str) -> None:
    send_all(producer(bootstrap), ({"topic": topic, "value": b"%d" % i} for i in range(10)))
    before = TopicPartition(topic, 0, 4)
    deleted = session_admin.delete_records([before])[before].result(WAIT)
    assert deleted.low_watermark == 4
    assert [message.offset() for message in read_topic(bootstrap, topic)] == list(range(4, 10))
    everything = TopicPartition(topic, 0, -1)
    assert session_admin.delete_records([everything])[everything].result(WAIT).low_watermark == 10
    assert read_topic(bootstrap, topic) == []
    beyond = TopicPartition(topic, 0, 11)
    assert refusal(session_admin.delete_records([beyond])[beyond]) == KafkaError.OFFSET_OUT_OF_RANGE


def test_describe_cluster(session_admin: AdminClient) -> None:
    cluster = session_admin.describe_cluster().result(WAIT)
    assert cluster.cluster_id
    assert cluster.controller.id in {node.id for node in cluster.nodes}


def test_describe_topics_gives_ids(session_admin: AdminClient, make_topic: MakeTopic) -> None:
    one, two = make_topic(), make_topic(partitions=2)
    asked = TopicCollection([one, two])
    described = {
        name: future.result(WAIT) for name, future in session_admin.describe_topics(asked).items()
    }
    assert [len(described[name].partitions) for name in (one, two)] == [1, 2]
    assert str(described[one].topic_id) != str(described[two].topic_id)
    assert not described[one].is_internal


def test_recreated_topic_has_another_id(session_admin: AdminClient, topic: str) -> None:
    asked = TopicCollection([topic])
    before = session_admin.describe_topics(asked)[topic].result(WAIT).topic_id
    session_admin.delete_topics([topic], operation_timeout=10)[topic].result(WAIT)
    create(session_admin, topic)
    assert str(session_admin.describe_topics(asked)[topic].result(WAIT).topic_id) != str(before)


def test_list_offsets(session_admin: AdminClient, bootstrap: str, topic: str) -> None:
    client = producer(bootstrap)
    for stamp in (1000, 9000, 3000):
        send_all(client, [{"topic": topic, "value": b"", "timestamp": stamp}])
    partition = TopicPartition(topic, 0)
    found = {}
    for name, spec in {
        "earliest": OffsetSpec.earliest(),
        "latest": OffsetSpec.latest(),
        "max": OffsetSpec.max_timestamp(),
        "at 2000": OffsetSpec.for_timestamp(2000),
        "at 9001": OffsetSpec.for_timestamp(9001),
    }.items():
        answer = session_admin.list_offsets({partition: spec})[partition].result(WAIT)
        found[name] = (answer.offset, answer.timestamp)
    assert found == {
        "earliest": (0, -1),
        "latest": (3, -1),
        "max": (1, 9000),
        "at 2000": (1, 9000),
        "at 9001": (-1, -1),
    }
