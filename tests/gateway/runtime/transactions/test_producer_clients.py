"""gateway.runtime.transactions.producer_clients: who is behind idempotent producers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from core.ports.log import StoreUnavailable
from core.ports.producer_clients import ProducerClient
from gateway.runtime.transactions.producer_clients import ProducerClients
from storage.connection.pool import Database
from storage.producer_clients import ProducerClientStore


def client(producer_id: int, age: timedelta = timedelta()) -> ProducerClient:
    return ProducerClient(producer_id, "loader", "/10.0.0.5", "User:alice", datetime.now(UTC) - age)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    database = Database(database_url)
    yield database
    await database.close()


def ids(url: str) -> list[int]:
    with psycopg.connect(url) as connection:
        rows = connection.execute("SELECT producer_id FROM penstock.producer_client ORDER BY 1")
        return [number for (number,) in rows]


async def test_they_are_written_and_removed_when_they_are_old(
    database: Database, database_url: str
) -> None:
    store = ProducerClientStore(database)
    clients = ProducerClients(store, lambda: 60_000, lambda: True)
    for number in range(3):
        clients.note(client(number, timedelta(minutes=number)))
    await clients.write()
    await clients.write()  # nothing waits
    await store.put([client(0)])  # as after a commit whose answer was lost
    assert ids(database_url) == [0, 1, 2]
    assert await store.expire(90) == 1
    assert ids(database_url) == [0, 1]


async def test_what_cannot_be_written_waits(database_url: str) -> None:
    gone = Database("postgresql://nobody@127.0.0.1:1/none")
    clients = ProducerClients(ProducerClientStore(gone), lambda: 60_000, lambda: True)
    clients.note(client(1))
    with pytest.raises(StoreUnavailable):
        await clients.write()
    await gone.close()
    database = Database(database_url)
    clients.note(client(2))
    clients._store = ProducerClientStore(database)  # it is back
    await clients.write()
    await database.close()
    assert ids(database_url) == [1, 2]
