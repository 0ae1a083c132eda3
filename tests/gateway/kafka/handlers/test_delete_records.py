"""DeleteRecords over the real log."""

from __future__ import annotations

from typing import Any

import pytest

from core.topic.rules import INTERNAL_TOPICS
from gateway.kafka.codec import DeleteRecordsRequest
from tests.batches import kafka_batch
from tests.gateway.kafka.handlers.conftest import Broker
from tests.gateway.kafka.handlers.producing import create, produce
from tests.kafka_codes import Code


async def delete(
    broker: Broker, offsets: dict[int, int], *, name: str = "t", version: int = 2
) -> Any:
    kind = DeleteRecordsRequest.DeleteRecordsTopic
    parts = [
        kind.DeleteRecordsPartition(partition_index=p, offset=offset)
        for p, offset in offsets.items()
    ]
    request = DeleteRecordsRequest(topics=[kind(name=name, partitions=parts)], timeout_ms=1000)
    (topic,) = (await broker.ask(request, version)).topics
    assert topic.name == name
    return [(p.partition_index, p.error_code, p.low_watermark) for p in topic.partitions]


@pytest.mark.parametrize("version", range(3))
async def test_deletes_up_to_an_offset(log_broker: Broker, version: int) -> None:
    await create(log_broker)
    await produce(log_broker, kafka_batch([b"a"] * 5))
    for offset, expected in ((3, 3), (1, 3), (-1, 5)):
        assert await delete(log_broker, {0: offset}, version=version) == [(0, 0, expected)]


async def test_refusals(log_broker: Broker) -> None:
    await create(log_broker)
    await produce(log_broker, kafka_batch())
    assert await delete(log_broker, {0: 2, 4: 0}) == [
        (0, Code.OFFSET_OUT_OF_RANGE, -1),
        (4, Code.UNKNOWN_TOPIC_OR_PARTITION, -1),
    ]
    assert await delete(log_broker, {0: -2}) == [(0, Code.OFFSET_OUT_OF_RANGE, -1)]
    assert await delete(log_broker, {0: 0}, name="no") == [(0, Code.UNKNOWN_TOPIC_OR_PARTITION, -1)]


async def test_of_several_requests_for_a_partition_the_last_counts(log_broker: Broker) -> None:
    await create(log_broker, partitions=2)
    await produce(log_broker, kafka_batch([b"a"] * 5))
    kind = DeleteRecordsRequest.DeleteRecordsTopic

    def asked(*offsets: tuple[int, int]) -> Any:
        parts = [kind.DeleteRecordsPartition(partition_index=p, offset=o) for p, o in offsets]
        return kind(name="t", partitions=parts)

    topics = [asked((0, 4), (0, 1)), asked(), asked((1, 0), (0, 2))]
    answer = await log_broker.ask(DeleteRecordsRequest(topics=topics, timeout_ms=1000), 2)
    assert [
        (topic.name, [(p.partition_index, p.error_code, p.low_watermark) for p in topic.partitions])
        for topic in answer.topics
    ] == [("t", [(0, 0, 2), (1, 0, 0)])]
    nothing = DeleteRecordsRequest(topics=[asked()], timeout_ms=1000)
    assert (await log_broker.ask(nothing, 2)).topics == []


async def test_a_compacted_log_keeps_its_records(log_broker: Broker) -> None:
    await create(log_broker, cleanup_policy="compact")
    assert await delete(log_broker, {0: 0}) == [(0, Code.POLICY_VIOLATION, -1)]


@pytest.mark.parametrize("name", sorted(INTERNAL_TOPICS))
async def test_internal_topics_keep_their_records(log_broker: Broker, name: str) -> None:
    assert await delete(log_broker, {0: 0}, name=name) == [(0, Code.UNKNOWN_TOPIC_OR_PARTITION, -1)]
    await create(log_broker, name)
    assert await delete(log_broker, {0: 0}, name=name) == [(0, Code.INVALID_TOPIC_EXCEPTION, -1)]


async def test_without_a_database(cut_off: Broker) -> None:
    cut_off.with_log()
    assert await delete(cut_off, {0: 0}) == [(0, Code.NOT_LEADER_OR_FOLLOWER, -1)]
    await cut_off.close_log()
