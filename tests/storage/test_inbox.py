"""The inbox's looks, moves and slots against real PostgreSQL."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from core.inbox.position import Bite, LookAgain, TooLarge, next_step
from core.inbox.values import InboxMove
from core.ports.inbox import InboxOvertaken
from storage import inbox as inbox_rows
from storage.inbox import InboxStore
from tests.storage.conftest import Log


@pytest.fixture
async def inbox(log: Log) -> AsyncIterator[InboxStore]:
    log.new_partitions(1, "t")
    yield InboxStore(log.database)


def produce(log: Log, *values: str) -> None:
    """A transaction of these records."""
    with psycopg.connect(log.url) as session:
        for each in values:
            session.execute("SELECT penstock.produce('t', 'k'::text, %s::text)", [each])


async def publish_all(inbox: InboxStore, log: Log, records: int = 100) -> list[list[bytes | None]]:
    """Every bite's values; moves the position without a log."""
    position = await inbox.position()
    flush = log.store.open_flush()
    await flush.commit([])
    bites: list[list[bytes | None]] = []
    while True:
        now = time.monotonic()
        look = await inbox.look(position, records=records, max_bytes=10**6)
        step = next_step(position, look)
        if step is None:
            await flush.close()
            return bites
        if isinstance(step, LookAgain):
            position = step.position
            continue
        found = look.records
        if isinstance(step, Bite):
            found = step.records
        elif isinstance(step, TooLarge):
            found = tuple(
                await inbox.page(step.transaction, position.era, -1, records=999, max_bytes=10**6)
            )
        await flush.commit([], inbox=[InboxMove(position.version, step.position, now)])
        bites.append([each.value for each in found])
        position = step.position


async def test_transactions_are_published_whole_and_in_order(inbox: InboxStore, log: Log) -> None:
    produce(log, "a", "b")
    produce(log, "c")
    produce(log, "d", "e", "f")
    assert await publish_all(inbox, log, 3) == [
        [b"a", b"b"],  # of the last one there might be more
        [b"c"],
        [b"d", b"e", b"f"],
    ]
    produce(log, "g")
    assert await publish_all(inbox, log, 3) == [[b"g"]]


async def test_a_crowd_is_published_in_order(
    inbox: InboxStore, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = inbox_rows.MOST_TRANSACTIONS + 20
    log.rows(
        f"""
        DO $$ BEGIN
            FOR n IN 1..{count} LOOP
                PERFORM penstock.produce('t', 'k'::text, n::text);
                COMMIT;
            END LOOP;
        END $$
        """
    )
    bites = await publish_all(inbox, log, 10_000)
    assert len(bites) == 2
    assert [value for bite in bites for value in bite] == [
        str(n).encode() for n in range(1, count + 1)
    ]


async def test_transactions_without_records_hide_nothing(inbox: InboxStore, log: Log) -> None:
    """More of them than are put in order at once."""
    log.rows(
        f"""
        DO $$ BEGIN
            FOR n IN 1..{inbox_rows.MOST_TRANSACTIONS + 20} LOOP
                INSERT INTO penstock.inbox_transaction_0 VALUES (pg_current_xact_id(), 0);
                COMMIT;
            END LOOP;
        END $$
        """
    )
    produce(log, "behind them")
    bites = await publish_all(inbox, log)
    assert [value for bite in bites for value in bite] == [b"behind them"]


async def test_a_look_of_before_the_connection_is_not_published(
    inbox: InboxStore, log: Log
) -> None:
    """In between the database may have crashed, and what was seen not have happened."""
    position = await inbox.position()
    now = time.monotonic()
    moved = replace(position, version=position.version + 1)
    flush = log.store.open_flush()
    with pytest.raises(InboxOvertaken):
        await flush.commit([], inbox=[InboxMove(position.version, moved, now)])
    assert await inbox.position() == position
    await flush.commit([], inbox=[InboxMove(position.version, moved, time.monotonic())])
    assert await inbox.position() == moved
    with pytest.raises(InboxOvertaken):
        await flush.commit([], inbox=[InboxMove(position.version, moved, time.monotonic())])
    await flush.close()


DEFERRED = """
CREATE SCHEMA app; CREATE TABLE app.one (n integer); CREATE TABLE app.two (n integer);
CREATE FUNCTION app.first() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN INSERT INTO app.two VALUES (1); RETURN NULL; END';
CREATE FUNCTION app.second() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(1);
    PERFORM penstock.produce('t', 'k'::text, 'late'::text);
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER t AFTER INSERT ON app.one DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION app.first();
CREATE CONSTRAINT TRIGGER t AFTER INSERT ON app.two DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION app.second();
"""


async def test_what_is_produced_behind_the_stamp_draws_another(inbox: InboxStore, log: Log) -> None:
    """In a deferred trigger that another one has called up, and that waits for a transaction which
    draws its stamp meanwhile."""
    log.rows(DEFERRED)
    with psycopg.connect(log.url) as first, psycopg.connect(log.url) as second:
        first.execute("SELECT pg_advisory_xact_lock(1)")
        second.execute("SELECT penstock.produce('t', 'k'::text, 'early'::text)")
        second.execute("INSERT INTO app.one VALUES (1)")
        second.pgconn.send_query(b"COMMIT")
        deadline = time.monotonic() + 30
        while not log.rows("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"):
            assert time.monotonic() < deadline
        first.execute("SELECT penstock.produce('t', 'k'::text, 'first'::text)")
        first.commit()
        while second.pgconn.get_result():
            pass
    assert await publish_all(inbox, log) == [[b"first", b"early", b"late"]]


async def test_commits_under_way_are_seen(inbox: InboxStore, log: Log) -> None:
    """From the stamp to the end, and not before it."""
    assert not await inbox.are_commits_under_way()
    assert not await inbox.is_watched()
    log.rows(DEFERRED)

    def commits(session: psycopg.Connection[Any]) -> None:
        session.pgconn.send_query(b"COMMIT")

    with psycopg.connect(log.url) as holder, psycopg.connect(log.url) as session:
        holder.execute("SELECT pg_advisory_xact_lock(1)")
        session.execute("SELECT penstock.produce('t', 'k'::text, 'v'::text)")
        session.execute("INSERT INTO app.one VALUES (1)")
        assert not await inbox.are_commits_under_way()
        commits(session)
        deadline = time.monotonic() + 30
        while not await inbox.are_commits_under_way():
            assert time.monotonic() < deadline
        holder.rollback()
        while session.pgconn.get_result():
            pass
    assert not await inbox.are_commits_under_way()


async def test_only_a_silent_broker_loses_its_watch(inbox: InboxStore, log: Log) -> None:
    other = InboxStore(log.database)
    assert await inbox.take_the_watch()
    assert await inbox.take_the_watch()
    await inbox.leave_the_watch()
    assert not await other.is_watched()
    assert await inbox.take_the_watch()
    assert not await other.take_the_watch()
    assert await other.is_watched()
    await inbox.position()
    assert not await other.break_the_watch(60)
    assert await inbox.position()
    assert inbox.has_the_watch
    assert await other.break_the_watch(0)
    async with asyncio.timeout(30):
        while not await other.take_the_watch():  # until the session that was ended is gone
            pass
    await other.leave_the_watch()
