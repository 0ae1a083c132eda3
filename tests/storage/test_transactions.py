"""Transactions on real PostgreSQL: what guards them, what waits for what, and in which order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg
import pytest

from core.group.records import GroupEffects, GroupRow, OffsetEffects
from core.ports.log import StoreUnavailable, ToLock, VersionMismatch
from core.ports.transactions import TransactionJoin
from core.shard import shard_of
from core.transaction.key import TransactionKey
from core.transaction.values import (
    Marker,
    StoredTransaction,
    TransactionEffects,
    TransactionMetadata,
    TransactionState,
    TransactionVersion,
    first_version,
)
from storage import transactions
from storage.connection.client_text import key_of
from storage.connection.pool import HOT_SESSION
from storage.connection.session import HotSession, Statement
from storage.flush import log as flush_of_the_log
from tests.keys import groups, named
from tests.storage.conftest import Log
from tests.storage.transacting import (
    LEASES,
    T0,
    Broker,
    offset,
    opened,
    pending,
    row_of,
)

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

LONG = "𝄞" * 8_190
ODD = "a␀0b\\\"{},𝄞'\n"
NAMES = sorted("abc", key=key_of)
"""Ids in the order of their keys, which is the order of locks."""


@dataclass
class World:
    """A database, a broker over it, another one, and a person with psql."""

    log: Log
    here: Broker
    there: Broker

    def rows(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return self.log.rows(query, *parameters)

    def value(self, query: str, *parameters: Any) -> Any:
        return self.log.value(query, *parameters)

    @contextmanager
    def psql(self) -> Iterator[psycopg.Connection[Any]]:
        """A transaction of its own, committed where the block ends well."""
        with psycopg.connect(self.log.url) as other:
            yield other

    async def waits(self, task: asyncio.Task[Any]) -> None:
        """Until the task's session waits for a lock of somebody."""
        query = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND application_name = 'penstock' AND wait_event_type = 'Lock'"
        )
        while not self.value(query):
            assert not task.done(), f"it was to wait: {task}"
            await asyncio.sleep(0.01)

    async def held_up(
        self, work: Awaitable[Any], statement: str, *parameters: Any, commits: bool = True
    ) -> Any:
        """Runs a statement in an open transaction, work until it waits for that, then lets go."""
        with self.psql() as other:
            other.execute(statement.encode(), parameters)
            task = asyncio.ensure_future(work)
            await self.waits(task)
            if not commits:
                other.rollback()
        return await task


@pytest.fixture
async def world(log: Log, patient_sessions: None) -> AsyncIterator[World]:
    log.rows(LEASES)
    here, there = Broker(log.url), Broker(log.url)
    yield World(log, here, there)
    await here.close()
    await there.close()


# Rows.


@pytest.mark.parametrize("name", ["t", LONG, ODD])
async def test_what_is_written_comes_back(world: World, name: str) -> None:
    (p, q) = world.log.new_partitions(2)
    metadata = TransactionMetadata(
        named(name),
        2**38,
        32_766,
        TransactionState.PREPARE_EPOCH_FENCE,
        TransactionVersion.V2,
        2**31 - 1,
        -1,
        32_767,
        -1,
        -1,
        2**31 - 1,
        ODD,
        "a\0b",
    )
    await world.here.put(TransactionEffects(named(name), 0, metadata))
    found = await world.here.load(name)
    now = world.value("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint")
    assert 0 <= now - found.metadata.updated_at < 60_000
    assert found.metadata == replace(
        metadata, version=first_version(2**38), updated_at=found.metadata.updated_at
    )
    assert (found.partitions, found.participants) == (frozenset(), frozenset())
    version = await world.here.join(found, (q, p), (LONG, "g", ODD), opens=True)
    found = await world.here.load(name)
    assert found.metadata.version == version
    assert found.metadata.state is TransactionState.ONGOING
    assert 0 <= found.metadata.started_at - now < 60_000
    assert (found.partitions, found.participants) == ({p, q}, groups(LONG, "g", ODD))
    # The same by its producer, as a flush of appends looks for it.
    assert await world.here.logs.load_transactions([2**38, 1]) == {2**38: found}
    now, listed = await world.here.store.list_all()
    assert [each.key.name for each in listed] == [name]
    assert now >= found.metadata.started_at


@pytest.mark.parametrize("state", TransactionState)
async def test_every_state_is_kept_as_text(world: World, state: TransactionState) -> None:
    await world.here.put(TransactionEffects(named("t"), 0, replace(row_of("t"), state=state)))
    assert (await world.here.load("t")).metadata.state is state
    assert world.value("SELECT state FROM transaction_state") == state.value


async def test_a_transaction_starts_when_it_is_opened(world: World) -> None:
    (p,) = world.log.new_partitions()
    first = await world.here.begin("t", partitions=(p,))
    world.rows("UPDATE transaction_state SET started_at = 5")
    # Whatever else changes in it, it has begun when it has begun.
    version = first.metadata.version
    await world.here.put(TransactionEffects(named("t"), version, first.metadata))
    assert (await world.here.load("t")).metadata.started_at == 5
    # One that ends, and the next that is opened in the same flush.
    marker = Marker(7, 0, is_commit=True, coordinator_epoch=0)
    effects = TransactionEffects(
        named("t"), version + 1, first.metadata, (p,), marker=marker, partitions=first.partitions
    )
    await world.here.put(effects)
    found = await world.here.load("t")
    assert found.metadata.started_at >= first.metadata.started_at > 5
    assert found.partitions == {p}


