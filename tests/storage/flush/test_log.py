"""The flush against real PostgreSQL: both shapes, every refusal, and what is left after each."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import psycopg
import pytest
from psycopg.pq.abc import PGresult

from core.errors import Error
from core.log.effects import IncomingBatch, LogEffects
from core.log.partition_log import TERMINATED, PartitionLog, Refused
from core.log.producer_state import ProducerState
from core.ports.log import (
    EffectRefused,
    RowLocked,
    SegmentGone,
    StoreUnavailable,
    ToLock,
    VersionMismatch,
)
from core.transaction.values import Marker
from storage.connection.pool import HOT_SESSION
from storage.connection.session import HotSession, Statement
from storage.flush.log import APPEND_BATCHES, APPEND_BATCHES_AT, FlushSession
from storage.schema import CHUNK_BYTES
from tests.batches import T0, batch, control_batch
from tests.storage.conftest import Log

SMALL = 100
LARGE = 6 * CHUNK_BYTES + 17
SIZES = pytest.mark.parametrize("size", [SMALL, LARGE], ids=["one chunk", "many chunks"])


async def read_all(log: Log, partition_id: int) -> list[bytes]:
    from core.ports.log import ReadRange

    (found,) = await log.store.read([ReadRange(partition_id, 0, 2**62, 2**40)], 2**40)
    return [bytes(each.payload) for each in found]


async def assert_usable(log: Log, flush: FlushSession, partition_id: int, size: int = 50) -> None:
    """The session takes the next flush, as its port promises after any exception."""
    effects, _ = await log.drafted(partition_id, batch(size=size))
    await flush.commit([effects])
    assert (await log.state(partition_id)).next_offset == effects.next_offset


def untouched(log: Log) -> bool:
    """Whether no batch, no chunk and no producer has been left behind."""
    segments = log.rows("SELECT 'record_chunk_' || segment_id FROM segment")
    chunks = sum(
        log.value(f"SELECT count(*) FROM {name}")
        for (name,) in segments
        if log.value("SELECT to_regclass(%s)", name)
    )
    return not (
        chunks
        + log.value("SELECT count(*) FROM record_batch")
        + log.value("SELECT count(*) FROM producer_state")
        + log.value("SELECT coalesce(sum(next_offset + size_bytes), 0) FROM topic_partition")
    )


@SIZES
async def test_what_was_appended_is_there_in_full(log: Log, size: int) -> None:
    p, q = log.new_partitions(2)
    flush = log.store.open_flush()
    one, payload_one = await log.drafted(
        p,
        batch(3, size=size, timestamp=T0 + 5, producer=1000, epoch=2, sequence=0),
        batch(2, size=size + 8001, timestamp=T0),
    )
    two, payload_two = await log.drafted(q, batch(size=1))
    await flush.commit([two, one])
    assert await read_all(log, p) == payload_one
    assert await read_all(log, q) == payload_two
    assert log.rows(
        "SELECT next_offset, max_timestamp, size_bytes, batch_count FROM topic_partition"
        " WHERE partition_id = ANY (%s) ORDER BY partition_id",
        [p, q],
    ) == [(5, T0 + 5, 2 * size + 8001, 2), (1, T0, 1, 1)]
    assert log.rows(
        "SELECT base_offset, last_offset, size, max_timestamp, running_max_timestamp, producer_id,"
        " producer_epoch, base_sequence, format, is_transactional, is_control FROM record_batch"
        " WHERE partition_id = %s ORDER BY base_offset",
        p,
    ) == [
        (0, 2, size, T0 + 5, T0 + 5, 1000, 2, 0, 2, False, False),
        (3, 4, size + 8001, T0, T0 + 5, -1, -1, -1, 2, False, False),
    ]
    await flush.close()


@SIZES
async def test_another_version_leaves_nothing(log: Log, size: int) -> None:
    p, q = log.new_partitions(2)
    flush = log.store.open_flush()
    right, _ = await log.drafted(p, batch(size=size, producer=7, epoch=0, sequence=0))
    wrong, _ = await log.drafted(q, batch(size=size))
    wrong = replace(wrong, expected_offset=3, next_offset=4)
    with pytest.raises(VersionMismatch):
        await flush.commit([right, wrong])
    assert untouched(log)
    await assert_usable(log, flush, p)
    await flush.close()


async def test_a_partition_that_is_gone_is_another_version(log: Log) -> None:
    (p,) = log.new_partitions()
    flush = log.store.open_flush()
    effects, _ = await log.drafted(p, batch())
    log.rows("DELETE FROM topic_partition WHERE partition_id = %s", p)
    with pytest.raises(VersionMismatch):
        await flush.commit([effects])
    assert untouched(log)
    await flush.close()


@SIZES
@pytest.mark.usefixtures("patient_sessions")
async def test_of_two_sessions_at_once_one_appends(log: Log, size: int) -> None:
    (p,) = log.new_partitions()
    flushes = [log.store.open_flush() for _ in range(2)]
    for round_number in range(10):
        drafts = [await log.drafted(p, batch(size=size)) for _ in flushes]
        outcomes = await asyncio.gather(
            *(flush.commit([e]) for flush, (e, _) in zip(flushes, drafts, strict=True)),
            return_exceptions=True,
        )
        # Never the index's own complaint: the version is compared before a row is written.
        assert sorted(map(str, map(type, outcomes))) == sorted(
            map(str, (type(None), VersionMismatch))
        )
        assert (await log.state(p)).next_offset == round_number + 1
    assert len(await read_all(log, p)) == 10
    for flush in flushes:
        await flush.close()


@pytest.mark.usefixtures("patient_sessions")
async def test_who_waited_for_the_lock_sees_the_version_it_waited_for(log: Log) -> None:
    (p,) = log.new_partitions()
    effects, _ = await log.drafted(p, batch())
    flush = log.store.open_flush()
    with psycopg.connect(log.url) as other:
        other.execute("SELECT 1 FROM topic_partition WHERE partition_id = %s FOR UPDATE", [p])
        waiting = asyncio.create_task(flush.commit([effects]))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        other.execute("UPDATE topic_partition SET next_offset = 1 WHERE partition_id = %s", [p])
    with pytest.raises(VersionMismatch):
        await waiting
    assert log.value("SELECT count(*) FROM record_batch") == 0
    await flush.close()


@SIZES
async def test_a_row_held_for_long_is_row_locked(log: Log, size: int) -> None:
    (p,) = log.new_partitions()
    effects, _ = await log.drafted(p, batch(size=size))
    flush = log.store.open_flush()
    with psycopg.connect(log.url) as other:
        other.execute("SELECT 1 FROM topic_partition WHERE partition_id = %s FOR UPDATE", [p])
        with pytest.raises(RowLocked):
            await flush.commit([effects])
        with pytest.raises(RowLocked):
            await flush.lock(ToLock([p]))
    assert untouched(log)
    await assert_usable(log, flush, p)
    await flush.close()


async def test_lock_can_leave_out_what_another_holds(log: Log) -> None:
    p, q, gone = log.new_partitions(3)
    await log.append(q, batch(2, producer=5, epoch=1, sequence=0))
    log.rows("DELETE FROM topic_partition WHERE partition_id = %s", gone)
    flush = log.store.open_flush()
    with psycopg.connect(log.url) as other:
        other.execute("SELECT 1 FROM topic_partition WHERE partition_id = %s FOR UPDATE", [p])
        found = await flush.lock(ToLock([q, p, gone], [(q, 5), (q, 6)]), skip_locked=True)
        states, producers = found.partitions, found.producers
        assert set(states) == {q}
        assert states[q].next_offset == 2
        assert producers[q, 5].last_sequence == 1
        assert (q, 6) not in producers
    # What was locked stays so until the end of this flush.
    with pytest.raises(psycopg.errors.LockNotAvailable):
        log.rows("SELECT 1 FROM topic_partition WHERE partition_id = %s FOR UPDATE NOWAIT", q)
    await flush.rollback()
    log.rows("SELECT 1 FROM topic_partition WHERE partition_id = %s FOR UPDATE NOWAIT", q)
    await flush.close()


@SIZES
async def test_decide_and_commit_under_the_lock(log: Log, size: int) -> None:
    (p,) = log.new_partitions()
    flush = log.store.open_flush()
    segment = await log.segment("week")
    for round_number in range(3):
        draft = PartitionLog(await log.state(p)).draft()  # only to make the payload
        drafted, _ = log.draft(draft, batch(size=size))
        # Another broker was quicker: what is read under the lock counts.
        await log.append(p, batch(size=10))
        states = (await flush.lock(ToLock([p]))).partitions
        assert states[p].next_offset == 2 * round_number + 1
        locked = PartitionLog(states[p]).draft()
        locked.prepare_append(drafted.rows[0].incoming)
        effects = locked.effects()
        assert effects is not None
        await flush.commit([effects])
    assert (await log.state(p)).next_offset == 6
    assert [len(each) for each in await read_all(log, p)] == [10, size] * 3
    assert log.value(f"SELECT count(DISTINCT payload_id) FROM record_chunk_{segment}") == 6
    await flush.close()


@pytest.mark.usefixtures("patient_sessions")
async def test_what_is_read_under_the_lock_is_as_of_after_the_wait(log: Log) -> None:
    (p,) = log.new_partitions()
    flush = log.store.open_flush()
    with psycopg.connect(log.url) as other:
        other.execute("SELECT 1 FROM topic_partition WHERE partition_id = %s FOR UPDATE", [p])
        waiting = asyncio.create_task(flush.lock(ToLock([p], [(p, 9)])))
        await asyncio.sleep(0.2)
        other.execute("UPDATE topic_partition SET next_offset = 4 WHERE partition_id = %s", [p])
        other.execute(
            "INSERT INTO producer_state VALUES (%s, 9, 3, 1, '{2}', '{3}', '{0}', '{1}')", [p]
        )
    found = await waiting
    states, producers = found.partitions, found.producers
    assert states[p].next_offset == 4
    assert producers[p, 9].producer_epoch == 3
    await flush.close()


REFUSE = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.partition_id = TG_ARGV[0]::bigint THEN RAISE EXCEPTION 'poison'; END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER refuse BEFORE INSERT ON record_batch FOR EACH ROW EXECUTE FUNCTION refuse({p})
"""


