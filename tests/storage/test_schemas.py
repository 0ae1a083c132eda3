"""Schemas on real PostgreSQL: versions, deletions, and two who register at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.rows import dict_row

from core.schema.values import Schema, SchemaHead, SchemaType, VersionedSchema
from storage.connection.pool import Database
from storage.schemas import SchemaStore
from storage.topics import TopicStore
from tests.core.schema.avro_schemas import data_of, record
from tests.storage.conftest import Log

ODD = "a\0b␀0c\\\"{},𝄞'\n"
STRING = Schema(SchemaType.STRING)
AVRO = Schema(SchemaType.AVRO, data_of(record("a")), ODD, {ODD: "b\0", "c": ""})


@pytest.fixture
async def other(log: Log) -> AsyncIterator[SchemaStore]:
    """Another broker's."""
    database = Database(log.url)
    yield SchemaStore(database)
    await database.close()


@pytest.fixture
def store(log: Log) -> SchemaStore:
    return SchemaStore(log.database)


def new_topic(log: Log, name: str | None = None) -> UUID:
    (partition, _) = log.new_partitions(2, name)
    query = "SELECT topic_id FROM topic_partition WHERE partition_id = %s"
    topic_id = log.value(query, partition)
    assert isinstance(topic_id, UUID)
    return topic_id


async def add(store: SchemaStore, topic_id: UUID, schema: Schema, mark: bytes = b"x") -> int:
    async with store.change(topic_id, "register_schema") as change:
        return await change.add(schema, mark)


async def test_versions_go_on_from_0(log: Log, store: SchemaStore) -> None:
    topic_id, another, none = (new_topic(log) for _ in range(3))
    before = time.time()
    assert [await add(store, topic_id, each, b"f") for each in (STRING, AVRO)] == [0, 1]
    assert await add(store, another, STRING) == 0
    heads = [
        SchemaHead(0, SchemaType.STRING, b"f", 0),
        SchemaHead(1, SchemaType.AVRO, b"f", AVRO.size),
    ]
    assert await store.heads([topic_id, none, uuid4()]) == {topic_id: heads}
    latest = await store.load(topic_id, None)
    assert latest is not None
    assert latest == VersionedSchema(1, AVRO, latest.created_ms)
    assert before - 60 < latest.created_ms / 1000 < time.time() + 60
    first = await store.load(topic_id, 0)
    assert first is not None
    assert first.schema == STRING
    assert await store.load(topic_id, 2) is None
    assert await store.load(none, None) is None


@pytest.mark.parametrize("force", [False, True])
async def test_a_deleted_version_never_comes_again(
    log: Log, store: SchemaStore, force: bool
) -> None:
    topic_id = new_topic(log)
    for _ in range(2):
        await add(store, topic_id, STRING)
    async with store.change(topic_id, "delete_schemas") as change:
        assert await change.delete(force=force) == 2
        assert await change.heads() == ()
        assert await change.load(1) is None
    assert await store.heads([topic_id]) == {}
    for version in (None, 0, 1, 2):
        assert await store.load(topic_id, version) is None
    assert log.value("SELECT count(*) FROM topic_schema") == (1 if force else 3)
    assert await add(store, topic_id, AVRO) == 3
    assert [each.version for each in (await store.heads([topic_id]))[topic_id]] == [3]
    found = await store.load(topic_id, None)
    assert found is not None
    assert found.version == 3
    assert await store.load(topic_id, 1) is None


async def test_a_change_that_fails_changes_nothing(log: Log, store: SchemaStore) -> None:
    topic_id = new_topic(log)
    with pytest.raises(ZeroDivisionError):
        async with store.change(topic_id, "register_schema") as change:
            await change.add(STRING, b"")
            raise ZeroDivisionError
    assert await store.heads([topic_id]) == {}


async def test_no_topic_no_schema(store: SchemaStore) -> None:
    async with store.change(uuid4(), "register_schema") as change:
        assert not change.is_topic_there
        assert await change.heads() == ()


async def test_who_comes_second_sees_what_the_first_has_done(
    log: Log, store: SchemaStore, other: SchemaStore
) -> None:
    topic_id = new_topic(log)

    async def second() -> tuple[int, int]:
        async with other.change(topic_id, "register_schema") as change:
            return len(await change.heads()), await change.add(AVRO, b"second")

    async with store.change(topic_id, "register_schema") as change:
        assert await change.add(STRING, b"first") == 0
        waiting = asyncio.create_task(second())
        deadline = time.monotonic() + 30
        while not log.backends("wait_event_type = 'Lock'"):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
    assert await waiting == (1, 1)
    with pytest.raises(psycopg.errors.UniqueViolation):  # whoever writes without the lock
        log.rows("INSERT INTO topic_schema SELECT * FROM topic_schema")


async def test_a_topic_takes_its_schemas_with_it(log: Log, store: SchemaStore) -> None:
    kept, doomed = new_topic(log), new_topic(log)
    for topic_id in (kept, doomed):
        await add(store, topic_id, STRING)
    async with TopicStore(log.database).change("delete_topics") as change:
        await change.delete_topics([doomed])
    assert log.rows("SELECT topic_id FROM topic_schema") == [(kept,)]
    async with store.change(doomed, "register_schema") as gone:
        assert not gone.is_topic_there


def pair(key: bytes | None, value: bytes) -> Schema:
    length = -1 if key is None else len(key)
    data = length.to_bytes(4, signed=True) + (key or b"") + len(value).to_bytes(4) + value
    return Schema(SchemaType.KEY_VALUE, data)


async def test_people_read_versions(log: Log, store: SchemaStore) -> None:
    topic_id = new_topic(log, "flights")
    await add(store, topic_id, AVRO)
    async with store.change(topic_id, "delete_schemas") as change:
        await change.delete(force=False)
    text = '{"type": "record", "name": "Ü", "fields": []}'
    for schema in (
        Schema(SchemaType.JSON, text.encode(), "Ü", {"a": "b"}),
        STRING,
        pair(b'"int"', b'"long"'),
        pair(None, b""),
        pair(b"\xff", b""),
    ):
        await add(store, topic_id, schema)
    with psycopg.connect(log.url, row_factory=dict_row) as connection:
        rows = connection.execute("SELECT * FROM v_schema").fetchall()
    assert {row["topic"] for row in rows} == {"flights"}
    shown = [(row["version"], row["type"], row["state"], row["is_latest"]) for row in rows]
    assert shown == [
        (0, "AVRO", "deleted", False),
        (2, "JSON", "live", False),
        (3, "STRING", "live", False),
        *((number, "KEY_VALUE", "live", number == 6) for number in range(4, 7)),
    ]
    assert rows[1]["definition"] == text
    assert (rows[1]["name"], rows[1]["properties"]) == ("Ü", {"a": "b"})
    assert [row["definition"] for row in rows[2:]] == [
        None,
        'key: "int"\nvalue: "long"',
        "key: \nvalue: ",
        None,
    ]
    assert rows[0]["registered_at"] <= rows[1]["registered_at"]
