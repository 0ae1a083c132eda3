"""What confluent-kafka (librdkafka) alone shows without a group. Kafka 4.1's own answers."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from tests.compat.confluent import (
    WAIT,
    consumer,
    producer,
    read_message,
    read_to_end,
    read_topic,
    send,
    send_all,
)
from tests.compat.conftest import MakeTopic, create


def test_metadata_names_broker_and_topic(session_admin: AdminClient, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=3)
    metadata = session_admin.list_topics(topic, timeout=WAIT)
    assert metadata.cluster_id
    assert metadata.brokers
    assert metadata.controller_id in metadata.brokers
    partitions = metadata.topics[topic].partitions
    assert sorted(partitions) == [0, 1, 2]
    for partition in partitions.values():
        assert partition.leader in metadata.brokers
        assert partition.replicas
        assert partition.leader in partition.isrs


def test_two_idempotent_producers_share_a_partition(bootstrap: str, topic: str) -> None:
    clients = [producer(bootstrap, enable_idempotence=True) for _ in range(2)]
    for turn in range(5):
        for number, client in enumerate(clients):
            send_all(client, [{"topic": topic, "value": b"%d-%d" % (number, turn)}])
    read = [message.value() for message in read_topic(bootstrap, topic)]
    assert read == [b"%d-%d" % (number, turn) for turn in range(5) for number in range(2)]


def test_record_of_a_megabyte(bootstrap: str, topic: str) -> None:
    value = bytes(range(256)) * 3900
    send_all(producer(bootstrap), [{"topic": topic, "value": value}])
    [read] = read_topic(bootstrap, topic)
    assert read.value() == value


def test_timestamp_far_in_the_future_is_refused(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(config={"message.timestamp.after.max.ms": "60000"})
    ahead = int(time.time() * 1000) + 3_600_000
    [refused] = send(producer(bootstrap), [{"topic": topic, "value": b"", "timestamp": ahead}])
    assert isinstance(refused, KafkaError)
    assert refused.code() == KafkaError.INVALID_TIMESTAMP


def test_reading_from_the_end_sees_only_what_comes(bootstrap: str, topic: str) -> None:
    client = producer(bootstrap)
    send_all(client, ({"topic": topic, "value": b"before"} for _ in range(3)))
    with consumer(bootstrap) as reader:
        reader.assign([TopicPartition(topic, 0, OFFSET_END)])
        assert read_to_end(reader) == []
        send_all(client, [{"topic": topic, "value": b"after"}])
        message = read_message(reader)
    assert (message.offset(), message.value()) == (3, b"after")


def test_unknown_topic_has_no_offsets(bootstrap: str, topic_name: str) -> None:
    with consumer(bootstrap) as reader, pytest.raises(KafkaException) as raised:
        reader.get_watermark_offsets(TopicPartition(topic_name, 0), timeout=WAIT)
    assert raised.value.args[0].code() in (
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_PARTITION,
    )


def test_consumer_waits_for_its_topic_to_be_created(
    bootstrap: str, session_admin: AdminClient, topic_name: str
) -> None:
    with consumer(bootstrap, topic_metadata_refresh_interval_ms=300) as reader:
        reader.assign([TopicPartition(topic_name, 0, OFFSET_BEGINNING)])
        assert reader.poll(0.5) is None
        create(session_admin, topic_name)
        send_all(producer(bootstrap), [{"topic": topic_name, "value": b"first"}])
        assert read_message(reader).value() == b"first"
    session_admin.delete_topics([topic_name])[topic_name].result(WAIT)


def test_invalid_topic_name_is_refused(bootstrap: str) -> None:
    [refused] = send(producer(bootstrap), [{"topic": "no spaces", "value": b""}])
    assert isinstance(refused, KafkaError)
    assert refused.code() == KafkaError.TOPIC_EXCEPTION


def test_unknown_partition_is_refused(bootstrap: str, topic: str) -> None:
    try:
        [refused] = send(producer(bootstrap), [{"topic": topic, "partition": 9, "value": b""}])
    except KafkaException as raised:  # librdkafka knew the topic already
        refused = raised.args[0]
    assert isinstance(refused, KafkaError)
    assert refused.code() == KafkaError._UNKNOWN_PARTITION


def test_recreated_topic_starts_anew(
    bootstrap: str, session_admin: AdminClient, topic: str
) -> None:
    client = producer(bootstrap, topic_metadata_refresh_interval_ms=500)
    send_all(client, ({"topic": topic, "value": b"old"} for _ in range(5)))
    session_admin.delete_topics([topic], operation_timeout=10)[topic].result(WAIT)
    create(session_admin, topic)
    [message] = send_all(producer(bootstrap), [{"topic": topic, "value": b"new"}])
    assert message.offset() == 0
    assert [message.value() for message in read_topic(bootstrap, topic)] == [b"new"]


def test_keys_stay_in_their_partition_and_order(bootstrap: str, make_topic: MakeTopic) -> None:
    partitions = 40
    topic = make_topic(partitions)
    records = [{"topic": topic, "key": b"%d" % (i % 97), "value": b"%d" % i} for i in range(2000)]
    send_all(producer(bootstrap, enable_idempotence=True, linger_ms=5), records)
    read = read_topic(bootstrap, topic, partitions)
    assert len(read) == len(records)
    homes: dict[bytes, set[int]] = {}
    values: dict[bytes, list[int]] = {}
    for message in read:
        homes.setdefault(message.key(), set()).add(message.partition())
        values.setdefault(message.key(), []).append(int(message.value()))
    assert {len(home) for home in homes.values()} == {1}
    assert len({home for found in homes.values() for home in found}) > 10
    assert all(found == sorted(found) for found in values.values())
