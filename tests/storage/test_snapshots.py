"""Who holds a snapshot in PostgreSQL is found."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from storage.snapshots import PostgresSnapshots
from tests.storage.conftest import Log


async def test_nobody_holds_one(log: Log) -> None:
    assert await PostgresSnapshots(log.database).oldest() is None


@pytest.mark.parametrize(
    "statement",
    [
        "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM cluster",
        "UPDATE cluster SET metadata_version = metadata_version",
    ],
    ids=["a snapshot", "a transaction's id"],
)
async def test_the_oldest_is_found_with_its_holder(log: Log, statement: str) -> None:
    snapshots = PostgresSnapshots(log.database)
    with (
        psycopg.connect(log.url, application_name="forgotten") as first,
        psycopg.connect(log.url, application_name="younger") as second,
    ):
        first.execute(statement.encode())
        await asyncio.sleep(0.3)
        second.execute("SELECT pg_current_xact_id()")
        held = await snapshots.oldest()
        assert held is not None
        assert held.seconds >= 0.3
        assert held.holder == f"process {first.info.backend_pid} (postgres, forgotten)"
        first.rollback()
        held = await snapshots.oldest()
        assert held is not None
        assert held.seconds < 0.3 or "younger" in held.holder
        second.rollback()
    assert await snapshots.oldest() is None
