"""Staging and publishing over the real database, and everything that can go wrong with it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from uuid import UUID, uuid4

import psycopg
import pytest

from core.config.definitions import BROKER_CONFIGS
from core.config.values import topic_config
from core.errors import Error
from core.log.retention import retention_class
from core.staging.values import (
    MAX_BATCHES,
    Guard,
    Outcome,
    Publication,
    PublicationAnswer,
    TokenBatch,
    WantedToken,
)
from core.types import RecordBatch
from gateway.runtime.flush import flusher
from gateway.runtime.flush.outcomes import Reason, Unconfirmed
from gateway.runtime.flush.work import QueuedPublication
from gateway.runtime.staging import StageResult, Staging
from storage.staging import PostgresStagingStore
from tests.batches import batch, incoming
from tests.conftest import open_directory
from tests.gateway.runtime.conftest import Broker, MakeBroker
from tests.gateway.runtime.flush.test_flusher import (
    LINGER,
    OK,
    POISON,
    everything,
    kill_the_sleeper,
)
from tests.storage.conftest import Log

GUARD = Guard("query", "sink")
CLASS = retention_class(topic_config({}, {}))
UNKNOWN, NOT_STORED = Error.NOT_ENOUGH_REPLICAS_AFTER_APPEND, Error.NOT_ENOUGH_REPLICAS
PUBLISHED, ALREADY = Outcome.PUBLISHED, Outcome.ALREADY_PUBLISHED


class Stager:
    """A broker that stages, too."""

    def __init__(self, broker: Broker, expiration_ms: int = 86_400_000) -> None:
        self.broker = broker
        self.marks = 0
        self.published = 0
        self.staging = Staging(
            PostgresStagingStore(broker.database, broker.segments),
            broker.flusher,
            max_flush_bytes=4 * 2**20,
            max_bytes=lambda: 10**9,
            expiration_ms=lambda: expiration_ms,
        )
        self.staging.on_published(self._count)

    def _count(self) -> None:
        self.published += 1

    def submit(
        self, token: UUID, first: int, *batches: tuple[int, RecordBatch]
    ) -> asyncio.Future[StageResult]:
        """Queues batches by partition, with payload nobody else has."""
        added = []
        for partition_id, each in batches:
            self.marks += 1
            added.append(TokenBatch("t", 0, partition_id, incoming(each, self.marks, CLASS)))
        return self.staging.stage(token, first, added)

    async def stage(
        self, token: UUID, first: int, *batches: tuple[int, RecordBatch]
    ) -> StageResult:
        async with asyncio.timeout(60):
            return await self.submit(token, first, *batches)

    async def publish(
        self, batch_id: int, *tokens: tuple[UUID, int], query: str = "query"
    ) -> PublicationAnswer | Unconfirmed:
        wanted = tuple(WantedToken(*each) for each in tokens)
        async with asyncio.timeout(60):
            return await self.staging.publish(Publication(Guard(query, "sink"), batch_id, wanted))


@pytest.fixture
async def stager(broker: Broker) -> Stager:
    return Stager(broker)


async def offsets(broker: Broker, partition_id: int) -> list[int]:
    return [base_offset for base_offset, _, _ in await everything(broker, partition_id)]


async def test_what_is_published_is_told_to_readers_and_other_brokers(
    stager: Stager, log: Log
) -> None:
    p, q = log.new_partitions(2)
    token = uuid4()
    await stager.stage(token, 0, (p, batch(3)), (q, batch(2)), (p, batch(1)))
    assert stager.staging.staged_bytes == 300
    assert (await stager.publish(0, (token, 3))).outcome is PUBLISHED
    assert set(stager.broker.announced) == {p, q}
    assert await offsets(stager.broker, p) == [0, 3]
    assert (await stager.broker.append(p, batch())).base_offset == 4
    assert stager.published == 1
    assert (await stager.publish(0, (token, 3))).outcome is ALREADY
    assert stager.published == 1


async def test_in_one_flush_with_appends_and_other_publications(stager: Stager, log: Log) -> None:
    (p,) = log.new_partitions()
    tokens = [uuid4() for _ in range(5)]
    for token in tokens:
        await stager.stage(token, 0, (p, batch(2)))
    broker = stager.broker
    waiting = []
    for number, token in enumerate(tokens):
        waiting.append(broker.submit(p, batch()))
        publishing = stager.publish(0, (token, 1), query=f"query-{number}")
        waiting.append(asyncio.ensure_future(publishing))
    async with asyncio.timeout(60):
        await asyncio.gather(*waiting)
    assert log.rows("SELECT next_offset, batch_count FROM topic_partition") == [(15, 10)]
    assert await offsets(broker, p) == sorted(await offsets(broker, p))


async def test_only_the_poisonous_publication_is_refused(stager: Stager, log: Log) -> None:
    (p,) = log.new_partitions()
    log.rows(POISON)
    good, bad = uuid4(), uuid4()
    await stager.stage(good, 0, (p, batch()))
    await stager.stage(bad, 0, (p, batch()), (p, batch(size=666)))
    first, refused, last, published = await asyncio.gather(
        stager.broker.submit(p, batch()),
        stager.publish(0, (bad, 2), query="bad"),
        stager.broker.submit(p, batch()),
        stager.publish(0, (good, 1)),
    )
    assert refused.reason is Reason.FAILED
    assert (first.error, last.error, published.outcome) == (OK, OK, PUBLISHED)
    assert len(await everything(stager.broker, p)) == 3
    # Nothing of it has taken effect: it may be published yet.
    log.rows("DROP TRIGGER refuse ON record_batch")
    assert (await stager.publish(0, (bad, 2), query="bad")).outcome is PUBLISHED


async def test_only_the_poisonous_request_is_not_staged(stager: Stager, log: Log) -> None:
    (p,) = log.new_partitions()
    log.rows(POISON.replace("ON record_batch", "ON staged_batch"))
    one, other = uuid4(), uuid4()
    results = await asyncio.gather(
        stager.submit(one, 0, (p, batch())),
        stager.submit(other, 0, (p, batch(size=666))),
        stager.submit(other, 1, (p, batch())),
        stager.submit(one, 1, (p, batch())),
    )
    assert [each.error for each in results] == [
        OK,
        Error.UNKNOWN_SERVER_ERROR,
        Error.OUT_OF_ORDER_SEQUENCE_NUMBER,
        OK,
    ]
    assert [each.batches for each in results] == [1, -1, 0, 2]


async def test_no_space_left(stager: Stager, log: Log) -> None:
    (p,) = log.new_partitions()
    token = uuid4()
    await stager.stage(token, 0, (p, batch(size=666)))
    log.rows(POISON.replace("'poison'", "'full' USING ERRCODE = '53100'"))
    assert (await stager.publish(0, (token, 1))).reason is Reason.OUT_OF_SPACE
    log.rows("DROP TRIGGER refuse ON record_batch")
    log.rows(
        "CREATE TRIGGER refuse BEFORE INSERT ON staged_batch FOR EACH ROW EXECUTE FUNCTION refuse()"
    )
    result = await stager.stage(token, 1, (p, batch(size=666)))
    assert result.error is Error.KAFKA_STORAGE_ERROR
    log.rows("DROP TRIGGER refuse ON staged_batch")
    assert (await stager.stage(token, 1, (p, batch(size=666)))).batches == 2
    assert (await stager.publish(0, (token, 2))).outcome is PUBLISHED


async def test_a_dropped_segment_is_followed_to_the_next(stager: Stager, log: Log) -> None:
    (p,) = log.new_partitions()
    gone, token = uuid4(), uuid4()
    await stager.stage(gone, 0, (p, batch()))
    segment = await stager.broker.segment(CLASS)
    log.rows("UPDATE segment SET sealed_at = now()")
    log.rows(f"DROP TABLE record_chunk_{segment}")
    assert (await stager.stage(token, 0, (p, batch(size=60_000)))).error is OK
    assert (await stager.publish(0, (token, 1))).outcome is PUBLISHED
    assert len(await everything(stager.broker, p)) == 1


async def test_a_publication_held_up_for_too_long_is_not_made_later(
    stager: Stager, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flusher, "PARKED_LIMIT_S", 1.0)
    (p,) = log.new_partitions()
    token = uuid4()
    await stager.stage(token, 0, (p, batch()))
    with psycopg.connect(log.url) as other:
        other.execute("SELECT 1 FROM topic_partition FOR UPDATE")
        assert (await stager.publish(0, (token, 1))).reason is Reason.HELD_ELSEWHERE
    await asyncio.sleep(0.5)
    assert await everything(stager.broker, p) == []
    assert (await stager.publish(0, (token, 1))).outcome is PUBLISHED


async def test_a_token_that_is_held_holds_up_no_other(stager: Stager, log: Log) -> None:
    (p,) = log.new_partitions()
    held, free = uuid4(), uuid4()
    await stager.stage(held, 0, (p, batch()))
    with psycopg.connect(log.url) as other:
        other.execute("SELECT * FROM staged_token FOR UPDATE")
        results = await asyncio.gather(
            stager.submit(held, 1, (p, batch())), stager.submit(free, 0, (p, batch()))
        )
    assert [(each.error, each.batches) for each in results] == [(NOT_STORED, -1), (OK, 1)]
    assert (await stager.stage(held, 1, (p, batch()))).batches == 2


async def test_a_lost_connection_and_the_next_try(stager: Stager, log: Log) -> None:
    (p,) = log.new_partitions()
    token = uuid4()
    await stager.stage(token, 0, (p, batch(size=777)))
    log.rows(LINGER)
    publishing = asyncio.create_task(stager.publish(0, (token, 1)))
    await kill_the_sleeper(log)
    assert (await publishing).reason in (Reason.UNKNOWN, Reason.NOT_STORED)
    log.rows("DROP TRIGGER linger ON record_batch")
    assert (await stager.publish(0, (token, 1))).outcome is PUBLISHED


async def test_everything_forgotten_in_the_middle(stager: Stager, log: Log) -> None:
    (p,) = log.new_partitions()

    async def work() -> None:
        for number in range(30):
            token = uuid4()
            assert (await stager.stage(token, 0, (p, batch()))).batches == 1
            assert (await stager.stage(token, 1, (p, batch()))).batches == 2
            assert (await stager.publish(number, (token, 2))).outcome is PUBLISHED

    async def forget() -> None:
        for _ in range(30):
            stager.broker.forget_everything()
            stager.staging.forget_everything()
            await asyncio.sleep(0.003)

    await asyncio.gather(work(), forget())
    assert await offsets(stager.broker, p) == list(range(60))


async def test_closing_finishes_what_is_queued(stager: Stager, log: Log) -> None:
    (p,) = log.new_partitions()
    token = uuid4()
    answers = [stager.submit(token, n, (p, batch(size=30_000))) for n in range(50)]
    async with asyncio.timeout(60):
        await stager.staging.close()
    assert [each.result().batches for each in answers] == list(range(1, 51))


# Commits of which nobody knows how they went.


class CuttingDatabase:
    """A proxy before PostgreSQL that loses a statement's pipeline, or the answer to it."""

    def __init__(self, url: str, directory: Path) -> None:
        self._target = parse_qs(urlsplit(url).query)["host"][0] + "/.s.PGSQL.5432"
        self.url = url.replace(str(Path(self._target).parent), str(directory))
        self._directory = directory
        self._cut: tuple[bytes, bool] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def lose(self, statement: bytes, *, answer: bool) -> None:
        """The next pipeline with this statement does not arrive, or its answer does not."""
        self._cut = (b"\0" + statement + b"\0", answer)

    @property
    def has_cut(self) -> bool:
        return self._cut is None

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[CuttingDatabase]:
        path = self._directory / ".s.PGSQL.5432"
        server = await asyncio.start_unix_server(self._serve, path)
        async with server:
            yield self
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_unix_connection(self._target)
        back = asyncio.create_task(_pump(server_reader, writer))
        there = asyncio.create_task(self._there(reader, server_writer, back))
        self._tasks |= {back, there}
        await asyncio.wait((back, there))
        writer.close()
        server_writer.close()

    async def _there(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        back: asyncio.Task[None],
    ) -> None:
        while data := await reader.read(2**20):
            if self._cut is not None and self._cut[0] in data:
                _, is_answer = self._cut
                self._cut = None
                back.cancel()
                if is_answer:
                    writer.write(data)
                    await writer.drain()
                    await asyncio.sleep(0.5)
                return
            writer.write(data)
            await writer.drain()
        back.cancel()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(2**20):
        writer.write(data)
        await writer.drain()


