"""The coordinator over the real database: begin, write, end, fence, time out."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from core.errors import Error
from core.ports.log import Locked, ToLock
from core.transaction.key import TransactionKey
from core.transaction.values import (
    Marker,
    ProducerIdAndEpoch,
    TransactionState,
    TransactionVersion,
    TransitionAnswer,
    first_version,
)
from gateway.metrics.registry import Metrics
from gateway.metrics.transactions import watch_transactions
from gateway.runtime.flush.flusher import CONTENDED_FOR_S
from gateway.runtime.flush.gathering import SOME
from gateway.runtime.flush.memory import FlushMemory
from gateway.runtime.flush.work import QueuedAppend, QueuedTransition
from storage.flush.log import FlushSession
from tests.batches import batch, incoming
from tests.gateway.runtime.conftest import MakeBroker
from tests.gateway.runtime.transacting import (
    KEY,
    V1,
    V2,
    Coordinator,
    MakeCoordinator,
    coordinators,
    offsets,
    transactional,
)
from tests.storage.conftest import Log


@pytest.fixture
def make_coordinator(make_broker: MakeBroker) -> MakeCoordinator:
    return coordinators(make_broker)


@pytest.fixture
async def here(make_coordinator: MakeCoordinator) -> Coordinator:
    return make_coordinator()


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize("tail_cache_bytes", [0, 2**20], ids=["from the store", "from memory"])
async def test_a_transaction_over_two_partitions(
    make_coordinator: MakeCoordinator, log: Log, tail_cache_bytes: int, commit: bool
) -> None:
    here = make_coordinator(tail_cache_bytes=tail_cache_bytes)
    p, q = log.new_partitions(2)
    await here.broker.append(p, batch(2))
    producer = await here.init()
    assert await here.transactions.add_partitions(KEY, producer, [p, q]) is Error.NONE
    assert (await here.write(p, producer, records=3)).base_offset == 2
    assert (await here.write(q, producer)).base_offset == 0
    await here.broker.append(p, batch(1))  # a plain record behind the open transaction
    assert offsets(await here.read(p)) == [0]
    assert offsets(await here.read(q)) == []
    assert offsets(await here.read(p, committed=False)) == [0, 2, 5]

    answer = await here.end(producer, commit=commit)
    assert answer == TransitionAnswer(producer=producer)

    found = await here.read(p)
    assert offsets(found) == [0, 2, 5, 6]
    assert found.state is not None
    assert (found.state.high_watermark, found.state.last_stable_offset) == (7, 7)
    hidden = [(each.producer_id, each.first_offset, each.last_offset) for each in found.aborted]
    assert hidden == ([] if commit else [(producer.producer_id, 2, 6)])
    assert offsets(await here.read(q)) == [0, 1]
    # A reader who starts in the middle is told as well; one behind the marker is not.
    assert len((await here.read(p, 5)).aborted) == (0 if commit else 1)
    assert not (await here.read(p, 6, committed=False)).aborted
    (state,) = log.rows("SELECT state FROM transaction_state")
    assert state == ("CompleteCommit" if commit else "CompleteAbort",)
    assert not log.rows("SELECT 1 FROM transaction_partition")


async def test_v2_joins_by_writing_and_gets_the_next_epoch(here: Coordinator, log: Log) -> None:
    (p,) = log.new_partitions()
    producer = await here.init()
    for epoch in (0, 1, 2):
        assert producer.producer_epoch == epoch
        assert (await here.write(p, producer, version=V2)).error is Error.NONE
        assert (await here.write(p, producer, 1, V2)).error is Error.NONE
        ended = await here.end(producer, V2)
        assert ended.error is Error.NONE
        # The answer was lost: the same end again.
        assert await here.end(producer, V2) == ended
        late = await here.write(p, producer, 2, V2)
        assert late.error is Error.INVALID_PRODUCER_EPOCH
        producer = ended.producer
    assert offsets(await here.read(p)) == [0, 1, 2, 3, 4, 5, 6, 7, 8]


async def test_v1_may_not_write_where_it_has_not_joined(here: Coordinator, log: Log) -> None:
    p, q = log.new_partitions(2)
    producer = await here.init()
    assert (await here.write(p, producer)).error is not Error.NONE
    await here.transactions.add_partitions(KEY, producer, [p])
    assert (await here.write(p, producer)).error is Error.NONE
    assert (await here.write(q, producer)).error is not Error.NONE
    await here.end(producer)
    late = await here.write(p, producer, 1)
    assert late.error is not Error.NONE
    assert offsets(await here.read(p, committed=False)) == [0, 1]


async def test_a_successor_aborts_and_fences(make_coordinator: MakeCoordinator, log: Log) -> None:
    here, there = make_coordinator(), make_coordinator()
    (p,) = log.new_partitions()
    first = await here.init()
    await here.transactions.add_partitions(KEY, first, [p])
    await here.write(p, first)
    second = await there.init()
    assert second == ProducerIdAndEpoch(first.producer_id, first.producer_epoch + 1)
    assert (await here.write(p, first, 1)).error is Error.INVALID_PRODUCER_EPOCH
    assert await here.transactions.add_partitions(KEY, first, [p]) is Error.PRODUCER_FENCED
    assert (await here.end(first)).error is Error.PRODUCER_FENCED
    found = await there.read(p)
    assert offsets(found) == [0, 1]
    assert [each.first_offset for each in found.aborted] == [0]


@pytest.mark.parametrize("version", [V1, V2], ids=["V1", "V2"])
async def test_each_step_at_another_broker(
    make_coordinator: MakeCoordinator, log: Log, version: TransactionVersion
) -> None:
    one, two, three = (make_coordinator() for _ in range(3))
    p, q = log.new_partitions(2)
    producer = await one.init()
    for number in range(3):
        if version is V1:
            assert await two.transactions.add_partitions(KEY, producer, [p, q]) is Error.NONE
        sequence = number if version is V1 else 0
        assert (await three.write(p, producer, sequence, version)).error is Error.NONE
        assert (await two.write(q, producer, sequence, version)).error is Error.NONE
        ended = await one.end(producer, version, commit=number != 1)
        assert ended.error is Error.NONE
        producer = ended.producer
    for each in (one, two, three):
        await each.broker.partitions.refresh([p, q])
        for partition in (p, q):
            found = await each.read(partition)
            assert offsets(found) == [0, 1, 2, 3, 4, 5]
            assert [(a.first_offset, a.last_offset) for a in found.aborted] == [(2, 3)]


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
async def test_a_late_end_of_v1_does_not_end_the_next_transaction(
    make_coordinator: MakeCoordinator, log: Log, commit: bool
) -> None:
    """Its client gave up waiting, ended the transaction elsewhere, and began the next one there."""
    here, there = make_coordinator(), make_coordinator()
    (p,) = log.new_partitions()
    producer = await here.init()
    assert await here.transactions.add_partitions(KEY, producer, [p]) is Error.NONE
    assert (await here.write(p, producer)).error is Error.NONE
    assert (await there.end(producer)).error is Error.NONE
    assert await there.transactions.add_partitions(KEY, producer, [p]) is Error.NONE
    assert (await there.write(p, producer, 1)).error is Error.NONE

    late = await here.end(producer, commit=commit)
    assert late.error is Error.COORDINATOR_NOT_AVAILABLE
    stored = (await here.transactions.describe([KEY]))[KEY]
    assert stored.metadata.state is TransactionState.ONGOING
    # Where the client has really come over, it asks again.
    assert (await here.end(producer, commit=commit)).error is Error.NONE


@pytest.mark.usefixtures("patient_sessions")
async def test_an_end_of_v1_that_waits_too_long_for_its_turn(
    make_coordinator: MakeCoordinator, log: Log
) -> None:
    here, there = make_coordinator(), make_coordinator()
    p, held = log.new_partitions(2)
    producer = await here.init()
    assert await here.transactions.add_partitions(KEY, producer, [p]) is Error.NONE
    assert (await here.write(p, producer)).error is Error.NONE
    with psycopg.connect(log.url) as holder:
        holder.execute("SELECT FROM topic_partition WHERE partition_id = %s FOR UPDATE", [held])
        before = asyncio.create_task(here.broker.append(held, batch()))
        await asyncio.sleep(0.1)
        late = asyncio.create_task(here.end(producer))
        assert (await there.end(producer)).error is Error.NONE
        assert await there.transactions.add_partitions(KEY, producer, [p]) is Error.NONE
        assert not late.done()
    assert (await late).error is Error.COORDINATOR_NOT_AVAILABLE
    stored = (await here.transactions.describe([KEY]))[KEY]
    assert stored.metadata.state is TransactionState.ONGOING
    await before


@pytest.mark.parametrize("version", [V1, V2], ids=["V1", "V2"])
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
async def test_an_end_in_memory_asks_the_database_once(
    here: Coordinator,
    log: Log,
    monkeypatch: pytest.MonkeyPatch,
    version: TransactionVersion,
    commit: bool,
) -> None:
    p, q = log.new_partitions(2)
    producer = await here.init()
    locks: list[object] = []
    lock = FlushSession.lock

    async def counted(flush: FlushSession, wanted: ToLock, *, skip_locked: bool = False) -> Locked:
        locks.append(wanted)
        return await lock(flush, wanted, skip_locked=skip_locked)

    monkeypatch.setattr(FlushSession, "lock", counted)
    if version is V1:
        await here.transactions.add_partitions(KEY, producer, [p, q])
    await here.write(p, producer, version=version)
    assert (await here.end(producer, version, commit=commit)).error is Error.NONE
    assert locks == []
    # A retry changes nothing, so it is looked at under the lock.
    assert (await here.end(producer, version, commit=commit)).error is Error.NONE
    assert len(locks) == 1


async def test_an_end_finds_what_joined_elsewhere(
    make_coordinator: MakeCoordinator, log: Log
) -> None:
    here, there = make_coordinator(), make_coordinator()
    p, q = log.new_partitions(2)
    producer = await here.init()
    await here.transactions.add_partitions(KEY, producer, [p])
    await here.write(p, producer)
    assert await there.transactions.add_partitions(KEY, producer, [q]) is Error.NONE
    await there.write(q, producer)
    assert (await here.end(producer)).error is Error.NONE
    assert offsets(await here.read(p)) == offsets(await here.read(q)) == [0, 1]


async def test_what_was_not_read_under_the_lock_is_not_taken_for_absent(
    make_coordinator: MakeCoordinator, log: Log
) -> None:
    """A flush locks two partitions, each for another producer; both have joined the transaction of
    the one, which writes to the first of them only."""
    here, there = make_coordinator(), make_coordinator()
    p, q = log.new_partitions(2)
    producer = await here.init()
    await here.transactions.add_partitions(KEY, producer, [p, q])
    for partition_id in (p, q):
        assert (await here.write(partition_id, producer)).error is Error.NONE
    await there.broker.append(p, batch())  # so that the next flush here has to look again
    written, _ = await asyncio.gather(here.write(p, producer, 1), here.broker.append(q, batch()))
    assert written.error is Error.NONE
    await asyncio.sleep(1.1 * CONTENDED_FOR_S)  # from now on it decides on memory again
    assert (await here.write(q, producer, 7)).error is Error.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert (await here.end(producer, commit=False)).error is Error.NONE
    assert [len((await here.read(each)).aborted) for each in (p, q)] == [1, 1]


async def test_who_writes_and_ends_in_one_flush_is_forgotten_as_a_whole(
    here: Coordinator, log: Log
) -> None:
    p, q = log.new_partitions(2)
    producer = await here.init()
    await here.transactions.add_partitions(KEY, producer, [p, q])
    await here.write(q, producer)
    known = FlushMemory(here.broker.store, {})
    await known.reload([(p, producer.producer_id, None), (q, producer.producer_id, None)])
    await known.reload_transactions([producer.producer_id])
    assert known.logs.keys() == {p, q}
    written = transactional(producer, 0)
    append = QueuedAppend(p, incoming(written), asyncio.Future())
    known.forget([append, QueuedTransition(KEY, lambda *_: None, asyncio.Future())])
    assert (known.logs, dict(known.transactions)) == ({}, {})


@pytest.mark.parametrize("version", [V1, V2], ids=["V1", "V2"])
async def test_after_a_failover_what_was_open_can_only_be_aborted(
    here: Coordinator, log: Log, version: TransactionVersion
) -> None:
    """It may lack records that were acknowledged."""
    (p,) = log.new_partitions()
    producer = await here.init()
    await here.transactions.add_partitions(KEY, producer, [p], version)
    await here.write(p, producer, version=version)
    log.rows(
        "CREATE OR REPLACE FUNCTION penstock.current_history(OUT system_identifier bigint,"
        " OUT timeline integer) LANGUAGE sql AS $$ SELECT 77::bigint, 9 $$"
    )
    await (await here.broker.database.connect()).close()
    assert (await here.end(producer, version)).error is Error.PRODUCER_FENCED
    assert (await here.write(p, producer, 1, version)).error is Error.INVALID_PRODUCER_EPOCH
    assert await here.transactions.abort_overdue() == 1
    assert len((await here.read(p)).aborted) == 1


async def test_after_a_failover_what_is_used_once_can_only_be_aborted(
    here: Coordinator, log: Log
) -> None:
    """A client that asks for the commit before time has ended it must not get it."""
    (p,) = log.new_partitions()
    begun = [await begin(here) for _ in range(2)]
    for key, producer in begun:
        await here.transactions.add_partitions(key, producer, [p])
    log.rows(
        "CREATE OR REPLACE FUNCTION penstock.current_history(OUT system_identifier bigint,"
        " OUT timeline integer) LANGUAGE sql AS $$ SELECT 77::bigint, 9 $$"
    )
    await (await here.broker.database.connect()).close()
    for key, producer in begun:
        ended = await here.transactions.end_single(key, producer.producer_id, is_commit=True)
        assert ended.error is Error.INVALID_TXN_STATE
        joined = await here.transactions.add_partitions(key, producer, [p])
        assert joined is Error.INVALID_TXN_STATE
    key, producer = begun[0]
    ended = await here.transactions.end_single(key, producer.producer_id, is_commit=False)
    assert ended.error is Error.NONE
    assert await here.transactions.abort_overdue() == 1


async def test_a_duplicate_of_an_ended_transaction_is_one(here: Coordinator, log: Log) -> None:
    (p,) = log.new_partitions()
    producer = await here.init()
    await here.transactions.add_partitions(KEY, producer, [p])
    first = await here.write(p, producer)
    await here.end(producer)
    again = await here.write(p, producer)
    assert (again.error, again.base_offset) == (Error.NONE, first.base_offset)


@pytest.mark.parametrize("version", [V1, V2], ids=["V1", "V2"])
async def test_an_overdue_transaction_is_aborted(
    here: Coordinator, log: Log, version: TransactionVersion
) -> None:
    (p,) = log.new_partitions()
    producer = await here.init()
    await here.transactions.add_partitions(KEY, producer, [p], version)
    await here.write(p, producer, version=version)
    assert await here.transactions.abort_overdue() == 0
    log.rows("UPDATE transaction_state SET started_at = started_at - timeout_ms - 1")
    assert await here.transactions.abort_overdue() == 1
    assert (await here.end(producer, version)).error is not Error.NONE
    assert (await here.write(p, producer, 1, version)).error is Error.INVALID_PRODUCER_EPOCH
    assert len((await here.read(p)).aborted) == 1
    assert await here.transactions.abort_overdue() == 0


async def test_many_partitions_end_in_one_commit(here: Coordinator, log: Log) -> None:
    partitions = log.new_partitions(500)
    producer = await here.init()
    await here.transactions.add_partitions(KEY, producer, partitions)
    await asyncio.gather(*(here.write(p, producer) for p in partitions[:400]))
    ended = await here.end(producer)
    assert ended.error is Error.NONE
    rows = log.rows(
        "SELECT count(*), count(DISTINCT b.xmin::text), count(DISTINCT (payload_id, position))"
        " FROM record_batch b WHERE is_control"
    )
    assert rows == [(500, 1, 1)]


async def test_a_transaction_whose_topic_is_deleted(here: Coordinator, log: Log) -> None:
    p, q = log.new_partitions(2)
    producer = await here.init()
    await here.transactions.add_partitions(KEY, producer, [p, q])
    await here.write(p, producer)
    await here.write(q, producer)
    log.rows("DELETE FROM topic_partition WHERE partition_id = %s RETURNING 1", q)
    assert (await here.end(producer)).error is Error.NONE
    assert offsets(await here.read(p)) == [0, 1]


async def test_a_marker_from_outside(here: Coordinator, log: Log) -> None:
    p, q = log.new_partitions(2)
    producer = await here.init()
    await here.transactions.add_partitions(KEY, producer, [p, q])
    await here.write(p, producer)
    await here.write(q, producer)
    of = Marker(producer.producer_id, producer.producer_epoch, True, 0)
    assert await here.transactions.write_marker(of, [p]) == {p: Error.INVALID_TXN_STATE}
    of = Marker(producer.producer_id, producer.producer_epoch, False, 0)
    assert await here.transactions.write_marker(of, [p]) == {p: Error.NONE}
    for partition in (p, q):
        assert [each.first_offset for each in (await here.read(partition)).aborted] == [0]
    assert (await here.write(p, producer, 1)).error is Error.INVALID_PRODUCER_EPOCH


async def test_an_idle_id_is_forgotten(make_coordinator: MakeCoordinator, log: Log) -> None:
    here = make_coordinator()
    producer = await here.init()
    here.transactions._expiration_ms = lambda: 0
    assert await here.transactions.expire_idle() == 1
    assert not await here.transactions.describe([KEY])
    again = await here.init()
    assert again.producer_id != producer.producer_id


async def test_a_lost_join_is_made_good_by_the_first_batch(here: Coordinator, log: Log) -> None:
    """As after a crash of the database right behind an answered, asynchronous join."""
    p, q = log.new_partitions(2)
    producer = await here.init()
    await here.transactions.add_partitions(KEY, producer, [p])
    await here.write(p, producer)
    await here.transactions.add_partitions(KEY, producer, [q])
    log.rows("DELETE FROM transaction_partition WHERE partition_id = %s RETURNING 1", q)
    assert (await here.write(q, producer)).error is Error.NONE
    assert (await here.end(producer)).error is Error.NONE
    assert offsets(await here.read(q)) == [0, 1]


async def test_a_lost_beginning_is_a_clean_refusal(here: Coordinator, log: Log) -> None:
    (p,) = log.new_partitions()
    producer = await here.init()
    before = log.rows("SELECT version FROM transaction_state")[0][0]
    await here.transactions.add_partitions(KEY, producer, [p])
    log.rows(
        "UPDATE transaction_state SET state = 'Empty', started_at = -1, version = %s RETURNING 1",
        before,
    )
    log.rows("DELETE FROM transaction_partition RETURNING 1")
    assert (await here.write(p, producer)).error is not Error.NONE
    assert (await here.end(producer)).error is Error.INVALID_TXN_STATE
    assert offsets(await here.read(p, committed=False)) == []
    stored = (await here.transactions.describe([KEY]))[KEY]
    assert stored.metadata.state is TransactionState.EMPTY


async def test_a_zombie_whose_beginning_was_lost_is_fenced(
    make_coordinator: MakeCoordinator, log: Log
) -> None:
    """After a crash of the database the versions that were lost do not come again."""
    here, there = make_coordinator(), make_coordinator()
    (p,) = log.new_partitions()
    zombie = await here.init()
    before = log.value("SELECT version FROM transaction_state")
    await here.transactions.add_partitions(KEY, zombie, [p])
    log.rows("UPDATE transaction_state SET state = 'Empty', started_at = -1, version = %s", before)
    log.rows("DELETE FROM transaction_partition")
    successor = await there.init()
    assert successor.producer_epoch == zombie.producer_epoch + 1
    assert (await here.write(p, zombie)).error is Error.INVALID_PRODUCER_EPOCH
    assert offsets(await here.read(p, committed=False)) == []


async def test_a_batch_waits_for_a_transaction_that_a_stopped_broker_holds(
    here: Coordinator, log: Log
) -> None:
    """Its partition is free, but what the transaction is cannot be read: no verdict on that."""
    p, q = log.new_partitions(2)
    producer = await here.init()
    assert (await here.write(p, producer, version=V2)).error is Error.NONE
    with psycopg.connect(log.url) as stopped:
        stopped.execute("SELECT FROM transaction_state FOR NO KEY UPDATE")
        writing = asyncio.create_task(here.write(q, producer, version=V2))
        assert (await here.broker.append(p, batch())).error is Error.NONE  # nobody else waits
        await asyncio.sleep(2)
        assert not writing.done()
    assert (await writing).error is Error.NONE
    assert (await here.end(producer, V2)).error is Error.NONE
    assert offsets(await here.read(q)) == [0, 1]


async def test_a_join_that_comes_in_while_an_end_is_decided_on(
    here: Coordinator, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in the transaction or refused, and spoils nothing for those of the same flush."""
    p, q, joined_late = log.new_partitions(3)
    producer = await here.init()
    await here.transactions.add_partitions(KEY, producer, [p])
    await here.write(p, producer)
    joins: list[Error] = []
    load = here.broker.store.load

    async def load_slowly(*what: Any) -> Any:
        if not joins:
            add = here.transactions.add_partitions
            joins.append(await add(KEY, producer, [joined_late]))
        return await load(*what)

    monkeypatch.setattr(here.broker.store, "load", load_slowly)
    flusher = here.broker.flusher
    async with flusher._settling:  # what comes meanwhile is one flush
        first = asyncio.create_task(here.broker.append(p, batch()))
        await asyncio.sleep(0.01)
        written = asyncio.create_task(here.write(p, producer, 1))
        ended = asyncio.create_task(here.end(producer))
        await asyncio.sleep(0.1)
        beside = asyncio.create_task(here.broker.append(q, batch()))  # has to be read first
        await asyncio.sleep(0.01)
    assert joins == [] or (await first).error is Error.NONE
    results = [(await each).error for each in (written, ended, beside)]
    assert results == [Error.NONE] * 3
    assert joins == [Error.NONE]
    [states] = [await here.broker.partitions.refresh([joined_late])]
    assert states[joined_late].next_offset == 1  # the marker


