"""Group commit over the real database: order, two brokers, and everything that can go wrong."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from core.errors import Error
from core.ports.log import ReadRange
from core.transaction.values import Transition, TransitionAnswer
from core.types import RecordBatch
from gateway.runtime.flush import flusher
from gateway.runtime.flush.outcomes import Reason, Unconfirmed
from gateway.runtime.flush.work import AppendResult, Stream
from storage.flush.log import FlushSession
from storage.server.embedded import EmbeddedPostgres
from tests.batches import T0, batch, payload_of
from tests.conftest import SMALL_POSTGRES
from tests.gateway.runtime.conftest import WEEK, Broker, MakeBroker
from tests.keys import named
from tests.storage.conftest import Log, open_log

OK = Error.NONE


def of(sequence: int, records: int = 1, producer: int = 1000, epoch: int = 0) -> RecordBatch:
    return batch(records, producer=producer, epoch=epoch, sequence=sequence)


async def gathered(
    *answers: asyncio.Future[AppendResult | Unconfirmed],
) -> list[AppendResult | Unconfirmed]:
    async with asyncio.timeout(60):
        return list(await asyncio.gather(*answers))


def outcome(result: AppendResult | Unconfirmed) -> tuple[Error | Reason, int]:
    if isinstance(result, Unconfirmed):
        return result.reason, -1
    return result.error, result.base_offset


async def everything(broker: Broker, partition_id: int) -> list[tuple[int, int, bytes]]:
    found, offset = [], 0
    while True:
        (batches,) = await broker.store.read([ReadRange(partition_id, offset, 2**62, 2**20)], 2**40)
        if not batches:
            return found
        found += [(b.base_offset, b.last_offset, bytes(b.payload)) for b in batches]
        offset = batches[-1].last_offset + 1


def rows(log: Log, partition_id: int) -> list[tuple[int, int, int]]:
    return log.rows(  # type: ignore[return-value]
        "SELECT base_offset, producer_id, base_sequence FROM record_batch"
        " WHERE partition_id = %s ORDER BY base_offset",
        partition_id,
    )


async def test_offsets_are_given_in_the_order_of_the_calls(broker: Broker, log: Log) -> None:
    ids = log.new_partitions(4)
    rng = random.Random(7)
    answers: dict[int, list[tuple[RecordBatch, bytes, asyncio.Future[AppendResult]]]] = {}
    for number in range(400):
        p = rng.choice(ids)
        each = batch(rng.randint(1, 5), size=rng.choice([80, 900, 20_000]), timestamp=T0 + number)
        answers.setdefault(p, []).append(
            (each, payload_of(each, number + 1), broker.submit(p, each))
        )
        if number % 37 == 0:
            await asyncio.sleep(0.002)
    for p in ids:
        results = await gathered(*(done for _, _, done in answers[p]))
        expected, offset = [], 0
        for (each, payload, _), result in zip(answers[p], results, strict=True):
            assert outcome(result) == (OK, offset)
            expected.append((offset, offset + each.record_count - 1, payload))
            offset += each.record_count
        assert await everything(broker, p) == expected


async def test_what_is_answered_is_committed(broker: Broker, log: Log) -> None:
    (p,) = log.new_partitions()
    for number in range(20):
        result = await broker.append(p, batch())
        assert log.value("SELECT next_offset FROM topic_partition") == number + 1
        assert outcome(result) == (OK, number)
        assert result.log_start_offset == 0


async def test_duplicates_are_answered_with_their_first_offset(broker: Broker, log: Log) -> None:
    (p,) = log.new_partitions()
    first = await gathered(*(broker.submit(p, of(n * 2, records=2)) for n in range(7)))
    assert [outcome(each) for each in first] == [(OK, 2 * n) for n in range(7)]
    again = await gathered(*(broker.submit(p, of(n * 2, records=2)) for n in range(7)))
    assert [outcome(each) for each in again] == [
        (Error.OUT_OF_ORDER_SEQUENCE_NUMBER, -1),
        (Error.OUT_OF_ORDER_SEQUENCE_NUMBER, -1),
        *((OK, 2 * n) for n in range(2, 7)),
    ]
    assert again[-1].duplicate_timestamp == T0
    assert first[-1].duplicate_timestamp == -1
    # In one flush with new ones, and twice in it.
    mixed = await gathered(
        *(broker.submit(p, of(n, records=k)) for n, k in ((12, 2), (14, 1), (14, 1), (15, 1)))
    )
    assert [outcome(each) for each in mixed] == [(OK, 12), (OK, 14), (OK, 14), (OK, 15)]
    assert len(rows(log, p)) == 9


async def test_duplicates_are_known_to_another_broker_and_after_a_restart(
    make_broker: MakeBroker, log: Log
) -> None:
    (p,) = log.new_partitions()
    assert outcome(await make_broker().append(p, of(0))) == (OK, 0)
    there = make_broker()
    assert outcome(await there.append(p, of(0))) == (OK, 0)
    assert outcome(await there.append(p, of(1))) == (OK, 1)
    assert outcome(await there.append(p, of(9))) == (Error.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert outcome(await there.append(p, of(0, epoch=1))) == (OK, 2)
    assert outcome(await make_broker().append(p, of(2))) == (Error.INVALID_PRODUCER_EPOCH, -1)


async def test_a_stale_memory_refuses_nobody(make_broker: MakeBroker, log: Log) -> None:
    (p,) = log.new_partitions()
    here, there = make_broker(), make_broker()
    await here.append(p, of(0))
    await there.append(p, of(1))
    await there.append(p, of(2))
    assert outcome(await here.append(p, of(3))) == (OK, 3)  # which knows sequence 0 only
    assert outcome(await there.append(p, of(3))) == (OK, 3)
    await here.append(p, batch())
    assert outcome(await there.append(p, of(4))) == (OK, 5)


async def test_two_brokers_on_the_same_partitions_lose_and_double_nothing(
    make_broker: MakeBroker, log: Log
) -> None:
    ids = log.new_partitions(3)
    brokers = [make_broker(), make_broker()]
    rng = random.Random(11)

    async def produce(producer: int, p: int) -> list[int]:
        offsets = []
        for sequence in range(40):
            # To a broker by chance, now and then to both at once, as after a timeout.
            asked = rng.sample(brokers, rng.choice([1, 1, 1, 2]))
            results = await gathered(
                *(each.submit(p, of(sequence, producer=producer)) for each in asked)
            )
            assert {each.error for each in results} == {OK}
            assert len({each.base_offset for each in results}) == 1
            offsets.append(results[0].base_offset)
        return offsets

    async def produce_plainly(p: int) -> list[int]:
        return [(await rng.choice(brokers).append(p, batch())).base_offset for _ in range(40)]

    found = await asyncio.gather(
        *(produce(producer, p) for producer in (1000, 1001) for p in ids),
        *(produce_plainly(p) for p in ids),
    )
    for number, p in enumerate(ids):
        stored = rows(log, p)
        assert [base for base, _, _ in stored] == list(range(120))
        for producer, offsets in ((1000, found[number]), (1001, found[3 + number])):
            of_producer = [(base, seq) for base, who, seq in stored if who == producer]
            assert of_producer == list(zip(offsets, range(40), strict=True))
        assert [base for base, who, _ in stored if who == -1] == found[6 + number]


POISON = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.size = 666 THEN RAISE EXCEPTION 'poison'; END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER refuse BEFORE INSERT ON record_batch FOR EACH ROW EXECUTE FUNCTION refuse()
"""


