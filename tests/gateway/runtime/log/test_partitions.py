"""Reading, waiting, looking up and deleting, as a broker serves it over the real database."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.errors import Error
from core.ports.log import EpochStart, Loaded, ReadRange, StoredBatch
from gateway.runtime.log.partitions import Found, Want
from storage.log.retention import PostgresRetentionStore
from tests.batches import batch
from tests.gateway.runtime.conftest import Broker, MakeBroker
from tests.storage.conftest import Log

MUCH = 10**9


def offsets(found: Found) -> list[int]:
    return [each.base_offset for each in found.batches]


async def read_one(broker: Broker, partition_id: int, offset: int, max_bytes: int = MUCH) -> Found:
    (found,) = await broker.partitions.read([Want(partition_id, offset, max_bytes)], MUCH)
    return found


@pytest.mark.parametrize("tail_cache_bytes", [0, 2**20], ids=["from the store", "from memory"])
async def test_reads_from_anywhere(
    make_broker: MakeBroker, log: Log, tail_cache_bytes: int
) -> None:
    broker = make_broker(tail_cache_bytes=tail_cache_bytes)
    (p,) = log.new_partitions()
    for _ in range(3):
        await broker.append(p, batch(2))
    for offset, expected in ((0, [0, 2, 4]), (3, [2, 4]), (5, [4]), (6, [])):
        found = await read_one(broker, p, offset)
        assert (found.error, offsets(found)) == (Error.NONE, expected)
        assert found.state is not None
        assert found.state.high_watermark == 6


@pytest.mark.parametrize("tail_cache_bytes", [0, 2**20], ids=["from the store", "from memory"])
async def test_many_partitions_with_little_each_are_read_at_once(
    make_broker: MakeBroker, log: Log, monkeypatch: pytest.MonkeyPatch, tail_cache_bytes: int
) -> None:
    """Though each might have had ten times as much as fits."""
    broker = make_broker(tail_cache_bytes=tail_cache_bytes)
    partitions = log.new_partitions(100)
    await asyncio.gather(*(broker.submit(p, batch(size=100)) for p in partitions))
    reads: list[int] = []
    read = broker.store.read

    async def counted(ranges: Sequence[ReadRange], max_bytes: int) -> list[list[StoredBatch]]:
        reads.append(len(ranges))
        return await read(ranges, max_bytes)

    monkeypatch.setattr(broker.store, "read", counted)
    wants = [Want(p, 0, 1_000) for p in partitions]
    found = await broker.partitions.read(wants, 10_000)
    assert [each.size_bytes for each in found] == [100] * 100
    assert len(reads) <= 4
    found = await broker.partitions.read(wants, 2_050)
    assert [each.size_bytes for each in found] == [100] * 20 + [0] * 80
    assert {each.error for each in found} == {Error.NONE}


async def test_a_first_batch_beyond_every_limit_is_found_behind_empty_partitions(
    make_broker: MakeBroker, log: Log
) -> None:
    broker = make_broker(tail_cache_bytes=0)
    empty, full, other = log.new_partitions(3)
    await asyncio.gather(*(broker.submit(p, batch(size=100)) for p in (full, other)))
    for limit in (0, 1, 99):
        wants = [Want(p, 0, limit) for p in (empty, full, other)]
        found = await broker.partitions.read(wants, limit)
        assert [each.size_bytes for each in found] == [0, 100, 0]


async def test_out_of_range_and_unknown(broker: Broker, log: Log) -> None:
    (p,) = log.new_partitions()
    await broker.append(p, batch(4))
    assert (await read_one(broker, p, 5)).error is Error.OFFSET_OUT_OF_RANGE
    await broker.partitions.delete_records(p, 2)
    assert (await read_one(broker, p, 1)).error is Error.OFFSET_OUT_OF_RANGE
    assert offsets(await read_one(broker, p, 2)) == [0]
    unknown = await read_one(broker, -5, 0)
    assert (unknown.error, unknown.state) == (Error.UNKNOWN_TOPIC_OR_PARTITION, None)


async def test_missing_payload_is_an_error_of_its_partition_alone(
    make_broker: MakeBroker, log: Log
) -> None:
    broker = make_broker(tail_cache_bytes=0)
    p, q = log.new_partitions(2)
    await broker.append(p, batch(2))
    await broker.append(q, batch(2))
    ((payload_id, segment_id),) = log.rows(
        "SELECT payload_id, segment_id FROM record_batch WHERE partition_id = %s", p
    )
    log.rows(f"DELETE FROM record_chunk_{segment_id} WHERE payload_id = %s", payload_id)
    damaged, sound = await broker.partitions.read([Want(p, 0, 999), Want(q, 0, 999)], MUCH)
    assert (damaged.error, offsets(damaged)) == (Error.KAFKA_STORAGE_ERROR, [])
    assert (sound.error, offsets(sound)) == (Error.NONE, [0])


async def test_out_of_range_is_confirmed_by_a_fresh_read(make_broker: MakeBroker, log: Log) -> None:
    here, there = make_broker(), make_broker()
    p, q = log.new_partitions(2)
    assert offsets(await read_one(here, p, 0)) == []
    await there.append(p, batch(4))  # unheard of here
    found = await read_one(here, p, 4)
    assert found.error is Error.NONE
    assert offsets(await read_one(here, p, 0)) == [0]
    # Deleted elsewhere: unknown here at the next look, not only at the next start.
    await read_one(here, q, 0)
    log.rows("DELETE FROM topic_partition WHERE partition_id = %s", q)
    assert (await read_one(here, q, 3)).error is Error.UNKNOWN_TOPIC_OR_PARTITION


async def test_partitions_forgotten_while_others_are_read_are_not_called_unknown(
    broker: Broker, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new connection meets another history just while a read looks for one partition of two."""
    p, q = log.new_partitions(2)
    await broker.append(p, batch())
    load, forgotten = broker.store.load, []

    async def load_and_meet_another_history(*args, **kwargs):  # type: ignore[no-untyped-def]
        if not forgotten:
            forgotten.append(True)
            broker.forget_everything()
        return await load(*args, **kwargs)

    monkeypatch.setattr(broker.store, "load", load_and_meet_another_history)
    first, second = await broker.partitions.read([Want(p, 0, 999), Want(q, 0, 999)], MUCH)
    assert (first.error, offsets(first)) == (Error.NONE, [0])
    assert second.error is Error.NONE


