"""The rules in force: changed by others and by psql, without news, with the database away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import psycopg
import pytest

from core.ports.log import StoreUnavailable
from core.security.acls import Operation, ResourceType
from core.security.principal import Principal
from gateway.compose import configs_of
from gateway.runtime.acls import Acls
from storage.acls import AclStore
from storage.connection.pool import Database

ALICE = Principal("alice")
ON = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}
GIVE = (
    "INSERT INTO acl (principal, operation, resource_type, resource_name)"
    " VALUES ('User:alice', 'READ', 'TOPIC', 'flights')"
)


@pytest.fixture
async def acls(database_url: str) -> AsyncIterator[Acls]:
    database = Database(database_url)
    made = Acls(AclStore(database), configs_of(database, ON))
    await made.load()
    yield made
    await database.close()


def may_read(acls: Acls, name: str = "flights") -> bool:
    decision = acls.rules.authorize(ALICE, "127.0.0.1", Operation.READ, ResourceType.TOPIC, name)
    return decision.is_allowed


def by_psql(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for each in statements:
            connection.execute(each)


async def eventually(check: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not check():
            await asyncio.sleep(0.01)


async def test_what_psql_changes_counts_without_news(acls: Acls, database_url: str) -> None:
    running = asyncio.ensure_future(acls.run())
    assert not may_read(acls)
    by_psql(database_url, GIVE)
    await eventually(lambda: may_read(acls))
    by_psql(database_url, "TRUNCATE acl")
    await eventually(lambda: not may_read(acls))
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


async def test_a_row_that_nobody_can_read_forbids_everything(acls: Acls, database_url: str) -> None:
    by_psql(database_url, GIVE, "ALTER TABLE acl DROP CONSTRAINT acl_operation_check")
    await acls.refresh()
    assert may_read(acls)
    by_psql(database_url, GIVE.replace("'READ'", "'FLY'"))
    await acls.refresh()
    assert not may_read(acls)
    by_psql(database_url, "DELETE FROM acl WHERE operation = 'FLY'")
    await acls.refresh()
    assert may_read(acls)


async def test_many_at_once(acls: Acls, database_url: str) -> None:
    many = GIVE.replace("VALUES", "SELECT").replace("('User", "'User").replace("'flights')", "")
    by_psql(database_url, many + "'flights-' || n FROM generate_series(1, 3000) n")
    await acls.refresh()
    assert may_read(acls, "flights-3000")
    by_psql(database_url, "DELETE FROM acl WHERE resource_name <> 'flights-7'")
    await acls.refresh()
    assert not may_read(acls, "flights-3000")
    assert may_read(acls, "flights-7")


async def test_looks_at_the_same_time_lose_nothing(acls: Acls, database_url: str) -> None:
    by_psql(database_url, GIVE)
    await asyncio.gather(*(acls.refresh() for _ in range(5)))
    assert may_read(acls)
    assert len(list(acls.rules)) == 1


async def test_another_history_is_compared_row_by_row(acls: Acls, database_url: str) -> None:
    """A database that was restored may have the same version and other rows."""
    by_psql(database_url, GIVE)
    await acls.refresh()
    by_psql(database_url, "DELETE FROM acl", "UPDATE acl_version SET version = 1")
    acls.forget()
    await acls.refresh()
    assert not may_read(acls)


async def test_with_the_database_away_the_last_rules_stay(database_url: str) -> None:
    database = Database(database_url)
    acls = Acls(AclStore(database), configs_of(database, ON))
    by_psql(database_url, GIVE)
    await acls.load()
    await database.close()
    with pytest.raises(StoreUnavailable):
        await acls.refresh()
    assert may_read(acls)


async def test_without_an_authorizer_nothing_is_read() -> None:
    database = Database("postgresql://nobody@127.0.0.1:1/nowhere")
    acls = Acls(AclStore(database), configs_of(database, {}))
    await acls.load()
    assert not acls.is_on
    await database.close()


async def test_pulsars_super_user_roles_are_super_users(database_url: str) -> None:
    roles = {"superUserRoles": "alice,bob", "super.users": "User:carol"}
    database = Database(database_url)
    rules = Acls(AclStore(database), configs_of(database, {**ON, **roles})).rules
    for name in ("alice", "bob", "carol", "dave"):
        decision = rules.authorize(
            Principal(name), "127.0.0.1", Operation.READ, ResourceType.TOPIC, "flights"
        )
        assert decision.is_allowed == (name != "dave")
    await database.close()