@pytest.fixture
async def cutting(database_url: str) -> AsyncIterator[CuttingDatabase]:
    with open_directory() as directory:
        async with CuttingDatabase(database_url, directory).serving() as proxy:
            yield proxy


@pytest.fixture
async def behind(cutting: CuttingDatabase, make_broker: MakeBroker) -> Sequence[Stager]:
    """A broker behind the proxy, and one that is not."""
    return Stager(make_broker(cutting.url)), Stager(make_broker())


@pytest.mark.parametrize("answer", [True, False], ids=["answer lost", "commit lost"])
@pytest.mark.parametrize("again", [0, 1], ids=["there", "elsewhere"])
async def test_a_publication_of_unknown_outcome_is_asked_again(
    cutting: CuttingDatabase, behind: Sequence[Stager], log: Log, answer: bool, again: int
) -> None:
    (p,) = log.new_partitions()
    token = uuid4()
    await behind[0].stage(token, 0, (p, batch(2)), (p, batch(3)))
    await behind[0].broker.append(p, batch())
    cutting.lose(b"put_guards", answer=answer)
    assert (await behind[0].publish(0, (token, 2))).reason is Reason.UNKNOWN
    assert cutting.has_cut
    found = await behind[again].publish(0, (token, 2))
    assert found.outcome is (ALREADY if answer else PUBLISHED)
    assert await offsets(behind[1].broker, p) == [0, 1, 3]
    for stager in behind:
        assert (await stager.broker.append(p, batch())).error is OK
    assert await offsets(behind[0].broker, p) == [0, 1, 3, 6, 7]
    assert log.rows("SELECT * FROM staged_batch") == []


