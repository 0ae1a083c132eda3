"""PublishStaged over the real store: all of it, once, or nothing."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from core.security.principal import ANONYMOUS, Principal
from tests.batches import kafka_batch
from tests.gateway.kafka.handlers.conftest import Broker, MakeBroker
from tests.gateway.kafka.handlers.fetching import fetch_request
from tests.gateway.kafka.handlers.producing import create, produce
from tests.gateway.kafka.handlers.staging import (
    ALREADY,
    PUBLISHED,
    drop,
    fetched,
    publish,
    published,
    stage,
)
from tests.kafka_codes import Code


def rows(broker: Broker, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(broker.database.url, autocommit=True) as psql:
        return psql.execute(query.encode()).fetchall()


async def staged(broker: Broker, *values: bytes, topic: str = "t", index: int = 0) -> UUID:
    """A token with one batch of these values."""
    token = uuid4()
    answer = await stage(broker, token, (topic, index, kafka_batch(list(values))))
    assert answer.error_code == Code.NONE
    return token


async def test_tokens_become_visible_in_the_order_given(log_broker: Broker) -> None:
    await create(log_broker, partitions=2)
    await produce(log_broker, kafka_batch([b"before"]))
    one, other = uuid4(), uuid4()
    await stage(log_broker, one, ("t", 0, kafka_batch([b"1", b"2"])), ("t", 1, kafka_batch([b"3"])))
    await stage(log_broker, one, ("t", 0, kafka_batch([b"4"])), first=2)
    await stage(log_broker, other, ("t", 0, kafka_batch([b"5"])))
    answer = await publish(log_broker, [(other, 1), (one, 3)])
    assert (answer.error_code, answer.outcome) == (Code.NONE, PUBLISHED)
    assert published(answer) == [("t", 0, 1, 4), ("t", 1, 0, 1)]
    found = await fetched(log_broker)
    places = [found.index(value) for value in (b"before", b"\x025", b"\x021", b"\x024")]
    assert places == sorted(places)
    await produce(log_broker, kafka_batch([b"after"]))
    assert b"after" in await fetched(log_broker)
    assert rows(log_broker, "SELECT * FROM staged_token") == []
    assert rows(log_broker, "SELECT * FROM staged_batch") == []
    query = "SELECT query_id, sink, batch_id FROM v_published_batch"
    assert rows(log_broker, query) == [("query", "sink", 0)]


async def test_a_batch_is_published_once(log_broker: Broker) -> None:
    await create(log_broker)
    first, replay = await staged(log_broker, b"a"), await staged(log_broker, b"a")
    assert (await publish(log_broker, [(first, 1)], batch_id=7)).outcome == PUBLISHED
    when = "SELECT published_at FROM published_batch"
    published_at = rows(log_broker, when)
    for tokens in ([(first, 1)], [(replay, 1)], []):
        answer = await publish(log_broker, tokens, batch_id=7)
        assert (answer.error_code, answer.outcome, answer.partitions) == (Code.NONE, ALREADY, [])
    assert rows(log_broker, "SELECT * FROM staged_batch") == []  # the replay's was dropped
    assert rows(log_broker, when) > published_at  # each answer rests on a commit of its own
    older = await staged(log_broker, b"b")
    answer = await publish(log_broker, [(older, 1)], batch_id=6)
    assert (answer.outcome, answer.highest_batch_id) == (ALREADY, 7)
    newer = await staged(log_broker, b"c")
    assert (await publish(log_broker, [(newer, 1)], batch_id=9)).outcome == PUBLISHED
    assert rows(log_broker, "SELECT next_offset FROM topic_partition") == [(2,)]


async def test_queries_and_sinks_do_not_know_each_other(log_broker: Broker) -> None:
    await create(log_broker)
    for query, sink in (("q", ""), ("q", "s"), ("qs", ""), ("1 q", "s"), ("nul\0", "␀")):
        token = await staged(log_broker, b"a")
        answer = await publish(log_broker, [(token, 1)], query=query, sink=sink)
        assert answer.outcome == PUBLISHED


async def test_a_batch_job_publishes_once(log_broker: Broker) -> None:
    await create(log_broker)
    one, other = await staged(log_broker, b"a"), await staged(log_broker, b"a")
    assert (await publish(log_broker, [(one, 1)], batch_id=-1)).outcome == PUBLISHED
    assert (await publish(log_broker, [(other, 1)], batch_id=-1)).outcome == ALREADY


async def test_an_empty_batch_moves_the_guard(log_broker: Broker) -> None:
    await create(log_broker)
    answer = await publish(log_broker, [], batch_id=3)
    assert (answer.error_code, answer.outcome, answer.partitions) == (Code.NONE, PUBLISHED, [])
    token = await staged(log_broker, b"a")
    assert (await publish(log_broker, [(token, 1)], batch_id=3)).outcome == ALREADY


@pytest.mark.parametrize("batches", [0, 1, 3])
async def test_a_token_with_another_number_of_batches_publishes_nothing(
    log_broker: Broker, batches: int
) -> None:
    await create(log_broker)
    token, other = uuid4(), await staged(log_broker, b"b")
    part = ("t", 0, kafka_batch([b"a"]))
    await stage(log_broker, token, part, part)
    answer = await publish(log_broker, [(other, 1), (token, batches)])
    assert (answer.error_code, answer.outcome) == (Code.RESOURCE_NOT_FOUND, 0)
    assert f"Token {token} holds 2 batches, not {batches}" in answer.error_message
    assert await fetched(log_broker) == b""
    assert (await publish(log_broker, [(other, 1), (token, 2)])).outcome == PUBLISHED


async def test_a_missing_token_publishes_nothing(log_broker: Broker) -> None:
    await create(log_broker)
    there, missing, dropped = await staged(log_broker, b"b"), uuid4(), await staged(log_broker, b"")
    await drop(log_broker, dropped)
    for token in (missing, dropped):
        answer = await publish(log_broker, [(there, 1), (token, 1)])
        assert answer.error_code == Code.RESOURCE_NOT_FOUND
        assert str(token) in answer.error_message
    assert await fetched(log_broker) == b""
    assert rows(log_broker, "SELECT * FROM published_batch") == []


async def test_a_deleted_topic_publishes_nothing_and_is_named(log_broker: Broker) -> None:
    await create(log_broker)
    await create(log_broker, "gone")
    here, gone = await staged(log_broker, b"b"), await staged(log_broker, b"a", topic="gone")
    await log_broker.topics.delete(["gone"])
    await create(log_broker, "gone")
    answer = await publish(log_broker, [(here, 1), (gone, 1)])
    assert answer.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert "gone-0 was deleted" in answer.error_message
    assert await fetched(log_broker) == b""
    assert await fetched(log_broker, "gone") == b""
    assert (await publish(log_broker, [(here, 1)])).outcome == PUBLISHED


async def test_invalid_requests_publish_nothing(log_broker: Broker) -> None:
    await create(log_broker)
    token = await staged(log_broker, b"a")
    answer = await publish(log_broker, [(token, 1), (token, 1)])
    assert (answer.error_code, str(token) in answer.error_message) == (Code.INVALID_REQUEST, True)
    assert (await publish(log_broker, [(token, 1)], batch_id=-2)).error_code == Code.INVALID_REQUEST
    assert (await publish(log_broker, [(token, 1)], query="")).error_code == Code.INVALID_REQUEST
    assert (await publish(log_broker, [(None, 1)])).error_code == Code.INVALID_REQUEST
    assert (await publish(log_broker, [(token, 50_001)])).error_code == Code.POLICY_VIOLATION
    assert await fetched(log_broker) == b""
    assert (await publish(log_broker, [(token, 1)])).outcome == PUBLISHED


async def test_one_of_many_brokers_asked_at_once_publishes(make_broker: MakeBroker) -> None:
    brokers = [(await make_broker()).with_log() for _ in range(3)]
    try:
        await create(brokers[0])
        for batch_id in range(10):
            tokens = [await staged(broker, b"%d" % batch_id) for broker in brokers]
            asked = (
                publish(broker, [(token, 1)], batch_id=batch_id)
                for broker, token in zip(brokers, tokens, strict=True)
            )
            outcomes = [answer.outcome for answer in await asyncio.gather(*asked)]
            assert sorted(outcomes) == [PUBLISHED, ALREADY, ALREADY]
        for broker in brokers:
            assert (await fetched(broker)).count(b"\x02") >= 10
        assert rows(brokers[0], "SELECT next_offset FROM topic_partition") == [(10,)]
        assert rows(brokers[0], "SELECT * FROM staged_batch") == []
    finally:
        for broker in brokers:
            await broker.close_log()


async def test_the_same_request_twice_at_once_at_two_brokers(make_broker: MakeBroker) -> None:
    brokers = [(await make_broker()).with_log() for _ in range(2)]
    try:
        await create(brokers[0])
        for batch_id in range(10):
            token = await staged(brokers[batch_id % 2], b"v")
            asked = (publish(each, [(token, 1)], batch_id=batch_id) for each in brokers * 2)
            outcomes = [answer.outcome for answer in await asyncio.gather(*asked)]
            assert sorted(outcomes) == [PUBLISHED, ALREADY, ALREADY, ALREADY]
        assert rows(brokers[0], "SELECT next_offset FROM topic_partition") == [(10,)]
    finally:
        for broker in brokers:
            await broker.close_log()


async def test_among_appends_of_another_broker(make_broker: MakeBroker) -> None:
    one, other = [(await make_broker()).with_log() for _ in range(2)]
    try:
        await create(one)

        async def append() -> None:
            for _ in range(30):
                assert (await produce(other, kafka_batch([b"p"]))).error_code == Code.NONE

        async def publish_all() -> None:
            for batch_id in range(30):
                token = await staged(one, b"s")
                answer = await publish(one, [(token, 1)], batch_id=batch_id)
                assert answer.outcome == PUBLISHED

        await asyncio.gather(append(), publish_all())
        assert rows(one, "SELECT next_offset, batch_count FROM topic_partition") == [(60, 60)]
    finally:
        await one.close_log()
        await other.close_log()


async def test_a_reader_that_waits_is_woken(log_broker: Broker) -> None:
    await create(log_broker)
    token = await staged(log_broker, b"news")
    request = fetch_request({0: 0}, wait_ms=60_000)
    waiting = asyncio.create_task(log_broker.ask(request, 11))
    await asyncio.sleep(0.1)
    await publish(log_broker, [(token, 1)])
    async with asyncio.timeout(30):
        answer = await waiting
    assert b"news" in bytes(answer.responses[0].partitions[0].records)


async def test_thousands_of_batches_over_many_partitions_in_one_commit(log_broker: Broker) -> None:
    partitions, tokens_count, each = 50, 25, 200
    await create(log_broker, partitions=partitions)
    tokens = []
    for number in range(tokens_count):
        token = uuid4()
        parts = [("t", n % partitions, kafka_batch([b"%d/%d" % (number, n)])) for n in range(each)]
        answer = await stage(log_broker, token, *parts)
        assert answer.staged == each
        tokens.append((token, each))
    answer = await publish(log_broker, tokens)
    assert answer.outcome == PUBLISHED
    count = tokens_count * each // partitions
    assert published(answer) == [("t", n, 0, count) for n in range(partitions)]
    written_by = "SELECT xmin FROM record_batch UNION SELECT xmin FROM published_batch"
    assert len(rows(log_broker, f"{written_by} UNION SELECT xmin FROM topic_partition")) == 1
    found = await fetched(log_broker, index=7)
    assert all(b"%d/7" % number in found for number in range(tokens_count))


async def test_the_outcome_is_not_known_yet(log_broker: Broker) -> None:
    await create(log_broker)
    token = await staged(log_broker, b"a")
    with psycopg.connect(log_broker.database.url) as psql:
        psql.execute("SELECT * FROM staged_token FOR UPDATE")
        answer = await publish(log_broker, [(token, 1)], timeout_ms=100)
        assert (answer.error_code, answer.outcome) == (Code.REQUEST_TIMED_OUT, 0)
        # Others are not held up by who holds its rows for long.
        other = await staged(log_broker, b"b")
        async with asyncio.timeout(30):
            assert (await publish(log_broker, [(other, 1)], query="other")).outcome == PUBLISHED
    async with asyncio.timeout(30):
        assert (await publish(log_broker, [(token, 1)])).outcome == ALREADY
    assert rows(log_broker, "SELECT next_offset FROM topic_partition") == [(2,)]


async def test_a_partition_held_elsewhere_parks_the_publication(log_broker: Broker) -> None:
    await create(log_broker, partitions=2)
    token, other = await staged(log_broker, b"a"), await staged(log_broker, b"b", index=1)
    with psycopg.connect(log_broker.database.url) as psql:
        psql.execute("SELECT * FROM topic_partition WHERE partition = 0 FOR UPDATE")
        held = asyncio.create_task(publish(log_broker, [(token, 1)], batch_id=1))
        await asyncio.sleep(0.05)
        async with asyncio.timeout(30):
            assert (await publish(log_broker, [(other, 1)], query="other")).outcome == PUBLISHED
        assert not held.done()
    async with asyncio.timeout(30):
        assert (await held).outcome == PUBLISHED


async def test_publish_without_a_database_is_refused(cut_off: Broker) -> None:
    cut_off.with_log()
    try:
        answer = await publish(cut_off, [(uuid4(), 1)])
        assert answer.error_code == Code.NOT_ENOUGH_REPLICAS
    finally:
        await cut_off.close_log()


# --- whose it is ---

ALICE, BOB = Principal("alice"), Principal("bob")


async def test_what_is_staged_belongs_to_who_has_staged_it(log_broker: Broker) -> None:
    broker = log_broker
    await create(broker, "t")
    broker.principal = ALICE
    token = await staged(broker, b"hers")
    for other in (BOB, ANONYMOUS):
        broker.principal = other
        refused = await publish(broker, [(token, 1)])
        assert refused.error_code == Code.RESOURCE_NOT_FOUND
        assert f"Token {token} holds 0 batches" in refused.error_message
        assert (await drop(broker, token)).error_code == Code.NONE
        again = await stage(broker, token, ("t", 0, kafka_batch([b"his"])), first=1)
        assert again.error_code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert f"of token {token} was sent" in again.error_message
    broker.principal = Principal("alice", is_by_token=True)  # she, by a delegation token
    assert (await publish(broker, [(token, 1)])).outcome == PUBLISHED
    assert b"hers" in await fetched(broker) and b"his" not in await fetched(broker)