async def test_what_is_counted(here: Coordinator, log: Log) -> None:
    metrics = Metrics()
    transactions = here.transactions
    watch_transactions(metrics, transactions, here.broker.flusher)
    value = metrics.registry.get_sample_value

    def ends() -> dict[tuple[str, str, str], float]:
        samples = (each for family in metrics.registry.collect() for each in family.samples)
        return {
            (each.labels["outcome"], each.labels["by"], each.labels["protocol"]): each.value
            for each in samples
            if each.name == "penstock_transactions_total" and each.value
        }

    [p] = log.new_partitions(1)
    producer = await here.init()
    for sequence, is_commit in enumerate((True, False)):
        await transactions.add_partitions(KEY, producer, [p])
        await here.write(p, producer, sequence)
        await here.end(producer, commit=is_commit)
    await transactions.add_partitions(KEY, producer, [p])
    log.rows(
        "UPDATE transaction_state SET started_at = started_at - 7000 WHERE started_at >= 0"
        " RETURNING 1"
    )
    assert await transactions.abort_overdue() == 0
    assert value("penstock_transactions_open") == 1
    assert 7 <= (value("penstock_transaction_oldest_seconds") or 0) < 60
    await here.init()
    assert await transactions.abort_overdue() == 0
    assert value("penstock_transactions_open") == 0
    assert value("penstock_transaction_oldest_seconds") == 0
    assert ends() == {
        ("commit", "client", "kafka"): 1,
        ("abort", "client", "kafka"): 1,
        ("abort", "fenced", "kafka"): 1,
    }
    assert value("pulsar_txn_committed_total") == value("pulsar_txn_created_total") == 0
    assert value("penstock_transaction_end_seconds_count", {"outcome": "commit"}) == 1
    assert value("penstock_transaction_end_seconds_count", {"outcome": "abort"}) == 2
    fenced = "penstock_transactions_fenced_requests"
    assert value(fenced, {"by": "coordinator"}) == value(fenced, {"by": "produce"}) == 0
    assert (await here.end(producer)).error is Error.PRODUCER_FENCED
    assert await transactions.add_partitions(KEY, producer, [p]) is Error.PRODUCER_FENCED
    assert (await here.write(p, producer, 9)).error is Error.INVALID_PRODUCER_EPOCH
    assert value(fenced, {"by": "coordinator"}) == 2
    assert value(fenced, {"by": "produce"}) == 1