async def test_who_has_had_its_time(world: World) -> None:
    for number, name in enumerate(("x", "y", "z")):
        await world.here.begin(name, number + 10, timeout_ms=60_000)
    await world.here.put(TransactionEffects(named("idle"), 0, row_of("idle", 5)))
    overdue = await world.here.store.overdue(10)
    assert overdue.keys == []
    world.rows(
        "UPDATE transaction_state SET started_at = started_at - 60000 - producer_id * 1000"
        " WHERE producer_id IN (10, 12)"
    )
    overdue = await world.here.store.overdue(10)
    assert [each.name for each in overdue.keys] == ["z", "x"]  # the longest overdue first
    assert overdue.now_ms >= (await world.here.load("x")).metadata.started_at + 60_000
    assert list((await world.here.store.overdue(1)).keys) == [named("z")]
    assert (await world.here.store.idle(60_000, 10)).keys == []
    world.rows("UPDATE transaction_state SET updated_at = updated_at - 60000")
    assert list((await world.here.store.idle(60_000, 10)).keys) == [named("idle")]


# The guard.


def by_holding(stored: StoredTransaction, delta: int = 0) -> TransactionEffects:
    metadata = stored.metadata
    return TransactionEffects(metadata.key, metadata.version + delta)


def by_moving(stored: StoredTransaction, delta: int = 0) -> TransactionEffects:
    return replace(by_holding(stored, delta), put=opened(stored.metadata))


def by_deleting(stored: StoredTransaction, delta: int = 0) -> TransactionEffects:
    return replace(by_holding(stored, delta), is_deleted=True)


GUARDS = pytest.mark.parametrize("guarded", [by_holding, by_moving, by_deleting])
Guarded = Callable[..., TransactionEffects]


@GUARDS
@pytest.mark.parametrize("delta", [-(2**40), -1, 1])
async def test_another_version_leaves_nothing(world: World, guarded: Guarded, delta: int) -> None:
    (p,) = world.log.new_partitions()
    stored = await world.here.begin("t", 7, (p,))
    other = await world.here.begin("other", 2**30)
    await world.here.put(by_moving(stored))
    stored = await world.here.load("t")
    effects, _ = await world.here.drafted(stored, p)
    with pytest.raises(VersionMismatch):
        await world.here.flush.commit(effects, [by_moving(other), guarded(stored, delta)])
    assert await world.here.load("t") == stored
    assert await world.here.load("other") == other
    assert (await world.log.state(p)).next_offset == 0
    # The session takes the next flush.
    await world.here.put(guarded(stored), by_moving(other))


@GUARDS
async def test_an_id_that_is_not_there(world: World, guarded: Guarded) -> None:
    with pytest.raises(VersionMismatch):
        await world.here.put(guarded(StoredTransaction(row_of("t", version=1))))
    assert await world.here.find("t") is None


@GUARDS
@pytest.mark.parametrize("commits", [True, False])
async def test_who_waits_for_a_change_sees_it(
    world: World, guarded: Guarded, commits: bool
) -> None:
    work = world.here.put(guarded(await world.here.begin("t")))
    change = "UPDATE transaction_state SET version = version + 1"
    if commits:
        with pytest.raises(VersionMismatch):
            await world.held_up(work, change)
    else:
        await world.held_up(work, change, commits=False)


@GUARDS
async def test_who_waits_for_a_deletion_sees_it(world: World, guarded: Guarded) -> None:
    work = world.here.put(guarded(await world.here.begin("t")))
    with pytest.raises(VersionMismatch):
        await world.held_up(work, "DELETE FROM transaction_state")


async def test_appends_do_not_wait_for_each_other(world: World) -> None:
    p, q = world.log.new_partitions(2)
    stored = await world.here.begin("t", partitions=(p, q))
    with world.psql() as other:
        other.execute("SELECT FROM transaction_state FOR SHARE")
        await world.here.append(stored, p)
        await world.there.append(stored, q)
        await world.there.join(stored, (p,), ("g",))
        await world.there.pend(stored, "g", offset(p, 1))


@pytest.mark.parametrize("end", [True, False], ids=["to end it", "to open the next"])
async def test_what_changes_a_transaction_waits_for_appends(world: World, end: bool) -> None:
    (p,) = world.log.new_partitions()
    stored = await world.here.begin("t", partitions=(p,))
    if not end:
        await world.here.end("t")
        stored = await world.here.load("t")
    work = world.here.end("t") if end else world.here.reopen(stored)
    await world.held_up(work, "SELECT FROM transaction_state FOR SHARE")
    found = (await world.here.load("t")).metadata
    assert found.version == stored.metadata.version + 1


async def test_of_two_that_make_an_id_one_does(world: World) -> None:
    for number in range(10):
        name = f"t-{number}"
        outcomes = await asyncio.gather(
            *(
                broker.put(TransactionEffects(named(name), 0, row_of(name, 2 * number + each)))
                for each, broker in enumerate((world.here, world.there))
            ),
            return_exceptions=True,
        )
        winner = outcomes.index(None)
        assert isinstance(outcomes[1 - winner], VersionMismatch)
        assert (await world.here.load(name)).metadata.producer_id == 2 * number + winner