def by_kip_74(
    sizes: dict[int, list[int]], wants: list[tuple[int, int, int]], max_bytes: int
) -> list[list[int]]:
    """What Kafka would give: the first batch of all always, else whole batches within limits."""
    answer, left, given_any = [], max_bytes, False
    for partition, offset, limit in wants:
        taken: list[int] = []
        used = 0
        for number, size in enumerate(sizes[partition][offset:], offset):
            fits = used + size <= min(limit, left)
            if not fits and (given_any or taken):
                break
            taken.append(number)
            used += size
            if not fits:
                break
        left = max(0, left - used)
        given_any = given_any or bool(taken)
        answer.append(taken)
    return answer


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    sizes=st.lists(
        st.lists(st.sampled_from([10, 60, 100, 250]), max_size=5), min_size=3, max_size=3
    ),
    wants=st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 5), st.sampled_from([0, 50, 100, 260, 999])),
        max_size=4,
        unique_by=lambda want: want[0],
    ),
    max_bytes=st.sampled_from([0, 60, 110, 300, 9999]),
    tail_cache_bytes=st.sampled_from([0, 150, 2**20]),
)
async def test_limits_are_those_of_kip_74(
    make_broker: MakeBroker,
    log: Log,
    sizes: list[list[int]],
    wants: list[tuple[int, int, int]],
    max_bytes: int,
    tail_cache_bytes: int,
) -> None:
    broker = make_broker(tail_cache_bytes=tail_cache_bytes)
    ids = log.new_partitions(3)
    await asyncio.gather(
        *(
            broker.submit(p, batch(size=size))
            for p, each in zip(ids, sizes, strict=True)
            for size in each
        )
    )
    model = dict(enumerate(sizes))
    wants = [(p, min(offset, len(model[p])), limit) for p, offset, limit in wants]
    found = await broker.partitions.read(
        [Want(ids[p], offset, limit) for p, offset, limit in wants], max_bytes
    )
    expected = by_kip_74(model, wants, max_bytes)
    got = [offsets(each) for each in found]
    # Never more, and something wherever Kafka gives something. It may be less: memory may hold the
    # beginning only, and what is asked of the store is set aside whether it is found or not.
    for (p, offset, _), one, most in zip(wants, got, expected, strict=True):
        assert one == most[: len(one)], (p, offset)
    given = sum(each.size_bytes for each in found)
    assert given <= max_bytes or sum(map(len, got)) == 1
    assert bool(sum(map(len, got))) == bool(sum(map(len, expected)))
    if tail_cache_bytes == 2**20:
        assert got == expected


