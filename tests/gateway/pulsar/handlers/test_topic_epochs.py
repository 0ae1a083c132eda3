"""Topic epochs: what outlives a broker, and what one that has lost its lease can do no more."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from core.ports.log import StoreUnavailable
from core.shard import shard_of_partition
from core.topic.rules import NewTopic
from gateway.pulsar.commands import CommandType, ProducerAccessMode, ServerError
from gateway.pulsar.commands_pb2 import CommandCloseProducer, CommandProducer
from tests.gateway.pulsar.conftest import Broker
from tests.gateway.pulsar.conversing import Conversation, entry_of

SHARED = ProducerAccessMode.SHARED
EXCLUSIVE = ProducerAccessMode.EXCLUSIVE
WAITING = ProducerAccessMode.WAIT_FOR_EXCLUSIVE
FENCING = ProducerAccessMode.EXCLUSIVE_WITH_FENCING


class Rows:
    """The database, as people see it."""

    def __init__(self, url: str) -> None:
        self._url = url

    def run(self, statement: str) -> Any:
        with psycopg.connect(self._url, autocommit=True) as connection:
            done = connection.execute(statement.encode())
            return done.fetchone() if done.description else None

    def epoch(self) -> int | None:
        (found,) = self.run("SELECT topic_epoch FROM v_topic_partition WHERE topic = 't'")
        return None if found is None else int(found)


@pytest.fixture
def rows(database_url: str) -> Rows:
    return Rows(database_url)


@pytest.fixture
async def brokers(make_broker: Any) -> tuple[Broker, Broker]:
    """The holder of the topic's lease, and another."""
    one, other = await make_broker(), await make_broker()
    for broker in (one, other):
        await broker.runtime.cluster.heartbeat()
    await one.runtime.topics.create([NewTopic("t", 1)])
    (p,) = (await one.runtime.topics.get("t")).partition_ids
    assert await one.runtime.subscriptions.claim(p)
    return one, other


async def produce(client: Conversation, mode: int = EXCLUSIVE, **producer: Any) -> int:
    """Its PRODUCER; gives the topic epoch that it is told."""
    success = await client.produce_to("t", producer_access_mode=mode, **producer)
    return int(success.topic_epoch) if success.HasField("topic_epoch") else -1


async def refused(client: Conversation, mode: int = EXCLUSIVE, **producer: Any) -> ServerError:
    wanted = CommandProducer(topic="t", producer_id=9, producer_access_mode=mode, **producer)
    return ServerError((await client.ask(wanted, CommandType.ERROR)).error)


async def close(client: Conversation) -> None:
    await client.ask(CommandCloseProducer(producer_id=0), CommandType.SUCCESS)


async def test_it_is_stored_before_it_is_told(broker: Broker, rows: Rows) -> None:
    client, other = await broker.client(), await broker.client()
    assert (await produce(client), rows.epoch()) == (0, 0)
    assert not (await other.produce_to("t", producer_access_mode=WAITING)).producer_ready
    assert rows.epoch() == 0
    await close(client)
    ready = await other.hear(CommandType.PRODUCER_SUCCESS)
    assert (ready.producer_ready, ready.topic_epoch, rows.epoch()) == (True, 1, 1)
    await close(other)
    assert (await produce(client, SHARED), rows.epoch()) == (1, 1)
    assert (await produce(other, FENCING), rows.epoch()) == (2, 2)
    await client.hear(CommandType.CLOSE_PRODUCER)
    await close(other)
    assert await refused(client, topic_epoch=2**63 - 1) == ServerError.NOT_ALLOWED_ERROR
    assert await refused(client, topic_epoch=2**64 - 1) == ServerError.PRODUCER_FENCED


@pytest.mark.parametrize("mode", [EXCLUSIVE, WAITING, FENCING])
async def test_another_broker_goes_on_from_what_is_stored(
    brokers: tuple[Broker, Broker], mode: ProducerAccessMode
) -> None:
    one, other = brokers
    first, second = await one.client(), await one.client()
    assert await produce(first) == 0
    assert await produce(second, FENCING) == 1
    await first.hear(CommandType.CLOSE_PRODUCER)
    await one.runtime.leases.release()
    await second.hear(CommandType.CLOSE_PRODUCER)
    elsewhere = await other.client()
    assert await refused(elsewhere, mode, topic_epoch=0) == ServerError.PRODUCER_FENCED
    assert await produce(elsewhere, mode, topic_epoch=1) == 1
    await close(elsewhere)
    assert await produce(elsewhere, mode) == 2


async def taken_over(brokers: tuple[Broker, Broker], rows: Rows) -> None:
    """The lease is the other's, and its former holder has not noticed, as after SIGSTOP."""
    one, other = brokers
    (p,) = (await one.runtime.topics.get("t")).partition_ids
    broker_id = one.runtime.cluster.broker_id
    rows.run(f"UPDATE broker SET heartbeat_at = '-infinity' WHERE broker_id = {broker_id}")
    assert await other.runtime.subscriptions.claim(p)
    rows.run(f"UPDATE broker SET heartbeat_at = clock_timestamp() WHERE broker_id = {broker_id}")
    assert one.runtime.leases.held(shard_of_partition(p))


