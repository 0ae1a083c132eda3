"""Connections: their settings, what is told of losing them, and another history of the database."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import pq
from sqlalchemy import text

from core.ports.log import CommitUnknown, SegmentGone, StoreUnavailable, VersionMismatch
from core.transaction.values import TransactionEffects, TransactionMetadata, TransactionState
from storage.connection import pool
from storage.connection.kept_session import KeptSession
from storage.connection.pool import READERS, Database, HotConnection
from storage.flush.segments import Segments
from storage.log.store import PostgresLogStore
from storage.notifications import PostgresChangeFeed
from storage.server.embedded import EmbeddedPostgres
from storage.transactions import PostgresTransactionStore
from tests.batches import batch
from tests.conftest import SMALL_POSTGRES
from tests.keys import named
from tests.storage.conftest import Log


async def test_hot_sessions_are_durable_and_let_go(log: Log) -> None:
    connection = await log.database.connect()
    expected = {
        "synchronous_commit": "on",
        "idle_in_transaction_session_timeout": "2s",
        "lock_timeout": "1s",
        "statement_timeout": "30s",
    }
    if connection.info.server_version >= 170_000:
        expected["transaction_timeout"] = "25s"
    shown = {}
    for name in expected:
        row = await (await connection.execute(f"SHOW {name}".encode())).fetchone()
        assert row is not None
        shown[name] = row[0]
    assert shown == expected
    # On a socket of the machine they are shown as 0, whatever they are set to.
    given = "SELECT count(*) FROM pg_settings WHERE name LIKE 'tcp%' AND source = 'client'"
    assert await (await connection.execute(given.encode())).fetchone() == (4,)
    await connection.close()


@pytest.mark.parametrize("default", ["repeatable read", "serializable"])
async def test_each_statement_sees_what_was_committed_before_it(log: Log, default: str) -> None:
    """Whatever is usual in a database of somebody's own."""
    log.rows(
        f"ALTER DATABASE \"{log.psql.info.dbname}\" SET default_transaction_isolation = '{default}'"
    )
    shown = "SHOW transaction_isolation"
    async with log.database.reader("test") as cursor:
        await cursor.execute(shown)
        assert await cursor.fetchone() == ("read committed",)
    async with log.database.begin("test") as connection:
        assert await connection.scalar(text(shown)) == "read committed"