async def test_what_is_counted_of_pulsars(here: Coordinator, log: Log) -> None:
    metrics = Metrics()
    transactions = here.transactions
    watch_transactions(metrics, transactions, here.broker.flusher)
    value = metrics.registry.get_sample_value

    async def begin() -> tuple[TransactionKey, int]:
        def name(sequence: int) -> TransactionKey:
            return TransactionKey.of_pulsar(3, sequence)

        begun = await transactions.begin(name, 60_000, "", "")
        key = name(begun.producer.producer_id)
        assert await transactions.check(key, begun.producer) is Error.NONE  # it has its row
        return key, begun.producer.producer_id

    for is_commit in (True, True, False):
        await transactions.end_single(*await begin(), is_commit=is_commit)
    await begin()
    log.rows("UPDATE transaction_state SET started_at = started_at - 70000 RETURNING 1")
    assert await transactions.abort_overdue() == 1
    assert value("pulsar_txn_active_count") == value("penstock_transactions_open") == 1
    await transactions.add_partitions(KEY, await here.init(), log.new_partitions(1))
    await transactions.abort_overdue()
    assert (value("pulsar_txn_active_count"), value("penstock_transactions_open")) == (0, 1)
    counted = {
        name: value(f"pulsar_txn_{name}_total")
        for name in ("created", "committed", "aborted", "timeout")
    }
    assert counted == {"created": 4, "committed": 2, "aborted": 2, "timeout": 1}
    assert value("pulsar_txn_execution_latency_bucket", {"le": "60000.0"}) == 3
    assert value("pulsar_txn_execution_latency_bucket", {"le": "300000.0"}) == 4
    labels = {"outcome": "abort", "by": "timeout", "protocol": "pulsar"}
    assert value("penstock_transactions_total", labels) == 1


