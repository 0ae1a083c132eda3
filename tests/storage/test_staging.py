"""Tokens, their batches and guards in PostgreSQL: what is written, what guards and keeps it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from random import Random
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.pq.abc import PGresult

from core.log.effects import IncomingBatch
from core.log.partition_log import PartitionLog
from core.ports.log import (
    Locked,
    ReadRange,
    RowLocked,
    SegmentGone,
    ToLock,
    VersionMismatch,
)
from core.staging.publication import PublicationDraft
from core.staging.values import (
    Guard,
    GuardMove,
    Outcome,
    Publication,
    PublicationAnswer,
    PublicationEffects,
    TokenBatch,
    TokenEffects,
    WantedToken,
)
from core.types import RecordBatch
from storage.flush import staging as staging_rows
from storage.flush.log import FlushSession
from storage.log.retention import PostgresRetentionStore
from storage.staging import PostgresStagingStore
from tests.batches import batch, payload_of
from tests.storage.conftest import Log

GUARD = Guard("query", "sink")
DAY_S = 86_400.0


class Stage:
    """A store of staged batches beside the log's, and a flush that publishes."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.store = PostgresStagingStore(log.database, log.segments)
        self.flush: FlushSession = log.store.open_flush()
        self.retention = PostgresRetentionStore(log.database, log.segments)

    async def stage(
        self,
        token: UUID,
        *batches: tuple[int, RecordBatch],
        expected: int = 0,
        expiration_s: float = DAY_S,
        segment: str = "week",
    ) -> list[bytes]:
        """Batches by partition; gives the payload written."""
        added: list[TokenBatch] = []
        payloads: list[bytes] = []
        for partition_id, each in batches:
            self.log.marks += 1
            payloads.append(payload_of(each, self.log.marks))
            incoming = IncomingBatch(each, payloads[-1], segment)
            added.append(TokenBatch("t", 0, partition_id, incoming))
        await self.store.stage([TokenEffects(token, expected, tuple(added))], expiration_s)
        return payloads

    async def lock(
        self, *tokens: UUID, guard: Guard = GUARD, skip_locked: bool = False, **wanted: Any
    ) -> Locked:
        to_lock = ToLock(wanted.get("partition_ids", ()), guards=[guard], tokens=list(tokens))
        return await self.flush.lock(to_lock, skip_locked=skip_locked)

    async def publish(self, batch_id: int, *tokens: tuple[UUID, int]) -> PublicationAnswer:
        """As a broker does it."""
        locked = await self.lock(*(token for token, _ in tokens))
        logs = {i: PartitionLog(state).draft() for i, state in locked.partitions.items()}
        draft = PublicationDraft(locked.published, locked.tokens)
        wanted = tuple(WantedToken(*each) for each in tokens)
        answer = draft.prepare_publish(Publication(GUARD, batch_id, wanted), logs.get)
        found = [effect for each in logs.values() if (effect := each.effects())]
        await self.flush.commit(found, (), draft.effects())
        return answer


@pytest.fixture
async def stage(log: Log) -> AsyncIterator[Stage]:
    made = Stage(log)
    yield made
    await made.flush.close()


async def test_a_published_batch_lies_where_it_was_staged(stage: Stage) -> None:
    log = stage.log
    p, q = log.new_partitions(2)
    await log.append(p, batch(5))
    token, other = uuid4(), uuid4()
    first = await stage.stage(token, (p, batch(2, size=9_000)), (q, batch(3, size=100)))
    first += await stage.stage(token, (p, batch(1, size=20_000)), expected=2)
    (second,) = await stage.stage(other, (p, batch(4, size=50)))
    (segment,) = log.rows("SELECT segment_id FROM segment WHERE retention_class = 'week'")
    chunks = log.rows(f"SELECT count(*), sum(octet_length(data)) FROM record_chunk_{segment[0]}")
    answer = await stage.publish(0, (token, 3), (other, 1))
    assert answer.outcome is Outcome.PUBLISHED
    again = log.rows(f"SELECT count(*), sum(octet_length(data)) FROM record_chunk_{segment[0]}")
    assert again == chunks  # no byte was written twice
    found = await log.store.read([ReadRange(p, 5, 99, 10**6), ReadRange(q, 0, 99, 10**6)], 2**40)
    assert [bytes(each.payload) for each in found[0]] == [first[0], first[2], second]
    assert [(each.base_offset, each.last_offset) for each in found[0]] == [(5, 6), (7, 7), (8, 11)]
    assert [bytes(each.payload) for each in found[1]] == [first[1]]
    assert log.rows("SELECT size_bytes, batch_count FROM topic_partition WHERE partition = 0") == [
        (100 + 29_050, 4)
    ]
    for table in ("staged_token", "staged_batch"):
        assert log.rows(f"SELECT * FROM {table}") == []


