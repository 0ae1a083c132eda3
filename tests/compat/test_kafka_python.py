"""What kafka-python alone shows, and its administration. Kafka 4.1's own answers."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.admin import AlterConfigOp, ConfigResource
from kafka.consumer.fetcher import ConsumerRecord
from kafka.errors import (
    InvalidConfigurationError,
    InvalidPartitionsError,
    InvalidTopicError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from kafka.protocol.consumer import OffsetSpec
from kafka.structs import TopicPartition

from tests.compat.conftest import MakeTopic

WAIT = 20.0


@pytest.fixture
def producer(bootstrap: str) -> Iterator[KafkaProducer]:
    """acks=all and idempotent, which is the client's default."""
    with closing(KafkaProducer(bootstrap_servers=bootstrap)) as client:
        yield client


@pytest.fixture
def admin(bootstrap: str) -> Iterator[KafkaAdminClient]:
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as client:
        yield client


def consumer(bootstrap: str, topic: str, partitions: int = 1, **config: Any) -> KafkaConsumer:
    """A consumer assigned to `topic`, at its beginning unless `auto_offset_reset` says more."""
    settings = {"auto_offset_reset": "earliest", "group_id": None, **config}
    client = KafkaConsumer(bootstrap_servers=bootstrap, **settings)
    client.assign([TopicPartition(topic, p) for p in range(partitions)])
    return client


def take(client: KafkaConsumer, count: int) -> list[ConsumerRecord]:
    """The next `count` records."""
    records: list[ConsumerRecord] = []
    deadline = time.monotonic() + WAIT
    while len(records) < count:
        assert time.monotonic() < deadline, f"{len(records)} of {count} records"
        for found in client.poll(timeout_ms=500, max_records=count - len(records)).values():
            records.extend(found)
    return records


@pytest.mark.parametrize("sessions", [True, False])
def test_fetches_many_partitions_with_and_without_sessions(
    bootstrap: str, make_topic: MakeTopic, producer: KafkaProducer, sessions: bool
) -> None:
    partitions = 30
    topic = make_topic(partitions)
    with closing(
        consumer(bootstrap, topic, partitions, enable_incremental_fetch_sessions=sessions)
    ) as client:
        for turn in range(3):
            values = {b"%d-%d" % (turn, p) for p in range(0, partitions, turn + 1)}
            for value in values:
                producer.send(topic, value, partition=int(value.split(b"-")[1])).get(WAIT)
            assert {record.value for record in take(client, len(values))} == values


def test_admin_creates_describes_and_deletes(admin: KafkaAdminClient, topic_name: str) -> None:
    wanted = {topic_name: {"num_partitions": 2, "configs": {"retention.ms": "60000"}}}
    created = admin.create_topics(wanted, wait_for_metadata=True)["topics"][0]
    assert created["num_partitions"] == 2
    assert created["replication_factor"] == 1
    assert created["configs"]["retention.ms"]["value"] == "60000"
    assert topic_name in admin.list_topics()
    [by_name] = admin.describe_topics([topic_name])
    [by_id] = admin.describe_topics([uuid.UUID(str(by_name["topic_id"]))])
    assert by_id["name"] == topic_name
    assert {p["partition_index"] for p in by_id["partitions"]} == {0, 1}
    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topics({topic_name: {}})
    admin.create_partitions({topic_name: 4})
    with pytest.raises(InvalidPartitionsError):
        admin.create_partitions({topic_name: 3})
    admin.delete_topics([uuid.UUID(str(created["topic_id"]))])
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.delete_topics([topic_name])


def test_admin_is_refused(admin: KafkaAdminClient, topic_name: str) -> None:
    with pytest.raises(InvalidTopicError):
        admin.create_topics({"no spaces": {}})
    with pytest.raises(InvalidConfigurationError):
        admin.create_topics({topic_name: {"configs": {"retention.ms": "soon"}}})


