"""ACLs as rows: made, read, deleted, by brokers and by psql."""

from __future__ import annotations

from collections.abc import AsyncIterator

import psycopg
import pytest

from core.ports.acls import StoredAcls
from core.security.acls import AclBinding, Operation, PatternType, Permission, ResourceType
from storage.acls import AclStore
from tests.storage.conftest import Log


def binding(name: str = "flights", principal: str = "User:alice", host: str = "*") -> AclBinding:
    return AclBinding(
        ResourceType.TOPIC,
        name,
        PatternType.PREFIXED,
        principal,
        host,
        Operation.READ,
        Permission.DENY,
    )


@pytest.fixture
def store(log: Log) -> AclStore:
    return AclStore(log.database)


async def read(store: AclStore, known: StoredAcls | None = None) -> StoredAcls:
    found = await store.read(known or StoredAcls())
    assert found is not None
    return found


async def test_what_is_made_is_read(store: AclStore, log: Log) -> None:
    first = await read(store)
    assert (dict(first.rows), first.unreadable) == ({}, 0)
    assert await store.read(first) is None
    made = [
        binding(),
        binding("f", "lights:User"),  # one text with the other, but for where names end
        binding("=2C,ü𝄞", "User:CN=a\\,b"),
        binding("n" * 32_000, host="::1"),
    ]
    assert await store.create([*made, made[0]]) == set(made)
    second = await read(store, first)
    assert sorted(second.rows.values(), key=repr) == sorted(made, key=repr)
    assert await store.create(made) == set()
    assert (await read(store, second)).rows == second.rows
    keys = [key for key, each in second.rows.items() if each != made[0]]
    assert await store.delete([*keys, bytes(16)]) == set(keys)
    assert list((await read(store, second)).rows.values()) == [made[0]]


async def test_what_psql_changes_counts(store: AclStore, log: Log) -> None:
    known = await read(store)
    insert = "INSERT INTO acl (principal, operation, resource_type, resource_name) VALUES "
    log.rows(insert + "('User:bob', 'ALL', 'CLUSTER', 'kafka-cluster')")
    known = await read(store, known)
    [made] = known.rows.values()
    assert made == AclBinding(
        ResourceType.CLUSTER,
        "kafka-cluster",
        PatternType.LITERAL,
        "User:bob",
        "*",
        Operation.ALL,
        Permission.ALLOW,
    )
    log.rows("UPDATE acl SET principal = 'User:carol'")
    known = await read(store, known)
    assert [each.principal for each in known.rows.values()] == ["User:carol"]
    assert log.rows("SELECT principal, resource, operation FROM v_acl") == [
        ("User:carol", "cluster kafka-cluster", "ALL")
    ]
    log.rows("TRUNCATE acl")
    assert not (await read(store, known)).rows


@pytest.mark.parametrize(
    "values",
    [
        "('bob', 'READ', 'TOPIC', 'a')",
        "('User:bob', 'READS', 'TOPIC', 'a')",
        "('User:bob', 'READ', 'TOPICS', 'a')",
        "('User:bob', 'READ', 'TOPIC', '')",
        "('User:bob', 'READ', 'CLUSTER', 'a')",
    ],
)
def test_what_means_nothing_cannot_be_stored(log: Log, values: str) -> None:
    insert = "INSERT INTO acl (principal, operation, resource_type, resource_name) VALUES "
    with pytest.raises(psycopg.errors.CheckViolation):
        log.rows(insert + values)


async def test_a_row_of_another_version_is_counted(store: AclStore, log: Log) -> None:
    log.rows("ALTER TABLE acl DROP CONSTRAINT acl_operation_check")
    await store.create([binding()])
    log.rows("UPDATE acl SET operation = 'FLY'")
    found = await read(store)
    assert (len(found.rows), found.unreadable) == (0, 1)


@pytest.fixture
async def listening(log: Log) -> AsyncIterator[psycopg.AsyncConnection[tuple[object, ...]]]:
    async with await psycopg.AsyncConnection.connect(log.url, autocommit=True) as connection:
        await connection.execute("LISTEN penstock_acl")
        yield connection


async def test_each_change_is_told(
    store: AclStore, listening: psycopg.AsyncConnection[tuple[object, ...]]
) -> None:
    await store.create([binding()])
    assert [each.channel async for each in listening.notifies(timeout=20, stop_after=1)]


async def test_many_are_read_by_pages(store: AclStore, log: Log) -> None:
    await store.create([binding(f"topic-{number}") for number in range(2_500)])
    assert len((await read(store)).rows) == 2_500