async def test_of_a_token_that_goes_between_the_two_reads_nothing_is_known(stage: Stage) -> None:
    """Who does not hold its row may see it in one statement and not in the next."""
    log = stage.log
    (p,) = log.new_partitions()
    token = uuid4()
    await stage.stage(token, (p, batch(2)))

    def read(query: str) -> PGresult:
        wanted = staging_rows.token_array([token])
        return log.psql.pgconn.exec_params(query.encode(), [wanted], None, [1], 1)

    tokens, places = read(staging_rows.READ_TOKENS), read(staging_rows.READ_PLACES)
    assert len(staging_rows.token_batches(tokens, places)[token]) == 1
    log.rows("DELETE FROM staged_batch")
    assert staging_rows.token_batches(tokens, read(staging_rows.READ_PLACES)) == {token: []}


async def test_totals_and_views(stage: Stage) -> None:
    (p,) = stage.log.new_partitions()
    token = uuid4()
    await stage.stage(token, (p, batch(2, size=100)), (p, batch(3, size=50)))
    await stage.stage(token, (p, batch(1, size=10)), expected=2)
    assert await stage.store.load([token, uuid4()]) == {token: 3}
    assert await stage.store.staged_bytes() == 160
    columns = "token, batches, records, bytes, topics, expires_in > '23 hours'::interval"
    query = f"SELECT {columns}, age < '1 hour'::interval FROM v_staged_token"
    assert stage.log.rows(query) == [(token, 3, 6, 160, "t (6)", True, True)]
    await stage.publish(7, (token, 3))
    assert await stage.store.staged_bytes() == 0
    query = "SELECT query_id, sink, batch_id FROM v_published_batch"
    assert stage.log.rows(query) == [("query", "sink", 7)]


@pytest.mark.parametrize("expected", [0, 1, 3])
async def test_a_token_that_has_another_number_of_batches_is_left_alone(
    stage: Stage, expected: int
) -> None:
    (p,) = stage.log.new_partitions()
    token = uuid4()
    await stage.stage(token, (p, batch()), (p, batch()))
    with pytest.raises(VersionMismatch):
        await stage.stage(token, (p, batch()), expected=expected)
    with pytest.raises(VersionMismatch):
        await stage.stage(uuid4(), (p, batch()), expected=2)
    assert stage.log.value("SELECT count(*) FROM staged_batch") == 2
    assert await stage.store.load([token]) == {token: 2}


async def test_a_token_is_staged_to_by_one_of_many_at_once(stage: Stage) -> None:
    (p,) = stage.log.new_partitions()
    token = uuid4()
    stores = [Stage(stage.log) for _ in range(4)]
    results = await asyncio.gather(
        *(each.stage(token, (p, batch())) for each in stores), return_exceptions=True
    )
    assert sum(isinstance(each, VersionMismatch) for each in results) == 3
    assert stage.log.value("SELECT count(*) FROM staged_batch") == 1


async def test_a_guard_moves_from_where_it_was_decided_on(stage: Stage) -> None:
    async def move(expected: int | None, batch_id: int) -> None:
        effects = PublicationEffects((GuardMove(GUARD, expected, batch_id),))
        await stage.flush.commit([], (), effects)

    await move(None, 3)
    for expected in (None, 2, 4):
        with pytest.raises(VersionMismatch):
            await move(expected, 9)
    await move(3, 4)
    assert (await stage.lock()).published == {GUARD: 4}
    await stage.flush.rollback()
    assert stage.log.rows("SELECT batch_id FROM published_batch") == [(4,)]


