"""Brokers without a wire: the runtime's partitions over the real database, several at will."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import pytest

from core.config.values import TopicConfig, topic_config
from core.types import RecordBatch
from gateway.kafka.markers import control_batch
from gateway.runtime.flush.flusher import Flusher
from gateway.runtime.flush.outcomes import Unconfirmed
from gateway.runtime.flush.work import AppendResult
from gateway.runtime.log.partitions import Partitions
from storage.connection.pool import Database
from storage.flush.segments import Segments
from storage.log.store import PostgresLogStore
from tests.batches import payload_of
from tests.gateway.runtime.coordinators import MakeCoordinator, Psql, coordinators
from tests.storage.conftest import Log, open_log

WEEK = topic_config({}, {})


@dataclass
class Broker:
    """One process's partitions. announced: what it would have told the others."""

    database: Database
    segments: Segments
    store: PostgresLogStore
    flusher: Flusher
    partitions: Partitions
    announced: list[int] = field(default_factory=list)
    marks: int = 0

    def submit(
        self, partition_id: int, batch: RecordBatch, config: TopicConfig = WEEK
    ) -> asyncio.Future[AppendResult | Unconfirmed]:
        """Queues a batch whose payload nobody else has."""
        self.marks += 1
        return self.partitions.append(partition_id, config, batch, payload_of(batch, self.marks))

    def forget_everything(self) -> None:
        """What a broker does when the database has another history."""
        self.flusher.forget_everything()
        self.partitions.forget_everything()

    async def segment(self, retention_class: str = "week") -> int:
        """The segment open for a class, made if there is none."""
        await self.segments.prepare([retention_class])
        return self.segments.current(retention_class)

    async def close_log(self) -> None:
        """Finishes what is queued."""
        await self.flusher.close()
        await self.partitions.close()

    async def append(self, partition_id: int, batch: RecordBatch) -> AppendResult | Unconfirmed:
        """Appends and waits for the answer."""
        async with asyncio.timeout(60):
            return await self.submit(partition_id, batch)


MakeBroker = Callable[..., Broker]


@pytest.fixture
async def log(database_url: str) -> AsyncIterator[Log]:
    """The test's database, and a person with psql beside it."""
    async for each in open_log(database_url):
        yield each


@pytest.fixture
async def make_broker(database_url: str) -> AsyncIterator[MakeBroker]:
    """Makes brokers over the test's database; each has its own connections and memory."""
    async with AsyncExitStack() as stack:

        def make(url: str = database_url, tail_cache_bytes: int = 2**20) -> Broker:
            database = Database(url)
            segments = Segments(database)
            store = PostgresLogStore(database, segments)
            announced: list[int] = []
            flusher = Flusher(store, max_flush_bytes=4 * 2**20, make_marker=control_batch)
            partitions = Partitions(
                store, flusher, tail_cache_bytes=tail_cache_bytes, announce=announced.extend
            )
            broker = Broker(database, segments, store, flusher, partitions, announced)
            database.on_identity_change(broker.forget_everything)
            flusher.start()
            stack.push_async_callback(database.close)
            stack.push_async_callback(broker.close_log)
            return broker

        yield make


@pytest.fixture
async def broker(make_broker: MakeBroker) -> Broker:
    """A broker alone."""
    return make_broker()


@pytest.fixture
async def make_coordinator(database_url: str) -> AsyncIterator[MakeCoordinator]:
    """Makes coordinators of groups over the test's database."""
    async with coordinators(database_url) as make:
        yield make


@pytest.fixture
def psql(database_url: str) -> Iterator[Psql]:
    """A person with psql at the test's database."""
    person = Psql(database_url)
    yield person
    person.connection.close()