@pytest.mark.parametrize("fill", [100, 60_000], ids=["small", "large"])
async def test_only_the_poisonous_batch_is_refused(broker: Broker, log: Log, fill: int) -> None:
    p, q = log.new_partitions(2)
    log.rows(POISON)
    answers = [
        broker.submit(p, batch(size=fill)),
        broker.submit(q, batch(size=fill)),
        broker.submit(p, batch(size=666)),
        broker.submit(p, batch(size=fill)),
        broker.submit(q, of(0)),
    ]
    results = await gathered(*answers)
    assert [outcome(each) for each in results] == [
        (OK, 0),
        (OK, 0),
        (Reason.FAILED, -1),
        (OK, 1),
        (OK, 1),
    ]
    assert len(await everything(broker, p)) == 2


async def test_no_space_left(broker: Broker, log: Log) -> None:
    (p,) = log.new_partitions()
    log.rows(POISON.replace("'poison'", "'full' USING ERRCODE = '53100'"))
    results = await gathered(broker.submit(p, batch()), broker.submit(p, batch(size=666)))
    assert {outcome(each) for each in results} == {(Reason.OUT_OF_SPACE, -1)}
    assert outcome(await broker.append(p, batch())) == (OK, 0)


async def test_a_partition_that_is_not_there_or_not_any_more(broker: Broker, log: Log) -> None:
    p, q = log.new_partitions(2)
    await gathered(broker.submit(p, batch()), broker.submit(q, batch()))
    log.rows("DELETE FROM topic_partition WHERE partition_id = %s", p)
    results = await gathered(
        broker.submit(p, batch()), broker.submit(q, batch()), broker.submit(-3, of(0))
    )
    assert [outcome(each) for each in results] == [
        (Error.UNKNOWN_TOPIC_OR_PARTITION, -1),
        (OK, 1),
        (Error.UNKNOWN_TOPIC_OR_PARTITION, -1),
    ]


