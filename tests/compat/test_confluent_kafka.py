"""confluent-kafka (librdkafka) produces and consumes. Expectations are Apache Kafka 4.1's own."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from tests.compat.confluent import (
    WAIT,
    consumer,
    producer,
    read_error,
    read_message,
    read_to_end,
    read_topic,
    send,
    send_all,
)
from tests.compat.conftest import MakeTopic, create

# A batch of one record without key and headers: 61 bytes of batch header, then the record: length
# (3 bytes at this size), attributes, two deltas, key length, value length (3), header count.
BATCH_OVERHEAD = 61 + 3 + 1 + 1 + 1 + 1 + 3 + 1


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


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_produces_with_acks(bootstrap: str, topic: str, acks: str) -> None:
    sent = send_all(
        producer(bootstrap, acks=acks), ({"topic": topic, "value": b"%d" % i} for i in range(20))
    )
    if acks == "0":
        deadline = time.monotonic() + WAIT  # delivered means sent: wait until it is stored
        while len(read := read_topic(bootstrap, topic)) < 20 and time.monotonic() < deadline:
            time.sleep(0.05)
    else:
        assert [message.offset() for message in sent] == list(range(20))
        read = read_topic(bootstrap, topic)
    assert [message.value() for message in read] == [b"%d" % i for i in range(20)]


def test_idempotent_producer_keeps_order(bootstrap: str, topic: str) -> None:
    client = producer(bootstrap, enable_idempotence=True, batch_num_messages=10)
    sent = send_all(client, ({"topic": topic, "value": b"%d" % i} for i in range(500)))
    assert [message.offset() for message in sent] == list(range(500))
    read = read_topic(bootstrap, topic, check_crcs=True)
    assert [message.value() for message in read] == [b"%d" % i for i in range(500)]


def test_two_idempotent_producers_share_a_partition(bootstrap: str, topic: str) -> None:
    clients = [producer(bootstrap, enable_idempotence=True) for _ in range(2)]
    for turn in range(5):
        for number, client in enumerate(clients):
            send_all(client, [{"topic": topic, "value": b"%d-%d" % (number, turn)}])
    read = [message.value() for message in read_topic(bootstrap, topic)]
    assert read == [b"%d-%d" % (number, turn) for turn in range(5) for number in range(2)]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_compression(bootstrap: str, topic: str, codec: str) -> None:
    values = [b"all work and no play %d " % i * 20 for i in range(200)]
    client = producer(bootstrap, compression_type=codec, linger_ms=50)
    send_all(client, ({"topic": topic, "value": value} for value in values))
    read = read_topic(bootstrap, topic, check_crcs=True)
    assert [message.value() for message in read] == values


def test_headers_and_nulls(bootstrap: str, topic: str) -> None:
    headers = [("a", b"1"), ("a", b""), ("none", None), ("ünïcode", b"\x00\xff")]
    send_all(
        producer(bootstrap),
        [
            {"topic": topic, "key": b"k", "value": b"v", "headers": headers},
            {"topic": topic, "key": None, "value": b"v"},
            {"topic": topic, "key": b"k", "value": None},
            {"topic": topic, "key": b"", "value": b""},
        ],
    )
    first, *others = read_topic(bootstrap, topic)
    assert first.headers() == headers
    assert [(message.key(), message.value()) for message in others] == [
        (None, b"v"),
        (b"k", None),
        (b"", b""),
    ]


def test_record_of_max_message_bytes_is_stored_and_one_more_byte_refused(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    limit = 100_000
    topic = make_topic(config={"max.message.bytes": str(limit)})
    client = producer(bootstrap, message_max_bytes=2_000_000)
    fits = b"x" * (limit - BATCH_OVERHEAD)
    send_all(client, [{"topic": topic, "value": fits}])
    [refused] = send(client, [{"topic": topic, "value": fits + b"x"}])
    assert isinstance(refused, KafkaError)
    assert refused.code() == KafkaError.MSG_SIZE_TOO_LARGE
    [read] = read_topic(bootstrap, topic)
    assert read.value() == fits


def test_record_of_a_megabyte(bootstrap: str, topic: str) -> None:
    value = bytes(range(256)) * 3900
    send_all(producer(bootstrap), [{"topic": topic, "value": value}])
    [read] = read_topic(bootstrap, topic)
    assert read.value() == value


def test_create_time_is_kept(bootstrap: str, topic: str) -> None:
    send_all(producer(bootstrap), [{"topic": topic, "value": b"", "timestamp": 1_600_000_000_000}])
    [read] = read_topic(bootstrap, topic)
    assert read.timestamp() == (TIMESTAMP_CREATE_TIME, 1_600_000_000_000)


def test_log_append_time_replaces_the_clients_time(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(config={"message.timestamp.type": "LogAppendTime"})
    before = time.time() * 1000
    [sent] = send_all(
        producer(bootstrap), [{"topic": topic, "value": b"", "timestamp": 1_600_000_000_000}]
    )
    [read] = read_topic(bootstrap, topic, check_crcs=True)
    kind, stamp = read.timestamp()
    assert kind == TIMESTAMP_LOG_APPEND_TIME
    assert before - 1000 <= stamp <= time.time() * 1000 + 1000
    assert sent.timestamp()[1] == stamp


def test_timestamp_far_in_the_future_is_refused(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(config={"message.timestamp.after.max.ms": "60000"})
    ahead = int(time.time() * 1000) + 3_600_000
    [refused] = send(producer(bootstrap), [{"topic": topic, "value": b"", "timestamp": ahead}])
    assert isinstance(refused, KafkaError)
    assert refused.code() == KafkaError.INVALID_TIMESTAMP


def test_offsets_for_times(bootstrap: str, topic: str) -> None:
    client = producer(bootstrap)
    for stamp in (1000, 2000, 3000):  # a batch each
        send_all(client, [{"topic": topic, "value": b"", "timestamp": stamp}])
    send_all(
        producer(bootstrap, linger_ms=200),
        ({"topic": topic, "value": b"", "timestamp": stamp} for stamp in (4000, 5000, 6000)),
    )
    wanted = {0: 0, 1000: 0, 1001: 1, 3000: 2, 4001: 4, 6000: 5, 6001: OFFSET_END}
    with consumer(bootstrap) as reader:
        found = {
            stamp: reader.offsets_for_times([TopicPartition(topic, 0, stamp)], timeout=WAIT)[
                0
            ].offset
            for stamp in wanted
        }
    assert found == wanted


def test_watermarks(bootstrap: str, topic: str) -> None:
    with consumer(bootstrap) as reader:
        assert reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=WAIT) == (0, 0)
        send_all(producer(bootstrap), ({"topic": topic, "value": b""} for _ in range(7)))
        assert reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=WAIT) == (0, 7)


def test_seek(bootstrap: str, topic: str) -> None:
    send_all(producer(bootstrap), ({"topic": topic, "value": b"%d" % i} for i in range(10)))
    with consumer(bootstrap) as reader:
        reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        assert read_message(reader).value() == b"0"
        reader.seek(TopicPartition(topic, 0, 7))
        assert [message.value() for message in read_to_end(reader)] == [b"7", b"8", b"9"]
        reader.seek(TopicPartition(topic, 0, 2))
        assert read_message(reader).value() == b"2"


def test_reading_from_the_end_sees_only_what_comes(bootstrap: str, topic: str) -> None:
    client = producer(bootstrap)
    send_all(client, ({"topic": topic, "value": b"before"} for _ in range(3)))
    with consumer(bootstrap) as reader:
        reader.assign([TopicPartition(topic, 0, OFFSET_END)])
        assert read_to_end(reader) == []
        send_all(client, [{"topic": topic, "value": b"after"}])
        message = read_message(reader)
    assert (message.offset(), message.value()) == (3, b"after")


def test_long_poll_wakes_when_a_record_arrives(bootstrap: str, topic: str) -> None:
    client = producer(bootstrap)
    with consumer(bootstrap, fetch_wait_max_ms=40_000) as reader:
        reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        send_all(client, [{"topic": topic, "value": b"first"}])
        assert read_message(reader).value() == b"first"
        time.sleep(0.5)  # the next fetch waits at the broker
        send_all(client, [{"topic": topic, "value": b"wake"}])
        started = time.monotonic()
        assert read_message(reader).value() == b"wake"
        assert time.monotonic() - started < 20  # well below the 40 s that the fetch may wait


def test_batch_larger_than_the_fetch_limits_is_delivered(bootstrap: str, topic: str) -> None:
    values = [bytes([i]) * 50_000 for i in range(4)]
    client = producer(bootstrap)
    for value in values:  # a batch each
        send_all(client, [{"topic": topic, "value": value}])
    read = read_topic(
        bootstrap, topic, message_max_bytes=1000, fetch_max_bytes=1000, max_partition_fetch_bytes=1
    )
    assert [message.value() for message in read] == values


@pytest.mark.parametrize(("reset", "offset"), [("earliest", 0), ("latest", 3)])
def test_offset_out_of_range_follows_auto_offset_reset(
    bootstrap: str, topic: str, reset: str, offset: int
) -> None:
    client = producer(bootstrap)
    send_all(client, ({"topic": topic, "value": b"%d" % i} for i in range(3)))
    with consumer(bootstrap, auto_offset_reset=reset) as reader:
        reader.assign([TopicPartition(topic, 0, 1000)])
        if reset == "latest":
            assert read_to_end(reader) == []
            send_all(client, [{"topic": topic, "value": b"3"}])
        message = read_message(reader)
    assert (message.offset(), message.value()) == (offset, b"%d" % offset)


def test_offset_out_of_range_is_an_error_if_so_configured(bootstrap: str, topic: str) -> None:
    with consumer(bootstrap, auto_offset_reset="error") as reader:
        reader.assign([TopicPartition(topic, 0, 1000)])
        assert read_error(reader).code() == KafkaError._AUTO_OFFSET_RESET


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


def test_record_without_key_is_refused_by_a_compacted_topic(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(config={"cleanup.policy": "compact"})
    client = producer(bootstrap)
    [refused] = send(client, [{"topic": topic, "value": b"keyless"}])
    assert isinstance(refused, KafkaError)
    assert refused.code() == KafkaError.INVALID_RECORD
    send_all(client, [{"topic": topic, "key": b"k", "value": b"keyed"}])


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
