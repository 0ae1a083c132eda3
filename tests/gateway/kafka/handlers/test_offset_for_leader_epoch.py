"""OffsetForLeaderEpoch over the real log (KIP-279, KIP-320)."""

from __future__ import annotations

import psycopg
import pytest

from gateway.kafka.codec import OffsetForLeaderEpochRequest
from tests.batches import kafka_batch
from tests.gateway.kafka.handlers.conftest import Broker
from tests.gateway.kafka.handlers.producing import create, produce

UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER = 3, 6
FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH = 74, 75


async def ask(
    broker: Broker, epoch: int, *, current: int = -1, name: str = "t", version: int = 4
) -> tuple[int, int, int]:
    kind = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    part = kind.OffsetForLeaderPartition(
        partition=0, current_leader_epoch=current, leader_epoch=epoch
    )
    request = OffsetForLeaderEpochRequest(
        replica_id=-1, topics=[kind(topic=name, partitions=[part])]
    )
    (topic,) = (await broker.ask(request, version)).topics
    (found,) = topic.partitions
    return found.error_code, found.leader_epoch, found.end_offset


@pytest.mark.parametrize("version", range(2, 5))
async def test_ends_of_epochs(log_broker: Broker, database_url: str, version: int) -> None:
    topic = await create(log_broker)
    await produce(log_broker, kafka_batch([b"a"] * 5))
    assert await ask(log_broker, 0, version=version) == (0, 0, 5)
    assert await ask(log_broker, 1, version=version) == (0, -1, -1)
    with psycopg.connect(database_url, autocommit=True) as psql:
        psql.execute("UPDATE topic_partition SET leader_epoch = 3")
        psql.execute("INSERT INTO leader_epoch VALUES (%s, 3, 5)", [topic.partition_ids[0]])
    await produce(log_broker, kafka_batch([b"a"] * 2))
    for epoch, expected in ((0, (0, 0, 5)), (2, (0, 0, 5)), (3, (0, 3, 7)), (-1, (0, -1, -1))):
        assert await ask(log_broker, epoch, version=version) == expected


async def test_refusals(log_broker: Broker, database_url: str) -> None:
    await create(log_broker)
    assert await ask(log_broker, 0, name="no") == (UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
    with psycopg.connect(database_url, autocommit=True) as psql:
        psql.execute("UPDATE topic_partition SET leader_epoch = 3")
    assert await ask(log_broker, 0, current=2) == (FENCED_LEADER_EPOCH, -1, -1)
    assert await ask(log_broker, 0, current=4) == (UNKNOWN_LEADER_EPOCH, -1, -1)


async def test_without_a_database(cut_off: Broker) -> None:
    cut_off.with_log()
    assert await ask(cut_off, 0) == (NOT_LEADER_OR_FOLLOWER, -1, -1)
    await cut_off.partitions.close()
