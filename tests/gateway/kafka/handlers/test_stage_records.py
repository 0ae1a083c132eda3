"""StageRecords over the real store: what is staged, and what is refused."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from core.topic.rules import INTERNAL_TOPICS
from tests.batches import T0, kafka_batch
from tests.gateway.kafka.handlers.conftest import Broker, MakeBroker
from tests.gateway.kafka.handlers.producing import create
from tests.gateway.kafka.handlers.staging import (
    PUBLISHED,
    fetched,
    publish,
    published,
    stage,
    stage_request,
)
from tests.kafka_codes import Code

DAY_MS = 86_400_000


def rows(broker: Broker, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(broker.database.url, autocommit=True) as psql:
        return psql.execute(query.encode()).fetchall()


async def test_staged_records_are_invisible(log_broker: Broker) -> None:
    await create(log_broker)
    token = uuid4()
    answer = await stage(log_broker, token, ("t", 0, kafka_batch([b"a", b"b"])))
    assert (answer.error_code, answer.error_message, answer.staged) == (Code.NONE, None, 1)
    assert answer.expires_in_ms == DAY_MS
    assert await fetched(log_broker) == b""
    query = "SELECT token, batches, records, topics FROM v_staged_token"
    assert rows(log_broker, query) == [(token, 1, 2, "t (2)")]


async def test_a_request_that_comes_again_is_staged_once(log_broker: Broker) -> None:
    await create(log_broker, partitions=2)
    token = uuid4()
    first = [("t", 0, kafka_batch([b"a"])), ("t", 1, kafka_batch([b"b"]))]
    second = ("t", 0, kafka_batch([b"c"]))
    assert (await stage(log_broker, token, *first)).staged == 2
    assert (await stage(log_broker, token, second, first=2)).staged == 3
    for _ in range(2):
        again = await stage(log_broker, token, *first)
        assert (again.error_code, again.staged) == (Code.NONE, 3)
        again = await stage(log_broker, token, second, first=2)
        assert (again.error_code, again.staged) == (Code.NONE, 3)
    answer = await publish(log_broker, [(token, 3)])
    assert published(answer) == [("t", 0, 0, 2), ("t", 1, 0, 1)]


async def test_a_request_behind_one_that_is_missing_is_refused(log_broker: Broker) -> None:
    await create(log_broker)
    token = uuid4()
    await stage(log_broker, token, ("t", 0, kafka_batch()))
    answer = await stage(log_broker, token, ("t", 0, kafka_batch()), first=2)
    assert (answer.error_code, answer.staged) == (Code.OUT_OF_ORDER_SEQUENCE_NUMBER, 1)
    assert "Batch 2" in answer.error_message


async def test_a_request_cut_otherwise_than_before_is_refused(log_broker: Broker) -> None:
    await create(log_broker)
    token = uuid4()
    part = ("t", 0, kafka_batch())
    await stage(log_broker, token, part)
    answer = await stage(log_broker, token, part, part)
    assert (answer.error_code, answer.staged) == (Code.INVALID_REQUEST, 1)


async def test_two_brokers_stage_under_one_token(make_broker: MakeBroker) -> None:
    one, other = [(await make_broker()).with_log() for _ in range(2)]
    try:
        await create(one)
        token = uuid4()
        for number in range(4):
            broker = (one, other)[number % 2]
            part = ("t", 0, kafka_batch([b"%d" % number]))
            assert (await stage(broker, token, part, first=number)).staged == number + 1
            # The other one's memory is behind by now: it finds out before it refuses.
        again = await stage(other, token, ("t", 0, kafka_batch([b"0"])))
        assert (again.error_code, again.staged) == (Code.NONE, 4)
        assert (await publish(other, [(token, 4)])).outcome == PUBLISHED
        assert published(await publish(one, [(token, 0)], query="next")) == []
    finally:
        await one.close_log()
        await other.close_log()


async def test_requests_on_their_way_together_keep_their_order(log_broker: Broker) -> None:
    await create(log_broker)
    token = uuid4()
    records = [kafka_batch([b"%d" % n]) for n in range(20)]
    requests = [
        stage_request(token, ("t", 0, each), first=number) for number, each in enumerate(records)
    ]
    answers = await asyncio.gather(*(log_broker.ask(each, 0) for each in requests))
    assert [each.staged for each in answers][-1] == 20
    assert {each.error_code for each in answers} == {Code.NONE}


@pytest.mark.parametrize(
    ("records", "error", "says"),
    [
        (None, Code.INVALID_RECORD, "one record batch"),
        (kafka_batch()[:-1], Code.INVALID_RECORD, "cut short"),
        (kafka_batch()[:-1] + b"\0\0", Code.INVALID_RECORD, "one record batch"),
        (kafka_batch()[:-1] + b"\7", Code.CORRUPT_MESSAGE, "checksum"),
        (kafka_batch(producer=7, epoch=0, sequence=0), Code.INVALID_RECORD, "no producer id"),
        (kafka_batch([b"x" * 2_000_000]), Code.MESSAGE_TOO_LARGE, "2000"),
    ],
)
async def test_a_bad_batch_refuses_the_whole_request(
    log_broker: Broker, records: bytes | None, error: int, says: str
) -> None:
    await create(log_broker, partitions=2)
    token = uuid4()
    answer = await stage(log_broker, token, ("t", 0, kafka_batch()), ("t", 1, records))
    assert answer.error_code == error
    assert answer.error_message.startswith("t-1: ")
    assert says in answer.error_message
    assert rows(log_broker, "SELECT * FROM staged_token") == []
    assert rows(log_broker, "SELECT * FROM staged_batch") == []


async def test_topics_keep_their_rules(log_broker: Broker) -> None:
    await create(log_broker, "compacted", cleanup_policy="compact")
    await create(log_broker, "young", message_timestamp_before_max_ms="1000")
    token = uuid4()
    answer = await stage(log_broker, token, ("compacted", 0, kafka_batch([b"v"])))
    assert answer.error_code == Code.INVALID_RECORD
    assert "record 0: Compacted topic" in answer.error_message
    answer = await stage(log_broker, token, ("young", 0, kafka_batch([b"v"], timestamps=[T0])))
    assert answer.error_code == Code.INVALID_TIMESTAMP


async def test_a_log_that_stamps_records_stamps_them_when_they_are_staged(
    log_broker: Broker,
) -> None:
    await create(log_broker, message_timestamp_type="LogAppendTime")
    token = uuid4()
    before = log_broker.clock()
    await stage(log_broker, token, ("t", 0, kafka_batch([b"v"])))
    after = log_broker.clock()
    await publish(log_broker, [(token, 1)])
    found = await fetched(log_broker)
    assert before <= int.from_bytes(found[35:43], "big") <= after


@pytest.mark.parametrize("place", [("nobody", 0), ("t", 1), ("t", -1), ("t\0", 0)])
async def test_unknown_partition_is_refused(log_broker: Broker, place: tuple[str, int]) -> None:
    await create(log_broker)
    answer = await stage(log_broker, uuid4(), (*place, kafka_batch()))
    assert answer.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("name", sorted(INTERNAL_TOPICS))
async def test_internal_topics_are_not_for_clients(log_broker: Broker, name: str) -> None:
    await create(log_broker, name)
    await create(log_broker)
    for parts in ([(name, 0, kafka_batch())], [("t", 0, kafka_batch()), (name, 0, kafka_batch())]):
        answer = await stage(log_broker, uuid4(), *parts)
        assert answer.error_code == Code.INVALID_TOPIC_EXCEPTION
        assert answer.error_message == f"{name}-0: Cannot append to internal topic {name}"
    assert rows(log_broker, "SELECT token FROM v_staged_token") == []


async def test_request_without_batches_or_token_is_refused(log_broker: Broker) -> None:
    await create(log_broker)
    assert (await stage(log_broker, uuid4())).error_code == Code.INVALID_REQUEST
    part = ("t", 0, kafka_batch())
    assert (await stage(log_broker, None, part)).error_code == Code.INVALID_REQUEST
    assert (await stage(log_broker, uuid4(), part, first=-1)).error_code == Code.INVALID_REQUEST


async def test_staging_waits_where_too_much_lies_unpublished(make_broker: MakeBroker) -> None:
    batch = kafka_batch([b"x" * 1000])
    limits = {"penstock.staged.max.bytes": str(2 * len(batch))}
    broker = (await make_broker(limits)).with_log()
    try:
        await create(broker)
        one, other = uuid4(), uuid4()
        part = ("t", 0, batch)
        assert (await stage(broker, one, part, part)).error_code == Code.NONE
        refused = await stage(broker, other, part)
        assert (refused.error_code, refused.staged) == (Code.THROTTLING_QUOTA_EXCEEDED, 0)
        assert "penstock.staged.max.bytes" in refused.error_message
        # What follows it has to wait too, so that nothing is left out.
        assert (
            await stage(broker, other, part, first=1)
        ).error_code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
        await publish(broker, [(one, 2)])
        assert (await stage(broker, other, part)).error_code == Code.NONE
    finally:
        await broker.close_log()


async def test_stage_without_a_database_is_refused(cut_off: Broker) -> None:
    cut_off.with_log()
    try:
        answer = await stage(cut_off, uuid4(), ("t", 0, kafka_batch()))
        assert answer.error_code == Code.NOT_ENOUGH_REPLICAS
    finally:
        await cut_off.close_log()
