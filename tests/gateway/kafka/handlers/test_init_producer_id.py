"""InitProducerId: idempotent producers, and those with a transactional id."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from tests.gateway.kafka.handlers.conftest import Broker, MakeBroker
from tests.gateway.kafka.handlers.producing import create
from tests.gateway.kafka.handlers.transacting import (
    NAME,
    TIMEOUT_MS,
    Producer,
    describe,
    init_request,
    producer_of,
    state_of,
)
from tests.kafka_codes import Code
from tests.keys import named

VERSIONS = range(6)


async def ask(broker: Broker, version: int = 4, **what: Any) -> tuple[int, int, int]:
    request = init_request(
        **{"name": what.pop("transactional_id", None), "transaction_timeout_ms": 60_000, **what}
    )
    answer = await broker.ask(request, version)
    return answer.error_code, answer.producer_id, answer.producer_epoch


@pytest.mark.parametrize("version", range(6))
async def test_a_fresh_id_with_epoch_zero(log_broker: Broker, version: int) -> None:
    found = [await ask(log_broker, version) for _ in range(3)]
    assert {(error, epoch) for error, _, epoch in found} == {(0, 0)}
    ids = [producer_id for _, producer_id, _ in found]
    assert ids == sorted(set(ids))
    assert ids[0] >= 0


async def test_who_asked_for_an_id_is_remembered(log_broker: Broker, database_url: str) -> None:
    asked = await log_broker.ask(init_request(name=None), 4, client_id="loader\0␀")
    first = asked.producer_id
    _, second, _ = await ask(log_broker)
    await log_broker.producer_clients.write()
    with psycopg.connect(database_url) as connection:
        rows = connection.execute(
            "SELECT producer_id, transactional_id, client_id, client_host, owner"
            " FROM penstock.v_producer_client ORDER BY producer_id"
        ).fetchall()
    assert rows == [
        (first, None, "loader␀0␀␀", "/127.0.0.1", None),
        (second, None, "tester", "/127.0.0.1", None),
    ]


async def test_brokers_give_different_ids(make_broker: MakeBroker) -> None:
    brokers = [(await make_broker()).with_log() for _ in range(2)]
    ids = [(await ask(broker))[1] for _ in range(5) for broker in brokers]
    assert len(set(ids)) == 10
    for broker in brokers:
        await broker.close_log()


async def test_a_block_is_dropped_after_a_failover(log_broker: Broker) -> None:
    (_, first, _) = await ask(log_broker)
    log_broker.producer_ids.forget()
    assert (await ask(log_broker))[1] >= first + 1_000


async def test_without_a_transactional_id_the_current_one_does_not_matter(
    log_broker: Broker,
) -> None:
    _, old, _ = await ask(log_broker)
    error, new, epoch = await ask(log_broker, producer_id=old, producer_epoch=3)
    assert (error, epoch) == (0, 0)
    assert new != old


@pytest.mark.parametrize(
    "what", [{"producer_id": 5}, {"producer_epoch": 5}], ids=["no epoch", "no id"]
)
async def test_an_id_and_an_epoch_come_together(log_broker: Broker, what: dict[str, int]) -> None:
    # KafkaApis.handleInitProducerIdRequest
    assert await ask(log_broker, **what) == (Code.INVALID_REQUEST, -1, -1)


# With a transactional id.


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_name_keeps_its_id_and_gets_the_next_epoch(
    log_broker: Broker, version: int
) -> None:
    error, producer_id, epoch = await ask(log_broker, version, transactional_id="t")
    assert (error, epoch) == (Code.NONE, 0)
    again = await ask(log_broker, version, transactional_id="t")
    assert again == (Code.NONE, producer_id, 1)
    other = await ask(log_broker, version, transactional_id="u")
    assert (other[0], other[2]) == (Code.NONE, 0)
    assert other[1] != producer_id


@pytest.mark.parametrize("name", ["", "a\0b"])
@pytest.mark.parametrize("version", VERSIONS)
async def test_invalid_transactional_id_is_refused(
    log_broker: Broker, version: int, name: str
) -> None:
    found = await ask(log_broker, version, transactional_id=name)
    assert found == (Code.INVALID_REQUEST, -1, -1)


@pytest.mark.parametrize("name", ["ü", " ", "n" * 32_000])
async def test_any_other_transactional_id_gets_an_epoch(log_broker: Broker, name: str) -> None:
    assert (await ask(log_broker, transactional_id=name))[0] == Code.NONE
    assert (await ask(log_broker, transactional_id=name))[2] == 1
    [described] = await describe(log_broker, name)
    assert (described.transactional_id, described.producer_epoch) == (name, 1)


@pytest.mark.parametrize("version", VERSIONS)
async def test_timeouts(log_broker: Broker, version: int) -> None:
    async def error_of(timeout_ms: int) -> int:
        request = {"transactional_id": "t", "transaction_timeout_ms": timeout_ms}
        return (await ask(log_broker, version, **request))[0]

    for timeout_ms in (0, -1, 900_001):
        assert await error_of(timeout_ms) == Code.INVALID_TRANSACTION_TIMEOUT
    for timeout_ms in (1, 900_000):
        assert await error_of(timeout_ms) == Code.NONE


@pytest.mark.parametrize("version", VERSIONS[3:])
async def test_recovering_with_the_current_id_and_epoch(log_broker: Broker, version: int) -> None:
    """KIP-360."""
    _, producer_id, _ = await ask(log_broker, version, transactional_id="t")

    async def recover(epoch: int, producer_id: int = producer_id) -> tuple[int, int, int]:
        current = {"producer_id": producer_id, "producer_epoch": epoch}
        return await ask(log_broker, version, transactional_id="t", **current)

    assert await recover(0) == (Code.NONE, producer_id, 1)
    assert await recover(0) == (Code.NONE, producer_id, 1)  # the answer was lost
    assert await recover(1) == (Code.NONE, producer_id, 2)
    fenced = Code.PRODUCER_FENCED if version >= 4 else Code.INVALID_PRODUCER_EPOCH
    for epoch, of in ((0, producer_id), (7, producer_id), (2, producer_id + 1000)):
        assert await recover(epoch, of) == (fenced, -1, -1)
    for half in ({"producer_id": producer_id}, {"producer_epoch": 2}):
        found = await ask(log_broker, version, transactional_id="t", **half)
        assert found == (Code.INVALID_REQUEST, -1, -1)


async def test_recovering_from_a_transaction_that_was_overdue(txn_broker: Broker) -> None:
    """V1 as V2 (Kafka 4.1): kafka-python's producer goes on so."""
    broker = txn_broker
    await create(broker, "t")
    answer = await broker.ask(init_request(transaction_timeout_ms=1), 4)
    producer = Producer(broker, answer.producer_id, answer.producer_epoch)
    await producer.begin()
    assert await producer.write() == Code.NONE
    await asyncio.sleep(0.05)
    assert await broker.transactions.abort_overdue() == 1
    assert (await producer.end()).error_code == Code.PRODUCER_FENCED
    current = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
    recovered = await broker.ask(init_request(**current), 4)
    assert (recovered.error_code, recovered.producer_epoch) == (Code.NONE, 1)
    assert await state_of(broker) == "Empty"
    again = replace(producer, producer_epoch=1)
    await again.begin()
    assert await again.write() == Code.NONE
    assert (await again.end()).error_code == Code.NONE
    assert await producer.write(1) == Code.INVALID_PRODUCER_EPOCH


