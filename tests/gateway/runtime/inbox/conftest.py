"""Brokers that publish an inbox over the real database, and an application beside them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from typing import Any

import psycopg
import pytest

from core.inbox.partitioner import Spreader
from core.ports.log import StoreUnavailable
from gateway.kafka.conversion import read_batch
from gateway.kafka.inbox_batches import inbox_batch
from gateway.runtime.inbox.batches import BatchMaker
from gateway.runtime.inbox.inbox import Inbox
from gateway.runtime.staging import Staging
from gateway.runtime.topics.configs import Configs
from gateway.runtime.topics.topics import Topics
from storage.configs import ConfigStore
from storage.inbox import InboxStore
from storage.staging import PostgresStagingStore
from storage.topics import TopicStore
from tests.gateway.runtime.conftest import Broker, MakeBroker
from tests.gateway.runtime.flush.test_flusher import everything
from tests.storage.conftest import Log

WAIT_S = 60.0


class Publisher:
    """A broker with an inbox, which publishes only while a test lets it."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.store = InboxStore(broker.database)
        configs = Configs(ConfigStore(broker.database), TopicStore(broker.database), 1, {})
        self.topics = Topics(TopicStore(broker.database), configs, lambda: {1})
        self.staging = Staging(
            PostgresStagingStore(broker.database, broker.segments),
            broker.flusher,
            max_flush_bytes=4 * 2**20,
            max_bytes=lambda: 10**9,
            expiration_ms=lambda: 86_400_000,
        )
        self.inbox = Inbox(
            self.store,
            broker.flusher,
            self.staging,
            self.topics,
            BatchMaker(inbox_batch, Spreader(0)),
        )
        broker.database.on_identity_change(self.inbox.forget_everything)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """It has been woken; a failure of its is the test's."""
        task = asyncio.create_task(self.inbox.run())
        self.inbox.wake()
        try:
            yield
            assert not task.done()
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def publish(self) -> None:
        """Publishes all that waits, by itself."""
        async with asyncio.timeout(WAIT_S):
            while True:
                try:
                    if not await self.inbox._publish_next():
                        return
                except StoreUnavailable:  # overtaken, or looked before the flush has connected
                    self.inbox._position = None


MakePublisher = Callable[..., Publisher]


@pytest.fixture
async def make_publisher(make_broker: MakeBroker) -> AsyncIterator[MakePublisher]:
    async with AsyncExitStack() as stack:

        def make(*of: Any) -> Publisher:
            publisher = Publisher(make_broker(*of))
            stack.push_async_callback(publisher.staging.close)
            return publisher

        yield make


@pytest.fixture
async def publisher(make_publisher: MakePublisher) -> Publisher:
    """A publisher alone."""
    return make_publisher()


Session = psycopg.Connection[Any]


@pytest.fixture
def session(database_url: str) -> Iterator[Session]:
    """The application's."""
    with psycopg.connect(database_url) as connection:
        yield connection


@pytest.fixture
def sessions(database_url: str) -> Iterator[Callable[[], Session]]:
    """More of them."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(psycopg.connect(database_url))


def produce(session: Session, *values: str, topic: str = "t", key: str | None = "k") -> None:
    """Produces, and does not commit."""
    for value in values:
        session.execute("SELECT penstock.produce(%s, %s, %s)", [topic, key, value])


def partitions_of(log: Log, topic: str = "t") -> list[int]:
    """Ids of the topic's partitions."""
    rows = log.rows(
        "SELECT partition_id FROM topic_partition JOIN topic USING (topic_id) WHERE name = %s"
        " ORDER BY partition",
        topic,
    )
    return [partition_id for (partition_id,) in rows]


async def published(publisher: Publisher, log: Log, topic: str = "t") -> list[str]:
    """Values of the topic's records: each partition's, in order."""
    values = []
    for partition_id in partitions_of(log, topic):
        for _, _, payload in await everything(publisher.broker, partition_id):
            for record in read_batch(payload).records:
                assert record is not None
                values.append(bytes(record.value or b"").decode())
    return values


async def until_published(
    publisher: Publisher, log: Log, count: int, topic: str = "t"
) -> list[str]:
    """The same once there are so many."""
    async with asyncio.timeout(WAIT_S):
        while len(found := await published(publisher, log, topic)) < count:
            await asyncio.sleep(0.01)
    return found


def position(log: Log) -> tuple[int, str, str | None]:
    """The version that counts, what is published, and the target."""
    ((version, shown, target),) = log.rows(
        "SELECT version, published::text, target::text FROM inbox_position"
        " ORDER BY version DESC LIMIT 1"
    )
    return version, shown, target


def slot_bytes(log: Log, slot: int) -> int:
    """Bytes of records and commits in a slot."""
    size: int = log.value(
        f"SELECT pg_relation_size('inbox_record_{slot}') + pg_relation_size('inbox_commit_{slot}')"
    )
    return size