@pytest.mark.parametrize("answer", [True, False], ids=["answer lost", "commit lost"])
@pytest.mark.parametrize("again", [0, 1], ids=["there", "elsewhere"])
async def test_what_was_staged_perhaps_is_staged_once(
    cutting: CuttingDatabase, behind: Sequence[Stager], log: Log, answer: bool, again: int
) -> None:
    (p,) = log.new_partitions()
    token = uuid4()
    await behind[0].stage(token, 0, (p, batch()))
    cutting.lose(b"stage", answer=answer)
    assert (await behind[0].stage(token, 1, (p, batch()), (p, batch()))).error is UNKNOWN
    assert cutting.has_cut
    result = await behind[again].stage(token, 1, (p, batch()), (p, batch()))
    assert (result.error, result.batches) == (OK, 3)
    assert (await behind[0].publish(0, (token, 3))).outcome is PUBLISHED
    assert await offsets(behind[1].broker, p) == [0, 1, 2]


async def test_the_greatest_publication_is_a_flush_of_its_own() -> None:
    """Several of them in one would be decided for longer than rows may be held in silence."""
    half = WantedToken(uuid4(), MAX_BATCHES // 2), WantedToken(uuid4(), MAX_BATCHES // 2)
    done: asyncio.Future[PublicationAnswer] = asyncio.get_running_loop().create_future()
    queued = QueuedPublication(Publication(GUARD, 0, half), done)
    assert queued.size > int(BROKER_CONFIGS["penstock.flush.max.bytes"].default)