async def test_what_a_lock_reads(stage: Stage) -> None:
    p, q, r = stage.log.new_partitions(3)
    token, other = uuid4(), uuid4()
    await stage.stage(token, (q, batch(3, size=70)), (p, batch(2, size=80)))
    locked = await stage.lock(token, other, partition_ids=[r])
    assert locked.partitions.keys() == {p, q, r}
    assert (locked.published, locked.held_guards, locked.held_tokens) == ({}, set(), set())
    assert locked.tokens.keys() == {token}
    found = [
        (each.topic, each.partition, each.partition_id, each.incoming.batch.record_count)
        for each in locked.tokens[token]
    ]
    assert found == [("t", 0, q, 3), ("t", 0, p, 2)]
    # All of it is held now.
    for statement in (
        "SELECT * FROM topic_partition WHERE partition_id = %s FOR UPDATE NOWAIT",
        "SELECT * FROM staged_token WHERE %s > 0 FOR UPDATE NOWAIT",
    ):
        with pytest.raises(psycopg.errors.LockNotAvailable):
            stage.log.rows(statement, p)
    await stage.flush.rollback()


async def test_a_partition_that_is_gone_is_not_read(stage: Stage) -> None:
    p, q = stage.log.new_partitions(2)
    token = uuid4()
    await stage.stage(token, (p, batch()), (q, batch()))
    stage.log.rows("DELETE FROM topic_partition WHERE partition_id = %s", q)
    locked = await stage.lock(token)
    assert locked.partitions.keys() == {p}
    assert not locked.held_tokens
    await stage.flush.rollback()


@pytest.mark.parametrize(
    ("held", "guards", "tokens"),
    [
        ("SELECT * FROM published_batch FOR UPDATE", True, False),
        ("SELECT * FROM staged_token FOR UPDATE", False, True),
        ("SELECT * FROM topic_partition FOR UPDATE", False, True),
    ],
)
async def test_what_another_broker_holds_is_told(
    stage: Stage, held: str, guards: bool, tokens: bool
) -> None:
    (p,) = stage.log.new_partitions()
    token = uuid4()
    await stage.publish(0)
    await stage.stage(token, (p, batch()))
    with psycopg.connect(stage.log.url) as other:
        other.execute(held.encode())
        with pytest.raises(RowLocked):
            await stage.lock(token)
        locked = await stage.lock(token, skip_locked=True)
        assert (locked.held_guards, locked.held_tokens) == (
            {GUARD} if guards else set(),
            {token} if tokens else set(),
        )
        await stage.flush.rollback()


async def test_a_token_is_dropped_with_all_it_holds(stage: Stage) -> None:
    (p,) = stage.log.new_partitions()
    token, other = uuid4(), uuid4()
    await stage.stage(token, (p, batch()), (p, batch()))
    await stage.stage(other, (p, batch()))
    await stage.store.drop([token, uuid4()])
    assert await stage.store.load([token, other]) == {other: 1}
    assert stage.log.rows("SELECT token FROM staged_batch") == [(other,)]


async def test_staging_while_it_is_dropped_leaves_nothing_without_its_token(stage: Stage) -> None:
    (p,) = stage.log.new_partitions()
    other = Stage(stage.log)

    async def stage_on(token: UUID) -> None:
        for number in range(5):
            try:
                await stage.stage(token, (p, batch()), expected=number)
            except VersionMismatch:
                return

    for _ in range(20):
        token = uuid4()
        await asyncio.gather(stage_on(token), other.store.drop([token]))
        await stage.retention.expire_tokens()
    assert (
        stage.log.rows(
            "SELECT token FROM staged_batch WHERE token NOT IN (SELECT token FROM staged_token)"
        )
        == []
    )