@SIZES
async def test_a_refused_row_refuses_the_flush_and_the_session_goes_on(log: Log, size: int) -> None:
    p, q = log.new_partitions(2)
    log.rows(REFUSE.format(p=p))
    flush = log.store.open_flush()
    one, _ = await log.drafted(p, batch(size=size))
    two, _ = await log.drafted(q, batch(size=size, producer=3, epoch=0, sequence=0))
    with pytest.raises(EffectRefused, match="poison") as refusal:
        await flush.commit([one, two])
    assert not refusal.value.out_of_space
    assert untouched(log)
    await flush.commit([two])
    assert (await log.state(q)).next_offset == 1
    await flush.close()


@SIZES
async def test_no_space_left_is_told_apart(log: Log, size: int) -> None:
    (p,) = log.new_partitions()
    log.rows(REFUSE.format(p=p).replace("'poison'", "'full' USING ERRCODE = '53100'"))
    flush = log.store.open_flush()
    effects, _ = await log.drafted(p, batch(size=size))
    with pytest.raises(EffectRefused) as refusal:
        await flush.commit([effects])
    assert refusal.value.out_of_space
    await flush.close()


# Lost connections.


@SIZES
@pytest.mark.parametrize("point", ["idle", "locked"])
async def test_a_session_killed_between_its_steps(log: Log, size: int, point: str) -> None:
    (p,) = log.new_partitions()
    flush = log.store.open_flush()
    await assert_usable(log, flush, p)
    effects, _ = await log.drafted(p, batch(size=size))
    (pid,) = [each for each in log.backends("query NOT LIKE '%%SELECT%%'") if each is not None] or [
        log.backends()[-1]
    ]
    pids = log.backends()
    if point == "locked":
        await flush.lock(ToLock([p]))
    for each in {pid, *pids}:
        log.rows("SELECT pg_terminate_backend(%s, 5000)", each)
    with pytest.raises(StoreUnavailable):
        await flush.commit([effects])
    assert (await log.state(p)).next_offset == 1
    await assert_usable(log, flush, p)
    await flush.close()