async def until_watched(broker: Broker, *partitions: int) -> None:
    """Returns once somebody sleeps until these partitions change."""
    async with asyncio.timeout(20):
        while sorted(broker.partitions.watched()) != sorted(partitions):
            await asyncio.sleep(0.005)


async def test_wakes_on_an_append_here(broker: Broker, log: Log) -> None:
    p, q = log.new_partitions(2)
    wants = [Want(p, 0, MUCH), Want(q, 0, MUCH)]
    seen = await broker.partitions.read(wants, MUCH)
    waiting = asyncio.create_task(broker.partitions.wait_for_more(wants, seen, 30))
    await until_watched(broker, p, q)
    await broker.append(q, batch())
    await asyncio.wait_for(waiting, 20)
    assert broker.partitions.watched() == []


async def test_does_not_sleep_on_what_has_come_since_it_looked(broker: Broker, log: Log) -> None:
    (p,) = log.new_partitions()
    wants = [Want(p, 0, MUCH)]
    seen = await broker.partitions.read(wants, MUCH)
    await broker.append(p, batch())
    await asyncio.wait_for(broker.partitions.wait_for_more(wants, seen, 30), 20)


async def test_waiting_ends_with_its_time(broker: Broker, log: Log) -> None:
    (p,) = log.new_partitions()
    wants = [Want(p, 0, MUCH)]
    seen = await broker.partitions.read(wants, MUCH)
    started = time.monotonic()
    await broker.partitions.wait_for_more(wants, seen, 0.1)
    assert 0.05 < time.monotonic() - started < 20
    assert broker.partitions.watched() == []


async def test_waiting_ends_when_the_partition_is_deleted(broker: Broker, log: Log) -> None:
    (p,) = log.new_partitions()
    wants = [Want(p, 0, MUCH)]
    seen = await broker.partitions.read(wants, MUCH)
    waiting = asyncio.create_task(broker.partitions.wait_for_more(wants, seen, 30))
    await until_watched(broker, p)
    log.rows("DELETE FROM topic_partition")
    await broker.partitions.on_changed_elsewhere([p])
    await asyncio.wait_for(waiting, 20)
    assert (await read_one(broker, p, 0)).error is Error.UNKNOWN_TOPIC_OR_PARTITION


async def test_looking_again_without_news_wakes_nobody(broker: Broker, log: Log) -> None:
    (p,) = log.new_partitions()
    wants = [Want(p, 0, MUCH)]
    seen = await broker.partitions.read(wants, MUCH)
    waiting = asyncio.create_task(broker.partitions.wait_for_more(wants, seen, 30))
    await until_watched(broker, p)
    await broker.partitions.refresh([p])
    await asyncio.sleep(0.05)
    assert not waiting.done()
    waiting.cancel()


