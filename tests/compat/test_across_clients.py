"""What one client writes, every other reads: the bytes stored are Kafka's, not one client's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import closing

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AIOTopicPartition
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition

from tests.compat import confluent

VALUES = [b"the same bytes for everyone %d " % i * 10 for i in range(50)]
HEADERS = [("trace", b"\x00\x01"), ("trace", b"")]


async def write_confluent(bootstrap: str, topic: str, codec: str) -> None:
    client = confluent.producer(bootstrap, compression_type=codec, linger_ms=20)
    records = [{"topic": topic, "key": b"k", "value": v, "headers": HEADERS} for v in VALUES]
    confluent.send_all(client, records)


async def write_aiokafka(bootstrap: str, topic: str, codec: str) -> None:
    async with AIOKafkaProducer(
        bootstrap_servers=bootstrap, compression_type=codec, linger_ms=20
    ) as producer:
        await asyncio.gather(
            *[await producer.send(topic, value, b"k", headers=HEADERS) for value in VALUES]
        )


async def write_kafka_python(bootstrap: str, topic: str, codec: str) -> None:
    with closing(
        KafkaProducer(bootstrap_servers=bootstrap, compression_type=codec, linger_ms=20)
    ) as producer:
        for future in [producer.send(topic, value, b"k", headers=HEADERS) for value in VALUES]:
            future.get(20)


Record = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]


async def read_confluent(bootstrap: str, topic: str) -> list[Record]:
    read = confluent.read_topic(bootstrap, topic, check_crcs=True)
    return [(m.offset(), m.key(), m.value(), list(m.headers() or [])) for m in read]


async def read_aiokafka(bootstrap: str, topic: str) -> list[Record]:
    async with AIOKafkaConsumer(
        bootstrap_servers=bootstrap, auto_offset_reset="earliest", check_crcs=True
    ) as consumer:
        consumer.assign([AIOTopicPartition(topic, 0)])
        async with asyncio.timeout(20):
            read = [await consumer.getone() for _ in VALUES]
    return [(r.offset, r.key, r.value, list(r.headers)) for r in read]


async def read_kafka_python(bootstrap: str, topic: str) -> list[Record]:
    with closing(
        KafkaConsumer(
            bootstrap_servers=bootstrap, auto_offset_reset="earliest", consumer_timeout_ms=20_000
        )
    ) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        read = [next(consumer) for _ in VALUES]
    return [(r.offset, r.key, r.value, list(r.headers)) for r in read]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("write", [write_confluent, write_aiokafka, write_kafka_python])
async def test_every_client_reads_what_one_wrote(
    bootstrap: str,
    topic: str,
    write: Callable[[str, str, str], Awaitable[None]],
    codec: str,
) -> None:
    await write(bootstrap, topic, codec)
    expected = [(i, b"k", value, HEADERS) for i, value in enumerate(VALUES)]
    for read in (read_confluent, read_aiokafka, read_kafka_python):
        assert await read(bootstrap, topic) == expected


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("write", [write_confluent, write_aiokafka, write_kafka_python])
async def test_what_a_client_compressed_is_stored_compressed(
    bootstrap: str,
    topic: str,
    write: Callable[[str, str, str], Awaitable[None]],
    codec: str,
) -> None:
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as admin:
        await write(bootstrap, topic, codec)
        [log_dir] = admin.describe_log_dirs({topic: [0]})[0]["log_dirs"]
    stored = log_dir["topics"][0]["partitions"][0]["partition_size"]
    assert stored < sum(map(len, VALUES)) / 2
