"""The hot session: pipelines, outcomes by SQLSTATE, and COMMITs whose answer never came."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest
from sqlalchemy import text

from core.ports.log import (
    CommitUnknown,
    EffectRefused,
    RowLocked,
    SegmentGone,
    StoreUnavailable,
    VersionMismatch,
)
from storage.connection import pool
from storage.connection.pool import Database
from storage.connection.session import HotSession
from storage.migrate import upgrade
from storage.server.embedded import EmbeddedPostgres
from tests.conftest import SMALL_POSTGRES, open_directory

STATEMENTS = {
    b"begin": "BEGIN",
    b"commit": "COMMIT",
    b"one": "SELECT 1::bigint",
    b"note": "INSERT INTO public.note VALUES (1)",
    b"broken": "SELECT 1 / (SELECT count(*) FROM public.note WHERE false)",
    b"mismatch": "SELECT penstock.version_mismatch()",
    b"die": "SELECT pg_terminate_backend(pg_backend_pid())",
    b"warn": "SELECT public.warn()",
}
PREPARE = """
CREATE TABLE public.note (n integer);
CREATE FUNCTION public.warn() RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE WARNING 'hm'; END $$
"""


@pytest.fixture
def psql(any_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(any_url, autocommit=True) as connection:
        connection.execute(PREPARE)
        yield connection


@pytest.fixture
async def session(any_url: str, psql: object) -> AsyncIterator[HotSession]:
    database = Database(any_url)
    session = await HotSession.open(database, STATEMENTS)
    yield session
    await session.close()
    await database.close()


def notes(psql: psycopg.Connection[Any]) -> int:
    row = psql.execute("SELECT count(*) FROM public.note").fetchone()
    assert row is not None
    return int(row[0])


async def test_a_session_that_cannot_prepare_leaves_no_connection(
    any_url: str, psql: psycopg.Connection[Any]
) -> None:
    database = Database(any_url)
    with psycopg.connect(any_url) as other:
        other.execute("LOCK TABLE public.note IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(RowLocked):
            await HotSession.open(database, STATEMENTS)
    left = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'penstock'"
    for _ in range(100):
        row = psql.execute(left + " AND datname = current_database()").fetchone()
        if row == (0,):
            break
        await asyncio.sleep(0.01)
    assert row == (0,)
    await database.close()


async def test_a_pipeline_is_one_transaction(
    session: HotSession, psql: psycopg.Connection[Any]
) -> None:
    results = await session.run([(b"one", ()), (b"note", ())], commits=True)
    assert results[0].get_value(0, 0) == (1).to_bytes(8, "big")
    assert notes(psql) == 1
    with pytest.raises(EffectRefused):
        await session.run([(b"note", ()), (b"broken", ()), (b"note", ())], commits=True)
    assert notes(psql) == 1
    await session.run([(b"note", ())], commits=True)
    assert notes(psql) == 2


async def test_version_mismatch_has_a_state_of_its_own(session: HotSession) -> None:
    with pytest.raises(VersionMismatch):
        await session.run([(b"mismatch", ())], commits=True)


@pytest.mark.parametrize(
    ("state", "outcome"),
    [
        ("55P03", RowLocked),
        ("40P01", RowLocked),
        ("40001", RowLocked),
        ("42P01", SegmentGone),
        ("PS001", VersionMismatch),
        ("57014", StoreUnavailable),
        ("57P03", StoreUnavailable),
        ("25006", StoreUnavailable),
        ("08006", StoreUnavailable),
        ("23505", EffectRefused),
        ("22003", EffectRefused),
        ("XX001", EffectRefused),
        ("53100", EffectRefused),
        ("53200", EffectRefused),
    ],
)
async def test_outcomes_by_state(session: HotSession, state: str, outcome: type[Exception]) -> None:
    raising = f"DO $$ BEGIN RAISE EXCEPTION 'so' USING ERRCODE = '{state}'; END $$".encode()
    with pytest.raises(outcome) as raised:
        await session.execute(raising)
    assert type(raised.value) is outcome
    assert "so" in str(raised.value)
    if isinstance(raised.value, EffectRefused):
        assert raised.value.out_of_space is state.startswith("53")


async def test_a_commit_answered_with_a_warning_is_unknown(session: HotSession) -> None:
    with pytest.raises(CommitUnknown):
        await session.run([(b"warn", ())], commits=True)
    await session.run([(b"warn", ())], commits=False)
    await session.run([(b"one", ())], commits=True)  # an earlier warning is not held against it


async def test_killed_before_commit_took_no_effect(
    session: HotSession, psql: psycopg.Connection[Any]
) -> None:
    with pytest.raises(StoreUnavailable):
        await session.run(
            [(b"begin", ()), (b"note", ()), (b"die", ()), (b"commit", ())], commits=True
        )
    assert notes(psql) == 0
    assert session.is_broken
    with pytest.raises(StoreUnavailable):
        await session.run([(b"one", ())], commits=False)


async def test_killed_after_commit_is_unknown_not_unavailable(
    session: HotSession, psql: psycopg.Connection[Any]
) -> None:
    # The server looks for a pending termination after each message: between COMMIT and Sync too.
    with pytest.raises(CommitUnknown):
        await session.run(
            [(b"begin", ()), (b"note", ()), (b"commit", ()), (b"die", ())], commits=True
        )
    assert notes(psql) == 1


async def test_an_idle_session_that_is_killed(
    session: HotSession, psql: psycopg.Connection[Any]
) -> None:
    psql.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE application_name = 'penstock' AND datname = current_database()"
    )
    with pytest.raises(StoreUnavailable):
        await session.run([(b"one", ())], commits=False)
    assert session.is_broken


@pytest.mark.parametrize(("commits", "outcome"), [(True, CommitUnknown), (False, StoreUnavailable)])
async def test_a_transaction_that_takes_too_long_is_a_lost_connection(
    database_url: str, monkeypatch: pytest.MonkeyPatch, commits: bool, outcome: type[Exception]
) -> None:
    monkeypatch.setattr(pool, "TRANSACTION_TIMEOUT_S", 1.5)
    database = Database(database_url)
    session = await HotSession.open(database, {b"sleep": "SELECT pg_sleep(60)"})
    with pytest.raises(outcome):
        await session.run([(b"sleep", ())], commits=commits)
    assert session.is_broken
    with pytest.raises(StoreUnavailable):
        async with database.reader("test") as cursor:
            await cursor.execute("SELECT pg_sleep(60)")
    async with database.reader("test") as cursor:
        await cursor.execute("SELECT 1")
    await database.close()


async def test_what_cannot_be_sent_is_the_end_of_the_session(session: HotSession) -> None:
    """What was sent of it has no end: it must not become part of what follows."""
    running = asyncio.create_task(session.run([(b"one", ())], commits=False))
    await asyncio.sleep(0)
    with pytest.raises(TypeError):
        await session.run([(b"note", ()), (b"one", (7,))], commits=True)  # type: ignore[arg-type]
    with pytest.raises(StoreUnavailable):
        await running
    assert session.is_broken
    with pytest.raises(StoreUnavailable):
        await session.run([(b"one", ())], commits=False)


async def test_pipelines_are_answered_in_their_order_each_for_itself(
    session: HotSession, psql: psycopg.Connection[Any]
) -> None:
    sent = [
        session.run([(b"note", ()), (b"one", ())], commits=True),
        session.run([(b"note", ()), (b"broken", ()), (b"note", ())], commits=True),
        session.run([(b"warn", ())], commits=True),
        session.run([(b"note", ()), (b"one", ())], commits=True),
    ]
    outcomes = await asyncio.gather(*sent, return_exceptions=True)
    kinds = [type(each) for each in outcomes]
    assert kinds == [list, EffectRefused, CommitUnknown, list]
    assert notes(psql) == 2
    sent = [
        session.run([(b"note", ())], commits=True),
        session.run([(b"die", ())], commits=False),
        session.run([(b"note", ())], commits=True),
    ]
    outcomes = await asyncio.gather(*sent, return_exceptions=True)
    kinds = [type(each) for each in outcomes]
    assert kinds == [list, StoreUnavailable, CommitUnknown]
    assert notes(psql) == 3


async def test_whoever_does_not_wait_any_more_disturbs_nobody(session: HotSession) -> None:
    left = asyncio.create_task(session.run([(b"one", ())], commits=False))
    await asyncio.sleep(0)
    left.cancel()
    (result, *_) = await session.run([(b"one", ())], commits=False)
    assert result.get_value(0, 0) == (1).to_bytes(8, "big")
    assert left.cancelled()


async def test_more_than_the_socket_takes(any_url: str) -> None:
    database = Database(any_url)
    statements = {b"length": "SELECT octet_length($1::bytea)::bigint, $1::bytea"}
    session = await HotSession.open(database, statements)
    payload = os.urandom(3 * 2**20)
    sent = [session.run([(b"length", (payload,))], commits=False) for _ in range(4)]
    async with asyncio.timeout(60):
        for result, *_ in await asyncio.gather(*sent):
            assert result.get_value(0, 1) == payload
    await session.close()
    await database.close()


# Whether a COMMIT took effect cannot be told: a server that waits for a standby nobody runs makes
# that moment last.


@pytest.fixture(scope="module")
def waiting_postgres() -> Iterator[EmbeddedPostgres]:
    with (
        open_directory() as path,
        EmbeddedPostgres(path / "postgres", settings=SMALL_POSTGRES) as server,
    ):
        upgrade(server.url)
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(PREPARE)
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        server.stop()  # it hears of a reload some time later
        server.start()
        yield server


async def end_the_wait(psql: psycopg.Connection[Any], how: str) -> None:
    """Of who waits for the standby, as soon as somebody does."""
    waiting = "FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    for _ in range(500):
        if psql.execute(f"SELECT {how}(pid) {waiting}".encode()).fetchall():
            return
        await asyncio.sleep(0.01)
    pytest.fail("nobody waits for the standby")


@pytest.mark.parametrize("explicit", [False, True], ids=["implicit", "explicit"])
@pytest.mark.parametrize("how", ["pg_terminate_backend", "pg_cancel_backend"])
async def test_the_answer_to_commit_is_lost(
    waiting_postgres: EmbeddedPostgres, explicit: bool, how: str
) -> None:
    url = waiting_postgres.url + "&options=-csynchronous_commit%3Dlocal"
    database = Database(waiting_postgres.url)
    session = await HotSession.open(database, STATEMENTS)
    with psycopg.connect(url, autocommit=True) as psql:
        psql.execute("TRUNCATE public.note")
        statements: list[Any] = [(b"note", ())]
        if explicit:
            statements = [(b"begin", ()), *statements, (b"commit", ())]
        committing = asyncio.create_task(session.run(statements, commits=True))
        await end_the_wait(psql, how)
        with pytest.raises(CommitUnknown):
            await committing
        assert notes(psql) == 1
    await session.close()
    await database.close()


@pytest.mark.parametrize("how", ["pg_terminate_backend", "pg_cancel_backend"])
async def test_the_answer_to_a_cold_commit_is_lost(
    waiting_postgres: EmbeddedPostgres, how: str
) -> None:
    """Of what an administrator asked for, nothing is said to be done that a standby may lack."""
    url = waiting_postgres.url + "&options=-csynchronous_commit%3Dlocal"
    database = Database(waiting_postgres.url)

    async def write() -> None:
        async with database.begin("write") as connection:
            await connection.execute(text(STATEMENTS[b"note"]))

    with psycopg.connect(url, autocommit=True) as psql:
        psql.execute("TRUNCATE public.note")
        committing = asyncio.create_task(write())
        await end_the_wait(psql, how)
        with pytest.raises(StoreUnavailable):
            await committing
        assert notes(psql) == 1
    async with database.begin("read") as connection:
        assert (await connection.execute(text("SELECT count(*) FROM public.note"))).scalar() == 1
    await database.close()


async def test_waiting_for_a_standby_does_not_count_as_a_long_transaction(
    waiting_postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "TRANSACTION_TIMEOUT_S", 1.0)
    url = waiting_postgres.url + "&options=-csynchronous_commit%3Dlocal"
    database = Database(waiting_postgres.url)
    session = await HotSession.open(database, STATEMENTS)
    with psycopg.connect(url, autocommit=True) as psql:
        psql.execute("TRUNCATE public.note")
        committing = asyncio.create_task(session.run([(b"note", ())], commits=True))
        await asyncio.sleep(2.5)
        await end_the_wait(psql, "pg_cancel_backend")
        with pytest.raises(CommitUnknown, match="warning"):
            await committing
        assert notes(psql) == 1
    await session.close()
    await database.close()


async def test_an_overdue_answer_is_given_up_whatever_the_socket_says(
    any_url: str, psql: object
) -> None:
    """A loop that has lost sight of it hears of no shutdown either."""
    database = Database(any_url)
    session = HotSession(await database.connect())
    await session.prepare_all({b"sleep": "SELECT pg_sleep(30)"})
    session._connection.deadline_s = 0.5
    running = asyncio.ensure_future(session.run([(b"sleep", ())], commits=True))
    await asyncio.sleep(0.1)
    asyncio.get_running_loop().remove_reader(session._socket)
    async with asyncio.timeout(20):
        with pytest.raises(CommitUnknown, match=r"no answer within 0\.5 s"):
            await running
    assert session.is_broken
    await session.close()
    await database.close()
