"""Slots are emptied whole: never of what is not published, never below whoever writes there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import pytest

from core.ports.log import EffectRefused
from core.ports.topics import Heartbeat
from core.topic.rules import NewTopic
from gateway.runtime.inbox import inbox
from storage import inbox as stored
from storage.schema import INBOX_SLOTS
from tests.gateway.runtime.inbox.conftest import (
    Publisher,
    Session,
    position,
    produce,
    published,
    slot_bytes,
)
from tests.storage.conftest import Log

Sessions = Callable[[], Session]


@pytest.fixture(autouse=True)
async def topic(publisher: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    """`t` with one partition; any slot with something in it is large enough to be left."""
    await publisher.topics.create([NewTopic("t")])
    monkeypatch.setattr(stored, "SLOT_BYTES", 200_000)


def writing(log: Log) -> int:
    slot: int = log.value("SELECT slot FROM sql_door")
    return slot


def fill(session: Session, log: Log) -> int:
    """Makes the slot large that is written to; gives its number."""
    session.execute(
        "INSERT INTO penstock.outbox (topic, key, value)"
        " SELECT 't', 'k', repeat('x', 900) FROM generate_series(1, 300)"
    )
    session.commit()
    return writing(log)


async def empty(publisher: Publisher) -> None:
    """Publishes, and empties what can be."""
    await publisher.publish()
    await publisher.store.empty(await publisher.store.position())


async def test_a_large_slot_is_left_and_emptied_once_it_is_published(
    publisher: Publisher, log: Log, session: Session
) -> None:
    assert fill(session, log) == 0
    await publisher.store.empty(await publisher.store.position())
    assert writing(log) == 1
    assert slot_bytes(log, 0) > 0  # nothing of it is published yet
    assert log.value("SELECT count(*) FROM inbox_record_0") == 300
    await empty(publisher)
    assert slot_bytes(log, 0) == 0
    assert len(await published(publisher, log)) == 300


async def test_a_held_slot_stays_and_the_others_are_emptied(
    publisher: Publisher, log: Log, sessions: Sessions
) -> None:
    session, dawdler = sessions(), sessions()
    produce(dawdler, "dawdler")
    used = []
    for _ in range(7):
        used.append(fill(session, log))
        await empty(publisher)
    dawdler_slot, *others = used
    assert dawdler_slot == 0
    assert set(others) == {1, 2}
    assert slot_bytes(log, 0) > 0
    assert sum(slot_bytes(log, slot) > 0 for slot in range(INBOX_SLOTS)) <= 2
    dawdler.commit()
    await empty(publisher)
    assert slot_bytes(log, 0) == 0
    assert (await published(publisher, log))[-1] == "dawdler"


@pytest.mark.parametrize("state", ["53100", "42501"], ids=["no room", "no right"])
async def test_a_slot_that_cannot_be_emptied_is_for_later(
    publisher: Publisher, log: Log, session: Session, state: str
) -> None:
    """To empty it takes new files first; only for want of room that is nobody's fault."""
    fill(session, log)
    await publisher.store.empty(await publisher.store.position())
    await publisher.publish()
    log.rows(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN RAISE EXCEPTION 'refused' USING ERRCODE = '{state}'; END $$"
    )
    log.rows(
        "CREATE TRIGGER refuse BEFORE TRUNCATE ON penstock.inbox_record_0 EXECUTE FUNCTION refuse()"
    )
    with contextlib.nullcontext() if state == "53100" else pytest.raises(EffectRefused):
        await empty(publisher)
    assert slot_bytes(log, 0) > 0
    log.rows("DROP TRIGGER refuse ON penstock.inbox_record_0")
    await empty(publisher)
    assert slot_bytes(log, 0) == 0


async def test_what_was_rolled_back_goes_with_its_slot(
    publisher: Publisher, log: Log, session: Session
) -> None:
    session.execute(
        "INSERT INTO penstock.outbox (topic, value)"
        " SELECT 't', repeat('x', 900) FROM generate_series(1, 300)"
    )
    session.rollback()
    await empty(publisher)
    assert writing(log) == 1
    await empty(publisher)
    assert slot_bytes(log, 0) == 0


