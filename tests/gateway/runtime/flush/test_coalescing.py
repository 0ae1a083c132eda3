"""Batches of a transaction that wait for each other, as its producer has announced them."""

from __future__ import annotations

import asyncio

import pytest

from core.errors import Error
from core.transaction.values import ProducerIdAndEpoch
from gateway.runtime.flush import coalescing as announced
from gateway.runtime.flush.work import AppendResult
from tests.batches import batch
from tests.gateway.runtime.conftest import MakeBroker
from tests.gateway.runtime.transacting import (
    KEY,
    V2,
    Coordinator,
    MakeCoordinator,
    coordinators,
    offsets,
)
from tests.storage.conftest import Log

FOR_EVER = 3_600.0


@pytest.fixture
def make_coordinator(make_broker: MakeBroker) -> MakeCoordinator:
    return coordinators(make_broker)


@pytest.fixture
async def here(make_coordinator: MakeCoordinator) -> Coordinator:
    return make_coordinator(is_alone=True)


@pytest.fixture
def no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is waited for decides, not how long it takes."""
    monkeypatch.setattr(announced, "UNWRITTEN_S", FOR_EVER)
    monkeypatch.setattr(announced, "GATHER_S", FOR_EVER)


async def joined(at: Coordinator, producer: ProducerIdAndEpoch, *partitions: int) -> None:
    assert await at.transactions.add_partitions(KEY, producer, partitions) is Error.NONE


async def kept(
    at: Coordinator, producer: ProducerIdAndEpoch, p: int, q: int, sequence: int = 0
) -> asyncio.Future[AppendResult]:
    """A batch for p that waits for one for q."""
    await joined(at, producer, p, q)
    write = asyncio.ensure_future(at.write(p, producer, sequence))
    await asyncio.sleep(0.01)
    assert not write.done()
    return write


@pytest.mark.usefixtures("no_clock")
async def test_the_last_partition_announced_ends_the_wait(here: Coordinator, log: Log) -> None:
    p, q, r = log.new_partitions(3)
    producer = await here.init()
    await joined(here, producer, p, q)
    await joined(here, producer, r)
    writes = [
        asyncio.ensure_future(here.write(partition, producer, sequence))
        for partition, sequence in ((p, 0), (p, 1), (q, 0))
    ]
    await here.broker.append(p, batch())  # others do not wait
    assert not any(each.done() for each in writes)
    assert (await here.write(r, producer)).error is Error.NONE
    assert [(await each).error for each in writes] == [Error.NONE] * 3
    written = log.rows("SELECT DISTINCT xmin::text FROM record_batch WHERE is_transactional")
    assert len(written) == 1
    assert (await here.write(q, producer, 1)).error is Error.NONE  # nothing is awaited any more
    assert (await here.end(producer)).error is Error.NONE
    assert offsets(await here.read(p)) == [0, 1, 2, 3]
    assert offsets(await here.read(q)) == [0, 1, 2]
    assert offsets(await here.read(r)) == [0, 1]


@pytest.mark.usefixtures("no_clock")
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
async def test_an_end_lets_them_go_before_it(here: Coordinator, log: Log, commit: bool) -> None:
    p, q = log.new_partitions(2)
    producer = await here.init()
    for sequence in (0, 1):
        write = await kept(here, producer, p, q, sequence)
        assert (await here.end(producer, commit=commit)).error is Error.NONE
        assert (await write).error is Error.NONE
    assert offsets(await here.read(p)) == [0, 1, 2, 3]
    assert len((await here.read(p)).aborted) == (0 if commit else 2)


@pytest.mark.usefixtures("no_clock")
async def test_a_successor_fences_after_them(here: Coordinator, log: Log) -> None:
    p, q = log.new_partitions(2)
    first = await here.init()
    write = await kept(here, first, p, q)
    await here.init()
    assert (await write).error is Error.NONE
    assert len((await here.read(p)).aborted) == 1
    assert (await here.write(q, first)).error is Error.INVALID_PRODUCER_EPOCH


@pytest.mark.usefixtures("no_clock")
async def test_closing_lets_them_go(here: Coordinator, log: Log) -> None:
    p, q = log.new_partitions(2)
    producer = await here.init()
    write = await kept(here, producer, p, q)
    await here.broker.close_log()
    assert (await write).error is Error.NONE


async def test_they_do_not_wait_long_for_what_does_not_come(here: Coordinator, log: Log) -> None:
    p, q, r = log.new_partitions(3)
    producer = await here.init()
    await joined(here, producer, p, q, r)
    async with asyncio.timeout(30):
        first, second = await asyncio.gather(here.write(p, producer), here.write(q, producer))
        assert (first.error, second.error) == (Error.NONE, Error.NONE)
        assert (await here.write(r, producer)).error is Error.NONE
    assert (await here.end(producer)).error is Error.NONE


@pytest.mark.usefixtures("no_clock")
async def test_what_is_not_written_is_forgotten(
    here: Coordinator, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announced, "UNWRITTEN_S", 0.0)
    p, q = log.new_partitions(2)
    producer = await here.init()
    await joined(here, producer, p, q)
    await asyncio.sleep(0.05)
    assert (await here.write(p, producer)).error is Error.NONE


@pytest.mark.usefixtures("no_clock")
async def test_nobody_waits_for_what_may_go_elsewhere(
    make_coordinator: MakeCoordinator, log: Log
) -> None:
    here = make_coordinator(is_alone=False)
    p, q = log.new_partitions(2)
    producer = await here.init()
    await joined(here, producer, p, q)
    assert (await here.write(p, producer)).error is Error.NONE


@pytest.mark.usefixtures("no_clock")
async def test_v2_announces_nothing(here: Coordinator, log: Log) -> None:
    p, q = log.new_partitions(2)
    producer = await here.init()
    assert await here.transactions.add_partitions(KEY, producer, [p, q], V2) is Error.NONE
    assert (await here.write(p, producer, version=V2)).error is Error.NONE
