"""What stock clients write and read without a group. Expectations are Apache Kafka 4.1's own.

Java's are in test_java_tools.py; what only one client can do, or show, is in the test_* of each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from kafka import KafkaAdminClient

from tests.compat.clients import (
    READ_UNCOMMITTED,
    Client,
    PythonReader,
    Read,
    Sent,
    read_until,
    refusal,
)
from tests.compat.conftest import MakeTopic, make_client

CLIENTS = ["confluent", "aiokafka", "kafka-python"]
# A batch of one record without key and headers: 61 bytes of batch header, then the record: length
# (3 bytes at this size), attributes, two deltas, key length, value length (3), header count.
BATCH_OVERHEAD = 61 + 3 + 1 + 1 + 1 + 1 + 3 + 1

MakeClient = Callable[[str], Client]


@pytest.fixture
def clients(request: pytest.FixtureRequest, bootstrap: str) -> Iterator[MakeClient]:
    """A client by its name."""
    made: list[Client] = []

    def make(name: str) -> Client:
        made.append(make_client(name, request, bootstrap))
        return made[-1]

    yield make
    for client in made:
        client.close()


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest, clients: MakeClient) -> Client:
    return clients(request.param)


def write(client: Client, topic: str, *records: Any, **settings: Any) -> list[Sent]:
    """Values, or a dict of a record's parts, from a producer of their own."""
    with closing(client.plain_producer(**settings)) as producer:
        for record in records:
            producer.send(topic, **(record if isinstance(record, dict) else {"value": record}))
        return producer.flush()


def reading(client: Client, topic: str, **settings: Any) -> closing[PythonReader]:
    """A consumer at the topic's beginning; it checks what it reads."""
    checking = {"check_crcs": True, **settings}
    return closing(client.reader(topic, isolation=READ_UNCOMMITTED, **checking))


def take(reader: PythonReader, count: int) -> list[Read]:
    """The next records; more than `count` are too many."""
    found = read_until(reader, lambda found: len(found) >= count)
    assert len(found) == count
    return found


def read(client: Client, topic: str, count: int, **settings: Any) -> list[Read]:
    with reading(client, topic, **settings) as reader:
        return take(reader, count)


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_produces_with_acks(client: Client, topic: str, acks: str) -> None:
    numbered = [b"%d" % i for i in range(20)]
    said = acks if acks == "all" else int(acks)
    sent = write(client, topic, *numbered, acks=said, enable_idempotence=False)
    if acks != "0":
        assert [record.offset for record in sent] == list(range(20))
    assert [record.value for record in read(client, topic, 20)] == numbered


def test_idempotent_producer_keeps_order(client: Client, topic: str) -> None:
    numbered = [b"%d" % i for i in range(500)]
    sent = write(client, topic, *numbered, enable_idempotence=True, **client.small_batches)
    assert [record.offset for record in sent] == list(range(500))
    assert [record.value for record in read(client, topic, 500)] == numbered


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("writer", CLIENTS)
def test_every_client_reads_what_one_compressed(
    clients: MakeClient, bootstrap: str, topic: str, writer: str, codec: str
) -> None:
    """The bytes stored are Kafka's, not one client's; and as few as the client sent."""
    values = [b"the same bytes for everyone %d " % i * 20 for i in range(100)]
    headers = [("trace", b"\x00\x01"), ("trace", b"")]
    records = [{"value": value, "key": b"k", "headers": headers} for value in values]
    write(clients(writer), topic, *records, compression_type=codec, linger_ms=50)
    expected = [(i, b"k", value, tuple(headers)) for i, value in enumerate(values)]
    for reader in CLIENTS:
        found = read(clients(reader), topic, len(values))
        assert [(each.offset, each.key, each.value, each.headers) for each in found] == expected
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as admin:
        [log_dir] = admin.describe_log_dirs({topic: [0]})[0]["log_dirs"]
    stored = log_dir["topics"][0]["partitions"][0]["partition_size"]
    assert stored < sum(map(len, values)) / 2


def test_headers_nulls_and_timestamps(client: Client, topic: str) -> None:
    headers = [("a", b"1"), ("a", b""), ("ünïcode", b"\x00\xff")]
    if client.name != "kafka-python":  # which does not send one
        headers.append(("none", None))
    stamp = 1_600_000_000_000
    write(
        client,
        topic,
        {"key": b"k", "value": b"v", "headers": headers, "timestamp": stamp},
        {"key": None, "value": b"v"},
        {"key": b"k", "value": None},
        {"key": b"", "value": b""},
    )
    first, *others = read(client, topic, 4)
    assert first.headers == tuple(headers)
    assert (first.timestamp, first.is_append_time) == (stamp, False)
    assert [(each.key, each.value) for each in others] == [(None, b"v"), (b"k", None), (b"", b"")]


