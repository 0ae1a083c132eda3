"""DescribeTransactions: what is known of transactional ids."""

from __future__ import annotations

import asyncio
import time

import pytest

from core.topic.rules import NewTopic
from gateway.kafka.codec import DescribeTransactionsRequest
from tests.gateway.kafka.handlers.conftest import Broker, MakeBroker
from tests.gateway.kafka.handlers.grouping import topic_of
from tests.gateway.kafka.handlers.transacting import NAME, describe, init_request, producer_of
from tests.kafka_codes import Code


async def test_transaction_is_described_in_each_of_its_states(txn_broker: Broker) -> None:
    await topic_of(txn_broker, 3)
    answer = await txn_broker.ask(init_request(transaction_timeout_ms=7_000), 4)
    producer = await producer_of(txn_broker)

    async def fields() -> tuple[object, ...]:
        [found] = await describe(txn_broker)
        assert (found.error_code, found.transactional_id) == (Code.NONE, NAME)
        assert found.producer_id == answer.producer_id
        topics = {each.topic: each.partitions for each in found.topics}
        return found.transaction_state, found.producer_epoch, topics

    [found] = await describe(txn_broker)
    assert (found.transaction_timeout_ms, found.transaction_start_time_ms) == (60_000, -1)
    assert await fields() == ("Empty", 1, {})
    await producer.begin(2, 0)
    [found] = await describe(txn_broker)
    assert abs(found.transaction_start_time_ms - time.time() * 1000) < 60_000
    assert await fields() == ("Ongoing", 1, {"t": [0, 2]})
    await producer.end()
    assert await fields() == ("CompleteCommit", 1, {})
    [found] = await describe(txn_broker)
    assert found.transaction_start_time_ms == -1
    await producer.begin(1)
    await producer.end(False, 5)
    assert await fields() == ("CompleteAbort", 2, {})


@pytest.mark.parametrize(
    ("group", "partition"),
    [("g", 3), ("my-group", 12), ("grüße", 23), ("\U0001f600 group", 6), ("polygenelubricants", 0)],
)
async def test_groups_show_where_kafka_would_keep_them(
    log_broker: Broker, group: str, partition: int
) -> None:
    """partition: as Java says, Math.abs(group.hashCode()) % 50."""
    producer = await producer_of(log_broker)
    assert await producer.add_offsets(group) == Code.NONE
    [found] = await describe(log_broker)
    assert [(each.topic, each.partitions) for each in found.topics] == [
        ("__consumer_offsets", [partition])
    ]


async def test_unknown_ids(log_broker: Broker) -> None:
    await producer_of(log_broker)
    found = await describe(log_broker, "none", "", NAME, "a\0b", "none")
    assert [(each.transactional_id, each.error_code) for each in found] == [
        ("none", Code.TRANSACTIONAL_ID_NOT_FOUND),
        ("", Code.INVALID_REQUEST),
        (NAME, Code.NONE),
        ("a\0b", Code.TRANSACTIONAL_ID_NOT_FOUND),
        ("none", Code.TRANSACTIONAL_ID_NOT_FOUND),
    ]
    answer = await log_broker.ask(DescribeTransactionsRequest(transactional_ids=[]), 0)
    assert answer.transaction_states == []


async def test_deleted_topic_is_left_out(log_broker: Broker) -> None:
    await log_broker.topics.create([NewTopic("t", 1), NewTopic("u", 1)])
    producer = await producer_of(log_broker)
    await producer.add({"t": [0], "u": [0]})
    await log_broker.topics.delete(["t"])
    [found] = await describe(log_broker)
    assert [(each.topic, each.partitions) for each in found.topics] == [("u", [0])]


async def test_any_broker_answers(make_broker: MakeBroker) -> None:
    one, other = [(await make_broker()).with_log() for _ in range(2)]
    await one.topics.create([NewTopic("t", 1)])
    await (await producer_of(one)).begin()
    [here], [there] = await asyncio.gather(describe(one), describe(other))
    assert here == there
    assert there.transaction_state == "Ongoing"
    for broker in (one, other):
        await broker.close_log()


async def test_without_a_database(cut_off: Broker) -> None:
    cut_off.with_log()
    found = await describe(cut_off, "a", "b")
    assert [(each.transactional_id, each.error_code) for each in found] == [
        ("a", Code.COORDINATOR_NOT_AVAILABLE),
        ("b", Code.COORDINATOR_NOT_AVAILABLE),
    ]
    await cut_off.close_log()