SLEEP = """
CREATE FUNCTION linger() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN PERFORM pg_sleep(5); RETURN NEW; END $$;
CREATE TRIGGER linger BEFORE INSERT ON record_batch FOR EACH ROW EXECUTE FUNCTION linger()
"""


async def wait_for_backend(log: Log, condition: str) -> int:
    for _ in range(3000):
        if pids := log.backends(condition):
            return pids[0]
        await asyncio.sleep(0.01)
    raise AssertionError(f"no session with {condition}: {log.rows('TABLE pg_stat_activity')}")


@SIZES
async def test_a_session_killed_within_the_statement(log: Log, size: int) -> None:
    (p,) = log.new_partitions()
    log.rows(SLEEP)
    flush = log.store.open_flush()
    effects, _ = await log.drafted(p, batch(size=size))
    committing = asyncio.create_task(flush.commit([effects]))
    pid = await wait_for_backend(log, "wait_event = 'PgSleep'")
    log.rows("SELECT pg_terminate_backend(%s, 5000)", pid)
    with pytest.raises(StoreUnavailable):
        await committing
    log.rows("DROP TRIGGER linger ON record_batch")
    assert untouched(log)
    await assert_usable(log, flush, p)
    await flush.close()


async def test_a_statement_over_its_time_took_no_effect(log: Log) -> None:
    (p,) = log.new_partitions()
    log.rows(SLEEP)
    flush = log.store.open_flush()
    effects, _ = await log.drafted(p, batch())
    committing = asyncio.create_task(flush.commit([effects]))
    pid = await wait_for_backend(log, "wait_event = 'PgSleep'")
    log.rows("SELECT pg_cancel_backend(%s)", pid)
    with pytest.raises(StoreUnavailable):
        await committing
    log.rows("DROP TRIGGER linger ON record_batch")
    assert untouched(log)
    await assert_usable(log, flush, p)
    await flush.close()


