"""Subscriptions on real PostgreSQL: what is written comes back, and only under its lease."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from uuid import uuid4

import psycopg
import pytest

from core.ports.leases import Lease
from core.ports.log import EffectRefused, VersionMismatch
from core.ports.subscriptions import (
    CursorWrite,
    GuardedWrites,
    NewSubscription,
    StoredSubscription,
)
from core.shard import SHARDS
from core.subscription.cursor import Cursor, StoredCursor
from core.subscription.offset_ranges import OffsetRange
from core.subscription.values import SubscriptionType
from storage.connection.pool import Database
from storage.subscriptions.store import SubscriptionStore
from storage.topics import TopicStore
from tests.storage.conftest import Log

ODD = "a\0b␀0c\\\"{},𝄞'\n" + "x" * 9_000


@pytest.fixture
async def log(any_url: str) -> AsyncIterator[Log]:
    """The database, with every lease held under generation 1."""
    database = Database(any_url)
    with psycopg.connect(any_url, autocommit=True) as psql:
        psql.execute(
            "INSERT INTO coordinator_lease (shard, broker_id, incarnation, generation)"
            " SELECT n, 1, %s, 1 FROM generate_series(0, %s) AS n",
            (uuid4(), SHARDS - 1),
        )
        yield Log(any_url, database, psql)
    await database.close()


@pytest.fixture
def store(log: Log) -> SubscriptionStore:
    return SubscriptionStore(log.database)


LEASE = Lease(7, 1)


async def test_what_is_made_is_loaded(log: Log, store: SubscriptionStore) -> None:
    first, second = log.new_partitions(2)
    new = NewSubscription(first, ODD, 12, SubscriptionType.KEY_SHARED, {"a\0": "b", "c": ""})
    made = await store.create(LEASE, new)
    assert made is not None
    assert await store.create(LEASE, NewSubscription(second, "s", 0)) not in (None, made)
    expected = StoredSubscription(made, ODD, StoredCursor(12), new.type, new.properties)
    assert await store.load(first) == [expected]
    with pytest.raises(EffectRefused):
        await store.create(LEASE, new)
    await store.delete(LEASE, made)
    assert await store.load(first) == []
    assert len(await store.load(second)) == 1


async def test_nothing_is_made_of_a_partition_that_is_gone(store: SubscriptionStore) -> None:
    assert await store.create(LEASE, NewSubscription(999_999, "s", 0)) is None


async def test_cursors_are_written_as_they_change(log: Log, store: SubscriptionStore) -> None:
    (partition,) = log.new_partitions()
    ids = [await store.create(LEASE, NewSubscription(partition, name, 0)) for name in "ab"]
    flush = store.open_flush()
    cursors = [Cursor(), Cursor()]
    for start, end in ((5, 6), (3, 4), (4, 5), (10, 12), (0, 2), (2, 3), (20, 30)):
        writes = []
        for subscription_id, cursor in zip(ids, cursors, strict=True):
            cursor.acknowledge(start, end)
            effects = cursor.take_effects()
            assert effects is not None and subscription_id is not None
            writes.append(CursorWrite(subscription_id, effects, SubscriptionType.SHARED))
        await flush.commit([GuardedWrites(LEASE, tuple(writes))])
        found = await store.load(partition)
        assert [each.cursor for each in found] == [each.taken() for each in cursors]
    assert cursors[0].taken() == StoredCursor(6, (OffsetRange(10, 12), OffsetRange(20, 30)))
    assert {each.type for each in found} == {SubscriptionType.SHARED}


async def test_a_cursor_stays_on_its_page(log: Log, store: SubscriptionStore) -> None:
    (partition,) = log.new_partitions()
    made = await store.create(LEASE, NewSubscription(partition, "s", 0))
    assert made is not None
    flush = store.open_flush()
    cursor = Cursor()
    for end in range(1, 50):
        cursor.acknowledge_up_to(end)
        effects = cursor.take_effects()
        assert effects is not None
        await flush.commit([GuardedWrites(LEASE, (CursorWrite(made, effects),))])
    await flush.close()
    await log.database.close()  # backends tell what they have done when they end
    log.psql.execute("SELECT pg_stat_clear_snapshot()")
    deadline = time.monotonic() + 30
    query = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname='subscription'"
    while (found := log.rows(query)[0])[0] < 49 and time.monotonic() < deadline:
        time.sleep(0.05)
    updates, in_place = found
    assert updates == 49
    assert in_place > 40  # another test's snapshot may put off the pruning of its page


@pytest.mark.parametrize("generation", [0, 2])
async def test_another_generation_writes_nothing(
    log: Log, store: SubscriptionStore, generation: int
) -> None:
    (partition,) = log.new_partitions()
    made = await store.create(LEASE, NewSubscription(partition, "s", 0))
    assert made is not None
    stale = Lease(7, generation)
    cursor = Cursor()
    cursor.acknowledge(3, 4)
    effects = cursor.take_effects()
    assert effects is not None
    for attempt in (
        store.open_flush().commit([GuardedWrites(stale, (CursorWrite(made, effects),))]),
        store.create(stale, NewSubscription(partition, "t", 0)),
        store.delete(stale, made),
    ):
        with pytest.raises(VersionMismatch):
            await attempt
    assert await store.load(partition) == [StoredSubscription(made, "s", StoredCursor())]


async def test_a_topic_takes_its_subscriptions_with_it(log: Log, store: SubscriptionStore) -> None:
    kept, *doomed = log.new_partitions(1) + log.new_partitions(2)
    flush = store.open_flush()
    made = []
    for partition in (kept, *doomed):
        subscription_id = await store.create(LEASE, NewSubscription(partition, "s", 0))
        assert subscription_id is not None
        made.append(subscription_id)
    cursor = Cursor()
    cursor.acknowledge(3, 4)
    effects = cursor.take_effects()
    assert effects is not None
    writes = tuple(CursorWrite(each, effects) for each in made)
    await flush.commit([GuardedWrites(LEASE, writes)])
    topic_id = log.value("SELECT topic_id FROM topic_partition WHERE partition_id = %s", doomed[0])
    async with TopicStore(log.database).change("delete_topics") as change:
        await change.delete_topics([topic_id])
    assert log.rows("SELECT partition_id FROM subscription") == [(kept,)]
    assert log.value("SELECT count(*) FROM subscription_range") == 1
    # A flush that was under way finds nothing to write, and leaves no ranges behind.
    await flush.commit([GuardedWrites(LEASE, writes)])
    assert log.value("SELECT count(*) FROM subscription_range") == 1