@pytest.mark.usefixtures("patient_sessions")
async def test_a_token_that_is_made_while_others_are_dropped_keeps_all_or_loses_all(
    stage: Stage,
) -> None:
    """Made behind the locks of the drop, and added to while its row is deleted."""
    (p,) = stage.log.new_partitions()
    held, made = sorted([uuid4(), uuid4()])
    await stage.stage(held, (p, batch()))
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"

    async def until_it_waits(dropping: asyncio.Task[None]) -> None:
        while not stage.log.value(waiting) and not dropping.done():
            await asyncio.sleep(0.01)

    with psycopg.connect(stage.log.url) as holder, psycopg.connect(stage.log.url) as adder:
        holder.execute("SELECT FROM penstock.staged_token WHERE token = %s FOR UPDATE", [held])
        dropping = asyncio.create_task(Stage(stage.log).store.drop([held, made]))
        await until_it_waits(dropping)
        await stage.stage(made, (p, batch()))
        adder.execute("UPDATE penstock.staged_token SET batches = 2 WHERE token = %s", [made])
        adder.execute(
            "INSERT INTO penstock.staged_batch"
            " SELECT (jsonb_populate_record(b, '{\"number\": 1}')).*"
            " FROM penstock.staged_batch AS b WHERE token = %s",
            [made],
        )
        holder.rollback()
        await asyncio.sleep(0.2)
        await until_it_waits(dropping)
        adder.commit()
        await dropping
    held_by = "SELECT token, count(*)::integer FROM staged_batch GROUP BY token"
    assert stage.log.rows("SELECT token, batches FROM staged_token") == stage.log.rows(held_by)


# What keeps payload, and for how long.


async def test_a_live_token_keeps_its_segment(stage: Stage) -> None:
    log = stage.log
    (p,) = log.new_partitions()
    token = uuid4()
    (payload,) = await stage.stage(token, (p, batch(size=60_000)))
    segment = await log.segment("week")
    (found,) = await stage.retention.open_segments()
    assert found.is_used
    await stage.retention.seal(segment)
    assert await stage.retention.drop_unused_segments() == []
    await stage.publish(0, (token, 1))
    assert await stage.retention.drop_unused_segments() == []
    ((read,),) = await log.store.read([ReadRange(p, 0, 9, 10**6)], 2**40)
    assert bytes(read.payload) == payload
    await log.store.advance_log_start(p, 1)
    await stage.retention.delete_rows(p)
    assert await stage.retention.drop_unused_segments() == [segment]


async def test_a_dropped_token_lets_go_of_its_segment(stage: Stage) -> None:
    (p,) = stage.log.new_partitions()
    token = uuid4()
    await stage.stage(token, (p, batch(size=60_000)))
    segment = await stage.log.segment("week")
    await stage.retention.seal(segment)
    await stage.store.drop([token])
    assert await stage.retention.drop_unused_segments() == [segment]
    with pytest.raises(SegmentGone):  # a broker that has not heard of it
        await stage.stage(uuid4(), (p, batch()))


async def test_a_segment_is_kept_while_its_batches_are_being_published(stage: Stage) -> None:
    log = stage.log
    (p,) = log.new_partitions()
    for number in range(15):
        token = uuid4()
        await stage.stage(token, (p, batch(size=60_000)))
        segment = await log.segment("week")
        await stage.retention.seal(segment)
        log.segments.forget()
        dropped, answer = await asyncio.gather(
            stage.retention.drop_unused_segments(), stage.publish(number, (token, 1))
        )
        assert (dropped, answer.outcome) == ([], Outcome.PUBLISHED)
    (found,) = await log.store.read([ReadRange(p, 0, 99, 10**7)], 2**40)
    assert len(found) == 15


async def test_tokens_expire(stage: Stage) -> None:
    (p,) = stage.log.new_partitions()
    old, young, held = uuid4(), uuid4(), uuid4()
    await stage.stage(old, (p, batch()), expiration_s=0)
    await stage.stage(held, (p, batch()), expiration_s=0)
    await stage.stage(young, (p, batch()), expiration_s=0)
    await stage.stage(young, (p, batch()), expected=1)  # from now on, another day
    await stage.lock(held)  # it is about to be published
    assert await stage.retention.expire_tokens() == 1
    assert await stage.store.load([old, young, held]) == {young: 2, held: 1}
    await stage.flush.rollback()
    assert await stage.retention.expire_tokens() == 1
    assert stage.log.rows("SELECT DISTINCT token FROM staged_batch") == [(young,)]


