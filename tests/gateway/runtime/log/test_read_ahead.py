"""What is read ahead is what would have been read, and no more than is allowed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.ports.log import ReadRange, StoredBatch
from gateway.runtime.log.read_ahead import ReadAhead
from storage.log.store import PostgresLogStore
from tests.batches import batch
from tests.gateway.runtime.conftest import Broker, MakeBroker
from tests.storage.conftest import Log


class Counting:
    """The real store, and what it was asked for."""

    def __init__(self, store: PostgresLogStore) -> None:
        self._store = store
        self.asked: list[ReadRange] = []

    async def read(self, ranges: Sequence[ReadRange], max_bytes: int) -> list[list[StoredBatch]]:
        self.asked += ranges
        return await self._store.read(ranges, max_bytes)


@pytest.fixture
async def filled(make_broker: MakeBroker, log: Log) -> tuple[Broker, int]:
    """A broker without a tail cache, and a partition of 40 batches of 2 records and 100 bytes."""
    broker = make_broker(tail_cache_bytes=0)
    (p,) = log.new_partitions()
    await asyncio.gather(*(broker.submit(p, batch(2)) for _ in range(40)))
    return broker, p


def offsets(batches: Sequence[StoredBatch]) -> list[int]:
    return [each.base_offset for each in batches]


async def finish(ahead: ReadAhead) -> None:
    await asyncio.gather(*list(ahead._tasks))


async def test_a_reader_who_goes_on_is_waited_for(filled: tuple[Broker, int]) -> None:
    broker, p = filled
    store = Counting(broker.store)
    ahead = ReadAhead(store, 10_000)  # type: ignore[arg-type]
    read = []
    for start in (0, 10, 20, 30):
        (found,) = await ahead.read([ReadRange(p, start, 80, 500)], 2**40)
        read += offsets(found)
        await finish(ahead)
    assert read == list(range(0, 40, 2))
    # The first two were asked for; from then on the next stretch had been read before.
    assert [each.from_offset for each in store.asked] == [0, 10, 20, 30, 40]
    await ahead.close()


async def test_who_jumps_is_not(filled: tuple[Broker, int]) -> None:
    broker, p = filled
    store = Counting(broker.store)
    ahead = ReadAhead(store, 10_000)  # type: ignore[arg-type]
    for start in (0, 40, 20):
        await ahead.read([ReadRange(p, start, 80, 500)], 2**40)
        await finish(ahead)
    assert [each.from_offset for each in store.asked] == [0, 40, 20]
    await ahead.close()


async def test_the_budget_holds(filled: tuple[Broker, int]) -> None:
    broker, p = filled
    store = Counting(broker.store)
    ahead = ReadAhead(store, 499)  # type: ignore[arg-type]
    for start in (0, 10, 20):
        await ahead.read([ReadRange(p, start, 80, 500)], 2**40)
        await finish(ahead)
    assert [each.from_offset for each in store.asked] == [0, 10, 20]
    await ahead.close()


async def test_what_is_given_back_is_not_read_again(filled: tuple[Broker, int]) -> None:
    """And whoever gives back all the time is still read ahead for."""
    broker, p = filled
    store = Counting(broker.store)
    ahead = ReadAhead(store, 10_000)  # type: ignore[arg-type]
    read: list[int] = []
    place = 0
    while place < 30:
        (found,) = await ahead.read([ReadRange(p, place, 80, 500)], 2**40)
        used, rest = found[:3], found[3:]
        read += offsets(used)
        place = used[-1].last_offset + 1
        if rest:
            ahead.give_back(p, place, rest)
        await finish(ahead)
    assert read == list(range(0, 30, 2))
    assert [each.from_offset for each in store.asked] == [0, 10, 20, 30]
    await ahead.close()


async def test_what_is_given_back_counts_with_all_that_it_keeps_alive(
    filled: tuple[Broker, int],
) -> None:
    broker, p = filled
    store = Counting(broker.store)
    ahead = ReadAhead(store, 2_000)  # type: ignore[arg-type]
    (found,) = await ahead.read([ReadRange(p, 0, 80, 4_000)], 2**40)
    assert len(found) == 40
    ahead.give_back(p, 78, found[39:])  # 100 bytes of 4,000 read in one piece
    await ahead.read([ReadRange(p, 78, 80, 4_000)], 2**40)
    assert [each.from_offset for each in store.asked] == [0, 78]
    await ahead.close()


async def test_what_does_not_fit_is_not_kept(filled: tuple[Broker, int]) -> None:
    broker, p = filled
    store = Counting(broker.store)
    ahead = ReadAhead(store, 399)  # type: ignore[arg-type]
    (found,) = await ahead.read([ReadRange(p, 0, 80, 500)], 2**40)
    ahead.give_back(p, 2, found[1:])
    assert offsets((await ahead.read([ReadRange(p, 2, 80, 500)], 2**40))[0]) == [2, 4, 6, 8, 10]
    assert [each.from_offset for each in store.asked] == [0, 2]
    ahead.give_back(p, 8, found[4:])  # evicts nothing that is needed, and is evicted
    ahead.give_back(p, 4, found[2:])
    await ahead.read([ReadRange(p, 8, 80, 500)], 2**40)
    assert [each.from_offset for each in store.asked] == [0, 2, 8]
    await ahead.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 79), st.integers(1, 80), st.integers(1, 1200)), max_size=12)
)
async def test_it_gives_what_the_store_gives(
    filled: tuple[Broker, int], reads: list[tuple[int, int, int]]
) -> None:
    """From anywhere, with other limits and ends than what was read ahead, several going on."""
    broker, p = filled
    ahead = ReadAhead(broker.store, 2_000)
    places = [0]
    for start, length, size in reads:
        places.append(start)
        for place in places[-2:]:
            wanted = ReadRange(p, place, min(80, place + length), size)
            (found,) = await ahead.read([wanted], 2**40)
            (fresh,) = await broker.store.read([wanted], 2**40)
            # It may be shorter, never other, and empty only where there is nothing.
            assert offsets(found) == offsets(fresh)[: len(found)]
            assert bool(found) == bool(fresh)
            if found:
                places.append(found[-1].last_offset + 1)
            if len(found) > size % 5 + 1:
                rest = found[size % 5 + 1 :]
                ahead.give_back(p, rest[0].base_offset, rest)
                places.append(rest[0].base_offset)
    await ahead.close()