async def test_who_waits_for_a_new_id_sees_it(world: World) -> None:
    made = (
        "INSERT INTO transaction_state SELECT %s, 't', 9, 0, -1, -1, 'Empty', 1, 1, -1, 1, 0, '',"
        " '', 1"
    )
    work = TransactionEffects(named("t"), 0, row_of("t", 7))
    key = UUID(bytes=key_of("t"))
    with pytest.raises(VersionMismatch):
        await world.held_up(world.here.put(work), made, key)
    assert (await world.here.load("t")).metadata.producer_id == 9
    world.rows("DELETE FROM transaction_state")
    await world.held_up(world.here.put(work), made, key, commits=False)
    assert (await world.here.load("t")).metadata.producer_id == 7


# Order of locks.


@pytest.mark.parametrize("first", [by_holding, by_moving])
@pytest.mark.parametrize("second", [by_holding, by_moving])
async def test_rows_are_locked_in_order_whatever_is_done_to_them(
    world: World, first: Guarded, second: Guarded
) -> None:
    a, b, c = [await world.here.begin(name, ord(name)) for name in NAMES]
    key = UUID(bytes=key_of(NAMES[0]))
    with world.psql() as other:
        other.execute("SELECT FROM transaction_state WHERE txn_key = %s FOR UPDATE", [key])
        task = asyncio.ensure_future(world.here.put(second(c), first(a), second(b)))
        await world.waits(task)
        # It waits for the first row and has not taken one behind it.
        other.execute("SELECT FROM transaction_state FOR UPDATE NOWAIT")
    await task


async def test_ends_are_locked_in_order_transactions_before_partitions(world: World) -> None:
    p, q = world.log.new_partitions(2)
    for name in NAMES:
        await world.here.begin(name, ord(name), (p, q))
    key = UUID(bytes=key_of(NAMES[0]))
    with world.psql() as other:
        other.execute("SELECT FROM transaction_state WHERE txn_key = %s FOR UPDATE", [key])
        work = world.here.flush.lock(ToLock((), (), [named(each) for each in reversed(NAMES)]))
        task = asyncio.ensure_future(work)
        await world.waits(task)
        other.execute("SELECT FROM transaction_state FOR UPDATE NOWAIT")
        other.execute("SELECT FROM topic_partition FOR UPDATE NOWAIT")
    await task
    await world.here.flush.rollback()
    with world.psql() as other:
        other.execute("SELECT FROM topic_partition WHERE partition_id = %s FOR UPDATE", [p])
        task = asyncio.ensure_future(
            world.here.flush.lock(ToLock((), (), [named(each) for each in NAMES]))
        )
        await world.waits(task)
        other.execute("SELECT FROM topic_partition FOR UPDATE NOWAIT")
    await task
    await world.here.flush.rollback()


# What is read under the lock.


async def test_partitions_that_joined_during_the_wait_are_locked_and_read(world: World) -> None:
    """READ COMMITTED: a statement that waits sees joined rows as they were before; a later one
    does not."""
    p, q = world.log.new_partitions(2)
    stored = await world.here.begin("t", partitions=(p,))
    await world.here.append(stored, p)
    with world.psql() as other:
        # Another broker's append to q, which joins.
        other.execute("SELECT FROM transaction_state FOR SHARE")
        task = asyncio.ensure_future(world.here.flush.lock(ToLock((), (), (named("t"),))))
        await world.waits(task)
        key = UUID(bytes=key_of("t"))
        other.execute("INSERT INTO transaction_partition VALUES (%s, %s)", [key, q])
        other.execute(
            "INSERT INTO producer_state (partition_id, producer_id, producer_epoch, last_timestamp,"
            " last_sequences, last_offsets, offset_deltas, timestamps, txn_first_offset)"
            " VALUES (%s, 7, 0, 1, '{0}', '{0}', '{0}', '{1}', 0)",
            [q],
        )
        other.execute("UPDATE topic_partition SET next_offset = 1 WHERE partition_id = %s", [q])
        other.execute("INSERT INTO transaction_participant VALUES (%s, %s, 'g')", [key, key])
    locked = await task
    (found,) = locked.transactions
    assert (found.partitions, found.participants) == ({p, q}, groups("g"))
    assert {i: state.open_transactions for i, state in locked.partitions.items()} == {
        p: ((7, 0),),
        q: ((7, 0),),
    }
    assert {pair: each.last_sequence for pair, each in locked.producers.items()} == {
        (p, 7): 0,
        (q, 7): 0,
    }
    with pytest.raises(psycopg.errors.LockNotAvailable), world.psql() as other:
        other.execute("SELECT FROM topic_partition WHERE partition_id = %s FOR SHARE NOWAIT", [q])
    await world.here.flush.rollback()


async def test_a_transaction_is_found_by_its_producer_as_well(world: World) -> None:
    (p,) = world.log.new_partitions()
    await world.here.begin("t", 7)
    await world.here.begin("u", 8)
    locked = await world.here.flush.lock(
        ToLock((p,), ((p, 7),), (named("u"), named("nobody")), (7, 99))
    )
    assert {each.metadata.key.name for each in locked.transactions} == {"t", "u"}
    assert set(locked.partitions) == {p}
    with pytest.raises(psycopg.errors.LockNotAvailable), world.psql() as other:
        other.execute("SELECT FROM transaction_state WHERE producer_id = 7 FOR SHARE NOWAIT")
    await world.here.flush.rollback()


async def test_a_producer_that_changed_hands_during_the_wait_is_not_there(world: World) -> None:
    """The epochs were exhausted: the id goes on with another producer."""
    await world.here.begin("t", 7)
    change = "UPDATE transaction_state SET producer_id = 8"
    locked = await world.held_up(world.here.flush.lock(ToLock((), (), (), (7,))), change)
    assert (locked.transactions, locked.held_elsewhere) == ((), frozenset())
    await world.here.flush.rollback()


