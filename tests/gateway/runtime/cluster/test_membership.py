"""Brokers that come, go, stall and fight over an id."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
from sqlalchemy import text

from core.ports.log import StoreUnavailable
from core.ports.topics import BrokerIdTaken
from core.types import Endpoint
from gateway.runtime.cluster.membership import Cluster
from storage.brokers import ClusterStore
from storage.connection.pool import Database

Join = Callable[..., Awaitable[Cluster]]


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    database = Database(database_url)
    yield database
    await database.close()


def make(database: Database, port: int, **settings: object) -> Cluster:
    wanted = {"session_timeout_s": 30.0, "heartbeat_interval_s": 0.05, **settings}
    return Cluster(
        ClusterStore(database),
        endpoints=[Endpoint("kafka", "127.0.0.1", port)],
        version="test",
        **wanted,
    )


@pytest.fixture
async def join(database: Database) -> AsyncIterator[Join]:
    async with AsyncExitStack() as stack:

        async def join(port: int, *, run: bool = False, **settings: object) -> Cluster:
            cluster = make(database, port, **settings)
            await cluster.join()
            if run:
                task = asyncio.create_task(cluster.run())
                stack.push_async_callback(stop, task)
            return cluster

        yield join


async def stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, BrokerIdTaken):
        await task


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


async def test_broker_alone_leads_everything(join: Join) -> None:
    cluster = await join(1)
    assert cluster.is_alone
    assert cluster.cluster_id
    assert [broker.endpoints for broker in cluster.live] == [(Endpoint("kafka", "127.0.0.1", 1),)]
    assert {cluster.leader_of(each) for each in range(100)} == {cluster.broker_id}


async def test_brokers_see_each_other_come_and_go(join: Join) -> None:
    changes: list[int] = []
    one = await join(1, run=True, on_change=lambda: changes.append(1))
    other = await join(2)
    assert not other.is_alone
    await until(lambda: not one.is_alone)
    assert one.live == other.live
    leaders = [one.leader_of(each) for each in range(200)]
    assert leaders == [other.leader_of(each) for each in range(200)]
    assert set(leaders) == {one.broker_id, other.broker_id}
    await other.leave()
    await until(lambda: one.is_alone)
    assert {one.leader_of(each) for each in range(200)} == {one.broker_id}
    assert len(changes) == 3


async def test_a_broker_that_has_left_sends_clients_to_the_others(join: Join) -> None:
    one, two, three = await join(1), await join(2), await join(3)
    for each in (one, two):
        await each.heartbeat()
    assert {one.leader_of(each) for each in range(200)} >= {one.broker_id}
    await one.leave()
    await two.heartbeat()
    leaders = [one.leader_of(each) for each in range(200)]
    assert leaders == [two.leader_of(each) for each in range(200)]
    assert set(leaders) == {two.broker_id, three.broker_id}


async def test_one_has_the_lowest_id(join: Join) -> None:
    one = await join(1, run=True)
    assert one.is_lowest
    other = await join(2)
    await until(lambda: not one.is_alone)
    assert one.is_lowest
    assert not other.is_lowest


async def test_who_has_the_lowest_id_changes(join: Join) -> None:
    one = await join(1)
    other = await join(2, run=True)
    assert not other.is_lowest
    await one.leave()
    await until(lambda: other.is_lowest)


async def test_silent_broker_is_taken_for_gone(join: Join) -> None:
    one = await join(1, run=True)
    await join(2, session_timeout_s=5.0)
    await until(lambda: not one.is_alone)
    await until(lambda: one.is_alone)


async def test_look_heartbeats_at_once(join: Join) -> None:
    one = await join(1, run=True, heartbeat_interval_s=60.0)
    await join(2)
    assert one.is_alone
    one.look()
    await until(lambda: not one.is_alone)


async def test_id_in_use_is_refused_once_its_holder_is_heard_of_again(join: Join) -> None:
    await join(1, broker_id=5, run=True, session_timeout_s=5.0)
    with pytest.raises(BrokerIdTaken, match=r"Broker id 5 is in use by the broker at 127.0.0.1:1"):
        await join(2, broker_id=5)


async def test_id_of_a_crashed_broker_is_given_after_its_session(join: Join) -> None:
    await join(1, broker_id=5, session_timeout_s=0.4)
    assert (await join(2, broker_id=5)).broker_id == 5


async def test_broker_whose_id_was_taken_meanwhile_stops(join: Join, database: Database) -> None:
    stalled = await join(1, broker_id=5, session_timeout_s=0.05)
    await asyncio.sleep(0.1)
    await join(2, broker_id=5)
    with pytest.raises(BrokerIdTaken, match="Broker id 5 was taken over by another process"):
        await stalled.run()


async def test_broker_that_is_replaced_at_its_address_stops(join: Join) -> None:
    replaced = await join(1)
    again = await join(1)
    assert again.broker_id == replaced.broker_id
    assert again.is_alone
    with pytest.raises(BrokerIdTaken, match="was taken over by another process, at the same addre"):
        await replaced.run()
    await again.heartbeat()
    assert again.is_alone


async def test_broker_whose_row_was_deleted_comes_back(join: Join, database: Database) -> None:
    one = await join(1)
    async with database.begin("test") as connection:
        await connection.execute(text("DELETE FROM penstock.broker"))
    await one.heartbeat()
    other = await join(2)
    assert [broker.broker_id for broker in other.live] == [one.broker_id, other.broker_id]


async def test_without_a_database_the_last_view_stays(
    join: Join, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await join(1, run=True)
    await join(2)
    await until(lambda: not one.is_alone)
    lost = Database("postgresql://penstock@127.0.0.1:1/penstock?connect_timeout=1")
    found = one._store
    monkeypatch.setattr(one, "_store", ClusterStore(lost))
    with pytest.raises(StoreUnavailable):
        await one.heartbeat()
    await asyncio.sleep(0.3)
    assert len(one.live) == 2
    monkeypatch.setattr(one, "_store", found)
    await join(3)
    await until(lambda: len(one.live) == 3)
    await lost.close()
