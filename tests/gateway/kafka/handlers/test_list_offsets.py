"""ListOffsets over the real log: ends, times, versions."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from core.types import BatchFormat
from gateway.kafka.api import load_handlers
from gateway.kafka.codec import ListOffsetsRequest
from gateway.pulsar.commands_pb2 import MessageMetadata
from gateway.pulsar.entries import encode_entry
from tests.batches import T0, batch, kafka_batch, with_body
from tests.gateway.kafka.handlers.conftest import Broker, MakeBroker
from tests.gateway.kafka.handlers.producing import create, produce
from tests.kafka_codes import Code

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5


def request(*asked: tuple[int, int], name: str = "t", leader_epoch: int = -1) -> Any:
    kind = ListOffsetsRequest.ListOffsetsTopic
    partitions = [
        kind.ListOffsetsPartition(
            partition_index=p, timestamp=timestamp, current_leader_epoch=leader_epoch
        )
        for p, timestamp in asked
    ]
    topics = [kind(name=name, partitions=partitions)]
    return ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=topics)


async def ask(broker: Broker, timestamp: int, version: int = 9, **what: Any) -> Any:
    answer = await broker.ask(request((0, timestamp), **what), version)
    ((part,),) = [topic.partitions for topic in answer.topics]
    return part


@pytest.mark.parametrize("isolation", [-1, 2])
@pytest.mark.parametrize("version", range(2, 12))
async def test_unknown_isolation_level_is_refused(
    log_broker: Broker, version: int, isolation: int
) -> None:
    await create(log_broker)
    asked = request((0, LATEST), (9, EARLIEST))
    asked.isolation_level = isolation
    answer = await log_broker.ask(asked, version)
    ((known, unknown),) = [topic.partitions for topic in answer.topics]
    for number, part in ((0, known), (9, unknown)):
        assert (part.partition_index, part.error_code) == (number, Code.UNKNOWN_SERVER_ERROR)
        assert (part.offset, part.timestamp) == (-1, -1)


def test_only_a_topic_of_many_partitions_is_asked_for_in_bursts() -> None:
    served = load_handlers().find(ListOffsetsRequest.API_KEY)
    assert served is not None and served.comes_in_bursts is not None
    assert not served.comes_in_bursts(request(*((p, EARLIEST) for p in range(1_000))))
    assert served.comes_in_bursts(request((0, LATEST), (1_000, LATEST)))


async def test_another_protocols_batches_are_looked_into(log_broker: Broker) -> None:
    topic = await create(log_broker)
    await produce(log_broker, kafka_batch())
    later = T0 + 1_000_000
    payload = encode_entry(
        MessageMetadata(producer_name="p", sequence_id=0, publish_time=later), b"value"
    )
    foreign = batch(batch_format=BatchFormat.PULSAR, size=len(payload), timestamp=later)
    (partition_id,) = topic.partition_ids
    await log_broker.runtime.partitions.append(partition_id, topic.config, foreign, payload)
    assert [(await ask(log_broker, at)).offset for at in (EARLIEST, LATEST, T0)] == [0, 2, 0]
    for looked_up in (MAX_TIMESTAMP, T0 + 1, later):
        part = await ask(log_broker, looked_up)
        assert (part.error_code, part.offset, part.timestamp) == (0, 1, later)
    assert (await ask(log_broker, later + 1)).offset == -1


@pytest.mark.parametrize("version", range(1, 12))
async def test_ends_in_every_version(log_broker: Broker, version: int) -> None:
    topic = await create(log_broker)
    await produce(log_broker, kafka_batch([b"a"] * 5))
    await log_broker.partitions.delete_records(topic.partition_ids[0], 2)
    for timestamp, expected in ((LATEST, 5), (EARLIEST, 2)):
        part = await ask(log_broker, timestamp, version)
        assert (part.error_code, part.offset, part.timestamp) == (0, expected, -1)


async def test_times_exact_to_the_record(log_broker: Broker) -> None:
    topic = await create(log_broker)
    for stamps in ([5, 9, 7], [6, 3], [20, 12]):
        await produce(
            log_broker, kafka_batch([b"x"] * len(stamps), timestamps=[T0 + s for s in stamps])
        )
    for timestamp, expected in (
        (0, (0, 5)),
        (6, (1, 9)),
        (9, (1, 9)),
        (10, (5, 20)),
        (20, (5, 20)),
    ):
        part = await ask(log_broker, T0 + timestamp)
        assert (part.error_code, part.offset, part.timestamp - T0) == (0, *expected)
    part = await ask(log_broker, T0 + 21)
    assert (part.error_code, part.offset, part.timestamp) == (0, -1, -1)
    part = await ask(log_broker, MAX_TIMESTAMP)
    assert (part.offset, part.timestamp) == (5, T0 + 20)
    # Deleted records are not found, also within a batch that stays in part.
    await log_broker.partitions.delete_records(topic.partition_ids[0], 2)
    part = await ask(log_broker, T0 + 9)
    assert (part.offset, part.timestamp) == (5, T0 + 20)
    await log_broker.partitions.delete_records(topic.partition_ids[0], 6)
    part = await ask(log_broker, MAX_TIMESTAMP)
    assert (part.offset, part.timestamp) == (6, T0 + 12)


@pytest.mark.parametrize("compressed", [False, True])
async def test_a_batch_that_cannot_be_read_counts_as_a_whole(
    log_broker: Broker, compressed: bool
) -> None:
    """Produce takes it; who looks for a time must neither fail on it nor skip its records."""
    topic = await create(log_broker)
    for stamps, is_broken in (([1, 2], False), ([5, 9, 7], True), ([12], False)):
        sent = kafka_batch([b"x"] * len(stamps), timestamps=[T0 + stamp for stamp in stamps])
        broken = with_body(sent, b"\xff" * 40, codec=1 if compressed else 0)
        assert (await produce(log_broker, broken if is_broken else sent)).error_code == 0
    for timestamp, expected in ((2, (1, 2)), (3, (2, 9)), (9, (2, 9)), (10, (5, 12))):
        part = await ask(log_broker, T0 + timestamp)
        assert (part.error_code, part.offset, part.timestamp - T0) == (0, *expected)
    # Only what is still there of it.
    await log_broker.partitions.delete_records(topic.partition_ids[0], 3)
    part = await ask(log_broker, T0)
    assert (part.error_code, part.offset, part.timestamp) == (0, 3, T0 + 9)


async def test_the_greatest_timestamp_may_be_of_a_batch_that_cannot_be_read(
    log_broker: Broker,
) -> None:
    await create(log_broker)
    await produce(log_broker, kafka_batch(timestamps=[T0 + 1]))
    await produce(log_broker, with_body(kafka_batch(timestamps=[T0 + 5]), b"\xff" * 40, codec=1))
    part = await ask(log_broker, MAX_TIMESTAMP)
    assert (part.error_code, part.offset, part.timestamp) == (0, 1, T0 + 5)


async def test_empty_log_has_offset_0_and_no_timestamps(log_broker: Broker) -> None:
    await create(log_broker)
    for timestamp, expected in ((LATEST, 0), (EARLIEST, 0), (MAX_TIMESTAMP, -1), (T0, -1)):
        part = await ask(log_broker, timestamp)
        assert (part.error_code, part.offset) == (0, expected)


async def test_special_timestamp_is_refused_before_its_version(log_broker: Broker) -> None:
    await create(log_broker)
    await produce(log_broker, kafka_batch())
    for timestamp, since in ((MAX_TIMESTAMP, 7), (EARLIEST_LOCAL, 8), (LATEST_TIERED, 9)):
        assert (await ask(log_broker, timestamp, since - 1)).error_code == Code.UNSUPPORTED_VERSION
        assert (await ask(log_broker, timestamp, since)).error_code == 0
    assert (await ask(log_broker, -99, 9)).error_code == Code.UNSUPPORTED_VERSION


async def test_refusals(log_broker: Broker) -> None:
    await create(log_broker)
    assert (await ask(log_broker, LATEST, name="no")).error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
    answer = await log_broker.ask(request((0, LATEST), (4, LATEST), (0, EARLIEST)), 9)
    assert answered(answer) == [
        ("t", [(0, Code.INVALID_REQUEST), (4, Code.UNKNOWN_TOPIC_OR_PARTITION)]),
    ]


async def test_each_partition_is_answered_once(log_broker: Broker) -> None:
    await create(log_broker, partitions=3)
    asked = request((0, LATEST), (2, LATEST))
    asked.topics += request((0, EARLIEST), (1, LATEST)).topics + request(name="no").topics
    answer = await log_broker.ask(asked, 9)
    assert answered(answer) == [("t", [(0, Code.INVALID_REQUEST), (2, 0), (1, 0)])]


def answered(answer: Any) -> list[tuple[str, list[tuple[int, int]]]]:
    """Error codes by topic and partition."""
    return [
        (topic.name, [(part.partition_index, part.error_code) for part in topic.partitions])
        for topic in answer.topics
    ]


async def test_leader_epochs(log_broker: Broker, database_url: str) -> None:
    topic = await create(log_broker)
    await produce(log_broker, kafka_batch([b"a", b"b"]))
    with psycopg.connect(database_url, autocommit=True) as psql:
        psql.execute("UPDATE topic_partition SET leader_epoch = 2")
        psql.execute("INSERT INTO leader_epoch VALUES (%s, 2, 2)", [topic.partition_ids[0]])
    assert (await ask(log_broker, LATEST, leader_epoch=1)).error_code == Code.FENCED_LEADER_EPOCH
    assert (await ask(log_broker, LATEST, leader_epoch=3)).error_code == Code.UNKNOWN_LEADER_EPOCH
    assert (await ask(log_broker, LATEST, leader_epoch=2)).leader_epoch == 2
    assert (await ask(log_broker, EARLIEST)).leader_epoch == 0
    assert (await ask(log_broker, T0)).leader_epoch == 0


async def test_what_another_broker_wrote_is_seen_at_once(
    log_broker: Broker, database_url: str
) -> None:
    await create(log_broker)
    assert (await ask(log_broker, LATEST)).offset == 0
    with psycopg.connect(database_url, autocommit=True) as psql:
        psql.execute("UPDATE topic_partition SET next_offset = 7")
    assert (await ask(log_broker, LATEST)).offset == 7


async def test_where_the_log_starts_is_read_once_while_nobody_else_can_move_it(
    log_broker: Broker, make_broker: MakeBroker, database_url: str
) -> None:
    topic = await create(log_broker)
    await produce(log_broker, kafka_batch([b"a"] * 9))

    def moved_behind_its_back(start: int) -> None:
        with psycopg.connect(database_url, autocommit=True) as psql:
            psql.execute("UPDATE topic_partition SET log_start_offset = %s", [start])

    moved_behind_its_back(1)
    assert (await ask(log_broker, EARLIEST)).offset == 1
    moved_behind_its_back(2)
    assert (await ask(log_broker, EARLIEST)).offset == 1  # without asking the database
    await log_broker.partitions.delete_records(topic.partition_ids[0], 3)
    assert (await ask(log_broker, EARLIEST)).offset == 3
    # A refusal takes a fresh look; it shows the start as well.
    moved_behind_its_back(4)
    assert (await ask(log_broker, EARLIEST, leader_epoch=1)).error_code == Code.UNKNOWN_LEADER_EPOCH
    assert (await ask(log_broker, EARLIEST)).offset == 4
    # Another broker may move it, and may have moved it once it is gone.
    other = await make_broker()
    await log_broker.cluster.heartbeat()
    moved_behind_its_back(5)
    assert (await ask(log_broker, EARLIEST)).offset == 5
    moved_behind_its_back(6)
    assert (await ask(log_broker, EARLIEST)).offset == 6
    moved_behind_its_back(7)
    await other.cluster.leave()
    await log_broker.cluster.heartbeat()
    assert (await ask(log_broker, EARLIEST)).offset == 7


async def test_without_a_database(cut_off: Broker) -> None:
    cut_off.with_log()
    assert (await ask(cut_off, LATEST)).error_code == Code.NOT_LEADER_OR_FOLLOWER
    await cut_off.close_log()