# --- what was begun and is not stored yet ---


async def begin(here: Coordinator, timeout_ms: int = 60_000) -> tuple[TransactionKey, Any]:
    """A transaction whose key is used once, and its producer."""
    begun = await here.transactions.begin(
        lambda number: TransactionKey.of_pulsar(3, number), timeout_ms, "", ""
    )
    assert begun.error is Error.NONE
    return TransactionKey.of_pulsar(3, begun.producer.producer_id), begun.producer


ROWS = "SELECT state FROM transaction_state"


async def test_what_is_begun_is_stored_with_its_first_join(here: Coordinator, log: Log) -> None:
    p, q = log.new_partitions(2)
    key, producer = await begin(here)
    assert log.rows(ROWS) == []
    assert await here.transactions.add_partitions(key, producer, [q, p, q]) is Error.NONE
    joined = "SELECT array_agg(partition_id) FROM transaction_partition WHERE xmin = t.xmin"
    stored = log.rows(f"SELECT state, version, ({joined}) FROM transaction_state t")
    assert stored == [("Ongoing", first_version(producer.producer_id), [p, q])]
    known = here.broker.flusher.known_transaction(producer.producer_id)
    assert known is not None and known.partitions == {p, q}
    assert known.metadata.version == first_version(producer.producer_id)