async def test_deleted_while_appends_are_under_way(broker: Broker, log: Log) -> None:
    p, q = log.new_partitions(2)

    answers: dict[int, list[Error]] = {p: [], q: []}
    is_deleted = asyncio.Event()

    async def produce(partition_id: int) -> None:
        appends_left = 30
        while appends_left:
            appends_left -= is_deleted.is_set()
            answers[partition_id].append((await broker.append(partition_id, batch())).error)

    producing = [asyncio.create_task(produce(each)) for each in (p, q)]
    async with asyncio.timeout(30):
        while min(map(len, answers.values())) < 5:
            await asyncio.sleep(0.001)
    await asyncio.to_thread(log.rows, "DELETE FROM topic_partition WHERE partition_id = %s", p)
    is_deleted.set()
    await asyncio.gather(*producing)
    gone, there = answers[p], answers[q]
    assert set(there) == {OK}
    assert gone[-1] is Error.UNKNOWN_TOPIC_OR_PARTITION
    assert gone == sorted(gone, key=lambda error: error is not OK), "it came back to life"


async def test_a_locked_partition_waits_in_order_and_others_go_on(broker: Broker, log: Log) -> None:
    p, q = log.new_partitions(2)
    with psycopg.connect(log.url) as other:
        other.execute("SELECT 1 FROM topic_partition WHERE partition_id = %s FOR UPDATE", [p])
        waiting = [broker.submit(p, of(0)), broker.submit(p, batch())]
        first = broker.submit(q, batch())
        assert outcome((await gathered(first))[0]) == (OK, 0)
        for number in range(1, 6):
            waiting += [broker.submit(p, of(number)), broker.submit(p, batch())]
            async with asyncio.timeout(20):  # the held row delays nobody else any more
                assert outcome(await broker.append(q, batch())) == (OK, number)
        assert not any(each.done() for each in waiting)
    results = await gathered(*waiting)
    assert [outcome(each) for each in results] == [(OK, n) for n in range(12)]
    assert outcome(await broker.append(p, of(6))) == (OK, 12)


async def test_a_partition_locked_for_too_long_is_refused_for_now(
    broker: Broker, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flusher, "PARKED_LIMIT_S", 1.0)
    (p,) = log.new_partitions()
    with psycopg.connect(log.url) as other:
        other.execute("SELECT 1 FROM topic_partition FOR UPDATE")
        results = await gathered(broker.submit(p, batch()), broker.submit(p, batch()))
        assert {outcome(each) for each in results} == {(Reason.HELD_ELSEWHERE, -1)}
    assert outcome(await broker.append(p, batch())) == (OK, 0)
    assert len(rows(log, p)) == 1, "what was refused has been stored all the same"


async def test_poison_in_a_partition_that_was_locked(broker: Broker, log: Log) -> None:
    (p,) = log.new_partitions()
    log.rows(POISON)
    with psycopg.connect(log.url) as other:
        other.execute("SELECT 1 FROM topic_partition FOR UPDATE")
        answers = [broker.submit(p, batch(size=size)) for size in (100, 666, 101)]
        await asyncio.sleep(1.5)
    async with asyncio.timeout(60):
        results = await gathered(*answers)
    assert [outcome(each) for each in results] == [
        (OK, 0),
        (Reason.FAILED, -1),
        (OK, 1),
    ]