async def test_a_former_holder_admits_nobody_alone(
    brokers: tuple[Broker, Broker], rows: Rows
) -> None:
    client = await brokers[0].client()
    assert await produce(client, SHARED) == -1
    await close(client)
    await taken_over(brokers, rows)
    assert await refused(client) == ServerError.SERVICE_NOT_READY
    assert rows.epoch() is None
    assert await produce(await brokers[1].client()) == 0
    assert await refused(client) == ServerError.SERVICE_NOT_READY


@pytest.mark.parametrize("mode", [SHARED, EXCLUSIVE])
async def test_what_a_former_holder_takes_in_is_not_stored_beside_an_exclusive_one(
    brokers: tuple[Broker, Broker], rows: Rows, mode: ProducerAccessMode
) -> None:
    client = await brokers[0].client()
    before = await produce(client, mode)
    client.send(entry_of(b"before"))
    await client.hear(CommandType.SEND_RECEIPT)
    await taken_over(brokers, rows)
    elsewhere = await brokers[1].client()
    assert await produce(elsewhere, FENCING) == before + 1
    client.send(entry_of(b"late"), sequence_id=1)
    await client.hear(CommandType.CLOSE_PRODUCER)
    elsewhere.send(entry_of(b"after"))
    assert (await elsewhere.hear(CommandType.SEND_RECEIPT)).message_id.entry_id == 1
    stored = [bytes(line[2]) for line in await brokers[1].lines("t")]
    assert [b"late" in each for each in stored] == [False, False]


async def test_one_that_waits_comes_again_if_its_turn_cannot_be_stored(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, other = await broker.client(), await broker.client()
    assert await produce(client) == 0
    await other.produce_to("t", producer_access_mode=WAITING)
    partitions = broker.runtime.partitions
    raising = partitions.raise_topic_epoch

    async def away(*_: object) -> None:
        raise StoreUnavailable("gone")

    monkeypatch.setattr(partitions, "raise_topic_epoch", away)
    await close(client)
    await other.hear(CommandType.CLOSE_PRODUCER)
    assert await refused(client) == ServerError.SERVICE_NOT_READY
    monkeypatch.setattr(partitions, "raise_topic_epoch", raising)
    assert await produce(client) > 0


@pytest.mark.usefixtures("patient_sessions")
async def test_who_is_ejected_while_its_epoch_is_stored_is_told(
    broker: Broker, rows: Rows, database_url: str
) -> None:
    client, other = await broker.client(), await broker.client()
    await produce(client, SHARED)
    await close(client)
    async with await psycopg.AsyncConnection.connect(database_url) as holder:
        await holder.execute("SELECT FROM topic_partition FOR UPDATE")
        client.say(
            CommandProducer(topic="t", producer_id=0, request_id=70, producer_access_mode=EXCLUSIVE)
        )
        await asyncio.sleep(0.2)
        other.say(
            CommandProducer(topic="t", producer_id=0, request_id=71, producer_access_mode=FENCING)
        )
        await asyncio.sleep(0.2)
    error = await client.hear(CommandType.ERROR)
    assert (error.request_id, error.error) == (70, ServerError.PRODUCER_FENCED)
    success = await other.hear(CommandType.PRODUCER_SUCCESS)
    assert (success.request_id, success.topic_epoch, rows.epoch()) == (71, 1, 1)


async def test_all_producers_of_a_lost_lease_are_closed_once_they_are_answered(
    brokers: tuple[Broker, Broker],
) -> None:
    one, other = brokers
    client, waiting = await one.client(), await one.client()
    assert await produce(client) == 0
    await waiting.produce_to("t", producer_access_mode=WAITING)
    client.send(entry_of(b"x"))
    await one.runtime.leases.release()
    assert (await client.hear(CommandType.SEND_RECEIPT)).message_id.entry_id == 0
    await client.hear(CommandType.CLOSE_PRODUCER)
    await waiting.hear(CommandType.CLOSE_PRODUCER)
    assert await produce(await other.client(), topic_epoch=0) == 0


async def test_only_the_first_of_a_partition_costs_a_round_trip(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await broker.client()
    await produce(client, SHARED)
    timed: list[str] = []
    monkeypatch.setattr(
        broker.runtime.partitions._store._database,
        "observe",
        lambda name, seconds: timed.append(name),
    )
    client.send(entry_of())
    await client.hear(CommandType.SEND_RECEIPT)
    assert "flush" in timed
    assert "load_partitions" not in timed  # it is known since PRODUCER
    timed.clear()
    for number in range(1, 4):
        await produce(client, SHARED, producer_id=number)
    assert timed == []