async def test_what_is_begun_is_stored_by_itself_soon(here: Coordinator, log: Log) -> None:
    await begin(here)
    async with asyncio.timeout(30):
        while not log.rows(ROWS):
            await asyncio.sleep(0.005)


async def test_what_is_begun_is_stored_when_a_broker_stops(here: Coordinator, log: Log) -> None:
    key, producer = await begin(here)
    await here.transactions.close()
    assert log.rows(ROWS) == [("Ongoing",)]
    assert await here.transactions.check(key, producer) is Error.NONE


async def test_joins_that_come_at_once_find_what_is_begun(here: Coordinator, log: Log) -> None:
    p, q = log.new_partitions(2)
    key, producer = await begin(here)
    joins = [here.transactions.add_partitions(key, producer, [each]) for each in (p, q, p)]
    check = here.transactions.check(key, producer)
    assert await asyncio.gather(*joins, check) == [Error.NONE] * 4
    rows = log.rows("SELECT partition_id FROM transaction_partition ORDER BY 1")
    assert rows == [(p,), (q,)]
    assert log.rows(ROWS) == [("Ongoing",)]


@pytest.mark.parametrize("is_commit", [True, False])
async def test_what_is_begun_may_end_at_once(
    make_coordinator: MakeCoordinator, log: Log, is_commit: bool
) -> None:
    here, there = make_coordinator(), make_coordinator()
    key, producer = await begin(here)
    number = producer.producer_id
    answer = await here.transactions.end_single(key, number, is_commit=is_commit)
    assert isinstance(answer, TransitionAnswer) and answer.error is Error.NONE
    again = await there.transactions.end_single(key, number, is_commit=is_commit)
    assert isinstance(again, TransitionAnswer) and again.error is Error.NONE
    p, q = log.new_partitions(2)
    late = await here.transactions.add_partitions(key, producer, [p])
    assert late is await there.transactions.add_partitions(key, producer, [q])
    assert late is Error.INVALID_TXN_STATE