@pytest.mark.parametrize("table", ["topic_partition", "record_chunk"])
@pytest.mark.parametrize("size", [100, 60_000], ids=["small", "large"])
async def test_a_locked_table_is_refused_for_now(
    broker: Broker, log: Log, table: str, size: int
) -> None:
    """VACUUM FULL by hand, say: clients are to try again, not to give up."""
    (p,) = log.new_partitions()
    await broker.append(p, batch())
    if table == "record_chunk":
        table = f"record_chunk_{await broker.segment('week')}"
    with psycopg.connect(log.url) as other:
        other.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE".encode())
        answer = broker.submit(p, batch(size=size))
        await asyncio.sleep(3.5)
    (result,) = await gathered(answer)
    found, _ = outcome(result)
    assert found in (OK, Reason.NOT_STORED, Reason.UNKNOWN, Reason.HELD_ELSEWHERE)
    assert outcome(await broker.append(p, batch())) == (OK, 2 if found is OK else 1)


LINGER = """
CREATE FUNCTION linger() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.size = 777 THEN PERFORM pg_sleep(20); END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER linger BEFORE INSERT ON record_batch FOR EACH ROW EXECUTE FUNCTION linger()
"""


async def kill_the_sleeper(log: Log) -> None:
    for _ in range(1000):
        if pids := log.backends("wait_event = 'PgSleep'"):
            log.rows("SELECT pg_terminate_backend(%s, 5000)", pids[0])
            return
        await asyncio.sleep(0.01)
    raise AssertionError("nobody sleeps")


async def test_what_was_refused_with_its_flush_is_not_stored_later(
    broker: Broker, log: Log
) -> None:
    """One partition of a flush is parked, then the flush of the others dies: each batch is either
    refused or stored, not both."""
    p, q = log.new_partitions(2)
    log.rows(LINGER)
    with psycopg.connect(log.url) as other:
        other.execute("SELECT 1 FROM topic_partition WHERE partition_id = %s FOR UPDATE", [p])
        answers = [broker.submit(p, batch()), broker.submit(q, batch(size=777))]
        await kill_the_sleeper(log)
        (died,) = await gathered(answers[1])
        assert outcome(died)[0] in (Reason.NOT_STORED, Reason.UNKNOWN)
        log.rows("DROP TRIGGER linger ON record_batch")
    (parked,) = await gathered(answers[0])
    await asyncio.sleep(0.5)
    assert len(rows(log, p)) == (outcome(parked)[0] is OK)
    assert len(rows(log, q)) == 0


async def test_a_lost_connection_refuses_its_flush_and_the_next_one_works(
    broker: Broker, log: Log
) -> None:
    (p,) = log.new_partitions()
    log.rows(LINGER)
    answer = broker.submit(p, batch(size=777))
    await kill_the_sleeper(log)
    (result,) = await gathered(answer)
    assert outcome(result)[0] in (Reason.NOT_STORED, Reason.UNKNOWN)
    assert outcome(await broker.append(p, batch())) == (OK, 0)


async def test_behind_what_was_turned_away_nothing_of_its_stream_is_stored(
    broker: Broker, log: Log
) -> None:
    """Its sender sends all of it again: the second batch would lie before the first."""
    (p,) = log.new_partitions()
    log.rows(LINGER)
    stream, later = Stream(), Stream()

    def submit(
        stream: Stream | None, size: int = 100
    ) -> asyncio.Future[AppendResult | Unconfirmed]:
        one = batch(size=size)
        return broker.partitions.append(p, WEEK, one, payload_of(one), stream=stream)

    first = submit(stream, 777)
    await asyncio.sleep(0)  # its flush begins
    behind, other, again = submit(stream), submit(None), submit(later)
    await kill_the_sleeper(log)
    results = await gathered(first, behind, other, again)
    found = [outcome(each)[0] for each in results]
    assert found[0] in (Reason.NOT_STORED, Reason.UNKNOWN)
    assert found[1:] == [Reason.TOO_EARLY, OK, OK]