async def test_a_broker_stalled_under_the_lock_loses_it_within_seconds(log: Log) -> None:
    (p,) = log.new_partitions()
    flush = log.store.open_flush()
    effects, _ = await log.drafted(p, batch())
    await flush.lock(ToLock([p]))
    await asyncio.sleep(2.4)
    await log.append(p, batch(size=7))  # the other broker goes on
    with pytest.raises(StoreUnavailable):
        await flush.commit([effects])
    assert (await log.state(p)).next_offset == 1
    await assert_usable(log, flush, p)
    await flush.close()


# Segments that are gone.


@pytest.mark.parametrize("is_prepared", [False, True])
async def test_segment_gone(log: Log, is_prepared: bool) -> None:
    (p,) = log.new_partitions()
    flush = log.store.open_flush()
    if is_prepared:
        await assert_usable(log, flush, p)
    effects, _ = await log.drafted(p, batch())
    log.rows(f"DROP TABLE record_chunk_{await log.segment()}")
    before = (await log.state(p)).next_offset
    with pytest.raises(SegmentGone):
        await flush.commit([effects])
    assert (await log.state(p)).next_offset == before
    log.rows("UPDATE segment SET sealed_at = now()")
    await assert_usable(log, flush, p)
    await flush.close()


@pytest.mark.parametrize("is_prepared", [False, True])
async def test_segment_gone_under_the_lock(log: Log, is_prepared: bool) -> None:
    (p,) = log.new_partitions()
    flush = log.store.open_flush()
    if is_prepared:
        await assert_usable(log, flush, p)
    effects, _ = await log.drafted(p, batch())
    await flush.lock(ToLock([p]))
    log.rows(f"DROP TABLE record_chunk_{await log.segment()}")
    with pytest.raises(SegmentGone):
        await flush.commit([effects])
    log.rows("UPDATE segment SET sealed_at = now()")
    await assert_usable(log, flush, p, size=LARGE)
    await flush.close()


@SIZES
async def test_a_chunk_table_that_is_locked_is_row_locked(log: Log, size: int) -> None:
    # VACUUM FULL by hand, say.
    (p,) = log.new_partitions()
    flush = log.store.open_flush()
    effects, _ = await log.drafted(p, batch(size=size))
    with psycopg.connect(log.url) as other:
        other.execute(f"LOCK TABLE record_chunk_{await log.segment()}")
        with pytest.raises(RowLocked):
            await flush.commit([effects])
    assert untouched(log)
    await assert_usable(log, flush, p, size=size)
    await flush.close()


