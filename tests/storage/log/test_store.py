"""Reads, lookups, ids and segments, against a plain Python model where there is one."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable
from dataclasses import dataclass

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.pq import Trace

from core.log.producer_state import ProducerState
from core.ports.log import EpochStart, ReadRange, SegmentGone, StoredBatch, StoreUnavailable
from core.types import BatchFormat
from storage.connection.pool import Database
from storage.flush.segments import Segments
from storage.log import store as logs
from storage.log.store import PostgresLogStore
from storage.schema import CHUNK_BYTES
from tests.batches import T0, batch
from tests.storage.conftest import Log

EVERYTHING = 2**40


async def read_one(log: Log, *what: int) -> list[StoredBatch]:
    (found,) = await log.store.read([ReadRange(*what)], 2**40)
    return found


def offsets(found: list[StoredBatch]) -> list[tuple[int, int]]:
    return [(each.base_offset, each.last_offset) for each in found]


async def test_batches_come_back_as_they_were_written(log: Log) -> None:
    (p,) = log.new_partitions()
    sizes = [1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES, 61, 100_000]
    one_flush = await log.append(p, *[batch(2, size=size) for size in sizes])
    flush_each = [(await log.append(p, batch(size=size)))[0] for size in sizes]
    found = await read_one(log, p, 0, EVERYTHING, EVERYTHING)
    assert [bytes(each.payload) for each in found] == [*one_flush, *flush_each]
    assert {each.format for each in found} == {BatchFormat.KAFKA_V2}


async def test_ranges(log: Log) -> None:
    p, q = log.new_partitions(2)
    for _ in range(4):
        await log.append(p, batch(5), segment="hour")
        await log.append(q, batch(1), segment="week")
    # A batch that begins before the range but ends in it is part of it.
    assert offsets(await read_one(log, p, 7, EVERYTHING, EVERYTHING)) == [
        (5, 9),
        (10, 14),
        (15, 19),
    ]
    assert offsets(await read_one(log, p, 5, 15, EVERYTHING)) == [(5, 9), (10, 14)]
    # What a reader may not see yet ends the range, even within a batch.
    assert offsets(await read_one(log, p, 0, 12, EVERYTHING)) == [(0, 4), (5, 9)]
    assert await read_one(log, p, 20, EVERYTHING, EVERYTHING) == []
    assert await read_one(log, p, 7, 7, EVERYTHING) == []
    assert await read_one(log, -1, 0, EVERYTHING, EVERYTHING) == []
    assert await log.store.read([], 2**40) == []
    both = await log.store.read(
        [
            ReadRange(q, 1, 3, EVERYTHING),
            ReadRange(-1, 0, 9, EVERYTHING),
            ReadRange(p, 0, 5, EVERYTHING),
            ReadRange(q, 1, 2, EVERYTHING),
        ],
        EVERYTHING,
    )
    assert [offsets(each) for each in both] == [[(1, 1), (2, 2)], [], [(0, 4)], [(1, 1)]]


async def test_all_ranges_together_are_held_to_a_limit(log: Log) -> None:
    p, q = log.new_partitions(2)
    for partition in (p, q):
        for _ in range(3):
            await log.append(partition, batch(1))
    ranges = [ReadRange(p, 0, 3, EVERYTHING), ReadRange(q, 0, 3, EVERYTHING)]
    size = len((await log.store.read(ranges, EVERYTHING))[0][0].payload)
    for max_bytes, counts in ((0, [1, 0]), (size, [1, 0]), (4 * size, [3, 1]), (9 * size, [3, 3])):
        found = await log.store.read(ranges, max_bytes)
        assert [len(each) for each in found] == counts


@pytest.mark.parametrize(
    ("max_bytes", "count"), [(0, 1), (1, 1), (99, 1), (100, 1), (199, 1), (200, 2), (300, 3)]
)
async def test_limits_in_bytes(log: Log, max_bytes: int, count: int) -> None:
    (p,) = log.new_partitions()
    await log.append(p, *[batch(size=100) for _ in range(4)])
    assert len(await read_one(log, p, 0, EVERYTHING, max_bytes)) == count


async def test_a_first_batch_beyond_the_limit_is_given_alone(log: Log) -> None:
    (p,) = log.new_partitions()
    await log.append(p, batch(size=90_000), batch(size=1))
    assert offsets(await read_one(log, p, 0, EVERYTHING, 10)) == [(0, 0)]


async def test_a_read_stops_after_so_many_batches(
    log18: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "BATCHES_PER_READ", 3)
    (p,) = log18.new_partitions()
    await log18.append(p, *[batch() for _ in range(5)])
    assert offsets(await read_one(log18, p, 1, EVERYTHING, EVERYTHING)) == [(1, 1), (2, 2), (3, 3)]


async def test_payload_over_several_segments(log: Log) -> None:
    (p,) = log.new_partitions()
    written = []
    for segment in ("hour", "week", "hour", "kept"):
        written += await log.append(p, batch(size=20_000), segment=segment)
    found = await read_one(log, p, 0, EVERYTHING, EVERYTHING)
    assert [bytes(each.payload) for each in found] == written
    assert log.value("SELECT count(DISTINCT segment_id) FROM record_batch") == 3


@pytest.mark.parametrize("what", ["the table", "its rows", "one chunk"])
async def test_missing_payload_is_segment_gone(log: Log, what: str) -> None:
    (p,) = log.new_partitions()
    await log.append(p, batch(size=20_000))
    table = f"record_chunk_{await log.segment('week')}"
    await read_one(log, p, 0, 1, 1)  # prepares the statement
    if what == "the table":
        log.rows(f"DROP TABLE {table}")
    else:
        log.rows(f"DELETE FROM {table}" + (" WHERE seq = 1" if what == "one chunk" else ""))
    with pytest.raises(SegmentGone):
        await read_one(log, p, 0, 1, 1)
    assert await read_one(log, p, 1, 2, 1) == []  # and the connection is of use still


# Timestamps.


@dataclass
class Model:
    """The same lookups by walking over a list."""

    batches: list[tuple[int, int, int]]  # base offset, last offset, max timestamp

    def find(self, timestamp: int, from_offset: int, start: int) -> tuple[int, int] | None:
        for base, last, stamp in self.batches:
            if last >= max(from_offset, start) and stamp >= timestamp:
                return base, last
        return None

    def greatest(self, start: int) -> tuple[int, int] | None:
        live = [each for each in self.batches if each[1] >= start]
        if not live:
            return None
        top = max(stamp for _, _, stamp in live)
        return next((base, last) for base, last, stamp in live if stamp == top)


STAMPS = st.one_of(st.integers(0, 12), st.sampled_from([-1, 2**62]))


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    written=st.lists(st.tuples(st.integers(1, 4), STAMPS), max_size=14),
    cut=st.integers(0, 20),
    deletes_rows=st.booleans(),
)
async def test_lookups_by_timestamp_against_a_walk(
    log18: Log, written: list[tuple[int, int]], cut: int, deletes_rows: bool
) -> None:
    (p,) = log18.new_partitions()
    model, offset = Model([]), 0
    for count, stamp in written:
        model.batches.append((offset, offset + count - 1, stamp))
        offset += count
    if written:
        await log18.append(p, *[batch(n, timestamp=stamp, size=20) for n, stamp in written])
    await log18.store.advance_log_start(p, cut)
    start = (await log18.state(p)).log_start_offset
    assert start == min(cut, offset)
    if deletes_rows:
        log18.rows(
            "DELETE FROM record_batch WHERE partition_id = %s AND last_offset < %s", p, start
        )
    for timestamp in [-1, *range(14), 2**62, 2**63 - 1]:
        for from_offset in {0, start, start + 1, offset // 2, offset, offset + 5}:
            found = await log18.store.find_timestamp(p, timestamp, from_offset)
            expected = model.find(timestamp, from_offset, start)
            assert (found and (found.base_offset, found.last_offset)) == expected
    found = await log18.store.find_max_timestamp(p)
    assert (found and (found.base_offset, found.last_offset)) == model.greatest(start)


async def test_lookups_in_a_partition_that_is_not_there(log18: Log) -> None:
    assert await log18.store.find_timestamp(-1, 0, 0) is None
    assert await log18.store.find_max_timestamp(-1) is None


async def round_trips(database: Database, asked: Awaitable[object]) -> int:
    """How often it sends something and waits for an answer, by libpq's own account of what it
    sends. The database has one connection for reads, which is idle."""
    (connection,) = database._idle_readers
    with tempfile.TemporaryFile("w+") as sent:
        connection.pgconn.trace(sent.fileno())
        connection.pgconn.set_trace_flags(Trace.SUPPRESS_TIMESTAMPS)
        await asked
        connection.pgconn.untrace()
        sent.seek(0)
        messages = [line.split("\t") for line in sent if line.startswith("F\t")]
    assert database._idle_readers == [connection]
    return sum(kind.strip() in {"Sync", "Query"} for _, _, kind, *_ in messages)


async def test_a_lookup_by_timestamp_is_two_round_trips(log18: Log) -> None:
    """The search, and the payload that it has found; however long the log is."""
    (p,) = log18.new_partitions()
    for first in range(0, 400, 100):
        stamps = range(first, first + 100)
        await log18.append(p, *[batch(timestamp=T0 + stamp, size=20) for stamp in stamps])
    store, database = log18.store, log18.database
    await store.find_timestamp(p, T0, 0)  # prepares the statements
    await store.find_max_timestamp(p)
    for stamp in (0, 1, 150, 399):
        assert await round_trips(database, store.find_timestamp(p, T0 + stamp, 0)) == 2
    assert await round_trips(database, store.find_timestamp(p, T0 + 400, 0)) == 1, "nothing found"
    # The partition's greatest timestamp first, which is a look at its row.
    assert await round_trips(database, store.find_max_timestamp(p)) <= 3
    assert await log18.store.advance_log_start(-1, 0) is None
    assert await log18.store.epoch_starts(-1) == []
    assert await log18.store.load([-1], [(-1, 5)]) == ({}, {}, {})


# States.


async def test_load_gives_states_and_producers_of_one_version(log: Log) -> None:
    p, q = log.new_partitions(2)
    await log.append(p, batch(3, producer=9, epoch=1, sequence=0))
    states, producers, _ = await log.store.load([q, p, -1], [(p, 9), (p, 8), (q, 9), (-1, 9)])
    assert {i: state.next_offset for i, state in states.items()} == {p: 3, q: 0}
    assert states[p].max_timestamp == T0
    assert producers == {
        (p, 9): ProducerState(9).replay_append(batch(3, producer=9, epoch=1, sequence=0), 0)
    }


async def test_log_start_moves_up_only_and_never_past_the_end(log: Log) -> None:
    (p,) = log.new_partitions()
    await log.append(p, batch(10))
    for asked, expected in ((4, 4), (2, 4), (99, 10), (0, 10)):
        moved = await log.store.advance_log_start(p, asked)
        assert moved is not None
        assert moved.log_start_offset == expected
        assert moved == await log.state(p)


async def test_epoch_starts(log18: Log) -> None:
    (p,) = log18.new_partitions()
    log18.rows("INSERT INTO leader_epoch VALUES (%s, 3, 70), (%s, 1, 50)", p, p)
    assert await log18.store.epoch_starts(p) == [
        EpochStart(0, 0),
        EpochStart(1, 50),
        EpochStart(3, 70),
    ]


async def test_a_row_that_another_holds_is_a_store_unavailable(log: Log) -> None:
    """And no error of the driver's: nothing took effect, and later it works."""
    (p,) = log.new_partitions()
    await log.append(p, batch(10))
    with psycopg.connect(log.url) as other:
        other.execute("SELECT 1 FROM topic_partition FOR UPDATE")
        with pytest.raises(StoreUnavailable):
            await log.store.advance_log_start(p, 5)
    moved = await log.store.advance_log_start(p, 5)
    assert moved is not None
    assert moved.log_start_offset == 5


