"""Deleting against real tables: rows in batches, segments sealed and dropped, sizes going down."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from core.log.partition_log import LogDraft
from core.log.retention import CONTROL
from core.ports.log import ReadRange, SegmentGone, StoreUnavailable
from core.transaction.values import Marker
from storage.connection.pool import Database
from storage.flush.segments import Segments, should_seal
from storage.log import retention
from storage.log.retention import PostgresRetentionStore
from tests.batches import T0, batch, control_batch, incoming
from tests.storage.conftest import Log

LARGE = 60_000


def retention_of(log: Log) -> PostgresRetentionStore:
    return PostgresRetentionStore(log.database, log.segments)


async def test_usage(log: Log) -> None:
    p, q = log.new_partitions(2, name="flights")
    await log.append(p, batch(3, size=200))
    await log.store.advance_log_start(p, 1)
    found = await retention_of(log).usage()
    assert [
        (u.partition_id, u.topic_name, u.log_start_offset, u.next_offset, u.size_bytes)
        for u in found
    ] == [(p, "flights", 1, 3, 200), (q, "flights", 0, 0, 0)]


async def test_where_a_log_starts_by_time(log: Log) -> None:
    (p,) = log.new_partitions()
    store = retention_of(log)
    stamps = [5, 9, 3, 12, 1]
    await log.append(p, *[batch(2, timestamp=T0 + each) for each in stamps])
    for timestamp, expected in ((0, 0), (5, 0), (6, 2), (9, 2), (10, 6), (12, 6), (13, None)):
        # In order of offset, as Kafka looks at segments: 3 lies behind 9 and stays with it.
        assert await store.first_young_batch(p, 0, T0 + timestamp) == expected
    assert await store.first_young_batch(p, 7, T0 + 1) == 6


async def test_where_a_log_starts_by_size(log: Log) -> None:
    (p,) = log.new_partitions()
    store = retention_of(log)
    await log.append(p, *[batch(2, size=100) for _ in range(3)])
    for limit, expected in ((300, 0), (299, 0), (201, 0), (200, 2), (101, 2), (100, 4), (0, None)):
        # Never less is left than was asked to be kept.
        assert await store.first_within_size(p, 0, limit) == expected
    assert await store.first_within_size(p, 2, 100) == 4


async def test_batches_without_a_timestamp_are_kept(log: Log) -> None:
    (p,) = log.new_partitions()
    await log.append(p, batch(2, timestamp=T0), batch(2, timestamp=-1), batch(2, timestamp=T0))
    assert await retention_of(log).first_young_batch(p, 0, T0 + 1) == 2


async def test_rows_are_deleted_in_batches_with_the_totals(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "ROWS_PER_DELETE", 3)
    p, q = log.new_partitions(2)
    for each in (p, q):
        await log.append(each, *[batch(2, size=10) for _ in range(8)])
    await log.store.advance_log_start(p, 11)  # within the sixth batch, which stays
    store = retention_of(log)
    assert [await store.delete_rows(p) for _ in range(3)] == [3, 2, 0]
    assert await store.delete_rows(q) == 0
    query = "SELECT size_bytes, batch_count FROM topic_partition WHERE partition_id = %s"
    assert (log.rows(query, p), log.rows(query, q)) == ([(30, 3)], [(80, 8)])
    (found,) = await log.store.read([ReadRange(p, 11, 99, 10**6)], 2**40)
    assert [each.base_offset for each in found] == [10, 12, 14]


async def test_two_brokers_delete_the_same_rows_once(log: Log) -> None:
    (p,) = log.new_partitions()
    await log.append(p, *[batch(size=10) for _ in range(50)])
    await log.store.advance_log_start(p, 40)
    other = Database(log.url)
    stores = [retention_of(log), PostgresRetentionStore(other, Segments(other))]
    deleted = await asyncio.gather(*(store.delete_rows(p) for store in stores * 3))
    assert sum(deleted) == 40
    assert log.rows("SELECT size_bytes, batch_count FROM topic_partition") == [(100, 10)]
    await other.close()


async def test_a_partition_that_is_held_is_left_for_later(log: Log) -> None:
    (p,) = log.new_partitions()
    await log.append(p, batch())
    await log.store.advance_log_start(p, 1)
    with psycopg.connect(log.url) as other:
        other.execute("SELECT 1 FROM topic_partition FOR UPDATE")
        assert await retention_of(log).delete_rows(p) == 0
    assert await retention_of(log).delete_rows(p) == 1


async def test_partitions_of_deleted_topics_are_cleaned(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "ROWS_PER_DELETE", 2)
    p, q = log.new_partitions(2)
    for each in (p, q):
        await log.append(each, *[batch(producer=5, epoch=0, sequence=n) for n in range(5)])
    log.rows("INSERT INTO deleted_partition VALUES (%s)", p)
    log.rows("DELETE FROM topic_partition WHERE partition_id = %s", p)
    assert await retention_of(log).clean_deleted_partitions() == 1
    assert await retention_of(log).clean_deleted_partitions() == 0
    for table, left in (("record_batch", 5), ("producer_state", 1), ("leader_epoch", 1)):
        assert log.rows(f"SELECT partition_id, count(*) FROM {table} GROUP BY 1") == [(q, left)]


async def test_producers_expire(log: Log) -> None:
    (p,) = log.new_partitions()
    await log.append(
        p, batch(producer=5, epoch=0, sequence=0), batch(producer=6, epoch=0, sequence=0)
    )
    log.rows("UPDATE producer_state SET updated_at = now() - '1 hour'::interval")
    await log.append(p, batch(producer=6, epoch=0, sequence=1))  # heard of again
    assert await retention_of(log).expire_producers(1800) == 1
    assert log.rows("SELECT producer_id FROM producer_state") == [(6,)]


async def test_many_idle_producers_expire_some_at_a_time(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.log.retention.ROWS_PER_DELETE", 2)
    (p,) = log.new_partitions(1)
    await log.append(p, *(batch(producer=n, epoch=0, sequence=0) for n in range(7)))
    log.rows("UPDATE producer_state SET updated_at = now() - '1 hour'::interval")
    await log.append(p, batch(producer=3, epoch=0, sequence=1))
    assert await retention_of(log).expire_producers(1800) == 6
    assert log.rows("SELECT producer_id FROM producer_state") == [(3,)]


async def test_producers_with_an_open_transaction_do_not_expire(log: Log) -> None:
    p, q = log.new_partitions(2)
    for partition_id, is_open in ((p, True), (q, False)):
        await log.append(
            partition_id, batch(producer=5, epoch=0, sequence=0, transactional=is_open)
        )
    log.rows("UPDATE producer_state SET updated_at = now() - '1 year'::interval")
    assert await retention_of(log).expire_producers(1800) == 1
    assert log.rows("SELECT partition_id FROM producer_state") == [(p,)]
    assert (await log.state(p)).open_transactions == ((5, 0),)


async def aborted(log: Log, partition_id: int, *transactions: int) -> None:
    """Transactions of one batch and its marker, two offsets each, one after the other."""
    for producer_id in transactions:
        await log.append(
            partition_id, batch(producer=producer_id, epoch=0, sequence=0, transactional=True)
        )
        marker = Marker(producer_id, 0, is_commit=False, coordinator_epoch=0)
        states, known, _ = await log.store.load([partition_id], [(partition_id, producer_id)])
        draft = LogDraft(states[partition_id], {producer_id: known[partition_id, producer_id]})
        control = incoming(control_batch(marker), retention_class=CONTROL)
        draft.prepare_marker(marker, control)
        effects = draft.effects()
        assert effects is not None
        flush = log.store.open_flush()
        await flush.commit([effects])
        await flush.close()


async def test_aborted_transactions_go_with_their_markers(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "ROWS_PER_DELETE", 3)
    p, q = log.new_partitions(2)
    for each in (p, q):
        await aborted(log, each, 5, 6, 7, 8)
    await log.store.advance_log_start(p, 5)  # between the third one's batch and its marker
    assert [await retention_of(log).delete_rows(p) for _ in range(3)] == [3, 2, 0]
    left = "SELECT producer_id FROM aborted_transaction WHERE partition_id = %s ORDER BY 1"
    assert (log.rows(left, p), log.value(f"SELECT count(*) FROM ({left}) AS a", q)) == (
        [(7,), (8,)],
        4,
    )
    # Readers from the log start on still hear of all that concerns them.
    assert [
        [each.producer_id for each in found]
        for found in await log.store.aborted([(p, 5, 8), (p, 6, 7), (p, 0, 8)])
    ] == [[7, 8], [8], [7, 8]]
    log.rows("INSERT INTO deleted_partition VALUES (%s)", p)
    log.rows("DELETE FROM topic_partition WHERE partition_id = %s", p)
    assert await retention_of(log).clean_deleted_partitions() == 1
    assert log.rows(left, p) == []
    assert log.value(f"SELECT count(*) FROM ({left}) AS a", q) == 4


async def test_a_log_start_may_pass_an_open_transaction(log: Log) -> None:
    (p,) = log.new_partitions()
    await log.append(p, batch(2, producer=5, epoch=0, sequence=0, transactional=True), batch(3))
    for start, stable in ((1, 1), (4, 4), (99, 5)):
        state = await log.store.advance_log_start(p, start)
        assert state is not None
        assert (state.last_stable_offset, state.log_start_offset) == (stable, min(start, 5))
        while await retention_of(log).delete_rows(p):
            pass
    # It is still open, and ends as any other.
    assert (await log.state(p)).open_transactions == ((5, 0),)
    await log.append(p, batch(1, producer=5, epoch=0, sequence=2, transactional=True))
    assert (await log.state(p)).open_transactions == ((5, 0),)


async def test_segments_of_markers_are_sealed_and_dropped(log: Log) -> None:
    store = retention_of(log)
    (p,) = log.new_partitions()
    await aborted(log, p, *range(5, 12))
    segment = await log.segment(CONTROL)
    old = "UPDATE segment SET created_at = now() - '2 days'::interval WHERE segment_id = %s"
    log.rows(old, segment)
    log.rows(f"INSERT INTO record_chunk_{segment} SELECT -n, 0, 'x' FROM generate_series(1, 999) n")
    (found,) = [each for each in await store.open_segments() if each.segment_id == segment]
    assert found.retention_class == CONTROL
    assert should_seal(found, 2**30)
    await store.seal(segment)
    log.segments.forget()
    await aborted(log, p, 12)  # into the next one
    assert segment not in await store.drop_unused_segments()
    await log.store.advance_log_start(p, 14)
    while await store.delete_rows(p):
        pass
    assert await store.drop_unused_segments() == [segment]
    (batches,) = await log.store.read([ReadRange(p, 14, 16, 10**6)], 2**40)
    assert [each.base_offset for each in batches] == [14, 15]


async def test_a_segment_is_sealed_once_and_another_opened(log: Log) -> None:
    first = await log.segment("week")
    other = Database(log.url)
    stores = [retention_of(log), PostgresRetentionStore(other, Segments(other))]
    await asyncio.gather(*(store.seal(first) for store in stores * 2))
    assert log.value("SELECT count(*) FROM segment") == 2
    log.segments.forget()
    assert await log.segment("week") != first
    await other.close()


async def fill(log: Log, batches: int = 20, segment: str = "week") -> tuple[int, int]:
    """A partition with so many large batches; gives it and its segment."""
    (p,) = log.new_partitions()
    await log.append(p, *[batch(size=LARGE) for _ in range(batches)], segment=segment)
    return p, await log.segment(segment)


async def test_open_segments_tell_size_and_use(log: Log) -> None:
    p, segment = await fill(log)
    (found,) = await retention_of(log).open_segments()
    assert (found.segment_id, found.retention_class, found.is_used) == (segment, "week", True)
    assert found.size_bytes == log.value(
        "SELECT pg_total_relation_size(%s)", f"record_chunk_{segment}"
    )
    assert found.size_bytes > 20 * LARGE
    assert 0 <= found.age_s < 60
    await log.store.advance_log_start(p, 20)
    await retention_of(log).delete_rows(p)
    (found,) = await retention_of(log).open_segments()
    assert not found.is_used


async def test_disk_space_is_free_once_nobody_points_into_a_segment(log: Log) -> None:
    store = retention_of(log)
    p, segment = await fill(log)
    q, _ = await fill(log, 1)
    await store.seal(segment)
    log.segments.forget()
    await log.append(q, batch(size=LARGE))
    table = f"record_chunk_{segment}"
    assert log.value("SELECT pg_total_relation_size(%s)", table) > 21 * LARGE
    assert await store.drop_unused_segments() == []
    await log.store.advance_log_start(p, 20)
    await store.delete_rows(p)
    assert await store.drop_unused_segments() == []  # the other partition is still in it
    await log.store.advance_log_start(q, 1)
    await store.delete_rows(q)
    assert await store.drop_unused_segments() == [segment]
    assert log.value("SELECT to_regclass(%s)", table) is None
    left = log.value(
        "SELECT sum(pg_total_relation_size(('record_chunk_' || segment_id)::regclass))::bigint"
        " FROM segment"
    )
    assert left < 3 * LARGE
    (found,) = await log.store.read([ReadRange(q, 1, 9, 10**6)], 2**40)
    assert [each.base_offset for each in found] == [1]


async def sealed_and_unused(log: Log) -> int:
    p, segment = await fill(log, 1)
    await log.store.advance_log_start(p, 1)
    await retention_of(log).delete_rows(p)
    await retention_of(log).seal(segment)
    return segment


@pytest.mark.parametrize("commits", [False, True])
async def test_a_segment_is_not_dropped_under_a_flush_under_way(log: Log, commits: bool) -> None:
    segment = await sealed_and_unused(log)
    (p,) = log.new_partitions()
    # A broker that has not heard of the seal is in the middle of writing to it.
    with psycopg.connect(log.url) as other:
        other.execute(f"INSERT INTO record_chunk_{segment} VALUES (77, 0, 'payload')".encode())
        other.execute(
            "INSERT INTO record_batch VALUES (%s, 0, 0, 77, 0, %s, 7, 0, 0, -1, -1, -1, 2,"
            " false, false)",
            [p, segment],
        )
        assert await retention_of(log).drop_unused_segments() == []  # after lock_timeout
        if not commits:
            other.rollback()
    assert await retention_of(log).drop_unused_segments() == ([] if commits else [segment])


async def test_a_flush_that_comes_after_the_drop_is_refused_whole(log: Log) -> None:
    segment = await sealed_and_unused(log)
    (p,) = log.new_partitions()
    effects, _ = await log.drafted(p, batch(size=LARGE))
    assert await log.segment() == segment
    flush = log.store.open_flush()
    assert await retention_of(log).drop_unused_segments() == [segment]
    with pytest.raises(SegmentGone):
        await flush.commit([effects])
    assert (await log.state(p)).next_offset == 0
    await flush.close()


async def test_two_brokers_drop_the_same_segment(log: Log) -> None:
    segment = await sealed_and_unused(log)
    with psycopg.connect(log.url) as other:
        # The other broker is in the middle of dropping it.
        other.execute(f"LOCK TABLE record_chunk_{segment} IN ACCESS EXCLUSIVE MODE")
        dropping = asyncio.create_task(retention_of(log).drop_unused_segments())
        await asyncio.sleep(0.3)
        other.execute(f"DROP TABLE record_chunk_{segment}")
        other.execute(b"DELETE FROM segment WHERE segment_id = %s", [segment])
    assert await dropping == []


async def test_a_locked_table_postpones_the_rounds_of_retention(log: Log) -> None:
    """As a StoreUnavailable, which the janitor outlives."""
    _, segment = await fill(log, 1)
    with psycopg.connect(log.url) as other:
        other.execute(f"LOCK TABLE record_chunk_{segment} IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(StoreUnavailable):
            await retention_of(log).open_segments()