async def test_forgotten_transactional_id_starts_anew(log_broker: Broker) -> None:
    current = {"producer_id": 123_456, "producer_epoch": 5}
    error, producer_id, epoch = await ask(log_broker, transactional_id="t", **current)
    assert (error, epoch) == (Code.NONE, 0)
    assert producer_id != 123_456


async def test_the_second_of_a_name_ends_what_the_first_left_open(txn_broker: Broker) -> None:
    await create(txn_broker)
    first = await (await producer_of(txn_broker)).begin()
    assert await first.write() == Code.NONE
    second = await producer_of(txn_broker)
    assert (second.producer_id, second.producer_epoch) == (first.producer_id, 1)
    assert await state_of(txn_broker) == "Empty"
    assert await first.write(1) == Code.INVALID_PRODUCER_EPOCH
    assert (await first.end()).error_code == Code.PRODUCER_FENCED
    await second.begin()
    assert await second.write() == Code.NONE


async def test_client_and_timeout_are_remembered(log_broker: Broker) -> None:
    await log_broker.ask(init_request(), 4, "teller")
    key = named(NAME)
    found = (await log_broker.transactions.describe([key]))[key].metadata
    assert (found.client_id, found.client_host) == ("teller", "/127.0.0.1")
    assert found.timeout_ms == TIMEOUT_MS


async def test_without_a_database(cut_off: Broker) -> None:
    cut_off.with_log()
    for name in (None, "t"):
        found = await ask(cut_off, transactional_id=name)
        assert found == (Code.COORDINATOR_NOT_AVAILABLE, -1, -1)
    await cut_off.close_log()
