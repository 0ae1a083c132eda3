"""Changes of topics on real PostgreSQL: one after the other, told to all, never half."""

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID, uuid4

import psycopg
import pytest
from sqlalchemy import text

from core.ports.log import StoreUnavailable
from core.ports.topics import TopicRow
from storage.connection.pool import Database
from storage.notifications import METADATA_CHANGED
from storage.topics import TopicStore


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    database = Database(database_url)
    yield database
    await database.close()


@pytest.fixture
def store(database: Database) -> TopicStore:
    return TopicStore(database)


def row(name: str, partitions: int = 1, **overrides: str) -> TopicRow:
    return TopicRow(uuid4(), name, False, partitions, overrides)


async def create(store: TopicStore, *rows: TopicRow) -> None:
    async with store.change("test") as change:
        await change.create_topics(rows)


async def test_topic_is_read_as_it_was_written(store: TopicStore) -> None:
    wanted = row("t", 3, a="1", b="2")
    await create(store, wanted, row("u"))
    (found,) = (await store.find_topics(["t", "none"])).values()
    assert (found.topic_id, found.name, found.is_internal) == (wanted.topic_id, "t", False)
    assert found.overrides == {"a": "1", "b": "2"}
    assert found.leader_epochs == (0, 0, 0)
    assert list(found.partition_ids) == sorted(found.partition_ids)
    assert await store.find_topics_by_id([wanted.topic_id, uuid4()]) == {wanted.topic_id: found}


async def test_a_request_may_name_more_than_a_statement_has_parameters(store: TopicStore) -> None:
    wanted = row("t")
    await create(store, wanted)
    names = [f"none-{number}" for number in range(70_000)]
    assert list(await store.find_topics([*names, "t"])) == ["t"]
    ids = [UUID(int=number) for number in range(70_000)]
    assert list(await store.find_topics_by_id([*ids, wanted.topic_id])) == [wanted.topic_id]


async def test_partitions_keep_their_numbers_whatever_their_ids(store: TopicStore) -> None:
    wanted = row("t", 2)
    await create(store, wanted)
    await create(store, row("u", 2))
    async with store.change("test") as change:
        await change.add_partitions(wanted.topic_id, 2, 11)
    found = (await store.find_topics(["t"]))["t"]
    assert len(set(found.partition_ids)) == 13
    assert found.partition_ids[2] > found.partition_ids[1] + 1


async def test_all_topics_are_read_as_each_of_them(store: TopicStore) -> None:
    grown = row("grown", 2, a="1")
    await create(store, row("many", 12, b="2", c="3"), grown, row("plain"))
    async with store.change("test") as change:
        await change.add_partitions(grown.topic_id, 2, 3)
    listing = await store.list_topics(None)
    assert listing is not None
    assert {each.name: each for each in listing.topics} == await store.find_topics(
        ["grown", "many", "plain"]
    )


async def test_change_that_fails_leaves_nothing(store: TopicStore) -> None:
    async def fail() -> None:
        async with store.change("test") as change:
            await change.create_topics([row("t")])
            raise LookupError

    with pytest.raises(LookupError):
        await fail()
    assert await store.find_topics(["t"]) == {}
    listing = await store.list_topics(None)
    assert listing is not None
    assert listing.version == 0


async def test_version_rises_with_changes_alone(store: TopicStore) -> None:
    before = await store.list_topics(None)
    assert before is not None
    async with store.change("test") as change:
        await change.topic_names()
    assert await store.list_topics(before.version) is None
    await create(store, row("b"), row("a"))
    after = await store.list_topics(before.version)
    assert after is not None
    assert after.version > before.version
    assert [topic.name for topic in after.topics] == ["a", "b"]
    async with store.change("test") as change:
        await change.write_broker_configs("", {"log.retention.ms": "1"})
    assert await store.list_topics(after.version) is not None


async def test_every_change_is_told(store: TopicStore, database_url: str) -> None:
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as listener:
        await listener.execute(f"LISTEN {METADATA_CHANGED}")
        wanted = row("t")
        await create(store, wanted)
        async with store.change("test") as change:
            await change.topic_names()
        async with store.change("test") as change:
            await change.write_topic_configs(wanted.topic_id, {"a": "1"})
        async with store.change("test") as change:
            await change.delete_topics([wanted.topic_id])
        async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as psql:
            await psql.execute("SELECT pg_notify(%s, 'the end')", [METADATA_CHANGED])
        told = 0
        async for notice in listener.notifies(timeout=30):  # in the order of their commits
            if notice.payload == "the end":
                break
            told += 1
    assert told == 3