async def test_many_tokens_expire_at_once(stage: Stage) -> None:
    stage.log.rows(
        "INSERT INTO staged_token (token, batches, records, bytes, expires_at)"
        " SELECT gen_random_uuid(), 1, 1, 1, clock_timestamp() FROM generate_series(1, 250)"
    )
    assert await stage.retention.expire_tokens() == 250


async def test_queries_that_publish_no_more_are_forgotten(stage: Stage) -> None:
    await stage.publish(0)
    stage.log.rows("UPDATE published_batch SET published_at = now() - '2 days'::interval")
    await stage.lock()  # it is about to publish again
    assert await stage.retention.forget_published(DAY_S) == 0
    await stage.flush.rollback()
    assert await stage.retention.forget_published(3 * DAY_S) == 0
    assert await stage.retention.forget_published(DAY_S) == 1
    assert stage.log.rows("SELECT * FROM published_batch") == []


# All at once.


class Worker:
    """A broker that does this and that with the tokens and guards of all; what has moved on in the
    meantime it lets be."""

    def __init__(self, log: Log, partitions: list[int], tokens: list[UUID], seed: int) -> None:
        self.stage = Stage(log)
        self.log = log
        self.partitions = partitions
        self.tokens = tokens
        self.random = Random(seed)
        self.succeeded: Counter[str] = Counter()

    async def run(self) -> None:
        """Waiting in vain for a lock, where the machine is busy, is no deadlock."""
        works = [self.add, self.add, self.add, self.publish, self.append, self.drop, self.expire]
        for _ in range(60):
            work = self.random.choice(works)
            try:
                await work()
                self.succeeded[work.__name__] += 1
            except VersionMismatch:
                pass
            except RowLocked as error:
                assert "deadlock" not in str(error)
            await self.stage.flush.rollback()
        await self.stage.flush.close()

    async def add(self) -> None:
        token = self.random.choice(self.tokens)
        expected = (await self.stage.store.load([token])).get(token, 0)
        places = self.random.sample(self.partitions, 2)
        await self.stage.stage(token, *((p, batch(size=50)) for p in places), expected=expected)

    async def publish(self) -> None:
        chosen = self.random.sample(self.tokens, 3)
        held = await self.stage.store.load(chosen)
        published = self.log.rows("SELECT coalesce(max(batch_id), -1) FROM published_batch")[0][0]
        wanted = ((token, held.get(token, 0)) for token in chosen)
        await self.stage.publish(published + 1, *wanted)

    async def append(self) -> None:
        drafted = [
            await self.log.drafted(p, batch(size=50))
            for p in self.random.sample(self.partitions, 2)
        ]
        await self.stage.flush.commit([effects for effects, _ in drafted])

    async def drop(self) -> None:
        await self.stage.store.drop(self.random.sample(self.tokens, 2))

    async def expire(self) -> None:
        await self.stage.retention.expire_tokens()


@pytest.mark.usefixtures("patient_sessions")
async def test_brokers_that_do_all_of_it_at_once(log: Log) -> None:
    # So that a deadlock is found before anybody gives up waiting.
    name = log.value("SELECT current_database()")
    log.rows(f"ALTER DATABASE {name} SET deadlock_timeout = '50ms'")
    partitions = log.new_partitions(5)
    tokens = [uuid4() for _ in range(6)]
    workers = [Worker(log, partitions, tokens, seed) for seed in range(4)]
    async with asyncio.timeout(120):
        await asyncio.gather(*(each.run() for each in workers))
    done = sum((each.succeeded for each in workers), Counter())
    assert min(done.values()) > 0, done
    held = log.rows("SELECT token, batches, records, bytes FROM staged_token ORDER BY token")
    assert held == log.rows(
        "SELECT token, count(*), sum(record_count), sum(size) FROM staged_batch"
        " GROUP BY token ORDER BY token"
    )
    ends = "SELECT partition_id, next_offset, batch_count FROM topic_partition ORDER BY 1"
    rows = "SELECT partition_id, max(last_offset) + 1, count(*) FROM record_batch GROUP BY 1"
    assert log.rows(ends) == log.rows(f"{rows} ORDER BY 1")
    assert log.value("SELECT batch_id FROM published_batch") >= 0
