"""ACLs as rows: made, read, deleted, by brokers and by psql."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, event, text
from sqlalchemy.ext.asyncio import AsyncConnection

from core.ports.acls import StoredAcls
from core.security.acls import AclBinding, Operation, PatternType, Permission, ResourceType
from storage import watched_rows
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


async def test_what_is_replaced_amid_a_read_is_in_it(
    store: AclStore, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was; the next look finds it as it is."""
    await store.create([binding()])
    paged = watched_rows.pages

    def pages_later(keys: Iterable[Any]) -> Iterator[list[Any]]:
        for page in paged(keys):
            log.rows("UPDATE acl SET principal = 'User:bob'")
            yield page

    monkeypatch.setattr(watched_rows, "pages", pages_later)
    known = await read(store)
    assert list(known.rows.values()) == [binding()]
    monkeypatch.undo()
    known = await read(store, known)
    assert list(known.rows.values()) == [binding(principal="User:bob")]


async def test_a_look_is_one_statement_and_leaves_no_trace(store: AclStore, log: Log) -> None:
    """The snapshot costs no other one, and the connection writes again."""
    known = await read(store)
    said: list[str] = []

    def note(*args: Any) -> None:
        said.append(args[2])

    event.listen(Engine, "before_cursor_execute", note)
    assert await store.read(known) is None
    event.remove(Engine, "before_cursor_execute", note)
    assert len(said) == 1
    for _ in range(2):
        async with log.database.begin("look", is_snapshot=True) as connection:
            assert await state_of(connection) == ("repeatable read", "on")
        async with log.database.begin("look") as connection:
            assert await state_of(connection) == ("read committed", "off")
    assert await store.create([binding()]) == {binding()}


async def state_of(connection: AsyncConnection) -> tuple[str, str]:
    settings = [f"current_setting('transaction_{each}')" for each in ("isolation", "read_only")]
    found = await connection.execute(text(f"SELECT {', '.join(settings)}"))
    isolation, is_read_only = found.one()
    return isolation, is_read_only