async def test_partitions_of_a_deleted_topic_are_left_out(world: World) -> None:
    p, q = world.log.new_partitions(2)
    stored = await world.here.begin("t", partitions=(p, q))
    await world.here.append(stored, p, q)
    world.rows("INSERT INTO deleted_partition VALUES (%s)", q)
    world.rows("DELETE FROM topic_partition WHERE partition_id = %s", q)
    locked = await world.here.flush.lock(ToLock((), (), (named("t"),)), skip_locked=True)
    assert (set(locked.partitions), locked.held_elsewhere) == ({p}, frozenset())
    await world.here.flush.rollback()
    assert await world.here.end("t")
    assert world.value("SELECT count(*) FROM transaction_partition") == 0
    assert world.rows("SELECT partition_id FROM record_batch WHERE is_control") == [(p,)]


async def test_what_another_holds_is_skipped_and_named(world: World) -> None:
    p, q, r = world.log.new_partitions(3)
    for name, partition_id in zip(NAMES, (p, q, r), strict=True):
        await world.here.begin(name, ord(name), (partition_id,))
    key = UUID(bytes=key_of(NAMES[0]))
    with world.psql() as other:
        other.execute("SELECT FROM transaction_state WHERE txn_key = %s FOR UPDATE", [key])
        other.execute("SELECT FROM topic_partition WHERE partition_id = %s FOR UPDATE", [q])
        wanted = ToLock((p, q), (), [named(each) for each in NAMES[1:]], (ord(NAMES[0]),))
        locked = await world.here.flush.lock(wanted, skip_locked=True)
        assert {each.metadata.key.name for each in locked.transactions} == {*NAMES[1:]}
        assert set(locked.partitions) == {p, r}
        # One's row is held, one's partition; the third is free.
        assert locked.held_elsewhere == {named(NAMES[0]), named(NAMES[1])}
        assert locked.held_producers == {ord(NAMES[0])}
        await world.here.flush.rollback()
    locked = await world.here.flush.lock(wanted, skip_locked=True)
    assert (locked.held_elsewhere, locked.held_producers) == (frozenset(), frozenset())
    await world.here.flush.rollback()


# Joins.


async def test_a_join_is_seen_by_all_at_once_and_once(world: World) -> None:
    p, q = world.log.new_partitions(2)
    await world.here.put(TransactionEffects(named("t"), 0, row_of("t")))
    stored = await world.here.load("t")
    version = await world.here.join(stored, (q, p), opens=True)
    found = await world.there.load("t")
    assert found.metadata.version == version
    assert found.partitions == {p, q}
    for _ in range(2):  # once more, and by another broker
        assert await world.there.join(found, (p,), ("g",)) == version
    assert await world.here.load("t") == replace(found, participants=groups("g"))
    for stale in (stored, replace(found, metadata=replace(found.metadata, version=version + 1))):
        with pytest.raises(VersionMismatch):
            await world.here.join(stale, (p,), opens=True)
        with pytest.raises(VersionMismatch):
            await world.here.join(stale, (p,), ("h",))
    with pytest.raises(VersionMismatch):
        await world.here.store.join([TransactionJoin(named("nobody"), 1, None, (p,))])
    assert (await world.here.load("t")).participants == groups("g")


async def test_versions_of_asynchronous_openings_do_not_come_twice(world: World) -> None:
    """A crash may lose one, though brokers know of it: what they know must fit nothing later."""
    (p,) = world.log.new_partitions()
    await world.here.put(TransactionEffects(named("t"), 0, row_of("t")))
    stored = await world.here.load("t")
    before = stored.metadata.version
    seen = set()
    for _ in range(20):
        seen.add(await world.here.join(stored, (p,), opens=True))
        world.rows(
            "UPDATE transaction_state SET version = %s, state = 'Empty', started_at = -1", before
        )
    assert len(seen) == 20
    # Nor does a flush get there: it moves a version by one.
    assert min(seen) > before + 1_000


async def test_joins_wait_for_who_ends_the_transaction(world: World) -> None:
    p, q = world.log.new_partitions(2)
    stored = await world.here.begin("t", partitions=(p,))
    locked = await world.here.flush.lock(ToLock((), (), (named("t"),)))
    assert locked.transactions == (stored,)
    joining = asyncio.ensure_future(world.there.join(stored, (q,)))
    await world.waits(joining)
    await world.here.put(replace(by_holding(stored), put=row_of("t")))
    with pytest.raises(VersionMismatch):
        await joining


async def test_what_stays_locked_is_unavailable(world: World) -> None:
    """The port knows no other word for it, and whoever asked is not left waiting."""
    (p,) = world.log.new_partitions()
    stored = await world.here.begin("t", partitions=(p,))
    with world.psql() as other:
        other.execute("SELECT FROM transaction_state FOR UPDATE")
        with pytest.raises(StoreUnavailable):
            await world.here.join(stored, (p,))
        with pytest.raises(StoreUnavailable):
            await world.here.pend(stored, "g", offset(p, 1))
        assert await world.there.load("t") == stored  # readers do not wait
    await world.here.join(stored, (p,))
    await world.here.pend(stored, "g", offset(p, 1))


# Offsets in transactions.