async def test_a_broker_that_stops_while_it_sends_holds_no_row_for_long(
    log18: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server waits for the rest of a pipeline, in which no other timeout is running."""
    monkeypatch.setattr(pool, "TRANSACTION_TIMEOUT_S", 6.0)
    (p,) = log18.new_partitions()
    connection = await log18.database.connect()
    pgconn = connection.pgconn
    pgconn.enter_pipeline_mode()
    locking = f"SELECT 1 FROM penstock.topic_partition WHERE partition_id = {p} FOR NO KEY UPDATE"
    pgconn.send_query_params(locking.encode(), None)
    pgconn.send_query_params(b"SELECT length($1::bytea)", [bytes(2**23)], None, [pq.Format.BINARY])
    assert pgconn.flush() == 1, "as much as a socket takes has been sent, and no more"

    def is_held() -> bool:
        free = "SELECT 1 FROM penstock.topic_partition FOR NO KEY UPDATE SKIP LOCKED"
        return not log18.rows(free)

    async with asyncio.timeout(60):
        while not is_held():
            await asyncio.sleep(0.01)
        await asyncio.sleep(2.2)  # the idle session's time is over
        assert is_held()
        while is_held() or log18.backends():
            await asyncio.sleep(0.1)
    await connection.close()


async def test_nobody_there() -> None:
    database = Database("postgresql://nobody@127.0.0.1:1/none?connect_timeout=1")
    with pytest.raises(StoreUnavailable):
        await database.connect()
    with pytest.raises(StoreUnavailable):
        async with database.reader("test"):
            raise AssertionError("not reached")
    with pytest.raises(StoreUnavailable):
        async with database.begin("test"):
            raise AssertionError("not reached")
    await database.close()


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A server's process hears nothing meanwhile."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def test_a_reader_does_not_wait_for_a_stopped_server(log: Log) -> None:
    async with log.database.reader("test") as cursor:
        await cursor.execute("SELECT 1")
    (pid,) = log.backends()
    (reader,) = log.database._idle_readers
    reader.deadline_s = 0.3
    with stopped(pid):
        async with asyncio.timeout(60):
            with pytest.raises(StoreUnavailable):
                async with log.database.reader("test") as cursor:
                    await cursor.execute("SELECT 1")
            # Another connection, for this one is lost.
            async with log.database.reader("test") as cursor:
                await cursor.execute("SELECT pg_backend_pid()")
                assert await cursor.fetchone() != (pid,)


@pytest.mark.parametrize("when", ["in the block", "at its end", "before it"])
async def test_a_cold_query_does_not_wait_for_a_stopped_server(log: Log, when: str) -> None:
    async with log.database.begin("test") as connection:
        await connection.execute(text("SELECT 1"))
    (pid,) = log.backends()
    (cold,) = log.database._cold
    cold.deadline_s = 0.3
    with contextlib.ExitStack() as stack:
        async with asyncio.timeout(60):
            if when == "before it":
                stack.enter_context(stopped(pid))
                # The pool notices, and takes another connection.
                async with log.database.begin("test") as connection:
                    assert await connection.scalar(text("SELECT pg_backend_pid()")) != pid
                return
            with pytest.raises(StoreUnavailable):
                async with log.database.begin("test") as connection:
                    await connection.execute(text("SELECT 1"))
                    stack.enter_context(stopped(pid))
                    if when == "in the block":
                        await connection.execute(text("SELECT 1"))


async def test_who_listens_may_hear_nothing_for_long(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = log.database.connect
    monkeypatch.setattr(log.database, "connect", lambda: connect(2.0))
    feed = PostgresChangeFeed(log.database)
    listening = asyncio.create_task(feed.listen(lambda channel, ids: None))
    await asyncio.sleep(2.5)
    assert not listening.done()
    listening.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await listening


async def test_a_lock_held_for_too_long_is_a_store_unavailable_for_now(log: Log) -> None:
    with psycopg.connect(log.url) as other:
        other.execute("LOCK TABLE penstock.topic")
        with pytest.raises(StoreUnavailable, match="lock timeout"):
            async with log.database.begin("test") as connection:
                await connection.execute(text("SET LOCAL lock_timeout = '50ms'"))
                await connection.execute(text("SELECT * FROM penstock.topic"))


async def test_readers_are_used_again(log: Log) -> None:
    async def pid() -> int:
        async with log.database.reader("test") as cursor:
            await cursor.execute("SELECT pg_backend_pid()")
            row = await cursor.fetchone()
            assert row is not None
            return int(row[0])

    first = await pid()
    assert await pid() == first
    # One left within a transaction is not given to the next.
    async with log.database.reader("test") as cursor:
        await cursor.execute("BEGIN")
    assert await pid() != first


async def test_a_killed_reader_costs_one_refusal_at_most(log: Log) -> None:
    async with log.database.reader("test") as cursor:
        await cursor.execute("SELECT 1")
    for pid in log.backends():
        log.rows("SELECT pg_terminate_backend(%s, 5000)", pid)
    async with log.database.reader("test") as cursor:  # known to be of no use: another one
        await cursor.execute("SELECT 1")
    with pytest.raises(StoreUnavailable):
        async with log.database.reader("test") as cursor:
            await cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")


async def test_slots_come_back_after_errors(log: Log) -> None:
    for _ in range(READERS + 2):
        with pytest.raises(SegmentGone):
            async with log.database.reader("test") as cursor:
                await cursor.execute("SELECT * FROM penstock.record_chunk_999")
        with pytest.raises(psycopg.errors.DivisionByZero):
            async with log.database.reader("test") as cursor:
                await cursor.execute("SELECT 1 / 0")
    async with log.database.reader("test") as cursor:
        await cursor.execute("SELECT 1")
    assert len(log.backends()) == 1


@pytest.mark.parametrize("state", ["55P03", "57014", "40P01", "40001", "25006", "53100", "53200"])
async def test_what_may_work_later_is_unavailable(log: Log, state: str) -> None:
    async with log.database.reader("test") as cursor:
        await cursor.execute("SELECT 1")
    before = log.backends()
    with pytest.raises(StoreUnavailable):
        async with log.database.reader("test") as cursor:
            await cursor.execute(
                f"DO $$ BEGIN RAISE EXCEPTION 'so' USING ERRCODE = '{state}'; END $$".encode()
            )
    async with log.database.reader("test") as cursor:
        await cursor.execute("SELECT 1")
    assert log.backends() == before


async def test_queries_are_observed_by_name(any_url: str) -> None:
    seen: list[str] = []
    database = Database(any_url, observe=lambda name, seconds: seen.append(name))
    async with database.reader("one") as cursor:
        await cursor.execute("SELECT 1")
    async with database.begin("two"):
        pass
    assert seen == ["one", "two"]
    await database.close()


async def read(database: Database, query: str) -> object:
    async with database.begin("test") as connection:
        return await connection.scalar(text(query))


async def test_session_ended_from_outside(log: Log) -> None:
    waiting = asyncio.create_task(read(log.database, "SELECT pg_sleep(30)"))
    async with asyncio.timeout(20):
        while not (pids := log.backends("wait_event = 'PgSleep'")):
            await asyncio.sleep(0.02)
    log.rows("SELECT pg_terminate_backend(%s)", pids[0])
    with pytest.raises(StoreUnavailable):
        await waiting
    assert await read(log.database, "SELECT 1") == 1


async def test_more_queries_than_connections_for_too_long(log18: Log) -> None:
    slow = [asyncio.create_task(read(log18.database, "SELECT pg_sleep(6)")) for _ in range(8)]
    await asyncio.sleep(0.1)
    with pytest.raises(StoreUnavailable, match="no connection became free in time"):
        await read(log18.database, "SELECT 1")
    await asyncio.gather(*slow)
    assert await read(log18.database, "SELECT 1") == 1


# Another history.


def be_on(log: Log, system_identifier: int, timeline: int) -> None:
    """From now on this is the database's history."""
    log.rows(
        "CREATE OR REPLACE FUNCTION penstock.current_history(OUT system_identifier bigint,"
        " OUT timeline integer) LANGUAGE sql"
        f" AS $$ SELECT {system_identifier}::bigint, {timeline} $$"
    )


async def test_another_history_is_adopted_once_by_all(log: Log) -> None:
    p, q = log.new_partitions(2)
    await log.append(p, batch(7))
    other = Database(log.url)
    dropped: list[str] = []
    log.database.on_identity_change(lambda: dropped.append("here"))
    other.on_identity_change(lambda: dropped.append("there"))
    await (await other.connect()).close()
    await log.segments.prepare(["week"])
    payload_id = log.segments.next_payload_id()
    (producer_id,) = await log.store.allocate_producer_ids(1)
    (lease,) = log.rows(
        "INSERT INTO penstock.coordinator_lease (shard, broker_id, incarnation, generation)"
        " VALUES (3, 1, gen_random_uuid(), 5) RETURNING *"
    )
    metadata = TransactionMetadata(named("id"), 7, 0, TransactionState.ONGOING, started_at=1)
    flush = log.store.open_flush()
    await flush.commit([], [TransactionEffects(named("id"), 0, metadata, joined=(p,))])
    version = log.value("SELECT metadata_version FROM penstock.cluster")
    be_on(log, 77, 9)
    for database in (log.database, other, log.database):
        await (await database.connect()).close()
    assert dropped == ["here", "there"]
    assert log.rows("SELECT system_identifier, timeline FROM penstock.cluster") == [(77, 9)]
    assert log.value("SELECT metadata_version FROM penstock.cluster") == version + 1
    assert log.rows("SELECT leader_epoch FROM penstock.topic_partition") == [(1,), (1,)]
    assert log.rows("SELECT * FROM penstock.leader_epoch WHERE leader_epoch = 1 ORDER BY 1") == [
        (p, 1, 7),
        (q, 1, 0),
    ]
    assert log.rows("SELECT * FROM penstock.coordinator_lease") == [
        (*lease[:-2], 1_000_005, lease[-1])
    ]
    # What brokers know of transactions they cannot write; what is open can only be aborted.
    await flush.close()
    flush = log.store.open_flush()
    with pytest.raises(VersionMismatch):
        await flush.commit([], [TransactionEffects(named("id"), 1)])
    await flush.close()
    assert log.rows(
        "SELECT state, producer_epoch, coordinator_epoch, version > 10^9"
        " FROM penstock.transaction_state"
    ) == [("Ongoing", 1, 1, True)]
    overdue = await PostgresTransactionStore(log.database).overdue(10)
    assert overdue.keys == [named("id")]
    assert log.value("SELECT partition_id FROM penstock.transaction_partition") == p
    await log.segments.prepare(["week"])
    assert log.segments.next_payload_id() > payload_id + 10**8
    (after,) = await log.store.allocate_producer_ids(1)
    assert after > producer_id + 10**5
    assert log.new_partitions()[0] > q + 10**6
    await other.close()


async def test_another_history_is_adopted_whatever_epochs_there_are(log: Log) -> None:
    """A client may have a coordinator's epoch raised to the last one (WriteTxnMarkers)."""
    (p,) = log.new_partitions()
    metadata = TransactionMetadata(
        named("id"), 7, 32767, TransactionState.ONGOING, started_at=1, coordinator_epoch=2**31 - 1
    )
    flush = log.store.open_flush()
    await flush.commit([], [TransactionEffects(named("id"), 0, metadata, joined=(p,))])
    await flush.close()
    be_on(log, 77, 9)
    await (await log.database.connect()).close()
    assert log.rows("SELECT producer_epoch, coordinator_epoch FROM penstock.transaction_state") == [
        (32767, 2**31 - 1)
    ]


@pytest.mark.parametrize("kind", ["cold", "hot"])
async def test_no_connection_is_used_before_its_history_is_adopted(log: Log, kind: str) -> None:
    """A topic made before would have the ids of partitions that were lost, and be written to."""
    (p,) = log.new_partitions()
    dropped: list[bool] = []
    log.database.on_identity_change(lambda: dropped.append(True))
    await (await log.database.connect()).close()
    be_on(log, 77, 9)
    making = text(
        "INSERT INTO penstock.topic_partition (topic_id, partition)"
        " SELECT topic_id, 1 FROM penstock.topic RETURNING partition_id"
    )
    if kind == "hot":
        async with log.database.reader("test") as cursor:
            await cursor.execute(str(making))
            row = await cursor.fetchone()
            assert row is not None
            made = row[0]
    else:
        async with log.database.begin("test") as connection:
            made = await connection.scalar(making)
    assert made > p + 10**6
    assert dropped == [True]
    assert log.rows("SELECT leader_epoch FROM penstock.topic_partition ORDER BY 1") == [(0,), (1,)]


async def test_connections_to_the_history_before_are_not_used_again(log: Log) -> None:
    """The server they lead to may be one that was given up, and still answer."""

    async def backends() -> set[int]:
        async with log.database.reader("test") as cursor:
            await cursor.execute("SELECT pg_backend_pid()")
            row = await cursor.fetchone()
            assert row is not None
        async with log.database.begin("test") as connection:
            return {row[0], await connection.scalar(text("SELECT pg_backend_pid()"))}

    before = await backends()
    assert await backends() == before
    be_on(log, 77, 9)
    await (await log.database.connect()).close()
    after = await backends()
    assert after.isdisjoint(before)
    assert await backends() == after


async def test_what_waits_on_the_history_before_is_lost_with_it(log: Log) -> None:
    """The server may be one that stands still, or whose commits wait for ever."""
    kept = KeptSession(log.database, {b"sleep": "SELECT pg_sleep(60)"})
    waiting = asyncio.ensure_future(kept.run("test", [(b"sleep", ())]))
    listens = asyncio.Event()
    feed = PostgresChangeFeed(log.database)
    listening = asyncio.ensure_future(feed.listen(lambda *_: listens.set()))
    await listens.wait()
    sleeps = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND pid = ANY (%s)"
    while not log.value(sleeps, log.backends()):
        await asyncio.sleep(0.01)
    be_on(log, 77, 9)
    other = await log.database.connect()
    with pytest.raises(CommitUnknown):
        await asyncio.wait_for(waiting, 20)
    with pytest.raises(StoreUnavailable):
        await asyncio.wait_for(listening, 20)
    await other.execute("SELECT 1")
    await other.close()


async def test_a_server_that_another_was_promoted_in_place_of_is_refused(log: Log) -> None:
    """It is behind, and what is written there is lost; but another cluster may be on any timeline,
    as after a dump."""
    be_on(log, 77, 9)
    await (await log.database.connect()).close()
    be_on(log, 77, 8)
    with pytest.raises(StoreUnavailable, match="on timeline 8, and another one was promoted to"):
        await log.database.connect()
    with pytest.raises(StoreUnavailable, match="in its place"):
        async with log.database.begin("test"):
            raise AssertionError("not reached")
    be_on(log, 78, 1)
    await (await log.database.connect()).close()


async def test_a_cold_connection_to_a_standby_is_refused(log: Log) -> None:
    log.rows(
        "CREATE OR REPLACE FUNCTION penstock.current_history(OUT system_identifier bigint,"
        " OUT timeline integer) LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE 'recovery is in progress' USING ERRCODE = '55000'; END $$"
    )
    with pytest.raises(StoreUnavailable, match="in progress"):
        async with log.database.begin("test"):
            raise AssertionError("not reached")
    async with asyncio.timeout(30):
        while log.backends():  # one that is left takes a moment to end
            await asyncio.sleep(0.01)


@pytest.fixture
def own_postgres(migrated_dir: Path) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(migrated_dir, settings=SMALL_POSTGRES) as server:
        yield server


async def test_a_promoted_server_is_another_history(own_postgres: EmbeddedPostgres) -> None:
    """A real one: recovery from an archive ends on a new timeline."""
    database = Database(own_postgres.url)
    dropped: list[bool] = []
    database.on_identity_change(lambda: dropped.append(True))
    store = PostgresLogStore(database, Segments(database))
    (before,) = await store.allocate_producer_ids(1)
    own_postgres.stop()
    own_postgres.start()
    (same,) = await store.allocate_producer_ids(1)
    assert (same, dropped) == (before + 1, [])  # a restart is not another history
    own_postgres.stop()
    signal = own_postgres.pgdata / "recovery.signal"
    signal.touch()
    signal.chmod(0o644)
    promoted = EmbeddedPostgres(
        own_postgres.data_dir, settings={**SMALL_POSTGRES, "restore_command": "false"}
    )
    with promoted:
        async with asyncio.timeout(30):
            while True:
                try:
                    (after,) = await store.allocate_producer_ids(1)
                    break
                except StoreUnavailable:  # still in recovery: it answers, and writes nothing
                    await asyncio.sleep(0.05)
        assert dropped == [True]
        assert after >= before + 10**6
        with psycopg.connect(promoted.url) as psql:
            row = psql.execute("SELECT timeline FROM penstock.cluster").fetchone()
            assert row == (2,)
    await database.close()


async def test_a_connection_in_use_is_closed_with_the_database_or_after_it(log: Log) -> None:
    """Whoever uses it may have been cancelled, and nobody gives it back."""
    database = Database(log.url)
    async with database.reader("read") as cursor:
        with pytest.raises(StoreUnavailable):
            async with database.begin("write") as connection:
                raw = await connection.get_raw_connection()
                cold = raw.driver_connection
                await database.close()
                await connection.execute(text("SELECT 1"))
        await cursor.execute("SELECT 1")
    assert isinstance(cold, HotConnection)
    assert cold.closed
    assert cursor.connection.closed


@pytest.mark.parametrize("after_ms", [0, 1, 3, 6, 12])
async def test_no_connection_that_was_on_its_way_is_left(log: Log, after_ms: int) -> None:
    """Whoever connects while the database is closed keeps none."""
    backends = "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
    before = set(log.rows(backends))
    database = Database(log.url)
    kept = KeptSession(database, {b"one": "SELECT 1"})

    async def use_cold() -> None:
        async with database.begin("cold") as connection:
            await connection.execute(text("SELECT 1"))

    users = [asyncio.create_task(use_cold()), asyncio.create_task(kept.run("kept", [(b"one", ())]))]
    await asyncio.sleep(after_ms / 1000)
    await database.close()
    for outcome in await asyncio.gather(*users, return_exceptions=True):
        assert not isinstance(outcome, BaseException) or isinstance(outcome, StoreUnavailable)
    for _ in range(500):
        if set(log.rows(backends)) <= before:
            return
        await asyncio.sleep(0.01)
    pytest.fail("a connection is left")