async def test_half_of_a_transaction_is_not_emptied_below_the_other(
    publisher: Publisher, log: Log, session: Session
) -> None:
    """Its stamp is in the slot of its first record."""
    produce(session, "in slot 0")
    log.rows("UPDATE sql_door SET slot = 1")
    produce(session, "in slot 1")
    session.commit()
    log.rows("UPDATE sql_door SET slot = 2")
    await publisher.store.empty(await publisher.store.position())
    for slot in range(2):
        assert log.value(f"SELECT count(*) FROM inbox_record_{slot}") == 1
    await publisher.publish()
    assert (await published(publisher, log)) == ["in slot 0", "in slot 1"]
    await publisher.store.empty(await publisher.store.position())
    assert (slot_bytes(log, 0), slot_bytes(log, 1)) == (0, 0)


async def test_nothing_unpublished_is_ever_emptied(
    publisher: Publisher, log: Log, sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sessions that commit race with a broker that publishes and empties all the time."""
    monkeypatch.setattr(stored, "SLOT_BYTES", 10_000)
    writers = {name: sessions() for name in "abc"}
    for name, level in (("b", "REPEATABLE READ"), ("c", "SERIALIZABLE")):
        writers[name].execute(
            f"SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {level}".encode()
        )
        writers[name].commit()

    def write(name: str) -> None:
        for n in range(200):
            produce(writers[name], f"{name} {n:03} 1", f"{name} {n:03} 2")
            if n % 7 == 0:
                writers[name].execute("SELECT pg_sleep(0.02)")
                produce(writers[name], f"{name} {n:03} 3")
            writers[name].commit()

    slots = set()
    written = asyncio.gather(*(asyncio.to_thread(write, name) for name in writers))
    async with asyncio.timeout(60):
        while not written.done():
            await empty(publisher)
            slots.add(writing(log))
        await written
    await empty(publisher)
    found = await published(publisher, log)
    for name in writers:
        expected = [
            f"{name} {n:03} {m}" for n in range(200) for m in (123 if n % 7 == 0 else 12, )
            for m in str(m)
        ]  # fmt: skip
        assert [value for value in found if value[0] == name] == expected
    assert slots == set(range(INBOX_SLOTS))


async def test_slots_are_emptied_where_only_offsets_are_written(
    publisher: Publisher, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have no stamp, and wake nobody."""
    monkeypatch.setattr(inbox, "EMPTY_IDLE_EVERY_S", 0.05)
    async with publisher.running():
        await asyncio.sleep(0.1)
        log.rows(
            "INSERT INTO inbox_offset_0 (xid, number, group_key, group_id, partition_id,"
            " committed_offset, metadata) SELECT pg_current_xact_id(), nextval('inbox_number_seq'),"
            " gen_random_uuid(), repeat('g', 200), n, n, '' FROM generate_series(1, 2000) AS n"
        )
        async with asyncio.timeout(30):
            while log.value("SELECT pg_relation_size('inbox_offset_0')"):
                number = log.value("SELECT last_value FROM inbox_number_seq")
                publisher.inbox.on_heartbeat(0.0, Heartbeat(True, (), last_number=number))
                await asyncio.sleep(0.1)
                log.rows("SELECT nextval('inbox_number_seq')")
    assert writing(log) == 1


async def test_positions_are_forgotten(
    publisher: Publisher, log: Log, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "_POSITIONS_KEPT", 3)
    for _ in range(3):
        for n in range(5):
            produce(session, str(n))
            session.commit()
            await publisher.publish()
        await publisher.store.empty(await publisher.store.position())
        newest = position(log)[0]
        kept = [version for (version,) in log.rows("SELECT version FROM inbox_position ORDER BY 1")]
        assert kept == list(range(newest - 3, newest + 1))
    assert len(await published(publisher, log)) == 15