async def test_offsets_count_once_the_transaction_is_committed(world: World) -> None:
    p, q = world.log.new_partitions(2)
    stored = await world.here.begin("t")
    await world.here.pend(stored, "g", offset(p, 5, metadata=ODD, at=T0 + 1), offset(q, 6))
    await world.here.pend(stored, "h", offset(p, 7))
    await world.here.pend(stored, "g", offset(q, 8))  # once more
    assert (await world.here.load("t")).participants == groups("g", "h")
    assert await world.here.store.pending_partitions(["g", "none", "h"]) == [
        {p, q},
        frozenset(),
        {p},
    ]
    for group in ("g", "h"):
        assert await world.here.offsets(group) == {}
        assert await world.here.groups.load_group(group) is not None
    assert await world.here.end("t")
    assert await world.here.offsets("g") == {p: 5, q: 8}
    assert await world.here.offsets("h") == {p: 7}
    (found,) = await world.here.groups.fetch_offsets([("g", [p])])
    assert found[p] == offset(p, 5, metadata=ODD, at=T0 + 1)
    assert world.rows("SELECT 1 FROM pending_offset") == []
    assert world.rows("SELECT 1 FROM transaction_participant") == []
    assert await world.here.store.pending_partitions(["g"]) == [frozenset()]


async def test_aborted_offsets_vanish(world: World) -> None:
    (p,) = world.log.new_partitions()
    await world.here.commit_offsets("g", offset(p, 1))
    first, second = await world.here.begin("t", 7), await world.here.begin("u", 8)
    await world.here.pend(first, "g", offset(p, 5))
    await world.here.pend(second, "g", offset(p, 6))
    assert await world.here.end("t", commit=False)
    assert await world.here.offsets("g") == {p: 1}
    assert world.rows("SELECT producer_id FROM pending_offset") == [(8,)]
    assert await world.here.end("u")
    assert await world.here.offsets("g") == {p: 6}


async def test_of_several_commits_the_latest_counts_not_the_last_to_end(world: World) -> None:
    """Kafka: by the offset of the record in __consumer_offsets, not by that of the marker."""
    p, q, r = world.log.new_partitions(3)
    first, second = await world.here.begin("t", 7), await world.here.begin("u", 8)
    await world.here.pend(first, "g", *(offset(each, 1, at=T0 + 9) for each in (p, q, r)))
    await world.here.pend(second, "g", offset(p, 2), offset(q, 2))
    await world.here.commit_offsets("g", offset(q, 3))
    await world.here.pend(second, "g", offset(r, 4))
    await world.here.pend(first, "g", offset(r, 5))
    assert await world.here.end("u")
    assert await world.here.offsets("g") == {p: 2, q: 3, r: 4}
    assert await world.here.end("t")
    assert await world.here.offsets("g") == {p: 2, q: 3, r: 5}


async def test_two_transactions_of_one_flush_with_one_offset(world: World) -> None:
    (p,) = world.log.new_partitions()
    stored = {name: await world.here.begin(name, ord(name)) for name in NAMES}
    for value, name in enumerate(reversed(NAMES)):
        await world.here.pend(stored[name], "g", offset(p, value))
    await world.here.flush.lock(ToLock((), (), [named(each) for each in NAMES]))
    effects = [
        replace(
            by_holding(stored[name]),
            put=row_of(name, ord(name)),
            marker=Marker(ord(name), 0, name != NAMES[0], 0),
            participants=groups("g"),
        )
        for name in NAMES
    ]
    await world.here.flush.commit([], effects)
    # The first of them had the latest, and was aborted.
    assert await world.here.offsets("g") == {p: 1}
    assert world.rows("SELECT 1 FROM pending_offset") == []


async def test_joins_of_several_transactions_are_one_write(world: World) -> None:
    p, q = world.log.new_partitions(2)
    open_one = await world.here.begin("open", 1, (p,))
    await world.here.put(TransactionEffects(named("empty"), 0, row_of("empty", 2)))
    empty = await world.here.load("empty")
    begun = opened(replace(row_of("x", 3), key=TransactionKey.of_pulsar(4, 3)))
    versions = await world.here.store.join(
        [
            TransactionJoin(named("open"), open_one.metadata.version, None, (q,)),
            TransactionJoin(named("empty"), empty.metadata.version, opened(empty.metadata), (p, q)),
            TransactionJoin(begun.key, 0, begun),
        ]
    )
    keys = [named("open"), named("empty"), begun.key]
    found = await world.here.store.load(keys)
    loaded = [found[each] for each in keys]
    assert versions == [each.metadata.version for each in loaded]
    assert [each.partitions for each in loaded] == [{p, q}, {p, q}, set()]
    assert {each.metadata.state for each in loaded} == {TransactionState.ONGOING}
    stale = TransactionJoin(named("open"), open_one.metadata.version + 1, None, (p,))
    fresh = TransactionJoin(begun.key, versions[2], None, (p,))
    with pytest.raises(VersionMismatch):
        await world.here.store.join([fresh, stale])
    assert (await world.here.store.load([begun.key]))[begun.key].partitions == frozenset()


async def test_pending_offsets_are_guarded_by_lease_and_transaction(world: World) -> None:
    (p,) = world.log.new_partitions()
    stored = await world.here.begin("t")
    good = pending(stored, "g", offset(p, 1))
    other = replace(stored, metadata=replace(stored.metadata, version=stored.metadata.version + 1))
    for bad in (
        pending(stored, "h", offset(p, 1), generation=2),
        pending(other, "h", offset(p, 1)),
        pending(other, "h", offset(p, 1), opens=True),
    ):
        with pytest.raises(VersionMismatch):
            await world.here.store.put_pending([good, bad])
    for table in ("pending_offset", "transaction_participant", "consumer_group"):
        assert world.rows(f"SELECT 1 FROM {table}") == []
    await world.here.store.put_pending([good, pending(stored, "h", offset(p, 2))])
    assert (await world.here.load("t")).participants == groups("g", "h")