async def test_everything_forgotten_in_the_middle(broker: Broker, log: Log) -> None:
    ids = log.new_partitions(2)

    async def produce(p: int, producer: int) -> list[int]:
        return [(await broker.append(p, of(n, producer=producer))).base_offset for n in range(60)]

    async def forget() -> None:
        for _ in range(30):
            broker.forget_everything()
            await asyncio.sleep(0.003)

    found = await asyncio.gather(*(produce(p, 1000 + p) for p in ids), forget())
    assert found[:2] == [list(range(60))] * 2
    assert [base for base, _, _ in rows(log, ids[0])] == list(range(60))


async def test_a_dropped_segment_is_followed_to_the_next(broker: Broker, log: Log) -> None:
    (p,) = log.new_partitions()
    for size in (100, 60_000):
        await broker.append(p, batch(size=size))
        segment = await broker.segment("week")
        log.rows("UPDATE segment SET sealed_at = now()")
        log.rows(f"DROP TABLE record_chunk_{segment}")
        result = await broker.append(p, batch(size=size))
        assert result.error is OK
    assert len(rows(log, p)) == 4


async def test_closing_finishes_what_is_queued(make_broker: MakeBroker, log: Log) -> None:
    (p,) = log.new_partitions()
    broker = make_broker()
    answers = [broker.submit(p, batch(size=30_000)) for _ in range(50)]
    async with asyncio.timeout(60):
        await broker.close_log()
    assert [outcome(each.result()) for each in answers] == [(OK, n) for n in range(50)]


async def test_closing_waits_for_what_another_broker_holds(
    make_broker: MakeBroker, log: Log
) -> None:
    (p,) = log.new_partitions()
    broker = make_broker()
    with psycopg.connect(log.url) as other:
        other.execute("SELECT 1 FROM topic_partition FOR UPDATE")
        answer = broker.submit(p, batch())
        await asyncio.sleep(0.05)
        closing = asyncio.create_task(broker.close_log())
        await asyncio.sleep(1.5)
    async with asyncio.timeout(60):
        await closing
    assert answer.done(), "nobody would ever answer it"
    assert outcome(answer.result()) == (OK, 0)


@pytest.fixture
def own_postgres(migrated_dir: Path) -> Iterator[EmbeddedPostgres]:
    """A server that a test may stop."""
    with EmbeddedPostgres(migrated_dir, settings=SMALL_POSTGRES) as server:
        yield server


async def test_database_gone_and_back(
    own_postgres: EmbeddedPostgres, make_broker: MakeBroker
) -> None:
    topic = "INSERT INTO topic (topic_id, name) VALUES (gen_random_uuid(), 't') RETURNING topic_id"
    with psycopg.connect(own_postgres.url, autocommit=True) as psql:
        row = psql.execute(topic).fetchone()
        assert row is not None
        row = psql.execute(
            "INSERT INTO topic_partition (topic_id, partition) VALUES (%s, 0)"
            " RETURNING partition_id",
            row,
        ).fetchone()
        assert row is not None
        p = row[0]
    broker = make_broker(own_postgres.url)
    assert outcome(await broker.append(p, of(0))) == (OK, 0)
    await asyncio.to_thread(own_postgres.stop, "immediate")
    for _ in range(3):
        found, _ = outcome(await broker.append(p, of(1)))
        assert found in (Reason.NOT_STORED, Reason.UNKNOWN)
    await asyncio.to_thread(own_postgres.start)
    assert outcome(await broker.append(p, of(1))) == (OK, 1)
    assert outcome(await broker.append(p, of(0))) == (OK, 0)
    assert outcome(await broker.append(p, of(2))) == (OK, 2)


# A standby has to have each commit, and there is none.


@pytest.fixture
async def own_log(own_postgres: EmbeddedPostgres) -> AsyncIterator[Log]:
    async for each in open_log(own_postgres.url):
        each.rows("SET synchronous_commit = local")
        yield each


