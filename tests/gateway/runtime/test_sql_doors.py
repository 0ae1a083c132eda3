"""What the functions in SQL know of brokers' settings: at the start, after each change, and of many
brokers the last one's."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import psycopg
import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from core.ports.log import StoreUnavailable
from core.ports.sql_doors import DoorSettings
from gateway.compose import configs_of
from gateway.runtime.sql_doors import SqlDoors
from storage.connection.pool import Database
from storage.sql_doors.settings import SqlDoorStore
from tests.conftest import StartGateway

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
SETTINGS = (
    "asks_rights, allows_without_acl, super_users, max_message_bytes, is_compacted,"
    " timestamp_before_max_ms, timestamp_after_max_ms, max_transaction_bytes, max_metadata_bytes"
)
DEFAULTS = (False, False, [], 1048588, False, 2**63 - 1, 3600000, 2**29, 4096)


@pytest.fixture
def psql(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


def told(psql: psycopg.Connection[Any]) -> tuple[Any, ...]:
    ((*values,),) = psql.execute(f"SELECT {SETTINGS} FROM sql_door".encode())
    return tuple(values)


def version(psql: psycopg.Connection[Any]) -> Any:
    """Another one after each write."""
    return psql.execute("SELECT xmin, ctid FROM sql_door").fetchall()


def test_the_row_follows_the_settings_of_a_broker(
    start_gateway: StartGateway, database_url: str, psql: psycopg.Connection[Any]
) -> None:
    before = version(psql)
    gateway = start_gateway(database_url=database_url)
    assert told(psql) == DEFAULTS
    assert version(psql) == before  # nothing was written
    assert "sql_door_changed" not in gateway.log()
    gateway.stop()
    overrides = [
        f"authorizer.class.name={AUTHORIZER}",
        "super.users=User:ANONYMOUS;Role:root",
        "allow.everyone.if.no.acl.found=true",
        "log.cleanup.policy=compact,delete",
        "log.message.timestamp.before.max.ms=5000",
        "log.message.timestamp.after.max.ms=6000",
        "offset.metadata.max.bytes=100",
        "penstock.sql.transaction.max.bytes=1000",
    ]
    flags = [word for each in overrides for word in ("--override", each)]
    gateway = start_gateway(*flags, database_url=database_url)
    expected = (True, True, ["Role:root"], 1048588, True, 5000, 6000, 1000, 100)
    assert told(psql) == expected
    assert gateway.log().count("sql_door_changed") == 1

    # By Kafka's tools.
    admin = AdminClient({"bootstrap.servers": gateway.bootstrap})
    [broker_id] = admin.list_topics(timeout=20).brokers
    for name, value in (("message.max.bytes", "77"), ("penstock.sql.transaction.max.bytes", "88")):
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.BROKER, str(broker_id), incremental_configs=[entry])
        [altered] = admin.incremental_alter_configs([resource]).values()
        altered.result(20)
    expected = (*expected[:3], 77, *expected[4:7], 88, 100)
    deadline = time.monotonic() + 30
    while told(psql) != expected:
        assert time.monotonic() < deadline, told(psql)
        time.sleep(0.01)


# --- one broker's part ---


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    made = Database(database_url)
    yield made
    await made.close()


def doors(database: Database, **static: str) -> SqlDoors:
    settings = {name.replace("_", "."): value for name, value in static.items()}
    return SqlDoors(SqlDoorStore(database), configs_of(database, settings))


async def test_of_many_brokers_the_last_one_counts(
    database: Database, psql: psycopg.Connection[Any]
) -> None:
    one, other = (doors(database, message_max_bytes=each) for each in ("1000", "2000"))
    await one.tell()
    assert told(psql)[3] == 1000
    await other.tell()
    after = version(psql)
    await one.tell()  # it has told already, and nothing of it has changed
    await other.tell()
    assert told(psql)[3] == 2000
    assert version(psql) == after
    one.forget()  # a restored database may have another row
    await one.tell()
    assert told(psql)[3] == 1000


class _AwayAtFirst:
    """A store whose database answers from the second call on."""

    def __init__(self, store: SqlDoorStore) -> None:
        self._store = store
        self.calls = 0

    async def put(self, settings: DoorSettings) -> DoorSettings | None:
        self.calls += 1
        if self.calls == 1:
            raise StoreUnavailable("away")
        return await self._store.put(settings)


async def test_what_could_not_be_told_is_told_later(
    database: Database, psql: psycopg.Connection[Any]
) -> None:
    configs = configs_of(database, {"message.max.bytes": "1000"})
    store = _AwayAtFirst(SqlDoorStore(database))
    made = SqlDoors(store, configs)
    running = asyncio.ensure_future(made.run())
    made.invalidate()
    await eventually(lambda: told(psql)[3] == 1000)
    assert store.calls == 2
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


async def eventually(check: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not check():
            await asyncio.sleep(0.01)