async def test_settings_are_set_changed_and_deleted(store: TopicStore) -> None:
    wanted = row("t", a="1", b="2")
    await create(store, wanted)
    async with store.change("test") as change:
        await change.write_topic_configs(wanted.topic_id, {"a": None, "b": "3", "c": "4"})
        await change.write_broker_configs("1", {"x": "y"})
        await change.write_group_configs("g", {"x": "1", "y": "2"})
        await change.write_group_configs("1", {"x": "3"})
    assert (await store.find_topics(["t"]))["t"].overrides == {"b": "3", "c": "4"}
    async with store.change("test") as change:
        assert await change.read_broker_configs("1") == {"x": "y"}
        assert await change.read_broker_configs("") == {}
        assert await change.read_group_configs(["g", "1", "none"]) == {
            "g": {"x": "1", "y": "2"},
            "1": {"x": "3"},
        }
        assert await change.read_group_configs([]) == {}
        await change.write_group_configs("g", {"x": None, "y": None})
        assert await change.read_group_configs(["g"]) == {}


async def test_deleted_partitions_are_left_for_the_background(
    store: TopicStore, database: Database
) -> None:
    gone, kept = row("gone", 2, a="1"), row("kept", 2, a="1")
    await create(store, gone, kept)
    ids = (await store.find_topics(["gone"]))["gone"].partition_ids
    async with store.change("test") as change:
        await change.delete_topics([gone.topic_id])
    async with database.begin("test") as connection:
        left = await connection.execute(text("SELECT partition_id FROM penstock.deleted_partition"))
        assert sorted(left.scalars()) == sorted(ids)
        entries = await connection.execute(text("SELECT resource_name FROM penstock.config_entry"))
        assert list(entries.scalars()) == [str(kept.topic_id)]
    assert list(await store.find_topics(["gone", "kept"])) == ["kept"]


async def test_deletion_waits_for_a_flush_and_cannot_deadlock_with_it(
    store: TopicStore, database_url: str
) -> None:
    wanted = row("t", 2)
    await create(store, wanted)
    low, high = sorted((await store.find_topics(["t"]))["t"].partition_ids)
    lock = "SELECT FROM penstock.topic_partition WHERE partition_id = %s FOR NO KEY UPDATE"

    async def delete() -> None:
        async with store.change("test") as change:
            await change.delete_topics([wanted.topic_id])

    async with await psycopg.AsyncConnection.connect(database_url) as flush:
        await flush.execute(lock, (low,))
        deletion = asyncio.create_task(delete())
        await asyncio.sleep(0.2)
        # In the order of ids, the deletion waits for the first and holds nothing of the second.
        await flush.execute(lock, (high,))
        assert not deletion.done()
        await flush.commit()
    await deletion
    assert await store.find_topics(["t"]) == {}


async def test_changes_of_two_brokers_come_one_after_the_other(
    store: TopicStore, database_url: str
) -> None:
    other = Database(database_url)
    order: list[str] = []

    async def second() -> None:
        async with TopicStore(other).change("test") as change:
            order.append("second")
            assert await change.topic_names() == {"t"}

    async with store.change("test") as change:
        task = asyncio.create_task(second())
        await asyncio.sleep(0.2)
        await change.create_topics([row("t")])
        order.append("first")
    await task
    await other.close()
    assert order == ["first", "second"]


async def test_broker_that_stalls_in_a_change_is_thrown_out(
    store: TopicStore, database_url: str
) -> None:
    other = Database(database_url)

    async def stall() -> UUID:
        async with store.change("test") as change:
            wanted = row("stalled")
            await change.create_topics([wanted])
            await asyncio.sleep(6)
            return wanted.topic_id

    stalled = asyncio.create_task(stall())
    await asyncio.sleep(0.3)
    # Others wait 5 s at most, and are then told to try again or let in.
    for _ in range(3):
        try:
            await create(TopicStore(other), row("t"))
            break
        except StoreUnavailable as error:
            assert "another broker is changing" in str(error)
    with pytest.raises(StoreUnavailable):
        await stalled
    assert set(await store.find_topics(["t", "stalled"])) == {"t"}
    await other.close()