async def test_a_chunk_table_locked_between_lock_and_commit(log: Log) -> None:
    (p,) = log.new_partitions()
    flush = log.store.open_flush()
    effects, _ = await log.drafted(p, batch())
    await flush.lock(ToLock([p]))
    with psycopg.connect(log.url) as other:
        other.execute(f"LOCK TABLE record_chunk_{await log.segment()}")
        with pytest.raises(RowLocked):
            await flush.commit([effects])
        # The partition is free for others again, and the session for the next flush.
        log.rows("SELECT 1 FROM topic_partition FOR UPDATE NOWAIT")
    await assert_usable(log, flush, p, size=LARGE)
    await flush.close()


# Producers.


@pytest.mark.parametrize("batches", [0, 1, 5])
async def test_producer_state_goes_there_and_back(log: Log, batches: int) -> None:
    (p,) = log.new_partitions()
    state = ProducerState(1000, 32767, -1)
    for number in range(batches):
        each = batch(
            2, producer=1000, epoch=32767, sequence=(2**31 - 3 + 2 * number) % 2**31, timestamp=-1
        )
        state = state.replay_append(each, 2**40 + 2 * number)
    effects, _ = await log.drafted(p, batch())
    flush = log.store.open_flush()
    await flush.commit([replace(effects, producers=(state,))])
    _, loaded, _ = await log.store.load([p], [(p, 1000), (p, 1001)])
    assert loaded == {(p, 1000): state}
    locked = (await flush.lock(ToLock([p], [(p, 1000), (p, 1001)]))).producers
    assert locked == {(p, 1000): state}
    await flush.close()


async def test_what_is_loaded_decides_as_what_was_remembered(log: Log) -> None:
    (p,) = log.new_partitions()
    for sequence in range(7):
        await log.append(p, batch(producer=42, epoch=1, sequence=sequence))
    states, producers, _ = await log.store.load([p], [(p, 42)])
    known = PartitionLog(states[p])
    known.load(states[p], {42: producers[p, 42]})
    draft = known.draft()
    from core.log.partition_log import Duplicate
    from tests.batches import incoming

    decisions = [
        draft.prepare_append(incoming(batch(producer=42, epoch=1, sequence=sequence)))
        for sequence in range(7)
    ]
    assert [d.base_offset for d in decisions if isinstance(d, Duplicate)] == [2, 3, 4, 5, 6]
    assert [d.error for d in decisions if isinstance(d, Refused)] == [
        Error.OUT_OF_ORDER_SEQUENCE_NUMBER
    ] * 2


async def test_a_flush_of_many_partitions_and_batches(log: Log) -> None:
    ids = log.new_partitions(60)
    effects: list[LogEffects] = []
    payload = []
    for partition_id in reversed(ids):
        one, more = await log.drafted(partition_id, *[batch(2, size=300) for _ in range(5)])
        effects.append(one)
        payload += more
    flush = log.store.open_flush()
    await flush.commit(effects)
    assert log.rows("SELECT DISTINCT next_offset, batch_count FROM topic_partition") == [(10, 5)]
    await flush.close()


# The plan of the guard.


@pytest.mark.parametrize("guard", [APPEND_BATCHES, APPEND_BATCHES_AT], ids=["index", "places"])
def test_the_guard_locks_before_it_updates(any_url: str, guard: str) -> None:
    options = HOT_SESSION["options"]
    with psycopg.connect(any_url, autocommit=True, options=options) as connection:
        connection.execute(f"PREPARE guard AS {guard}".encode())
        empty = ", ".join(["NULL"] * 24)
        plan = "\n".join(
            line for (line,) in connection.execute(f"EXPLAIN EXECUTE guard ({empty})".encode())
        )
    # The UPDATE runs only once the count of locked rows, an InitPlan, has been worked out.
    update = plan[plan.index("Update on topic_partition") :]
    assert "One-Time Filter" in update.split("CTE inserted")[0], plan
    assert "LockRows" in plan
    lock = plan[plan.index("CTE locked") :]
    assert lock.index("LockRows") < lock.index("CTE moved"), plan
    # Rows are locked in order of id.
    lock = lock.split("CTE moved")[0]
    if guard is APPEND_BATCHES:
        assert "Sort" in lock or "Index Scan" in lock, plan
    else:
        assert "Function Scan on w" in lock.partition("LockRows")[0], plan
        assert plan.count("Tid Scan on topic_partition") == plan.count(" on topic_partition") - 1


