"""aiokafka produces, consumes and administers. Expectations are Apache Kafka 4.1's own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    CorruptRecordException,
    InvalidTopicError,
    KafkaError,
    MessageSizeTooLargeError,
    OffsetOutOfRangeError,
    for_code,
)

from tests.compat.conftest import MakeTopic

WAIT = 20.0


@asynccontextmanager
async def producing(bootstrap: str, **config: Any) -> AsyncIterator[AIOKafkaProducer]:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, **config) as producer:
        yield producer


@asynccontextmanager
async def reading(
    bootstrap: str, topic: str, partitions: int = 1, **config: Any
) -> AsyncIterator[AIOKafkaConsumer]:
    """A consumer assigned to `topic`, at its beginning unless `auto_offset_reset` says more."""
    settings = {"auto_offset_reset": "earliest", "group_id": None, **config}
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap, **settings) as consumer:
        consumer.assign([TopicPartition(topic, p) for p in range(partitions)])
        yield consumer


@asynccontextmanager
async def administering(bootstrap: str) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()


async def take(consumer: AIOKafkaConsumer, count: int) -> list[ConsumerRecord[Any, Any]]:
    """The next `count` records."""
    async with asyncio.timeout(WAIT):
        return [await consumer.getone() for _ in range(count)]


@pytest.mark.parametrize("acks", [0, 1, "all"])
async def test_produces_with_acks(bootstrap: str, topic: str, acks: Any) -> None:
    async with producing(bootstrap, acks=acks) as producer:
        sent = [await producer.send_and_wait(topic, b"%d" % i) for i in range(10)]
    if acks != 0:
        assert [record.offset for record in sent] == list(range(10))
    async with reading(bootstrap, topic) as consumer:
        assert [record.value for record in await take(consumer, 10)] == [
            b"%d" % i for i in range(10)
        ]


async def test_idempotent_producer_keeps_order(bootstrap: str, topic: str) -> None:
    async with producing(bootstrap, enable_idempotence=True, max_batch_size=300) as producer:
        sent = await asyncio.gather(
            *[await producer.send(topic, b"%d" % i, partition=0) for i in range(300)]
        )
    assert [record.offset for record in sent] == list(range(300))
    async with reading(bootstrap, topic) as consumer:
        read = await take(consumer, 300)
    assert [record.value for record in read] == [b"%d" % i for i in range(300)]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
async def test_compression(bootstrap: str, topic: str, codec: str) -> None:
    values = [b"all work and no play %d " % i * 20 for i in range(100)]
    async with producing(bootstrap, compression_type=codec, linger_ms=50) as producer:
        await asyncio.gather(*[await producer.send(topic, value) for value in values])
    async with reading(bootstrap, topic, check_crcs=True) as consumer:
        assert [record.value for record in await take(consumer, 100)] == values


async def test_headers_nulls_and_timestamps(bootstrap: str, topic: str) -> None:
    async with producing(bootstrap) as producer:
        await producer.send_and_wait(
            topic, b"v", b"k", timestamp_ms=1_600_000_000_000, headers=[("a", b"1"), ("a", b"")]
        )
        await producer.send_and_wait(topic, None, b"k")
        await producer.send_and_wait(topic, b"v", None)
    async with reading(bootstrap, topic) as consumer:
        first, second, third = await take(consumer, 3)
    assert first.headers == (("a", b"1"), ("a", b""))
    assert (first.timestamp, first.timestamp_type) == (1_600_000_000_000, 0)
    assert (second.key, second.value) == (b"k", None)
    assert (third.key, third.value) == (None, b"v")


async def test_log_append_time(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(config={"message.timestamp.type": "LogAppendTime"})
    async with producing(bootstrap) as producer:
        sent = await producer.send_and_wait(topic, b"", timestamp_ms=1_600_000_000_000)
    async with reading(bootstrap, topic, check_crcs=True) as consumer:
        [read] = await take(consumer, 1)
    assert read.timestamp_type == 1
    assert abs(read.timestamp - time.time() * 1000) < 60_000
    assert sent.timestamp == read.timestamp


async def test_record_above_max_message_bytes_is_refused(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(config={"max.message.bytes": "10000"})
    async with producing(bootstrap) as producer:
        await producer.send_and_wait(topic, b"x" * 9900)
        with pytest.raises(MessageSizeTooLargeError):
            await producer.send_and_wait(topic, b"x" * 10_000)


async def test_offsets_for_times_beginning_and_end(bootstrap: str, topic: str) -> None:
    partition = TopicPartition(topic, 0)
    async with producing(bootstrap) as producer:
        for stamp in (1000, 2000, 3000):
            await producer.send_and_wait(topic, b"", timestamp_ms=stamp)
    async with reading(bootstrap, topic) as consumer:
        found = {}
        for stamp in (0, 1001, 3000, 3001):
            answer = (await consumer.offsets_for_times({partition: stamp}))[partition]
            found[stamp] = (answer.offset, answer.timestamp) if answer else None
        assert found == {0: (0, 1000), 1001: (1, 2000), 3000: (2, 3000), 3001: None}
        assert await consumer.beginning_offsets([partition]) == {partition: 0}
        assert await consumer.end_offsets([partition]) == {partition: 3}


async def test_seek(bootstrap: str, topic: str) -> None:
    partition = TopicPartition(topic, 0)
    async with producing(bootstrap) as producer:
        for i in range(5):
            await producer.send_and_wait(topic, b"%d" % i)
        async with reading(bootstrap, topic) as consumer:
            consumer.seek(partition, 3)
            assert [record.value for record in await take(consumer, 2)] == [b"3", b"4"]
            await consumer.seek_to_beginning(partition)
            assert [record.offset for record in await take(consumer, 1)] == [0]
            await consumer.seek_to_end(partition)
            await producer.send_and_wait(topic, b"5")
            assert [record.value for record in await take(consumer, 1)] == [b"5"]


async def test_long_poll_wakes_when_a_record_arrives(bootstrap: str, topic: str) -> None:
    async with producing(bootstrap) as producer:
        await producer.send_and_wait(topic, b"first")
        async with reading(bootstrap, topic, fetch_max_wait_ms=35_000) as consumer:
            await take(consumer, 1)
            waiting = asyncio.create_task(consumer.getone())
            await asyncio.sleep(0.5)
            await producer.send_and_wait(topic, b"wake")
            async with asyncio.timeout(20):  # far below the 35 s that the fetch may wait
                assert (await waiting).value == b"wake"


async def test_fetch_waits_no_longer_than_it_may(bootstrap: str, topic: str) -> None:
    async with reading(bootstrap, topic, fetch_max_wait_ms=200) as consumer:
        started = time.monotonic()
        assert await consumer.getmany(timeout_ms=1000) == {}
        assert time.monotonic() - started < 20


async def test_batch_larger_than_the_fetch_limits_is_delivered(bootstrap: str, topic: str) -> None:
    values = [bytes([i]) * 50_000 for i in range(3)]
    async with producing(bootstrap) as producer:
        for value in values:
            await producer.send_and_wait(topic, value)
    limits = {"fetch_max_bytes": 1000, "max_partition_fetch_bytes": 1000}
    async with reading(bootstrap, topic, **limits) as consumer:
        assert [record.value for record in await take(consumer, 3)] == values


async def test_offset_out_of_range_follows_auto_offset_reset(bootstrap: str, topic: str) -> None:
    async with producing(bootstrap) as producer:
        await producer.send_and_wait(topic, b"0")
    async with reading(bootstrap, topic, auto_offset_reset="earliest") as consumer:
        consumer.seek(TopicPartition(topic, 0), 1000)
        assert [record.offset for record in await take(consumer, 1)] == [0]
    async with reading(bootstrap, topic, auto_offset_reset="none") as consumer:
        consumer.seek(TopicPartition(topic, 0), 1000)
        with pytest.raises(OffsetOutOfRangeError):
            await take(consumer, 1)


async def test_record_without_key_is_refused_by_a_compacted_topic(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(config={"cleanup.policy": "compact"})
    async with producing(bootstrap) as producer:
        with pytest.raises(KafkaError) as raised:
            await producer.send_and_wait(topic, b"keyless")
        assert not isinstance(raised.value, CorruptRecordException)
        assert (await producer.send_and_wait(topic, b"v", b"k")).offset == 0


async def test_admin_creates_describes_and_deletes(bootstrap: str, topic_name: str) -> None:
    async with administering(bootstrap) as admin:
        new = NewTopic(topic_name, 2, 1, topic_configs={"retention.ms": "60000"})
        assert (await admin.create_topics([new])).topic_errors[0][1] == 0
        assert (await admin.create_topics([new])).topic_errors[0][1] == 36
        await wait_for_topic(admin, topic_name)
        assert topic_name in await admin.list_topics()
        [described] = await admin.describe_topics([topic_name])
        assert described["error_code"] == 0
        assert sorted(p["partition"] for p in described["partitions"]) == [0, 1]
        await admin.create_partitions({topic_name: NewPartitions(3)})
        resource = ConfigResource(ConfigResourceType.TOPIC, topic_name)
        [answer] = await admin.describe_configs([resource])
        found = {entry[0]: entry[1] for entry in answer.resources[0][4]}
        assert found["retention.ms"] == "60000"
        changed = ConfigResource(
            ConfigResourceType.TOPIC, topic_name, configs={"segment.bytes": "2000000"}
        )
        [altered] = await admin.alter_configs([changed])
        assert altered.resources[0][0] == 0
        [answer] = await admin.describe_configs([resource])
        found = {entry[0]: entry[1] for entry in answer.resources[0][4]}
        assert found["segment.bytes"] == "2000000"
        assert found["retention.ms"] == "604800000"  # AlterConfigs replaces what was set
        assert (await admin.delete_topics([topic_name])).topic_error_codes[0][1] == 0
        assert (await admin.delete_topics([topic_name])).topic_error_codes[0][1] == 3


async def wait_for_topic(admin: AIOKafkaAdminClient, topic: str) -> None:
    async with asyncio.timeout(WAIT):
        while (await admin.describe_topics([topic]))[0]["error_code"] != 0:
            await asyncio.sleep(0.05)


async def test_admin_deletes_records(bootstrap: str, topic: str) -> None:
    partition = TopicPartition(topic, 0)
    async with producing(bootstrap) as producer:
        for _ in range(5):
            await producer.send_and_wait(topic, b"")
    async with administering(bootstrap) as admin:
        assert await admin.delete_records({partition: RecordsToDelete(2)}) == {partition: 2}
    async with reading(bootstrap, topic) as consumer:
        assert [record.offset for record in await take(consumer, 3)] == [2, 3, 4]


async def test_admin_describes_the_cluster(bootstrap: str) -> None:
    async with administering(bootstrap) as admin:
        cluster = await admin.describe_cluster()
    assert cluster["cluster_id"]
    assert cluster["controller_id"] in {broker["node_id"] for broker in cluster["brokers"]}


async def test_admin_is_refused_an_invalid_topic_name(bootstrap: str) -> None:
    async with administering(bootstrap) as admin:
        answer = await admin.create_topics([NewTopic("no spaces", 1, 1)])
    assert for_code(answer.topic_errors[0][1]) is InvalidTopicError
