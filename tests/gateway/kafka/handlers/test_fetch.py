"""Fetch over the real log: what comes back, how long it waits, sessions, epochs."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from core.types import BatchFormat
from gateway.kafka.pipelined_requests import PipelinedRequests
from gateway.pulsar.commands_pb2 import MessageMetadata
from gateway.pulsar.entries import encode_entry
from tests.batches import T0, batch, kafka_batch
from tests.gateway.kafka.handlers.conftest import Broker, MakeBroker
from tests.gateway.kafka.handlers.fetching import batches, fetch_request
from tests.gateway.kafka.handlers.producing import create, produce, produce_request
from tests.kafka_codes import Code

LIST_OFFSETS = 2


async def fetch(broker: Broker, version: int = 11, **what: Any) -> Any:
    offsets = what.pop("offsets", {0: 0})
    answer = await broker.ask(fetch_request(offsets, **what), version)
    assert answer.error_code == 0
    ((part,),) = [topic.partitions for topic in answer.responses]
    return part


@pytest.mark.parametrize("version", range(4, 19))
async def test_every_version_gives_the_bytes_back(log_broker: Broker, version: int) -> None:
    topic = await create(log_broker)
    one, two = kafka_batch([b"a", b"b"]), kafka_batch([b"c"])
    await produce(log_broker, one)
    await produce(log_broker, two)
    part = await fetch(
        log_broker, version, topic=topic.topic_id if version >= 13 else "t", offsets={0: 1}
    )
    assert (part.error_code, part.high_watermark, part.last_stable_offset) == (0, 3, 3)
    assert batches(part) == [(0, 0, one[16:]), (2, 0, two[16:])]


@pytest.mark.parametrize("isolation", [-1, 2])
@pytest.mark.parametrize("version", range(4, 19))
async def test_unknown_isolation_levels(log_broker: Broker, version: int, isolation: int) -> None:
    topic = await create(log_broker)
    name = topic.topic_id if version >= 13 else "t"
    asked = fetch_request({0: 0, 9: 0}, topic=name, session=(7, 1), isolation=isolation)
    answer = await log_broker.ask(asked, version)
    if version >= 7:
        assert (answer.error_code, answer.session_id) == (Code.UNKNOWN_SERVER_ERROR, 7)
    told = [
        (each.topic, part.partition_index, part.error_code, part.records or b"")
        for each in answer.responses
        for part in each.partitions
    ]
    refused = [("t", number, Code.UNKNOWN_SERVER_ERROR, b"") for number in (0, 9)]
    assert told == (refused if version < 13 else [])


async def test_refusals(log_broker: Broker) -> None:
    await create(log_broker)
    await produce(log_broker, kafka_batch())
    assert (await fetch(log_broker, offsets={0: 2})).error_code == Code.OFFSET_OUT_OF_RANGE
    assert (await fetch(log_broker, offsets={5: 0})).error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert (await fetch(log_broker, topic="no")).error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
    for unknown in (uuid4(), UUID(int=0)):
        assert (await fetch(log_broker, 13, topic=unknown)).error_code == Code.UNKNOWN_TOPIC_ID
    assert (await fetch(log_broker, leader_epoch=1)).error_code == Code.UNKNOWN_LEADER_EPOCH
    for known in (0, -1, -2):  # what is negative is none
        assert (await fetch(log_broker, leader_epoch=known)).error_code == 0


async def test_another_protocols_batches_are_translated(log_broker: Broker) -> None:
    topic = await create(log_broker)
    await produce(log_broker, kafka_batch())
    (partition_id,) = topic.partition_ids
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=T0)
    entries = [encode_entry(metadata, b"x" * 2000), b"no entry at all"]
    for payload in entries:
        foreign = batch(batch_format=BatchFormat.PULSAR, size=len(payload))
        await log_broker.runtime.partitions.append(partition_id, topic.config, foreign, payload)
    part = await fetch(log_broker)
    assert (part.error_code, [offset for offset, _, _ in batches(part)]) == (0, [0, 1, 2])
    part = await fetch(log_broker, offsets={0: 1}, max_bytes=100)  # one at least, and no more
    assert (part.error_code, [offset for offset, _, _ in batches(part)]) == (0, [1])


@pytest.mark.parametrize("session", [(0, -1), (0, 0)])
async def test_of_several_requests_for_a_partition_the_last_counts(
    log_broker: Broker, session: tuple[int, int]
) -> None:
    await create(log_broker, partitions=2)
    await produce(log_broker, kafka_batch())
    asked = fetch_request({0: 9, 1: 0}, session=session)
    asked.topics += fetch_request({0: 0}).topics
    (topic,) = (await log_broker.ask(asked, 12)).responses
    first, second = topic.partitions
    assert (first.partition_index, first.error_code, len(batches(first))) == (0, 0, 1)
    assert (second.partition_index, second.error_code, batches(second)) == (1, 0, [])


async def test_a_refusal_tells_no_offsets(log_broker: Broker) -> None:
    """As in Kafka: no aborted transactions after a failed read, none of them where none was."""
    await create(log_broker)
    await produce(log_broker, kafka_batch())

    async def told(offsets: dict[int, int], isolation: int, **what: Any) -> tuple[Any, ...]:
        part = await fetch(log_broker, offsets=offsets, isolation=isolation, **what)
        assert not part.records
        assert part.preferred_read_replica == -1
        ends = part.high_watermark, part.last_stable_offset, part.log_start_offset
        return part.error_code, *ends, part.aborted_transactions

    for isolation in (0, 1):
        nowhere = Code.OFFSET_OUT_OF_RANGE, -1, -1, -1, None
        assert await told({0: 9}, isolation) == nowhere
        assert await told({0: 0}, isolation, leader_epoch=1) == (
            Code.UNKNOWN_LEADER_EPOCH,
            *nowhere[1:],
        )
        assert await told({5: 0}, isolation) == (Code.UNKNOWN_TOPIC_OR_PARTITION, -1, -1, -1, [])


async def test_older_leader_epoch_is_fenced(log_broker: Broker, database_url: str) -> None:
    topic = await create(log_broker)
    await produce(log_broker, kafka_batch())
    with psycopg.connect(database_url, autocommit=True) as psql:
        psql.execute("UPDATE topic_partition SET leader_epoch = 2")
        psql.execute("INSERT INTO leader_epoch VALUES (%s, 2, 1)", [topic.partition_ids[0]])
    assert (await fetch(log_broker, leader_epoch=2)).error_code == 0
    assert (await fetch(log_broker, leader_epoch=1)).error_code == Code.FENCED_LEADER_EPOCH
    await produce(log_broker, kafka_batch())
    found = batches(await fetch(log_broker, leader_epoch=2))
    assert [(base, epoch) for base, epoch, _ in found] == [(0, 0), (1, 2)]


async def test_limits_and_a_batch_larger_than_them(log_broker: Broker) -> None:
    await create(log_broker, partitions=2)
    large = kafka_batch([b"x" * 5000])
    for p in (0, 1):
        await log_broker.ask(produce_request({p: large}), 9)
    answer = await log_broker.ask(
        fetch_request({1: 0, 0: 0}, max_bytes=100, partition_max_bytes=100), 11
    )
    ((first, second),) = [topic.partitions for topic in answer.responses]
    assert (first.partition_index, len(batches(first))) == (1, 1)
    assert (second.partition_index, len(batches(second))) == (0, 0)


async def test_a_long_poll_sleeps_until_something_comes(log_broker: Broker) -> None:
    await create(log_broker)
    waiting = asyncio.create_task(fetch(log_broker, wait_ms=20_000))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await produce(log_broker, kafka_batch())
    part = await asyncio.wait_for(waiting, 2)
    assert len(batches(part)) == 1


async def test_a_broker_that_stops_sends_readers_to_the_others(
    log_broker: Broker, make_broker: MakeBroker
) -> None:
    await create(log_broker)
    await produce(log_broker, kafka_batch())
    waiting = [asyncio.create_task(fetch(log_broker, offsets={0: 1}, wait_ms=20_000))]
    await asyncio.sleep(0.1)
    await make_broker()
    await log_broker.cluster.heartbeat()
    await log_broker.partitions.stop()
    waiting.append(asyncio.create_task(fetch(log_broker)))
    for part in await asyncio.wait_for(asyncio.gather(*waiting), 2):
        assert (part.error_code, batches(part)) == (Code.NOT_LEADER_OR_FOLLOWER, [])


async def test_there_are_none_where_it_is_alone(log_broker: Broker) -> None:
    await create(log_broker)
    await produce(log_broker, kafka_batch())
    await log_broker.partitions.stop()
    assert len(batches(await fetch(log_broker))) == 1


async def test_what_does_not_exist_does_not_end_a_long_poll(log_broker: Broker) -> None:
    await create(log_broker)
    waiting = asyncio.create_task(log_broker.ask(fetch_request({0: 0, 7: 0}, wait_ms=20_000), 11))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    await produce(log_broker, kafka_batch())
    (topic,) = (await asyncio.wait_for(waiting, 2)).responses
    codes = {part.partition_index: part.error_code for part in topic.partitions}
    assert codes == {0: 0, 7: Code.UNKNOWN_TOPIC_OR_PARTITION}
    started = time.monotonic()
    await log_broker.ask(fetch_request({0: 1, 7: 0}, wait_ms=300), 11)
    assert time.monotonic() - started >= 0.25


async def test_a_failed_read_ends_a_long_poll_beside_what_does_not_exist(
    log_broker: Broker,
) -> None:
    await create(log_broker)
    started = time.monotonic()
    answer = await log_broker.ask(fetch_request({7: 0, 0: 9}, wait_ms=20_000), 11)
    assert [part.error_code for part in answer.responses[0].partitions] == [
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.OFFSET_OUT_OF_RANGE,
    ]
    assert time.monotonic() - started < 5


async def test_a_long_poll_ends_for_what_is_asked_behind_it(log_broker: Broker) -> None:
    await create(log_broker)
    waiting: list[Any] = []
    log_broker.behind = PipelinedRequests(waiting)
    poll = asyncio.create_task(fetch(log_broker, wait_ms=20_000))
    await asyncio.sleep(0.1)
    assert not poll.done()
    waiting.append(SimpleNamespace(key=LIST_OFFSETS))
    log_broker.behind.look()
    assert batches(await asyncio.wait_for(poll, 2)) == []
    # It is there already when the next one begins.
    assert batches(await asyncio.wait_for(fetch(log_broker, wait_ms=20_000), 2)) == []


async def test_min_bytes(log_broker: Broker) -> None:
    await create(log_broker)
    one = kafka_batch([b"x" * 100])
    await produce(log_broker, one)
    waiting = asyncio.create_task(fetch(log_broker, wait_ms=20_000, min_bytes=2 * len(one)))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await produce(log_broker, one)
    assert len(batches(await asyncio.wait_for(waiting, 2))) == 2


@pytest.mark.parametrize(
    "what",
    [
        {"offsets": {0: 9}},
        {"offsets": {7: 0}},
        {"min_bytes": 0},
        {"min_bytes": 10**9, "max_bytes": 50},
    ],
    ids=["out of range", "unknown", "no minimum", "minimum beyond the maximum"],
)
async def test_fetch_without_a_reason_to_wait_answers_at_once(
    log_broker: Broker, what: dict[str, Any]
) -> None:
    await create(log_broker)
    await produce(log_broker, kafka_batch())
    started = time.monotonic()
    await fetch(log_broker, wait_ms=20_000, **what)
    assert time.monotonic() - started < 5


async def test_nothing_asked_for_is_answered_at_once(log_broker: Broker) -> None:
    started = time.monotonic()
    answer = await log_broker.ask(fetch_request({}, wait_ms=20_000), 11)
    assert (answer.error_code, answer.responses) == (0, [])
    assert time.monotonic() - started < 5


async def test_sessions(log_broker: Broker) -> None:
    await create(log_broker, partitions=3)
    answer = await log_broker.ask(fetch_request({0: 0, 1: 0, 2: 0}, session=(0, 0)), 12)
    session = answer.session_id
    assert session > 0
    assert len(answer.responses[0].partitions) == 3
    answer = await log_broker.ask(fetch_request({}, session=(session, 1)), 12)
    assert (answer.session_id, answer.responses) == (session, [])
    await log_broker.ask(produce_request({1: kafka_batch()}), 9)
    answer = await log_broker.ask(fetch_request({}, session=(session, 2)), 12)
    assert [p.partition_index for t in answer.responses for p in t.partitions] == [1]
    answer = await log_broker.ask(fetch_request({}, session=(session, 3), forget=[1]), 12)
    assert answer.responses == []
    for version, wrong, code in (
        (12, (session, 9), Code.INVALID_FETCH_SESSION_EPOCH),
        (12, (session + 1, 1), Code.FETCH_SESSION_ID_NOT_FOUND),
        (13, (session, 4), Code.FETCH_SESSION_TOPIC_ID_ERROR),
    ):
        answer = await log_broker.ask(fetch_request({}, session=wrong), version)
        assert (answer.error_code, answer.session_id, answer.responses) == (code, 0, [])


async def test_a_sessions_long_poll_waits_beside_what_does_not_exist(log_broker: Broker) -> None:
    await create(log_broker)
    first = fetch_request({0: 0, 7: 0}, session=(0, 0))
    session = (await log_broker.ask(first, 12)).session_id
    waiting = asyncio.create_task(
        log_broker.ask(fetch_request({}, session=(session, 1), wait_ms=20_000), 12)
    )
    await asyncio.sleep(0.3)
    assert not waiting.done()
    await produce(log_broker, kafka_batch())
    answer = await asyncio.wait_for(waiting, 2)
    told = [(part.partition_index, part.error_code) for part in answer.responses[0].partitions]
    assert sorted(told) == [(0, 0), (7, Code.UNKNOWN_TOPIC_OR_PARTITION)]


async def test_without_a_database(cut_off: Broker) -> None:
    cut_off.with_log()
    assert (await fetch(cut_off)).error_code == Code.KAFKA_STORAGE_ERROR
    await cut_off.close_log()
