"""Connections on real PostgreSQL: what is lost or cannot be had is StoreUnavailable."""

import asyncio
from collections.abc import AsyncIterator

import psycopg
import pytest
from sqlalchemy import text

from core.ports import StoreUnavailable
from storage.pool import Database


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    database = Database(database_url)
    yield database
    await database.close()


async def read(database: Database, query: str) -> object:
    async with database.begin("test") as connection:
        return await connection.scalar(text(query))


async def test_nobody_at_the_address() -> None:
    lost = Database("postgresql://penstock@127.0.0.1:1/penstock?connect_timeout=1")
    with pytest.raises(StoreUnavailable):
        await read(lost, "SELECT 1")
    await lost.close()


async def test_session_ended_from_outside(database: Database, database_url: str) -> None:
    waiting = asyncio.create_task(read(database, "SELECT pg_sleep(30)"))
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as other:
        ended = 0
        while not ended:
            await asyncio.sleep(0.02)
            cursor = await other.execute(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                " WHERE query LIKE '%pg_sleep%' AND pid <> pg_backend_pid()"
                " AND datname = current_database()"
            )
            (ended,) = await cursor.fetchone() or (0,)
    with pytest.raises(StoreUnavailable):
        await waiting
    assert await read(database, "SELECT 1") == 1


async def test_more_queries_than_connections_for_too_long(database: Database) -> None:
    slow = [asyncio.create_task(read(database, "SELECT pg_sleep(6)")) for _ in range(8)]
    await asyncio.sleep(0.1)
    with pytest.raises(StoreUnavailable, match="no connection became free in time"):
        await read(database, "SELECT 1")
    await asyncio.gather(*slow)
    assert await read(database, "SELECT 1") == 1
