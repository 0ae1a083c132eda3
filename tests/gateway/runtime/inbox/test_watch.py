"""Who looks for all brokers, how the others tell that it goes on, and for how long it looks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from core.ports.log import RowLocked
from core.topic.rules import NewTopic
from gateway.runtime.inbox import inbox
from tests.gateway.runtime.inbox.conftest import (
    WAIT_S,
    MakePublisher,
    Publisher,
    Session,
    produce,
    until_published,
)
from tests.storage.conftest import Log

Sessions = Callable[[], Session]
WATCHED = """
SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted
AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


@pytest.fixture(autouse=True)
async def topic(publisher: Publisher) -> None:
    """`t` with one partition."""
    await publisher.topics.create([NewTopic("t")])


async def until(log: Log, query: str, found: bool) -> None:
    """Waits until a query gives rows, or none."""
    async with asyncio.timeout(WAIT_S):
        while bool(log.rows(query)) is not found:
            await asyncio.sleep(0.01)


async def test_the_watch_is_left_once_there_is_nothing_to_do(
    publisher: Publisher, log: Log, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "IDLE_AFTER_S", 0.2)
    produce(session, "1")
    session.commit()
    async with publisher.running():
        await until(log, WATCHED, found=True)
        await until_published(publisher, log, 1)
        await until(log, WATCHED, found=False)


async def test_a_watch_taken_twice_is_left_at_once(publisher: Publisher, log: Log) -> None:
    for _ in range(3):
        assert await publisher.store.take_the_watch()
    await publisher.store.leave_the_watch()
    assert log.rows(WATCHED) == []
    assert not publisher.store.has_the_watch


async def test_a_lock_that_is_held_for_a_moment_does_not_end_the_watch(
    publisher: Publisher, log: Log, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "IDLE_AFTER_S", 0.2)
    look = publisher.store.look
    failures = 3

    async def locked(*of: Any, **limits: Any) -> Any:
        nonlocal failures
        if failures:
            failures -= 1
            raise RowLocked("a slot is being emptied")
        return await look(*of, **limits)

    monkeypatch.setattr(publisher.store, "look", locked)
    produce(session, "1")
    session.commit()
    async with publisher.running():
        await until_published(publisher, log, 1)
        await until(log, WATCHED, found=False)


async def test_another_broker_takes_over_from_one_that_stands_still(
    publisher: Publisher, make_publisher: MakePublisher, log: Log, session: Session
) -> None:
    still = make_publisher()
    assert await still.store.take_the_watch()
    produce(session, "1")
    session.commit()
    async with publisher.running():
        assert await until_published(publisher, log, 1) == ["1"]


async def test_who_commits_long_after_the_watch_was_seen_is_published(
    publisher: Publisher, log: Log, sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing wakes the broker: the transaction has its stamp, and its commit takes long."""
    monkeypatch.setattr(inbox, "IDLE_AFTER_S", 0.2)
    slow, first = sessions(), sessions()
    log.rows("CREATE TABLE public.late (n int)")
    log.rows(
        "CREATE FUNCTION public.late() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF pg_trigger_depth() = 1 AND NEW.n > 0 THEN INSERT INTO public.late VALUES (NEW.n - 1);"
        " ELSE PERFORM pg_advisory_xact_lock(7); END IF; RETURN NULL; END $$"
    )
    log.rows(
        "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON public.late DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION public.late()"
    )
    log.rows("SELECT pg_advisory_lock(7)")
    produce(slow, "slow")
    slow.execute("INSERT INTO public.late VALUES (2)")
    async with publisher.running():
        await until(log, WATCHED.replace("'ExclusiveLock'", "'ExclusiveLock' AND objid <> 7"), True)
        committing = asyncio.ensure_future(asyncio.to_thread(slow.commit))
        produce(first, "1")
        first.commit()
        await until_published(publisher, log, 1)
        await until(log, WATCHED + "AND objid <> 7", found=False)
        await asyncio.sleep(1)
        assert not committing.done()
        log.rows("SELECT pg_advisory_unlock(7)")
        await committing
        assert await until_published(publisher, log, 2) == ["1", "slow"]
