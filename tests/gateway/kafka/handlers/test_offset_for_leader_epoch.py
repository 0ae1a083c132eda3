"""OffsetForLeaderEpoch over the real log (KIP-279, KIP-320)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import psycopg
import pytest

from gateway.kafka.codec import OffsetForLeaderEpochRequest
from tests.batches import kafka_batch
from tests.gateway.kafka.handlers.conftest import Broker
from tests.gateway.kafka.handlers.producing import create, produce
from tests.kafka_codes import Code


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
async def test_end_offset_of_each_epoch_is_found(
    log_broker: Broker, database_url: str, version: int
) -> None:
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
    assert await ask(log_broker, 0, name="no") == (Code.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
    with psycopg.connect(database_url, autocommit=True) as psql:
        psql.execute("UPDATE topic_partition SET leader_epoch = 3")
    assert await ask(log_broker, 0, current=2) == (Code.FENCED_LEADER_EPOCH, -1, -1)
    assert await ask(log_broker, 0, current=4) == (Code.UNKNOWN_LEADER_EPOCH, -1, -1)


async def test_all_partitions_are_read_at_once(log_broker: Broker, database_url: str) -> None:
    """However often they are named; a second read is for one that has had several epochs."""
    topic = await create(log_broker, partitions=20)
    with psycopg.connect(database_url, autocommit=True) as psql:
        one = topic.partition_ids[7]
        psql.execute("UPDATE topic_partition SET leader_epoch = 3 WHERE partition_id = %s", [one])
        psql.execute("INSERT INTO leader_epoch VALUES (%s, 3, 0)", [one])
    kind = OffsetForLeaderEpochRequest.OffsetForLeaderTopic

    def asked(name: str, *numbers: int) -> Any:
        parts = [
            kind.OffsetForLeaderPartition(partition=n, current_leader_epoch=-1, leader_epoch=3)
            for n in numbers
        ]
        return kind(topic=name, partitions=parts)

    topics = [asked("t", *range(21), 7), asked("no", 0), asked("t"), asked("t", 7)]
    sent: Counter[str] = Counter()
    log_broker.database.observe = lambda name, _: sent.update([name])
    answer = await log_broker.ask(OffsetForLeaderEpochRequest(replica_id=-1, topics=topics), 4)
    found = [
        (each.topic, [(p.partition, p.error_code, p.leader_epoch) for p in each.partitions])
        for each in answer.topics
    ]
    known = [(n, 0, 3 if n == 7 else -1) for n in range(20)]
    assert found == [
        ("t", [*known, (20, Code.UNKNOWN_TOPIC_OR_PARTITION, -1), (7, 0, 3)]),
        ("no", [(0, Code.UNKNOWN_TOPIC_OR_PARTITION, -1)]),
        ("t", []),
        ("t", [(7, 0, 3)]),
    ]
    assert sent == {"find_topics": 1, "load_partitions": 1, "epoch_starts": 1}


async def test_without_a_database(cut_off: Broker) -> None:
    cut_off.with_log()
    assert await ask(cut_off, 0) == (Code.NOT_LEADER_OR_FOLLOWER, -1, -1)
    await cut_off.close_log()
