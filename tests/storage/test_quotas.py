"""Client quotas as rows: set, read, deleted, by brokers and by psql."""

from __future__ import annotations

import psycopg
import pytest

from core.ports.quotas import StoredQuota, StoredQuotas
from core.quota.changes import QuotaChanges
from core.quota.entities import DEFAULT, QuotaEntity, QuotaKey
from storage.quotas import QuotaStore
from tests.storage.conftest import Log

PRODUCE = QuotaKey.PRODUCER_BYTE_RATE
CONSUME = QuotaKey.CONSUMER_BYTE_RATE


@pytest.fixture
def store(log: Log) -> QuotaStore:
    return QuotaStore(log.database)


async def read(store: QuotaStore, known: StoredQuotas | None = None) -> StoredQuotas:
    found = await store.read(known or StoredQuotas())
    assert found is not None
    return found


def those(found: StoredQuotas) -> dict[tuple[QuotaEntity, QuotaKey], float | None]:
    return {(each.entity, each.key): each.value for each in found.rows.values()}


async def test_what_is_set_is_read(store: QuotaStore) -> None:
    first = await read(store)
    assert those(first) == {}
    assert await store.read(first) is None
    wanted = {
        (QuotaEntity("alice"), PRODUCE): 1024.0,
        (QuotaEntity("alice"), CONSUME): 0.1 + 0.2,
        (QuotaEntity(DEFAULT), PRODUCE): 1.0,
        (QuotaEntity("alice", DEFAULT), PRODUCE): 2.0,
        (QuotaEntity(client_id=DEFAULT), PRODUCE): 3.0,
        (QuotaEntity(client_id="ü" * 32_000), PRODUCE): 4.0,
        # One text with the other, but for where names end.
        (QuotaEntity("ab", "c"), PRODUCE): 5.0,
        (QuotaEntity("a", "bc"), PRODUCE): 6.0,
        (QuotaEntity(ip="10.0.0.1"), QuotaKey.CONNECTION_CREATION_RATE): 7.0,
    }
    changed = await store.alter(QuotaChanges(wanted))
    assert {(each.entity, each.key): each.value for each in changed} == wanted
    assert await store.alter(QuotaChanges(wanted)) == []
    second = await read(store, first)
    assert those(second) == wanted

    of_alice, of_all = (QuotaEntity("alice"), PRODUCE), (QuotaEntity(DEFAULT), PRODUCE)
    nobody = (QuotaEntity("nobody"), PRODUCE)
    changed = await store.alter(QuotaChanges({of_alice: 2048.0}, [of_all, nobody]))
    assert changed == [StoredQuota(*of_all, None), StoredQuota(*of_alice, 2048.0)]
    del wanted[of_all]
    assert those(await read(store, second)) == wanted | {of_alice: 2048.0}


async def test_what_psql_changes_counts(store: QuotaStore, log: Log) -> None:
    known = await read(store)
    log.rows(
        "INSERT INTO client_quota (user_name, client_id, quota_key, value) VALUES "
        "('bob', '', 'producer_byte_rate', 1048576)"
    )
    known = await read(store, known)
    assert those(known) == {(QuotaEntity("bob", DEFAULT), PRODUCE): 2.0**20}
    assert log.rows("SELECT user_name, client_id, ip, quota, per_second FROM v_quota") == [
        ("bob", "<default>", None, "producer_byte_rate", "1024 kB")
    ]
    log.rows("UPDATE client_quota SET value = 5")
    known = await read(store, known)
    assert those(known) == {(QuotaEntity("bob", DEFAULT), PRODUCE): 5.0}
    log.rows("TRUNCATE client_quota")
    assert those(await read(store, known)) == {}


@pytest.mark.parametrize(
    "values",
    [
        "(NULL, NULL, NULL, 'producer_byte_rate', 1)",
        "('bob', NULL, '10.0.0.1', 'connection_creation_rate', 1)",
        "('bob', NULL, NULL, 'connection_creation_rate', 1)",
        "(NULL, NULL, '10.0.0.1', 'producer_byte_rate', 1)",
        "('bob', NULL, NULL, 'producer_byte_rate', 0)",
        "('bob', NULL, NULL, 'producer_byte_rate', 'NaN')",
    ],
)
def test_what_means_nothing_cannot_be_stored(log: Log, values: str) -> None:
    insert = "INSERT INTO client_quota (user_name, client_id, ip, quota_key, value) VALUES "
    with pytest.raises(psycopg.errors.CheckViolation):
        log.rows(insert + values)


async def test_a_row_of_another_version_is_counted(store: QuotaStore, log: Log) -> None:
    log.rows("ALTER TABLE client_quota DROP CONSTRAINT client_quota_quota_key_check")
    log.rows("INSERT INTO client_quota (user_name, quota_key, value) VALUES ('bob', 'fly', 1)")
    found = await read(store)
    assert (len(found.rows), found.unreadable) == (0, 1)


async def test_each_change_is_told(store: QuotaStore, log: Log) -> None:
    async with await psycopg.AsyncConnection.connect(log.url, autocommit=True) as listening:
        await listening.execute("LISTEN penstock_quota")
        await store.alter(QuotaChanges({(QuotaEntity("alice"), PRODUCE): 1.0}))
        assert [each.channel async for each in listening.notifies(timeout=20, stop_after=1)]
