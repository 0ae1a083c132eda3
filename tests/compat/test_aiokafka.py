"""What aiokafka alone shows, and its administration. Expectations are Apache Kafka 4.1's own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    InvalidTopicError,
    for_code,
)

WAIT = 20.0


@asynccontextmanager
async def administering(bootstrap: str) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()


async def test_fetch_waits_no_longer_than_it_may(bootstrap: str, topic: str) -> None:
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap, fetch_max_wait_ms=200) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        started = time.monotonic()
        assert await consumer.getmany(timeout_ms=1000) == {}
        assert time.monotonic() - started < 20


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
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for _ in range(5):
            await producer.send_and_wait(topic, b"")
    async with administering(bootstrap) as admin:
        assert await admin.delete_records({partition: RecordsToDelete(2)}) == {partition: 2}
    async with (
        AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer,
        asyncio.timeout(WAIT),
    ):
        consumer.assign([partition])
        assert [(await consumer.getone()).offset for _ in range(3)] == [2, 3, 4]


async def test_admin_describes_the_cluster(bootstrap: str) -> None:
    async with administering(bootstrap) as admin:
        cluster = await admin.describe_cluster()
    assert cluster["cluster_id"]
    assert cluster["controller_id"] in {broker["node_id"] for broker in cluster["brokers"]}


async def test_admin_is_refused_an_invalid_topic_name(bootstrap: str) -> None:
    async with administering(bootstrap) as admin:
        answer = await admin.create_topics([NewTopic("no spaces", 1, 1)])
    assert for_code(answer.topic_errors[0][1]) is InvalidTopicError