# Ids and segments.


async def test_blocks_of_ids_never_repeat(log: Log) -> None:
    other = Database(log.url)
    segments = [log.segments, Segments(other), Segments(other)]
    stores = [log.store, *(PostgresLogStore(other, each) for each in segments[1:])]
    blocks = await asyncio.gather(
        *(store.allocate_producer_ids(size) for size in (1, 10, 100) for store in stores * 4)
    )
    ids = [each for block in blocks for each in block]
    assert len(ids) == len(set(ids)) == 12 * 111
    assert min(ids) > 0
    classes = ["hour", "day", "week"]
    await asyncio.gather(*(each.prepare(classes) for each in segments))
    payloads = [each.next_payload_id() for each in segments for _ in classes]
    assert len(payloads) == len(set(payloads))
    assert min(payloads) > 0
    await other.close()


async def test_all_brokers_write_to_one_open_segment_a_class(log: Log) -> None:
    databases = [Database(log.url) for _ in range(3)]
    brokers = [Segments(each) for each in databases]
    await asyncio.gather(*(each.prepare(["week"]) for each in brokers for _ in range(3)))
    found = {each.current("week") for each in brokers}
    assert len(found) == 1
    await brokers[0].prepare(["hour"])
    assert brokers[0].current("hour") not in found
    assert log.value("SELECT count(*) FROM segment") == 2
    for database in databases:
        await database.close()


async def test_a_sealed_segment_is_left_once_it_is_looked_for_again(log: Log) -> None:
    first = await log.segment("week")
    log.rows("UPDATE segment SET sealed_at = now()")
    assert await log.segment("week") == first
    log.segments.forget()
    assert await log.segment("week") != first


async def test_chunk_tables_are_never_toasted(log: Log) -> None:
    table = f"record_chunk_{await log.segment('week')}"
    assert log.value(
        "SELECT attstorage FROM pg_attribute WHERE attrelid = %s::regclass AND attname = 'data'",
        table,
    ) in (b"p", "p")
    (p,) = log.new_partitions()
    await log.append(p, batch(size=50_000))
    assert log.value(f"SELECT max(length(data)) FROM {table}") <= CHUNK_BYTES
    assert (
        log.value(
            "SELECT coalesce(pg_relation_size(nullif(reltoastrelid, 0)), 0) FROM pg_class"
            " WHERE oid = %s::regclass",
            table,
        )
        == 0
    )