async def test_offsets_of_two_groups_open_one_transaction(world: World) -> None:
    """V2: both were decided on before either was stored."""
    (p,) = world.log.new_partitions()
    await world.here.put(TransactionEffects(named("t"), 0, row_of("t")))
    stored = await world.here.load("t")
    await world.here.store.put_pending(
        [
            pending(stored, "g", offset(p, 1), opens=True),
            pending(stored, "h", offset(p, 2), opens=True),
        ]
    )
    found = await world.here.load("t")
    assert found.metadata.version == stored.metadata.version + 1
    assert found.metadata.state is TransactionState.ONGOING
    assert found.participants == groups("g", "h")


@pytest.mark.parametrize("change", ["generation = 2", "generation = 1"])
async def test_offsets_wait_for_who_takes_the_lease(world: World, change: str) -> None:
    (p,) = world.log.new_partitions()
    stored = await world.here.begin("t")
    statement = f"UPDATE coordinator_lease SET {change} WHERE shard = {shard_of('g')}"
    work = world.here.pend(stored, "g", offset(p, 1))
    if change.endswith("2"):
        with pytest.raises(VersionMismatch):
            await world.held_up(work, statement)
    else:
        await world.held_up(work, statement)


# Offsets in transactions, and the group around them.


async def test_offsets_make_the_row_of_their_group_again(world: World) -> None:
    (p,) = world.log.new_partitions()
    stored = await world.here.begin("t")
    await world.here.pend(stored, ODD, offset(p, 1))
    world.rows("DELETE FROM consumer_group")
    assert await world.here.end("t")
    assert await world.here.offsets(ODD) == {p: 1}
    found = await world.here.groups.load_group(ODD)
    assert found is not None
    assert found.group == GroupRow(ODD, "classic")
    assert world.value("SELECT shard FROM consumer_group") == shard_of(ODD)


async def test_a_deleted_group_stays_deleted(world: World) -> None:
    (p,) = world.log.new_partitions()
    stored = await world.here.begin("t")
    await world.here.pend(stored, "g", offset(p, 1))
    await world.here.write_group(GroupEffects("g", deleted=True))
    assert world.rows("SELECT 1 FROM pending_offset") == []
    assert await world.here.end("t")
    assert await world.here.offsets("g") == {}
    assert await world.here.groups.load_group("g") is None


async def test_deleted_offsets_stay_deleted(world: World) -> None:
    p, q = world.log.new_partitions(2)
    stored = await world.here.begin("t")
    await world.here.commit_offsets("g", offset(p, 1), offset(q, 1))
    await world.here.pend(stored, "g", offset(p, 2), offset(q, 2))
    await world.here.write_group(OffsetEffects("g", delete=(p,)))
    assert await world.here.offsets("g") == {q: 1}
    assert await world.here.end("t")
    assert await world.here.offsets("g") == {q: 2}


async def test_nothing_expires_that_is_pending(world: World) -> None:
    p, q = world.log.new_partitions(2)
    stored = await world.here.begin("t")
    await world.here.commit_offsets("g", offset(p, 1), offset(q, 1))
    await world.here.pend(stored, "g", offset(p, 2))
    await world.here.pend(stored, "h", offset(p, 2))
    shards = list(range(64))
    aged = await world.here.groups.aged_offsets(shards, T0 + 1, 10)
    assert [each.offset.partition_id for each in aged] == [q]
    expired = (offset(p, 1), offset(q, 1))
    await world.here.write_group(OffsetEffects("g", expired=expired))
    assert await world.here.offsets("g") == {p: 1}
    assert await world.here.groups.groups_without_offsets(shards, 10) == []
    await world.here.write_group(GroupEffects("h", forgotten=True))
    assert await world.here.groups.load_group("h") is not None
    assert await world.here.end("t", commit=False)
    assert await world.here.groups.groups_without_offsets(shards, 10) == ["h"]
    await world.here.write_group(GroupEffects("h", forgotten=True))
    assert await world.here.groups.load_group("h") is None
    aged = await world.here.groups.aged_offsets(shards, T0 + 1, 10)
    assert [each.offset.partition_id for each in aged] == [p]


@pytest.mark.parametrize(
    "deletion",
    [
        GroupEffects("g", deleted=True),
        OffsetEffects("g", delete=(1, 2, 3, 4)),
    ],
    ids=["of the group", "of offsets"],
)
async def test_a_deletion_waits_for_an_end_and_deletes_what_it_committed(
    world: World, deletion: GroupEffects | OffsetEffects
) -> None:
    partitions = world.log.new_partitions(4)
    if isinstance(deletion, OffsetEffects):
        deletion = replace(deletion, delete=tuple(partitions))
    stored = await world.here.begin("t")
    await world.here.pend(stored, "g", *(offset(p, 1) for p in partitions))
    with world.psql() as stalled:
        # The end is in the middle: it waits here once it has moved the offsets.
        key = UUID(bytes=key_of("t"))
        stalled.execute("INSERT INTO transaction_partition VALUES (%s, %s)", [key, partitions[0]])
        stalled.execute("SELECT FROM transaction_partition FOR UPDATE")
        effects = replace(
            by_holding(stored),
            put=row_of("t"),
            joined=(partitions[0],),
            marker=Marker(7, 0, True, 0),
            participants=groups("g"),
        )
        ending = asyncio.ensure_future(world.here.put(effects))
        await world.waits(ending)
        deleting = asyncio.ensure_future(world.there.write_group(deletion))
        while world.value("SELECT count(*) FROM pg_locks WHERE NOT granted") < 2:
            assert not deleting.done()
            await asyncio.sleep(0.01)
        stalled.rollback()
    await asyncio.gather(ending, deleting)
    assert await world.here.offsets("g") == {}
    for table in ("committed_offset", "pending_offset"):
        assert world.rows(f"SELECT 1 FROM {table}") == []


