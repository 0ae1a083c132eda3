"""The stock Python client of Pulsar produces; Kafka's clients read it, field by field."""

from __future__ import annotations

import threading
from typing import Any

import pulsar
import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, Consumer, Producer, TopicPartition

from tests.compat.pulsar.conftest import (
    WITHIN_S,
    Both,
    ClientOf,
    make_topic,
    records_of,
)
from tests.conftest import StartGateway, free_port

T0 = 1_700_000_000_000
CODECS = [
    pulsar.CompressionType.NONE,
    pulsar.CompressionType.LZ4,
    pulsar.CompressionType.ZLib,
    pulsar.CompressionType.ZSTD,
    pulsar.CompressionType.SNAPPY,
]


class Receipts:
    """What became of messages sent side by side, in the order in which it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[pulsar.Result, Any]] = []
        self._lock = threading.Lock()

    def __call__(self, result: pulsar.Result, message_id: Any) -> None:
        with self._lock:
            self.told.append((result, message_id))

    @property
    def places(self) -> list[tuple[int, int]]:
        """Entry id and batch index of each; all have to be confirmed."""
        assert {result for result, _ in self.told} <= {pulsar.Result.Ok}
        return [(each.entry_id(), max(each.batch_index(), 0)) for _, each in self.told]


def test_single_messages(both: Both, client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(3):
        message_id = producer.send(
            b"value-%d" % number,
            properties={"a": "1", "b": "ü"},
            partition_key="key",
            event_timestamp=T0 + number,
        )
        assert (message_id.entry_id(), message_id.partition()) == (number, -1)
    producer.send(b"")
    records = records_of(both.gateway.bootstrap, topic, 4)
    assert [each.offset() for each in records] == [0, 1, 2, 3]
    assert [each.value() for each in records] == [b"value-0", b"value-1", b"value-2", b""]
    assert [each.key() for each in records] == [b"key"] * 3 + [None]
    assert records[0].headers() == [("a", b"1"), ("b", "ü".encode())]
    assert records[3].headers() is None
    for number in range(3):
        assert records[number].timestamp() == (TIMESTAMP_CREATE_TIME, T0 + number)


def test_chunks_are_a_record_each(both: Both, client: pulsar.Client, topic: str) -> None:
    whole = bytes(range(256)) * 50_000  # 12.8 MB
    producer = client.create_producer(topic, batching_enabled=False, chunking_enabled=True)
    producer.send(whole)
    producer.send(b"small")
    records = records_of(both.gateway.bootstrap, topic, 4)
    assert b"".join(each.value() for each in records[:-1]) == whole
    assert records[-1].value() == b"small"
    for each in records[:-1]:
        assert {name for name, _ in each.headers()} >= {"penstock.chunk", "penstock.envelope"}


def test_a_message_may_be_as_large_as_pulsars(
    both: Both, client: pulsar.Client, topic: str
) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    producer.send(bytes(5 * 1024 * 1024 - 200))
    with pytest.raises(pulsar.MessageTooBig):
        producer.send(bytes(6 * 1024 * 1024))
    make_topic(both.gateway.bootstrap, f"{topic}-kafkas", 1)
    producer = client.create_producer(f"{topic}-kafkas", batching_enabled=False)
    with pytest.raises(pulsar.ChecksumError):  # the only one that this client ends a message on
        producer.send(bytes(2 * 1024 * 1024))
    assert producer.send(b"goes on").entry_id() == 0


def test_receipts_come_in_order(both: Both, client: pulsar.Client, topic: str) -> None:
    producers = [
        client.create_producer(
            topic, batching_enabled=False, block_if_queue_full=True, max_pending_messages=500
        )
        for _ in range(3)
    ]
    receipts = [Receipts() for _ in producers]
    for number in range(1_000):
        for producer, each in zip(producers, receipts, strict=True):
            producer.send_async(b"%d" % number, each)
    for producer in producers:
        producer.flush()
    records = records_of(both.gateway.bootstrap, topic, 3_000)
    assert sorted(entry for each in receipts for entry, _ in each.places) == list(range(3_000))
    for each in receipts:
        entries = [entry for entry, _ in each.places]
        assert entries == sorted(entries)
        assert [int(records[entry].value()) for entry in entries] == list(range(1_000))


def test_partitions(both: Both, client: pulsar.Client, topic: str) -> None:
    make_topic(both.gateway.bootstrap, topic, 3)
    producer = client.create_producer(
        topic,
        message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution,
        batching_enabled=False,
    )
    ids = [producer.send(b"%d" % number) for number in range(9)]
    assert sorted((each.partition(), each.entry_id()) for each in ids) == [
        (partition, entry) for partition in range(3) for entry in range(3)
    ]
    for partition in range(3):
        records = records_of(both.gateway.bootstrap, topic, 3, partition)
        written = [b"%d" % n for n, each in enumerate(ids) if each.partition() == partition]
        assert [each.value() for each in records] == written
    assert client.get_topic_partitions(topic) == [
        f"persistent://public/default/{topic}-partition-{each}" for each in range(3)
    ]


def test_another_namespace_has_a_topic_of_its_own(
    both: Both, client: pulsar.Client, topic: str
) -> None:
    client.create_producer(f"persistent://pulsar/system/{topic}").send(b"x")
    name = topic.replace("-", "-2D")
    assert records_of(both.gateway.bootstrap, f"pulsar.pulsar.system.{name}", 1)


def test_both_write_to_one_log(both: Both, client: pulsar.Client, topic: str) -> None:
    kafka = Producer({"bootstrap.servers": both.gateway.bootstrap})
    producer = client.create_producer(topic)
    for number in range(4):
        if number % 2:
            kafka.produce(topic, b"%d" % number, partition=0)
            assert kafka.flush(WITHIN_S) == 0
        else:
            assert producer.send(b"%d" % number).entry_id() == number
    records = records_of(both.gateway.bootstrap, topic, 4)
    assert [each.value() for each in records] == [b"0", b"1", b"2", b"3"]


def test_kafka_finds_messages_by_time(both: Both, client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, batching_max_publish_delay_ms=60_000)
    receipts = Receipts()
    for number in range(10):
        producer.send_async(b"x", receipts, event_timestamp=4_000_000_000_000 + number)
    producer.flush()
    consumer = Consumer({"bootstrap.servers": both.gateway.bootstrap, "group.id": "none"})
    wanted = TopicPartition(topic, 0, 4_000_000_000_007)
    (found,) = consumer.offsets_for_times([wanted], WITHIN_S)
    consumer.close()
    assert found.offset in {0, 7}  # a batch counts by its header, unless its times are inside


def test_non_persistent_topics_are_refused(client: pulsar.Client) -> None:
    with pytest.raises(pulsar.PulsarException):
        client.create_producer("non-persistent://public/default/t")


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_producer_outlives_its_broker(
    start_gateway: StartGateway, client_of: ClientOf, database_url: str, topic: str, end: str
) -> None:
    port, pulsar_port = free_port(), free_port()
    listen = ("--pulsar-listen", f"127.0.0.1:{pulsar_port}")
    first = start_gateway(*listen, database_url=database_url, port=port)
    client = client_of(f"pulsar://127.0.0.1:{pulsar_port}", operation_timeout_seconds=60)
    producer = client.create_producer(topic, batching_enabled=False, send_timeout_millis=60_000)
    receipts = Receipts()
    for number in range(300):
        producer.send_async(b"%d" % number, receipts)
        if number == 150:
            getattr(first, end)()
            start_gateway(*listen, database_url=database_url, port=port)
    producer.flush()
    assert len(receipts.places) == 300
    last = max(entry for entry, _ in receipts.places)
    values = [int(each.value()) for each in records_of(first.bootstrap, topic, last + 1)]
    # None is missing, and what was sent again lies behind what came before it.
    assert list(dict.fromkeys(values)) == list(range(300))
    assert [values[entry] for entry, _ in receipts.places] == list(range(300))
    if end == "stop":
        assert len(values) == 300


def test_over_tls(
    start_gateway: StartGateway,
    client_of: ClientOf,
    database_url: str,
    topic: str,
    certificate: Any,
) -> None:
    port = free_port()
    gateway = start_gateway(
        "--pulsar-listen",
        f"127.0.0.1:{port}",
        "--tls-cert",
        certificate,
        "--tls-key",
        certificate,
        "--pulsar-advertise",
        f"localhost:{port}",
        database_url=database_url,
        wait=False,
    )
    trusted = str(certificate.with_suffix(".crt"))
    client = client_of(f"pulsar+ssl://localhost:{port}", tls_trust_certs_file_path=trusted)
    producer = client.create_producer(topic)
    assert producer.send(b"x").entry_id() == 0
    assert gateway.process.poll() is None