@contextlib.contextmanager
def no_standby(log: Log) -> Iterator[None]:
    """No commit is answered meanwhile."""

    def wait_for(names: str) -> None:
        log.rows(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
        log.rows("SELECT pg_reload_conf()")

    wait_for("nobody")
    while log.value("SHOW synchronous_standby_names") != "nobody":
        log.rows("SELECT pg_sleep(0.01)")
    try:
        yield
    finally:
        wait_for("")


async def waits_for_the_standby(
    log: Log, ask: Callable[[], asyncio.Future[Any]]
) -> asyncio.Future[Any]:
    """Asks until an answer waits; a session may yet have to hear of the setting."""
    answer = ask()
    async with asyncio.timeout(60):
        while not log.rows("SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"):
            if answer.done():
                answer = ask()
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    assert not answer.done(), answer.result()
    return answer


async def test_a_duplicate_is_answered_once_the_standby_has_what_it_duplicates(
    own_log: Log, make_broker: MakeBroker
) -> None:
    """The first commit may have ended here only; who asks again may do so at another broker."""
    p, q = own_log.new_partitions(2)
    here, there = make_broker(own_log.url), make_broker(own_log.url)
    for broker in (here, there):  # they have their ids and segments
        assert (await broker.append(q, batch())).error is OK
    with no_standby(own_log):
        for broker in (here, there, here):
            answer = await waits_for_the_standby(own_log, partial(broker.submit, p, of(0)))
            own_log.rows(
                "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            )
            unknown = (Reason.UNKNOWN, -1)
            assert [outcome(each) for each in await gathered(answer)] == [unknown]
            assert len(rows(own_log, p)) == 1
        answer = await waits_for_the_standby(own_log, partial(there.submit, p, of(0)))
    assert [outcome(each) for each in await gathered(answer)] == [(OK, 0)]
    assert len(rows(own_log, p)) == 1


async def test_a_transition_that_was_made_before_is_answered_behind_a_commit(
    own_log: Log, make_broker: MakeBroker
) -> None:
    def ask(broker: Broker, error: Error) -> asyncio.Future[TransitionAnswer | Unconfirmed]:
        return broker.flusher.transition(
            named("t"), lambda known: Transition(TransitionAnswer(error))
        )

    here, there = make_broker(own_log.url), make_broker(own_log.url)
    for broker in (here, there):  # they have their ids and segments
        await ask(broker, OK)
    with no_standby(own_log):
        answer = await waits_for_the_standby(own_log, partial(ask, here, OK))
        # Who is told of nothing that is stored, waits for nobody.
        refused = await asyncio.wait_for(ask(there, Error.INVALID_TXN_STATE), 60)
        assert refused.error is Error.INVALID_TXN_STATE
        assert not answer.done()
    assert (await asyncio.wait_for(answer, 60)).error is OK


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "beside another"])
async def test_what_another_history_does_not_have_is_no_duplicate(
    broker: Broker, log: Log, monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    """The server was given up between the read that finds a batch stored and the commit behind it,
    which goes to a standby that lacks the batch."""
    p, q = log.new_partitions(2)
    again = batch(1, producer=5, epoch=0, sequence=0)
    assert (await broker.append(p, again)).error is Error.NONE
    commit = FlushSession.commit

    async def at_the_standby(flush: FlushSession, *effects: Any) -> None:
        monkeypatch.setattr(FlushSession, "commit", commit)
        for table in ("record_batch", "producer_state"):
            log.rows(f"DELETE FROM {table}")
        log.rows("UPDATE topic_partition SET next_offset = 0")
        log.rows(
            "CREATE OR REPLACE FUNCTION penstock.current_history(OUT system_identifier bigint,"
            " OUT timeline integer) LANGUAGE sql AS $$ SELECT 77::bigint, 9 $$"
        )
        await flush.close()
        await commit(flush, *effects)

    monkeypatch.setattr(FlushSession, "commit", at_the_standby)
    if alone:
        answer = await broker.append(p, again)
    else:
        answer, beside = await asyncio.gather(broker.append(p, again), broker.append(q, batch()))
        assert [outcome(each)[0] for each in (answer, beside)] == [Reason.NOT_STORED, OK]
        answer = await broker.append(p, again)
    assert (answer.error, answer.base_offset) == (Error.NONE, 0)
    assert log.rows("SELECT partition_id FROM record_batch ORDER BY 1") == [
        (each,) for each in ((p,) if alone else (p, q))
    ]
