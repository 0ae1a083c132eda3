"""Broker ids and sessions on real PostgreSQL."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import text

from core.ports.topics import BrokerIdTaken, BrokerRegistration
from core.types import Endpoint
from storage.brokers import ClusterStore
from storage.connection.pool import Database


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    database = Database(database_url)
    yield database
    await database.close()


@pytest.fixture
def store(database: Database) -> ClusterStore:
    return ClusterStore(database)


def process(
    broker_id: int | None = None, port: int = 9092, session_timeout_s: float = 30.0
) -> BrokerRegistration:
    return BrokerRegistration(
        broker_id,
        uuid4(),
        (Endpoint("kafka", "127.0.0.1", port),),
        "rack",
        "test",
        session_timeout_s,
    )


async def live(store: ClusterStore, broker_id: int, registration: BrokerRegistration) -> list[int]:
    heartbeat = await store.heartbeat(broker_id, registration.incarnation)
    return [broker.broker_id for broker in heartbeat.live]


async def test_ids_are_allocated_in_turn(store: ClusterStore) -> None:
    ids = [await store.register(process(port=port)) for port in (1, 2, 3)]
    assert ids == [1, 2, 3]


async def test_brokers_starting_at_once_get_different_ids(store: ClusterStore) -> None:
    ids = await asyncio.gather(*(store.register(process(port=port)) for port in range(1, 7)))
    assert sorted(ids) == [1, 2, 3, 4, 5, 6]


async def test_allocation_steps_over_ids_that_were_claimed(store: ClusterStore) -> None:
    assert await store.register(process(2, port=1)) == 2
    assert await store.register(process(port=2)) == 1
    assert await store.register(process(port=3)) == 3
    assert await store.register(process(2**31 - 1, port=4)) == 2**31 - 1
    assert await store.register(process(port=5)) == 4


@pytest.mark.parametrize("leaves", [True, False], ids=["stopped", "killed"])
async def test_address_gets_its_id_again(store: ClusterStore, leaves: bool) -> None:
    other, first, again = process(port=2), process(port=1), process(port=1)
    assert await store.register(other) == 1
    assert await store.register(first) == 2
    if leaves:
        await store.leave(2, first.incarnation)
    assert await store.register(again) == 2
    assert await live(store, 2, again) == [1, 2]
    assert not (await store.heartbeat(2, first.incarnation)).is_registered
    # Should it live after all, it does not take its id back.
    with pytest.raises(BrokerIdTaken):
        await store.register(replace(first, broker_id=2), starts=False)
    assert (await store.heartbeat(2, again.incarnation)).is_registered


async def test_address_is_seen_once_also_with_another_id(store: ClusterStore) -> None:
    assert await store.register(process(port=1)) == 1
    named = process(7, port=1)
    assert await store.register(named) == 7
    assert await live(store, 7, named) == [7]


async def test_live_id_is_refused_to_another_address_in_one_sentence(store: ClusterStore) -> None:
    await store.register(process(7, port=1))
    with pytest.raises(BrokerIdTaken) as refused:
        await store.register(process(7, port=2))
    assert str(refused.value) == (
        "Broker id 7 is in use by the broker at 127.0.0.1:1: stop that one, "
        "or start this one with another --broker-id or none."
    )
    assert 25 < refused.value.seconds_left <= 30


async def test_id_is_free_when_its_session_ran_out_or_its_address_is_reused(
    store: ClusterStore,
) -> None:
    await store.register(process(7, port=1, session_timeout_s=0.05))
    await asyncio.sleep(0.1)
    other = process(7, port=2)
    assert await store.register(other) == 7
    # Killed and started again at once: the address tells that nobody else can live there.
    again = process(7, port=2)
    assert await store.register(again) == 7
    assert not (await store.heartbeat(7, other.incarnation)).is_registered
    assert (await store.heartbeat(7, again.incarnation)).is_registered


async def test_only_brokers_heard_of_are_live(store: ClusterStore, database_url: str) -> None:
    silent, other = process(port=1), process(port=2)
    await store.register(silent)
    await store.register(other)
    assert await live(store, 2, other) == [1, 2]
    with psycopg.connect(database_url) as psql:
        psql.execute(
            "UPDATE broker SET heartbeat_at = heartbeat_at - interval '31 s' WHERE broker_id = 1"
        )
    assert await live(store, 2, other) == [2]
    assert await live(store, 1, silent) == [1, 2]
    await store.leave(1, silent.incarnation)
    assert await live(store, 2, other) == [2]
    # One that has been replaced does not speak for its id any more.
    await store.leave(2, uuid4())
    assert await live(store, 2, other) == [2]


async def test_brokers_silent_for_a_day_are_forgotten(
    store: ClusterStore, database: Database
) -> None:
    await store.register(process(port=1))
    await store.register(process(port=2))
    async with database.begin("test") as connection:
        await connection.execute(
            text(
                "UPDATE penstock.broker SET heartbeat_at = now() - interval '25 h'"
                " WHERE broker_id = 1"
            )
        )
    await store.register(process(port=3))
    async with database.begin("test") as connection:
        ids = (
            await connection.execute(text("SELECT broker_id FROM penstock.broker ORDER BY 1"))
        ).scalars()
        assert list(ids) == [2, 3]


async def test_registering_again_keeps_the_id(store: ClusterStore) -> None:
    registration = process()
    broker_id = await store.register(registration)
    again = replace(registration, broker_id=broker_id)
    assert await store.register(again) == broker_id
    assert await live(store, broker_id, again) == [broker_id]


async def test_a_broker_has_an_endpoint_a_listener(store: ClusterStore) -> None:
    first = (Endpoint("kafka", "one", 1), Endpoint("pulsar", "one", 2))
    one = replace(process(), endpoints=first)
    two = process(port=3)
    assert [await store.register(each) for each in (one, two)] == [1, 2]
    heartbeat = await store.heartbeat(1, one.incarnation)
    assert [broker.endpoints for broker in heartbeat.live] == [first, two.endpoints]
    assert heartbeat.live[0].at("pulsar") == first[1]
    assert heartbeat.live[1].at("pulsar") is None
    # It comes back with one listener less, and its other address does not say who it is.
    again = replace(process(), endpoints=first[:1])
    assert await store.register(again) == 1
    heartbeat = await store.heartbeat(1, again.incarnation)
    assert heartbeat.live[0].endpoints == first[:1]