async def test_every_broker_sees_what_a_subscription_may_join(
    make_coordinator: MakeCoordinator,
) -> None:
    here, there = make_coordinator(), make_coordinator()
    key, producer = await begin(here)
    assert await here.transactions.check(key, producer) is Error.NONE
    assert await there.transactions.check(key, producer) is Error.NONE


async def test_another_key_does_not_find_what_is_begun(here: Coordinator, log: Log) -> None:
    (p,) = log.new_partitions(1)
    _, producer = await begin(here)
    other = TransactionKey.of_pulsar(4, producer.producer_id)
    found = await here.transactions.add_partitions(other, producer, [p])
    assert found is Error.INVALID_PRODUCER_ID_MAPPING
    assert log.rows("SELECT * FROM transaction_partition") == []


async def test_a_reader_of_transactions_sees_what_is_begun(here: Coordinator) -> None:
    key, _ = await begin(here)
    found = await here.transactions.describe([key])
    assert found[key].metadata.state is TransactionState.ONGOING
    other, _ = await begin(here)
    _, listed = await here.transactions.list_all()
    assert {each.key for each in listed} == {key, other}


async def test_those_at_work_are_waited_for_until_they_end(
    here: Coordinator, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.runtime.flush.gathering.AT_WORK_S", 3_600.0)
    gathering = here.broker.flusher.gathering
    begun = [await begin(here) for _ in range(SOME)]
    assert gathering.wait_s(1) > 0
    (p,) = log.new_partitions(1)
    for key, producer in begun:
        assert await here.transactions.add_partitions(key, producer, [p]) is Error.NONE
    assert gathering.wait_s(1) > 0
    for key, producer in begun:
        await here.transactions.end_single(key, producer.producer_id, is_commit=True)
        assert gathering.wait_s(1) == 0