@pytest.mark.usefixtures("patient_sessions")
async def test_locks_are_taken_in_order_of_id(log: Log) -> None:
    """Two brokers with the same partitions in opposite order do not deadlock."""
    ids = log.new_partitions(8)
    flushes = [log.store.open_flush() for _ in range(2)]
    for _ in range(10):
        outcomes = []
        drafts = [[await log.drafted(i, batch()) for i in order] for order in (ids, ids[::-1])]
        outcomes = await asyncio.gather(
            *(
                flush.commit([effects for effects, _ in drafted])
                for flush, drafted in zip(flushes, drafts, strict=True)
            ),
            return_exceptions=True,
        )
        assert {type(each) for each in outcomes} == {type(None), VersionMismatch}
    for flush in flushes:
        await flush.close()


# By the rows' places.

OTHERS_MOVE = {
    "an update": "UPDATE topic_partition SET log_start_offset = 1 WHERE partition_id = {p}",
    "a new table": "VACUUM FULL topic_partition",
    "another's row is there": "SELECT",
}


def spied(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The names of the appends that are sent from now on."""
    sent: list[bytes] = []
    run = HotSession.run

    async def spy(
        session: HotSession, statements: Sequence[Statement], *, commits: bool
    ) -> list[PGresult]:
        sent.extend(name for name, _ in statements if name.startswith(b"append_batches"))
        return await run(session, statements, commits=commits)

    monkeypatch.setattr(HotSession, "run", spy)
    return sent


async def test_rows_are_found_by_their_places(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = log.new_partitions(5)
    sent = spied(monkeypatch)
    for round_number in range(100):  # the rows fill several pages
        flush = log.store.open_flush()
        await flush.commit([(await log.drafted(each, batch()))[0] for each in reversed(ids)])
        await flush.close()
        assert [(await log.state(each)).next_offset for each in ids] == [round_number + 1] * 5
    assert sent == [b"append_batches"] + 99 * [b"append_batches_at"]


@pytest.mark.parametrize("how", OTHERS_MOVE)
async def test_a_row_that_others_have_moved_is_found_by_the_index(
    log: Log, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    p, q = log.new_partitions(2)
    flush = log.store.open_flush()
    for _ in range(2):
        await flush.commit([(await log.drafted(each, batch(3)))[0] for each in (p, q)])
    log.rows(OTHERS_MOVE[how].format(p=p))
    if how == "another's row is there":
        known = log.store._places._places
        known[p], known[q] = known[q], known[p]
    sent = spied(monkeypatch)
    await flush.commit([(await log.drafted(each, batch(2)))[0] for each in (p, q)])
    assert sent == [b"append_batches_at", b"append_batches"]
    assert [(await log.state(each)).next_offset for each in (p, q)] == [8, 8]
    assert [len(await read_all(log, each)) for each in (p, q)] == [3, 3]
    await flush.commit([(await log.drafted(p, batch(1)))[0]])
    assert sent[2:] == [b"append_batches_at"]
    await flush.close()


@pytest.mark.usefixtures("patient_sessions")
async def test_a_row_that_moves_while_a_flush_waits_for_it(log: Log) -> None:
    """As retention moves it: the flush has found it by its place, and takes what is there now."""
    (p,) = log.new_partitions()
    flush = log.store.open_flush()
    await flush.commit([(await log.drafted(p, batch(3, size=10)))[0]])
    effects, _ = await log.drafted(p, batch(2, size=10))
    with psycopg.connect(log.url) as other:
        other.execute("UPDATE penstock.topic_partition SET size_bytes = size_bytes - 7")
        committing = asyncio.create_task(flush.commit([effects]))
        await asyncio.sleep(0.2)
        assert not committing.done()
        other.commit()
    await committing
    assert log.rows("SELECT next_offset, size_bytes FROM topic_partition") == [(5, 13)]
    await flush.close()


@SIZES
async def test_another_version_at_the_right_place_leaves_nothing(log: Log, size: int) -> None:
    p, q = log.new_partitions(2)
    flush = log.store.open_flush()
    await flush.commit([(await log.drafted(each, batch(3)))[0] for each in (p, q)])
    right, _ = await log.drafted(p, batch(size=size, producer=7, epoch=0, sequence=0))
    wrong, _ = await log.drafted(q, batch(size=size))
    with pytest.raises(VersionMismatch):
        await flush.commit([right, replace(wrong, expected_offset=2)])
    assert [(await log.state(each)).next_offset for each in (p, q)] == [3, 3]
    assert log.value("SELECT count(*) FROM producer_state") == 0
    await assert_usable(log, flush, p)
    await flush.close()


@pytest.mark.parametrize("is_marker", [False, True], ids=["records", "marker"])
async def test_a_flush_that_rests_on_a_log_that_was_not_terminated_is_refused(
    log: Log, *, is_marker: bool
) -> None:
    p, other = log.new_partitions(2)
    await log.append(p, batch(3))
    before = PartitionLog(await log.state(p))
    early = _marker(before) if is_marker else log.draft(before.draft(), batch(2))[0]
    beside, _ = await log.drafted(other, batch(1))
    # As another broker does it: the one that flushes hears nothing of it.
    terminated = await log.store.terminate(p)
    assert terminated is not None
    assert (terminated.next_offset, terminated.terminated_offset) == (3, 3)
    flush = log.store.open_flush()
    with pytest.raises(VersionMismatch):
        await flush.commit([early, beside])
    assert (await log.state(p)).next_offset == 3
    assert (await log.state(other)).next_offset == 0
    # Decided again on what is there, only a marker enters.
    fresh = PartitionLog((await log.store.load([p]))[0][p])
    assert fresh.draft().prepare_append(IncomingBatch(batch(1), b"", "week")) == TERMINATED
    await flush.commit([_marker(fresh)])
    again = await log.store.terminate(p)
    assert again is not None
    assert (again.next_offset, again.terminated_offset) == (4, 3)
    await assert_usable(log, flush, other)
    await flush.close()


def _marker(log: PartitionLog) -> LogEffects:
    marker = Marker(7, 0, is_commit=False, coordinator_epoch=0)
    control = control_batch(marker)
    log.load(log.state, {7: None})
    draft = log.draft()
    draft.prepare_marker(marker, IncomingBatch(control, bytes(control.size), "week"))
    effects = draft.effects()
    assert effects is not None
    return effects


@pytest.mark.usefixtures("patient_sessions")
async def test_a_termination_waits_for_the_flush_that_holds_the_partition(log: Log) -> None:
    """And tells of an end that has its records."""
    (p,) = log.new_partitions()
    await log.append(p, batch(1))
    flush = log.store.open_flush()
    locked = await flush.lock(ToLock(partition_ids=(p,)))
    effects, _ = log.draft(PartitionLog(locked.partitions[p]).draft(), batch(4))
    termination = asyncio.create_task(log.store.terminate(p))
    await asyncio.sleep(0.1)
    assert not termination.done()
    await flush.commit([effects])
    terminated = await termination
    assert terminated is not None
    assert terminated.terminated_offset == 5
    await flush.close()


@pytest.mark.usefixtures("patient_sessions")
async def test_of_many_that_append_and_one_that_terminates(log: Log) -> None:
    """What was stored is below the end that was told, whatever the order."""
    (p,) = log.new_partitions()

    async def write(flush: FlushSession) -> int:
        stored = 0
        while True:
            state = (await log.store.load([p]))[0][p]
            if state.is_terminated:
                return stored
            effects, _ = log.draft(PartitionLog(state).draft(), batch(2))
            try:
                await flush.commit([effects])
            except VersionMismatch:
                continue
            stored = effects.next_offset

    flushes = [log.store.open_flush() for _ in range(3)]
    writers = [asyncio.create_task(write(each)) for each in flushes]
    await asyncio.sleep(0.3)
    terminated = await log.store.terminate(p)
    assert terminated is not None
    ends = [await each for each in writers]
    assert max(ends) <= terminated.terminated_offset
    assert (await log.state(p)).next_offset == terminated.terminated_offset
    for each in flushes:
        await each.close()