async def test_an_end_waits_for_the_deletion_of_a_group(world: World) -> None:
    (p,) = world.log.new_partitions()
    stored = await world.here.begin("t")
    await world.here.pend(stored, "g", offset(p, 1))
    with world.psql() as other:
        other.execute("SELECT FROM consumer_group FOR UPDATE")
        ending = asyncio.ensure_future(world.here.end("t"))
        await world.waits(ending)
        other.execute("DELETE FROM pending_offset")
        other.execute("DELETE FROM consumer_group")
    assert await ending
    assert await world.here.offsets("g") == {}
    assert await world.here.groups.load_group("g") is None


async def test_a_group_is_not_forgotten_under_offsets_that_come(world: World) -> None:
    (p,) = world.log.new_partitions()
    stored = await world.here.begin("t")
    await world.here.write_group(GroupEffects("g", GroupRow("g", "classic")))
    with world.psql() as stalled:
        # Its offsets come in the moment after: the flush waits here, with the group's row held.
        key, group = UUID(bytes=key_of("t")), UUID(bytes=key_of("g"))
        stalled.execute("INSERT INTO transaction_participant VALUES (%s, %s, 'g')", [key, group])
        pend = asyncio.ensure_future(world.here.pend(stored, "g", offset(p, 1)))
        await world.waits(pend)
        work = world.there.write_group(GroupEffects("g", forgotten=True))
        forgetting = asyncio.ensure_future(work)
        while world.value("SELECT count(*) FROM pg_locks WHERE NOT granted") < 2:
            assert not forgetting.done()
            await asyncio.sleep(0.01)
        stalled.rollback()
    await asyncio.gather(pend, forgetting)
    assert await world.here.groups.load_group("g") is not None
    assert await world.here.end("t")
    assert await world.here.offsets("g") == {p: 1}


async def test_ends_do_not_wait_for_what_groups_do(world: World) -> None:
    """A rebalance writes the group's row; other transactions have offsets of the same group."""
    p, q, r = world.log.new_partitions(3)
    stored = await world.here.begin("t")
    await world.here.pend(stored, "g", offset(p, 1))
    with world.psql() as other:
        other.execute("UPDATE consumer_group SET state = 'Stable'")
        other.execute("SELECT FROM consumer_group FOR KEY SHARE")
        await world.there.pend(stored, "g", offset(q, 2))
        other.execute(
            "INSERT INTO committed_offset SELECT %s, %s, 1, 1, '', 1, -1",
            [UUID(bytes=key_of("g")), r],
        )
        assert await world.here.end("t")
    assert await world.here.offsets("g") == {p: 1, q: 2, r: 1}


# What it costs.

# The transaction t (producer 7) with one partition and the group g, among many others.
MINE = {
    "key": f"'{UUID(bytes=key_of('t'))}'::uuid",
    "group": f"'{UUID(bytes=key_of('g'))}'::uuid",
}
STATEMENTS_OF_AN_END = {
    "lock_transactions": "ARRAY[{key}], ARRAY[7]",
    "guard_transactions": "ARRAY[{key}], ARRAY[1]",
    "lock_as_needed": "ARRAY[{key}], ARRAY[1], ARRAY[false]",
    "read_transactions": "ARRAY[{key}], ARRAY[7]",
    "hold_groups": "ARRAY[{group}]",
    "commit_offsets": "ARRAY[{group}], ARRAY[7], ARRAY['g'], ARRAY[1]",
    "drop_offsets": "ARRAY[{group}], ARRAY[7]",
    "forget_joins": "ARRAY[{key}], ARRAY[{key}], ARRAY[{partition}], ARRAY[{key}], ARRAY[{group}]",
    "lock_partitions": "'{{}}', ARRAY[{key}], '{{}}'",
    "read_partitions": "'{{}}', ARRAY[{key}], '{{}}'",
    "read_producers": "'{{}}', '{{}}', ARRAY[{key}]",
    "pending_partitions": "ARRAY[{group}]",
    "overdue": "100",
}