def test_admin_alters_configs(admin: KafkaAdminClient, topic: str) -> None:
    def modified() -> dict[str, str]:
        found = admin.describe_configs([ConfigResource("TOPIC", topic)])["topic"][topic]
        return {name: entry["value"] for name, entry in found.items()}

    def alter(incremental: bool, **changes: Any) -> None:
        resource = ConfigResource(
            "TOPIC", topic, {name.replace("_", "."): value for name, value in changes.items()}
        )
        answer = admin.alter_configs([resource], incremental=incremental)
        assert answer["topic"][topic] == "OK"

    before = modified()
    alter(True, retention_ms="1000", segment_ms="7000")
    assert modified() == {**before, "retention.ms": "1000", "segment.ms": "7000"}
    alter(True, cleanup_policy=(AlterConfigOp.APPEND, "compact"))
    assert modified()["cleanup.policy"] == "delete,compact"
    alter(True, cleanup_policy=(AlterConfigOp.DELETE, None))
    assert modified() == {**before, "retention.ms": "1000", "segment.ms": "7000"}
    alter(False, retention_ms="2000")  # this client adds what is already set
    assert modified() == {**before, "retention.ms": "2000", "segment.ms": "7000"}
    admin.reset_configs([ConfigResource("TOPIC", topic, {})])
    assert modified() == before


def test_admin_describes_broker_configs(admin: KafkaAdminClient) -> None:
    broker = admin.describe_cluster()["brokers"][0]["broker_id"]
    found = admin.describe_configs([ConfigResource("BROKER", str(broker))], config_filter="all")
    assert "message.max.bytes" in found["broker"][str(broker)]


def test_admin_deletes_records_and_lists_offsets(
    admin: KafkaAdminClient, topic: str, producer: KafkaProducer
) -> None:
    partition = TopicPartition(topic, 0)
    for stamp in (1000, 5000, 3000):
        producer.send(topic, b"", timestamp_ms=stamp).get(WAIT)
    answer = admin.delete_records({partition: 1})
    assert answer[partition]["low_watermark"] == 1
    found = {}
    for spec in (OffsetSpec.EARLIEST, OffsetSpec.LATEST, OffsetSpec.MAX_TIMESTAMP):
        listed = admin.list_partition_offsets({partition: spec})[partition]
        found[spec.name] = (listed.offset, listed.timestamp)
    assert found == {"EARLIEST": (1, -1), "LATEST": (3, -1), "MAX_TIMESTAMP": (1, 5000)}


def test_admin_describes_the_cluster(admin: KafkaAdminClient) -> None:
    cluster = admin.describe_cluster()
    assert cluster["cluster_id"]
    assert cluster["controller_id"] in {broker["broker_id"] for broker in cluster["brokers"]}


def test_admin_describes_topic_partitions_page_by_page(
    admin: KafkaAdminClient, make_topic: MakeTopic
) -> None:
    topic = make_topic(partitions=5)
    seen: list[int] = []
    cursor = None
    for _ in range(3):
        page = admin.describe_topic_partitions([topic], response_partition_limit=2, cursor=cursor)
        seen += [p["partition_index"] for p in page["topics"][0]["partitions"]]
        cursor = page["next_cursor"]
    assert seen == [0, 1, 2, 3, 4]
    assert cursor is None


def test_admin_describes_log_dirs(
    admin: KafkaAdminClient, topic: str, producer: KafkaProducer
) -> None:
    producer.send(topic, b"x" * 1000).get(WAIT)
    [broker] = admin.describe_log_dirs({topic: [0]})[:1]
    [log_dir] = broker["log_dirs"]
    assert log_dir["error_code"] == 0
    [described] = log_dir["topics"]
    assert described["name"] == topic
    assert described["partitions"][0]["partition_size"] >= 1000


def test_admin_describes_producers(
    admin: KafkaAdminClient, topic: str, producer: KafkaProducer
) -> None:
    producer.send(topic, b"").get(WAIT)
    producer.send(topic, b"").get(WAIT)
    partition = TopicPartition(topic, 0)
    [state] = admin.describe_producers([partition])[partition].active_producers
    assert state.producer_id >= 0
    assert state.producer_epoch == 0
    assert state.last_sequence == 1
    assert state.current_transaction_start_offset in (None, -1)
