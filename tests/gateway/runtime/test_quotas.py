"""The quotas in force: changed by others and by psql, without news, with the database away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import psycopg
import pytest

from core.ports.log import StoreUnavailable
from core.quota.entities import QuotaKey
from gateway.runtime.quotas import Quotas
from storage.connection.pool import Database
from storage.quotas import QuotaStore

SET = (
    "INSERT INTO client_quota (user_name, quota_key, value)"
    " VALUES ('alice', 'producer_byte_rate', 1024)"
)


@pytest.fixture
async def quotas(database_url: str) -> AsyncIterator[Quotas]:
    database = Database(database_url)
    yield Quotas(QuotaStore(database))
    await database.close()


def rate(quotas: Quotas) -> float | None:
    found = quotas.rules.find(QuotaKey.PRODUCER_BYTE_RATE, "alice", "")
    return found and found.rate


def by_psql(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for each in statements:
            connection.execute(each)


async def eventually(check: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not check():
            await asyncio.sleep(0.01)


async def test_what_psql_changes_counts_without_news(quotas: Quotas, database_url: str) -> None:
    running = asyncio.ensure_future(quotas.run())
    by_psql(database_url, SET)
    await eventually(lambda: rate(quotas) == 1024)
    by_psql(database_url, "UPDATE client_quota SET value = 2048")
    await eventually(lambda: rate(quotas) == 2048)
    by_psql(database_url, "TRUNCATE client_quota")
    await eventually(lambda: rate(quotas) is None)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


async def test_a_row_that_nobody_can_read_limits_nobody(quotas: Quotas, database_url: str) -> None:
    by_psql(
        database_url,
        SET,
        "ALTER TABLE client_quota DROP CONSTRAINT client_quota_quota_key_check",
        SET.replace("producer_byte_rate", "fly"),
    )
    await quotas.refresh()
    assert rate(quotas) == 1024


async def test_many_at_once(quotas: Quotas, database_url: str) -> None:
    many = (
        "INSERT INTO client_quota (client_id, quota_key, value)"
        " SELECT 'client-' || n, 'producer_byte_rate', n FROM generate_series(1, 3000) n"
    )
    by_psql(database_url, SET, many)
    await quotas.refresh()
    found = quotas.rules.find(QuotaKey.PRODUCER_BYTE_RATE, "bob", "client-3000")
    assert found is not None and found.rate == 3000
    by_psql(database_url, "DELETE FROM client_quota WHERE client_id <> 'client-7'")
    await quotas.refresh()
    assert quotas.rules.find(QuotaKey.PRODUCER_BYTE_RATE, "bob", "client-3000") is None
    assert rate(quotas) == 1024


async def test_another_history_is_compared_row_by_row(quotas: Quotas, database_url: str) -> None:
    """A database that was restored may have the same version and other rows."""
    by_psql(database_url, SET)
    await quotas.refresh()
    by_psql(database_url, "DELETE FROM client_quota", "UPDATE client_quota_version SET version = 1")
    quotas.forget()
    await quotas.refresh()
    assert rate(quotas) is None


async def test_with_the_database_away_the_last_ones_stay(database_url: str) -> None:
    database = Database(database_url)
    quotas = Quotas(QuotaStore(database))
    by_psql(database_url, SET)
    await quotas.refresh()
    await database.close()
    with pytest.raises(StoreUnavailable):
        await quotas.refresh()
    assert rate(quotas) == 1024