@pytest.mark.parametrize("analyzed", [False, True])
async def test_an_end_looks_at_its_own_rows_alone(world: World, analyzed: bool) -> None:
    (p,) = world.log.new_partitions()
    world.rows(
        "INSERT INTO topic_partition (topic_id, partition)"
        " SELECT topic_id, n FROM topic, generate_series(1, 2000) AS n"
    )
    world.rows(
        "INSERT INTO transaction_state SELECT gen_random_uuid(), 'u' || n, 1000 + n, 0, -1, -1,"
        " 'Ongoing', 1, 600000, (extract(epoch FROM clock_timestamp()) * 1000)::bigint, 1, 0, '',"
        " '', 1 FROM generate_series(1, 5000) AS n"
    )
    world.rows(
        "INSERT INTO transaction_partition SELECT txn_key, n"
        " FROM transaction_state, generate_series(1, 4) AS n"
    )
    world.rows("UPDATE transaction_state SET state = 'Empty', started_at = -1")
    world.rows(
        "INSERT INTO producer_state SELECT p, n, 0, 1, '{0}', '{0}', '{0}', '{1}', now(), NULL, -1"
        " FROM generate_series(1, 10) AS p, generate_series(1000, 2000) AS n"
    )
    stored = await world.here.begin("t", partitions=(p,))
    await world.here.append(stored, p)
    await world.here.pend(stored, "g", offset(p, 1))
    world.rows("UPDATE transaction_state SET version = 1 WHERE producer_id = 7")
    world.rows(
        "INSERT INTO pending_offset SELECT g, 1000 + n, n, 1, 1, '', 1, 1 FROM"
        f" (VALUES ({MINE['group']}), (gen_random_uuid())) AS g (g), generate_series(1, 10000) AS n"
    )
    if analyzed:
        world.rows("VACUUM ANALYZE")
    options = {name: value for name, value in HOT_SESSION.items() if name != "application_name"}
    statements = {**flush_of_the_log.STATEMENTS, **transactions.READS}
    with psycopg.connect(world.log.url, autocommit=True, **options) as hot:
        for name, parameters in STATEMENTS_OF_AN_END.items():
            sql = statements[name.encode()]
            hot.execute(f"PREPARE {name} AS {sql}".encode())
            if name == "overdue":  # the index forgets what is closed as it is looked at
                hot.execute(f"EXECUTE {name} ({parameters})".encode())
            hot.execute("BEGIN")
            row = hot.execute(
                f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) EXECUTE {name}"
                f" ({parameters.format(**MINE, partition=p)})".encode()
            ).fetchone()
            hot.execute("ROLLBACK")
            assert row is not None
            plan = row[0][0]["Plan"]
            touched = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
            # Of some 100 to 400 that each of the tables has. Who asks for all offsets of a group
            # looks at those 10,000; how many pages that is depends on when they were vacuumed.
            assert touched < (1_000 if name == "pending_partitions" else 60), (name, touched, plan)


async def test_offsets_are_committed_in_place(world: World) -> None:
    """HOT: no index is touched where a group commits again and again."""
    partitions = world.log.new_partitions(50)
    for n in range(10):
        stored = await world.here.begin(f"t-{n}", n)
        await world.here.pend(stored, "g", *(offset(p, n) for p in partitions))
        assert await world.here.end(f"t-{n}")
    assert await world.here.offsets("g") == dict.fromkeys(partitions, 9)
    await world.here.close()  # which reports what it has counted
    query = (
        "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables"
        " WHERE relname = 'committed_offset'"
    )
    while world.rows(query)[0][0] < 450:
        await asyncio.sleep(0.05)
    ((updates, in_place),) = world.rows(query)
    assert updates == 450
    assert in_place > 0.9 * updates  # another test's snapshot may put off the pruning of a page


async def test_how_often_the_database_is_asked(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[bytes] = []
    run = HotSession.run

    async def spy(
        session: HotSession, statements: Sequence[Statement], *, commits: bool
    ) -> list[PGresult]:
        sent.append(b" ".join(name.rstrip(b"0123456789") for name, _ in statements))
        return await run(session, statements, commits=commits)

    partitions = world.log.new_partitions(50)
    stored = await world.here.begin("t", partitions=partitions)
    await world.here.append(stored, *partitions)
    monkeypatch.setattr(HotSession, "run", spy)
    await world.here.join(stored, partitions, ("g",))
    await world.here.append(stored, partitions[0])
    await world.here.pend(stored, "g", offset(partitions[0], 1))
    assert await world.here.end("t", commit=False)
    stored = await world.here.load("t")
    await world.here.pend(stored, "g", offset(partitions[0], 1), opens=True)
    assert await world.here.end("t")
    lock = (
        b"begin lock_transactions lock_partitions read_partitions read_producers read_transactions"
    )
    assert sent == [
        b"asynchronously guard_transactions join_partitions join_participants",
        b"guard_transactions put_payload_ append_batches_at put_producers",
        b"hold_leases guard_transactions make_groups hold_groups join_participants put_pending",
        lock,
        b"put_transactions put_payload_ append_batches put_producers put_aborted hold_groups"
        b" drop_offsets forget_joins commit",
        b"read_transactions",
        b"hold_leases put_transactions make_groups hold_groups join_participants put_pending",
        lock,
        b"put_transactions make_groups hold_groups commit_offsets forget_joins commit",
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        {"partitions": frozenset()},
        {"partitions": frozenset({10**9})},
        {"participants": frozenset()},
        {"participants": groups("another")},
    ],
    ids=str,
)
async def test_an_end_that_was_decided_on_other_joins_leaves_nothing(
    world: World, wrong: dict[str, Any]
) -> None:
    """Memory may lack one that joined at another broker, or have one that a crash has undone."""
    (p,) = world.log.new_partitions()
    await world.here.begin("t", partitions=(p,))
    stored = await world.here.load("t")
    await world.here.join(stored, groups=("g",))
    stored = await world.here.load("t")
    end = replace(
        by_moving(stored),
        marker=Marker(7, 0, True, 0),
        partitions=stored.partitions,
        participants=stored.participants,
    )
    if wrong.get("partitions"):
        wrong = {"partitions": frozenset({p + 1_000_000})}
    with pytest.raises(VersionMismatch):
        await world.here.put(replace(end, **wrong))
    assert await world.here.load("t") == stored
    await world.here.put(end)
    assert (await world.here.load("t")).partitions == frozenset()