def test_log_append_time_replaces_the_clients_time(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic(config={"message.timestamp.type": "LogAppendTime"})
    before = time.time() * 1000
    [sent] = write(client, topic, {"value": b"", "timestamp": 1_600_000_000_000})
    [found] = read(client, topic, 1)
    assert found.is_append_time
    assert before - 1000 <= found.timestamp <= time.time() * 1000 + 1000
    assert sent.timestamp == found.timestamp


def test_record_of_max_message_bytes_is_stored_and_one_more_byte_refused(
    client: Client, make_topic: MakeTopic
) -> None:
    limit = 100_000
    topic = make_topic(config={"max.message.bytes": str(limit)})
    fits = b"x" * (limit - BATCH_OVERHEAD)
    [sent] = write(client, topic, fits)
    assert sent.offset == 0
    [refused] = write(client, topic, fits + b"x")
    assert refused.error in {"MSG_SIZE_TOO_LARGE", "MessageSizeTooLargeError"}
    [found] = read(client, topic, 1)
    assert found.value == fits


def test_offsets_for_times_beginning_and_end(client: Client, topic: str) -> None:
    with reading(client, topic) as reader:
        assert (reader.beginning(), reader.end(0)) == (0, 0)
        for stamp in (1000, 2000, 3000):  # a batch each
            write(client, topic, {"value": b"", "timestamp": stamp})
        batch = [{"value": b"", "timestamp": stamp} for stamp in (4000, 5000, 6000)]
        write(client, topic, *batch, linger_ms=200)
        wanted = {0: 0, 1000: 0, 1001: 1, 3000: 2, 4001: 4, 6000: 5, 6001: None}
        assert {stamp: reader.offset_at(stamp) for stamp in wanted} == wanted
        assert (reader.beginning(), reader.end(0)) == (0, 6)


def test_seek(client: Client, topic: str) -> None:
    write(client, topic, *[b"%d" % i for i in range(5)])
    with reading(client, topic) as reader:
        assert [record.value for record in take(reader, 5)] == [b"%d" % i for i in range(5)]
        reader.seek(0, 3)
        assert [record.value for record in take(reader, 2)] == [b"3", b"4"]
        reader.seek_to_beginning()
        assert [record.offset for record in take(reader, 5)] == list(range(5))
        reader.seek_to_end()
        assert read_until(reader, lambda _: reader.position(0) == 5) == []
        write(client, topic, b"5")
        assert [record.value for record in take(reader, 1)] == [b"5"]


@pytest.mark.parametrize("client", ["confluent", "aiokafka"], indirect=True)
def test_long_poll_wakes_when_a_record_arrives(client: Client, topic: str) -> None:
    write(client, topic, b"first")
    with (
        reading(client, topic, fetch_max_wait_ms=35_000) as reader,
        closing(client.plain_producer()) as producer,
    ):
        take(reader, 1)
        assert reader.poll(0.5) == []  # the next fetch waits at the broker
        producer.send(topic, b"wake")
        producer.flush()
        started = time.monotonic()
        assert take(reader, 1)[0].value == b"wake"
        assert time.monotonic() - started < 20  # well below the 35 s that the fetch may wait


def test_batch_larger_than_the_fetch_limits_is_delivered(client: Client, topic: str) -> None:
    values = [bytes([i]) * 50_000 for i in range(4)]
    for value in values:  # a batch each
        write(client, topic, value)
    found = read(client, topic, 4, **client.smallest_fetch)
    assert [record.value for record in found] == values


def test_offset_out_of_range_follows_auto_offset_reset(client: Client, topic: str) -> None:
    write(client, topic, b"0", b"1", b"2")

    def beyond(reset: str) -> closing[PythonReader]:
        return reading(client, topic, start=1000, auto_offset_reset=reset)

    with beyond("earliest") as reader:
        assert [record.offset for record in take(reader, 3)] == [0, 1, 2]
    with beyond("latest") as reader:
        assert read_until(reader, lambda _: reader.position(0) == 3) == []
        write(client, topic, b"3")
        assert [record.value for record in take(reader, 1)] == [b"3"]
    with beyond("none") as reader:
        told = refusal(client, lambda: take(reader, 1))
        assert told in {"_AUTO_OFFSET_RESET", "OffsetOutOfRangeError"}


def test_record_without_key_is_refused_by_a_compacted_topic(
    client: Client, make_topic: MakeTopic
) -> None:
    topic = make_topic(config={"cleanup.policy": "compact"})
    [refused] = write(client, topic, b"keyless")
    # aiokafka does not know the code; it is not that of a corrupt record.
    assert refused.error in {"INVALID_RECORD", "InvalidRecordError", "UnknownError"}
    [sent] = write(client, topic, {"value": b"v", "key": b"k"})
    assert sent.offset == 0