async def test_who_asks_at_the_same_time_shares_a_fresh_read(
    broker: Broker, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = log.new_partitions(20)
    load, loads = broker.store.load, 0

    async def counted(partition_ids: Sequence[int]) -> Loaded:
        nonlocal loads
        loads += 1
        return await load(partition_ids)

    monkeypatch.setattr(broker.store, "load", counted)
    together, lone = broker.partitions.refresh_together, 4711
    found = await asyncio.gather(*(together([p, lone]) for p in ids))
    assert [list(each) for each in found] == [[p] for p in ids]
    assert loads == 1
    log.rows("UPDATE topic_partition SET log_start_offset = 1, next_offset = 1")
    starts = await asyncio.gather(*(broker.partitions.with_log_starts([p], None) for p in ids))
    assert {state.log_start_offset for each in starts for state in each.values()} == {1}
    assert loads == 2


async def test_delete_records(broker: Broker, log: Log) -> None:
    (p,) = log.new_partitions()
    await broker.append(p, batch(5))
    delete = broker.partitions.delete_records
    assert await delete(p, 3) == (Error.NONE, 3)
    assert await delete(p, 1) == (Error.NONE, 3)
    assert await delete(p, 6) == (Error.OFFSET_OUT_OF_RANGE, -1)
    assert await delete(p, -2) == (Error.OFFSET_OUT_OF_RANGE, -1)
    assert await delete(p, -1) == (Error.NONE, 5)
    assert await delete(-7, 0) == (Error.UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert broker.announced.count(p) >= 4


async def test_a_segment_dropped_under_a_reader_is_out_of_range(
    make_broker: MakeBroker, log: Log
) -> None:
    here, there = make_broker(tail_cache_bytes=0), make_broker()
    (p,) = log.new_partitions()
    await here.append(p, batch(2))
    await here.append(p, batch(2))
    await there.partitions.delete_records(p, 4)
    log.rows(f"DROP TABLE record_chunk_{await here.segment('week')}")
    assert (await read_one(here, p, 0)).error is Error.OFFSET_OUT_OF_RANGE
    assert (await read_one(here, p, 4)).error is Error.NONE


async def test_batches_come_with_the_partitions_epochs(broker: Broker, log: Log) -> None:
    (p,) = log.new_partitions()
    await broker.append(p, batch(2))
    log.rows("UPDATE topic_partition SET leader_epoch = 1")
    log.rows("INSERT INTO leader_epoch VALUES (%s, 1, 2)", p)
    await broker.partitions.refresh([p])
    await broker.append(p, batch(2))
    found = await read_one(broker, p, 0)
    assert list(found.leader_epochs) == [EpochStart(0, 0), EpochStart(1, 2)]


async def test_appends_go_to_the_next_segment_once_one_is_sealed(broker: Broker, log: Log) -> None:
    """Else a segment in use would never be empty, nor dropped."""
    (p,) = log.new_partitions()
    await broker.append(p, batch())
    first = await broker.segment("week")
    retention = PostgresRetentionStore(broker.database, broker.segments)
    await retention.seal(first)
    retention.forget_segments()
    await broker.append(p, batch())
    segments = log.rows("SELECT segment_id FROM record_batch ORDER BY base_offset")
    assert segments[0] == (first,)
    assert segments[1] != (first,)
    (found,) = await broker.store.read([ReadRange(p, 0, 9, MUCH)], 2**40)
    assert len(found) == 2


async def test_a_broker_that_stops_settles_what_it_has_taken_in(
    broker: Broker, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even what is parked; what comes later is for the next leader."""
    monkeypatch.setattr("gateway.runtime.log.partitions._DRAINED_WITHIN_S", 60.0)
    p, q = log.new_partitions(2)
    with psycopg.connect(log.url) as other:
        other.execute("SELECT 1 FROM topic_partition WHERE partition_id = %s FOR UPDATE", [p])
        earlier = [broker.submit(p, batch()), broker.submit(q, batch()), broker.submit(p, batch())]
        stopping = asyncio.create_task(broker.partitions.stop())
        await earlier[1]
        later = [await broker.append(each, batch()) for each in (p, q)]
        assert {each.error for each in later} == {Error.NOT_LEADER_OR_FOLLOWER}
        await asyncio.sleep(1.2)  # until it is parked
        assert not stopping.done(), "others may be named while something is still to be stored"
    await stopping
    assert [each.result().error for each in earlier] == [Error.NONE] * 3
    assert log.rows("SELECT count(*) FROM record_batch") == [(3,)]


async def test_a_broker_that_stops_does_not_wait_for_ever(
    broker: Broker, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.runtime.log.partitions._DRAINED_WITHIN_S", 0.2)
    (p,) = log.new_partitions()
    with psycopg.connect(log.url) as other:
        other.execute("SELECT 1 FROM topic_partition FOR UPDATE")
        earlier = broker.submit(p, batch())
        async with asyncio.timeout(30):
            await broker.partitions.stop()
        assert not earlier.done()
    assert (await earlier).error is Error.NONE
