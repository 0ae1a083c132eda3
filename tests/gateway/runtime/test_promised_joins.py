"""Joins of V1 that are answered before they are stored: what becomes of them."""

from __future__ import annotations

import asyncio

import pytest

from core.errors import Error
from core.transaction.values import ProducerIdAndEpoch
from gateway.runtime import promised_joins
from tests.batches import batch
from tests.gateway.runtime.conftest import MakeBroker
from tests.gateway.runtime.transacting import (
    NAME,
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
    """A broker that is alone."""
    return make_coordinator(may_promise=True)


@pytest.fixture
def no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is waited for decides, not how long it takes."""
    monkeypatch.setattr(promised_joins, "UNWRITTEN_S", FOR_EVER)
    monkeypatch.setattr(promised_joins, "GATHER_S", FOR_EVER)


async def joined(at: Coordinator, producer: ProducerIdAndEpoch, *partitions: int) -> None:
    assert await at.transactions.add_partitions(NAME, producer, partitions) is Error.NONE


def transactions_of_rows(log: Log, table: str) -> set[tuple[object, ...]]:
    return set(log.rows(f"SELECT xmin::text FROM {table}"))


@pytest.mark.usefixtures("no_clock")
async def test_what_was_announced_is_stored_with_its_first_batches_in_one_commit(
    here: Coordinator, log: Log
) -> None:
    p, q, r = log.new_partitions(3)
    producer = await here.init()
    await joined(here, producer, p, q)
    await joined(here, producer, r)
    assert log.rows("SELECT state FROM transaction_state") == [("Empty",)]
    assert not log.rows("SELECT 1 FROM transaction_partition")
    first = asyncio.ensure_future(here.write(p, producer))
    again = asyncio.ensure_future(here.write(p, producer, 1))
    second = asyncio.ensure_future(here.write(q, producer))
    await here.broker.append(p, batch())  # others do not wait
    assert not (first.done() or again.done() or second.done())
    assert (await here.write(r, producer)).error is Error.NONE
    assert [(await each).error for each in (first, again, second)] == [Error.NONE] * 3
    (begun,) = transactions_of_rows(log, "transaction_state")
    assert transactions_of_rows(log, "transaction_partition") == {begun}
    written = set(log.rows("SELECT xmin::text FROM record_batch WHERE is_transactional"))
    assert written == {begun}
    assert (await here.end(producer)).error is Error.NONE
    assert offsets(await here.read(p)) == [0, 1, 2, 3]
    assert offsets(await here.read(q)) == offsets(await here.read(r)) == [0, 1]


@pytest.mark.usefixtures("no_clock")
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
async def test_an_end_does_not_wait_for_batches_and_marks_what_was_announced(
    here: Coordinator, log: Log, commit: bool
) -> None:
    p, q = log.new_partitions(2)
    producer = await here.init()
    for sequence in (0, 1):
        await joined(here, producer, p, q)
        write = asyncio.ensure_future(here.write(p, producer, sequence))
        await asyncio.sleep(0)
        assert (await here.end(producer, commit=commit)).error is Error.NONE
        assert (await write).error is Error.NONE
    assert offsets(await here.read(p)) == [0, 1, 2, 3]
    assert offsets(await here.read(q)) == [0, 1]  # as in Kafka
    assert len((await here.read(p)).aborted) == (0 if commit else 2)
    assert not log.rows("SELECT 1 FROM transaction_partition")


async def test_a_join_that_nothing_follows_is_stored_by_itself(here: Coordinator, log: Log) -> None:
    (p,) = log.new_partitions()
    producer = await here.init()
    await joined(here, producer, p)
    async with asyncio.timeout(30):
        while not log.rows("SELECT 1 FROM transaction_partition"):
            await asyncio.sleep(0.005)
    assert log.rows("SELECT state FROM transaction_state") == [("Ongoing",)]
    assert (await here.write(p, producer)).error is Error.NONE


async def test_batches_do_not_wait_long_for_those_that_do_not_come(
    here: Coordinator, log: Log
) -> None:
    p, q = log.new_partitions(2)
    producer = await here.init()
    await joined(here, producer, p, q)
    async with asyncio.timeout(30):
        assert (await here.write(p, producer)).error is Error.NONE
    assert (await here.write(q, producer)).error is Error.NONE
    assert (await here.end(producer)).error is Error.NONE


@pytest.mark.usefixtures("no_clock")
async def test_whoever_asks_finds_it_stored(here: Coordinator, log: Log) -> None:
    (p,) = log.new_partitions()
    producer = await here.init()
    await joined(here, producer, p)
    assert (await here.transactions.describe([NAME]))[NAME].partitions == {p}
    await here.end(producer)
    await joined(here, producer, p)
    _, (row,) = await here.transactions.list_all()
    assert row.state.value == "Ongoing"
    await here.end(producer)
    await joined(here, producer, p)
    assert await here.transactions.verify(NAME, producer, [p]) == {p: Error.NONE}
    await here.end(producer)
    await joined(here, producer, p)
    assert await here.transactions.add_group(NAME, producer, "group") is Error.NONE
    assert (await here.transactions.describe([NAME]))[NAME].groups == {"group"}


@pytest.mark.usefixtures("no_clock")
async def test_a_successor_finds_it_open_and_fences(here: Coordinator, log: Log) -> None:
    p, q = log.new_partitions(2)
    first = await here.init()
    await joined(here, first, p, q)
    write = asyncio.ensure_future(here.write(p, first))
    await asyncio.sleep(0)
    second = await here.init()
    assert second.producer_epoch == first.producer_epoch + 1
    assert (await write).error is Error.NONE
    assert len((await here.read(p)).aborted) == 1
    assert (await here.write(q, first)).error is Error.INVALID_PRODUCER_EPOCH


@pytest.mark.usefixtures("no_clock")
async def test_who_was_fenced_elsewhere_writes_nothing(
    here: Coordinator, make_coordinator: MakeCoordinator, log: Log
) -> None:
    """Memory that promises may be old; what is stored decides."""
    (p,) = log.new_partitions()
    first = await here.init()
    second = await make_coordinator().init()
    await joined(here, first, p)
    assert (await here.write(p, first)).error is Error.INVALID_PRODUCER_EPOCH
    assert await here.transactions.add_partitions(NAME, first, [p]) is Error.PRODUCER_FENCED
    assert second.producer_epoch == first.producer_epoch + 1
    assert offsets(await here.read(p, committed=False)) == []
    assert log.rows("SELECT state FROM transaction_state") == [("Empty",)]


@pytest.mark.usefixtures("no_clock")
async def test_what_has_ended_elsewhere_is_not_opened_again(
    here: Coordinator, make_coordinator: MakeCoordinator, log: Log
) -> None:
    (p,) = log.new_partitions()
    producer = await here.init()
    await joined(here, producer, p)
    there = make_coordinator()
    await joined(there, producer, p)
    assert (await there.write(p, producer)).error is Error.NONE
    assert (await there.end(producer)).error is Error.NONE
    await here.broker.partitions.settle_joins()
    assert log.rows("SELECT state FROM transaction_state") == [("CompleteCommit",)]
    assert (await here.write(p, producer, 1)).error is Error.TRANSACTION_ABORTABLE
    assert offsets(await there.read(p)) == [0, 1]


@pytest.mark.usefixtures("no_clock")
async def test_another_version_of_the_row_is_another_promise(
    here: Coordinator, make_coordinator: MakeCoordinator, log: Log
) -> None:
    p, q = log.new_partitions(2)
    producer = await here.init()
    await joined(here, producer, p)
    there = make_coordinator()
    await there.end(await there.init(producer))
    stored = await here.broker.partitions.load_transactions([producer.producer_id])
    here.broker.partitions.note_transaction(stored[producer.producer_id])
    after = stored[producer.producer_id].metadata
    producer = ProducerIdAndEpoch(after.producer_id, after.producer_epoch)
    await joined(here, producer, q)
    assert (await here.write(q, producer)).error is Error.NONE
    assert log.rows("SELECT partition_id FROM transaction_partition") == [(q,)]


@pytest.mark.parametrize("is_known", [True, False], ids=["refused", "unknown"])
@pytest.mark.usefixtures("no_clock")
async def test_what_the_database_did_not_take_is_promised_still(
    here: Coordinator, log: Log, is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch is refused for now; when it comes again, its join goes before it."""
    monkeypatch.setattr(promised_joins, "AGAIN_S", FOR_EVER)
    p, q = log.new_partitions(2)
    producer = await here.init()
    await joined(here, producer, p, q)
    writes = [here.write(p, producer), here.write(q, producer)]
    outcome = "EXCEPTION 'so' USING ERRCODE = '57014'" if is_known else "WARNING 'so'"
    log.rows(
        "CREATE FUNCTION gone() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN RAISE {outcome}; RETURN NULL; END $$"
    )
    log.rows(
        "CREATE TRIGGER gone BEFORE INSERT ON record_batch"
        " FOR EACH STATEMENT EXECUTE FUNCTION gone()"
    )
    refused = Error.NOT_ENOUGH_REPLICAS if is_known else Error.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    assert [each.error for each in await asyncio.gather(*writes)] == [refused] * 2
    log.rows("DROP TRIGGER gone ON record_batch")
    assert (await here.write(p, producer)).error is Error.NONE
    assert (await here.write(q, producer)).error is Error.NONE
    assert (await here.end(producer)).error is Error.NONE
    assert offsets(await here.read(p)) == offsets(await here.read(q)) == [0, 1]


@pytest.mark.usefixtures("no_clock")
async def test_closing_lets_everything_go(here: Coordinator, log: Log) -> None:
    p, q = log.new_partitions(2)
    producer = await here.init()
    await joined(here, producer, p, q)
    write = asyncio.ensure_future(here.write(p, producer))
    await asyncio.sleep(0)
    await here.broker.partitions.close()
    assert (await write).error is Error.NONE
    assert len(log.rows("SELECT 1 FROM transaction_partition")) == 2


async def test_who_is_not_alone_stores_before_it_answers(
    make_coordinator: MakeCoordinator, log: Log
) -> None:
    here, there = make_coordinator(), make_coordinator()
    (p,) = log.new_partitions()
    producer = await here.init()
    await joined(here, producer, p)
    assert (await there.write(p, producer)).error is Error.NONE


@pytest.mark.usefixtures("no_clock")
async def test_v2_promises_nothing(here: Coordinator, log: Log) -> None:
    (p,) = log.new_partitions()
    producer = await here.init()
    assert await here.transactions.add_partitions(NAME, producer, [p], V2) is Error.NONE
    assert log.rows("SELECT state FROM transaction_state") == [("Ongoing",)]
