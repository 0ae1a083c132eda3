"""Subscriptions without a wire: the runtime over the real database, brokers that lose their lease.

A consumer here is what a front-end would be: it collects what it is given.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
import pytest

from core.errors import Refusal
from core.ports.log import StoredBatch
from core.shard import SHARDS, shard_of_partition
from core.subscription.values import Delivery, Entry, Refused, SubscriptionType
from core.topic.rules import NewTopic
from core.types import BatchFormat, Endpoint, Payload, RecordBatch
from gateway.compose import configs_of, wire
from gateway.runtime.cluster.membership import Cluster
from gateway.runtime.runtime import Runtime
from gateway.runtime.subscriptions.members import Member
from gateway.runtime.subscriptions.partition import OwnedPartition
from gateway.runtime.subscriptions.values import StartPosition, Subscribing
from storage.brokers import ClusterStore
from storage.connection.pool import Database
from tests.batches import T0
from tests.gateway.pulsar.conversing import entry_of

WITHIN_S = 30.0
SHARED, EXCLUSIVE = SubscriptionType.SHARED, SubscriptionType.EXCLUSIVE


@dataclass(eq=False)
class Reader:
    """A consumer. takes: how many entries, until it takes no more of what is written."""

    takes: int = 1_000_000
    member: Member | None = None
    given: list[tuple[int, int]] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    is_active: bool | None = None
    is_closed: bool = False
    was_probed: bool = False

    def deliver(self, delivery: Delivery, payload: Payload) -> None:
        self.given.append((delivery.entry.base_offset, delivery.redelivery_count))
        self.payloads.append(bytes(payload))

    def on_active(self, *, is_active: bool) -> None:
        self.is_active = is_active

    def on_closed(self) -> None:
        self.is_closed = True

    def probe(self) -> None:
        self.was_probed = True

    @property
    def is_writable(self) -> bool:
        return len(self.given) < self.takes

    @property
    def offsets(self) -> list[int]:
        return [offset for offset, _ in self.given]


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not condition():
            await asyncio.sleep(0.01)


@dataclass
class Broker:
    """A broker without sockets."""

    runtime: Runtime
    database: Database

    async def topic(self) -> int:
        """A new topic's partition."""
        topics = self.runtime.topics
        await topics.create([NewTopic("t", 1)])
        found = await topics.get("t")
        assert found is not None
        return found.partition_ids[0]

    async def append(self, partition_id: int, count: int, size: int = 10) -> None:
        found = await self.runtime.topics.get("t")
        assert found is not None
        waiting = []
        for number in range(count):
            payload = entry_of(b"%d" % number + b"x" * size)
            batch = RecordBatch(1, T0, len(payload), BatchFormat.PULSAR)
            waiting.append(
                self.runtime.partitions.append(
                    partition_id, found.config, batch, memoryview(payload)
                )
            )
        await asyncio.gather(*waiting)

    async def owned(self, partition_id: int) -> OwnedPartition:
        found = await self.runtime.subscriptions.find(partition_id)
        assert found is not None
        return found

    async def subscribe(
        self,
        partition_id: int,
        kind: SubscriptionType = SHARED,
        permits: int = 1_000,
        **wanted: Any,
    ) -> Reader:
        reader = Reader()
        owned = await self.owned(partition_id)
        subscribing = Subscribing(
            **{"name": "s", "type": kind, "start": StartPosition.EARLIEST, **wanted}
        )
        member = await owned.subscribe(subscribing, reader)
        assert isinstance(member, Member), member
        reader.member = member
        member.flow(permits)
        return reader


@pytest.fixture
async def make(database_url: str) -> AsyncIterator[Any]:
    async with AsyncExitStack() as stack:
        count = 0

        async def start(session_timeout_s: float = 30.0) -> Broker:
            nonlocal count
            count += 1
            database = Database(database_url)
            stack.push_async_callback(database.close)
            cluster = Cluster(
                ClusterStore(database),
                endpoints=[Endpoint("pulsar", "127.0.0.1", 6649 + count)],
                version="test",
                session_timeout_s=session_timeout_s,
            )
            await cluster.join()
            configs = configs_of(database, {}, cluster.broker_id)
            await configs.load()
            runtime = wire(database, cluster, configs)
            runtime.flusher.start()
            stack.push_async_callback(runtime.partitions.close)
            stack.push_async_callback(runtime.flusher.close)
            stack.push_async_callback(runtime.subscriptions.close)
            await cluster.heartbeat()
            return Broker(runtime, database)

        yield start


@pytest.fixture
async def broker(make: Any) -> Broker:
    made: Broker = await make()
    return made


async def test_what_is_appended_wakes_consumers(broker: Broker) -> None:
    partition = await broker.topic()
    reader = await broker.subscribe(partition)
    await broker.append(partition, 3)
    await until(lambda: reader.offsets == [0, 1, 2])
    await broker.append(partition, 1)
    await until(lambda: reader.offsets == [0, 1, 2, 3])


async def test_a_receipt_says_that_it_is_stored(broker: Broker, database_url: str) -> None:
    partition = await broker.topic()
    reader = await broker.subscribe(partition)
    await broker.append(partition, 10)
    await until(lambda: len(reader.given) == 10)
    assert reader.member is not None
    reader.member.acknowledge([(0, 2), (5, 6)])
    assert await reader.member.stored()
    with psycopg.connect(database_url) as psql:
        assert psql.execute("SELECT mark_delete FROM subscription").fetchall() == [(2,)]
        query = "SELECT start_offset, end_offset FROM subscription_range"
        assert psql.execute(query).fetchall() == [(5, 6)]


async def test_who_never_reads_costs_no_backlog(broker: Broker) -> None:
    partition = await broker.topic()
    reader = await broker.subscribe(partition, EXCLUSIVE, permits=0)
    assert reader.member is not None
    reader.takes = 0
    reader.member.flow(1_000_000)
    await broker.append(partition, 300, size=20_000)
    await asyncio.sleep(0.2)
    assert not reader.given
    reader.takes = 1
    reader.member.resume()
    await until(lambda: reader.given)
    await asyncio.sleep(0.2)
    assert len(reader.given) <= 32  # half a megabyte
    reader.takes = 1_000
    reader.member.resume()
    await until(lambda: len(reader.given) == 300)
    assert reader.offsets == list(range(300))


async def test_no_more_is_looked_at_than_is_wanted(broker: Broker) -> None:
    partition = await broker.topic()
    await broker.append(partition, 2_000)
    owned = await broker.owned(partition)
    looked_at: list[int] = []
    describe = owned._around.describe

    def counting(batch: StoredBatch, *, has_to_have_key: bool) -> Entry:
        looked_at.append(batch.base_offset)
        return describe(batch, has_to_have_key=has_to_have_key)

    owned._around = replace(owned._around, describe=counting)
    reader = await broker.subscribe(partition, permits=0)
    other = await broker.subscribe(partition, name="other", permits=0)
    for each in (reader, other):  # they come along a stretch at different paces
        each.takes = 0
    for step in range(1, 21):
        reader.takes, other.takes = 20 * step, 7 * step
        for each, permits in ((reader, 20), (other, 7)):
            assert each.member is not None
            each.member.flow(permits)
        await until(lambda step=step: len(reader.given) >= 20 * step)
        await until(lambda step=step: len(other.given) >= 7 * step)
    assert reader.offsets == list(range(400))
    assert other.offsets == list(range(140))
    assert len(looked_at) < 4 * (400 + 140)  # of some thousands each time


async def test_with_the_lease_everything_leaves_memory(
    make: Any, broker: Broker, database_url: str
) -> None:
    partition = await broker.topic()
    reader = await broker.subscribe(partition)
    await broker.append(partition, 10)
    await until(lambda: len(reader.given) == 10)
    assert reader.member is not None
    reader.member.acknowledge_up_to(4)
    assert await reader.member.stored()
    # Another broker has taken the shard; this one has not heard of it yet.
    other = await make()
    with psycopg.connect(database_url, autocommit=True) as psql:
        psql.execute(
            "UPDATE coordinator_lease SET generation = generation + 1, broker_id = %s,"
            " incarnation = %s WHERE shard = %s",
            (
                other.runtime.cluster.broker_id,
                other.runtime.cluster.incarnation,
                shard_of_partition(partition),
            ),
        )
    reader.member.acknowledge_up_to(8)
    assert not await reader.member.stored()
    assert reader.is_closed
    assert await broker.runtime.subscriptions.find(partition) is None
    # What had a receipt is kept, and what had none comes again.
    again = await other.subscribe(partition)
    await until(lambda: len(again.given) == 6)
    assert again.offsets == [4, 5, 6, 7, 8, 9]


async def test_a_session_that_has_lapsed_gives_nothing(make: Any) -> None:
    broker = await make(session_timeout_s=3.0)
    partition = await broker.topic()

    async def beat() -> None:
        while True:
            await broker.runtime.cluster.heartbeat()
            await asyncio.sleep(0.1)

    await broker.runtime.cluster.heartbeat()
    beating = asyncio.create_task(beat())
    reader = await broker.subscribe(partition)  # may take longer than a session
    beating.cancel()
    await until(lambda: reader.is_closed)  # nobody sends heartbeats any more
    await broker.append(partition, 1)
    await asyncio.sleep(0.1)
    assert not reader.given


async def test_what_cannot_be_stored_is_given_again(broker: Broker) -> None:
    partition = await broker.topic()
    reader = await broker.subscribe(partition, EXCLUSIVE)
    await broker.append(partition, 3)
    await until(lambda: len(reader.given) == 3)
    assert reader.member is not None
    with psycopg.connect(broker.database.url, autocommit=True) as psql:
        psql.execute("ALTER TABLE subscription ADD CHECK (mark_delete < 2)")
        reader.member.acknowledge_up_to(3)
        assert not await reader.member.stored()
        assert reader.is_closed
    again = await broker.subscribe(partition, EXCLUSIVE)
    await until(lambda: again.offsets == [0, 1, 2])


@pytest.mark.usefixtures("patient_sessions")
async def test_what_is_loaded_again_waits_for_what_is_being_stored(broker: Broker) -> None:
    """The lease stays, and with it what was under way: behind its back rows would be lost."""
    partition = await broker.topic()
    reader = await broker.subscribe(partition)
    await broker.append(partition, 4)
    await until(lambda: len(reader.given) == 4)
    assert reader.member is not None
    with psycopg.connect(broker.database.url) as psql:
        psql.execute("SELECT FROM subscription FOR UPDATE")
        reader.member.acknowledge([(0, 1), (2, 3)])
        stored = reader.member.stored()
        waiting = "SELECT FROM pg_locks WHERE NOT granted"
        while not psql.execute(waiting).fetchall():
            await asyncio.sleep(0.01)
        reader.member.partition.drop()
        loading = asyncio.create_task(broker.subscribe(partition))
        await asyncio.sleep(0.2)
    again = await loading
    await stored
    await until(lambda: len(again.given) >= 2)
    assert again.offsets == [1, 3]


async def test_one_that_cannot_be_stored_takes_only_its_partition_with_it(broker: Broker) -> None:
    """The others of the shard are stored beside it, in the same flush."""
    topics = broker.runtime.topics
    await topics.create([NewTopic("t", SHARDS + 1)])
    found = await topics.get("t")
    assert found is not None
    culprit, beside = found.partition_ids[0], found.partition_ids[SHARDS]
    assert shard_of_partition(culprit) == shard_of_partition(beside)
    readers = [await broker.subscribe(each, EXCLUSIVE) for each in (culprit, beside)]
    for each in (culprit, beside):
        await broker.append(each, 3)
    await until(lambda: all(len(each.given) == 3 for each in readers))
    members = [each.member for each in readers if each.member is not None]
    with psycopg.connect(broker.database.url, autocommit=True) as psql:
        psql.execute("ALTER TABLE subscription ADD CHECK (mark_delete < 2)")
        members[0].acknowledge_up_to(3)
        members[1].acknowledge_up_to(1)
        assert await asyncio.gather(*(each.stored() for each in members)) == [False, True]
        assert [each.is_closed for each in readers] == [True, False]
        members[1].acknowledge([(2, 3)])
        assert await members[1].stored()
    again = await broker.subscribe(culprit, EXCLUSIVE)
    await until(lambda: again.offsets == [0, 1, 2])


async def test_stopping_stores_what_nobody_wanted_a_receipt_for(
    broker: Broker, database_url: str
) -> None:
    partition = await broker.topic()
    reader = await broker.subscribe(partition)
    await broker.append(partition, 3)
    await until(lambda: len(reader.given) == 3)
    assert reader.member is not None
    reader.member.acknowledge([(1, 2)])
    await broker.runtime.subscriptions.stop()
    assert reader.is_closed
    assert await broker.runtime.subscriptions.find(partition) is None
    with psycopg.connect(database_url) as psql:
        assert psql.execute("SELECT count(*) FROM subscription_range").fetchall() == [(1,)]


async def test_a_second_exclusive_one_has_the_first_looked_at(broker: Broker) -> None:
    partition = await broker.topic()
    first = await broker.subscribe(partition, EXCLUSIVE)
    owned = await broker.owned(partition)
    assert isinstance(await owned.subscribe(Subscribing("s", EXCLUSIVE), Reader()), Refused)
    assert first.was_probed


async def test_one_that_is_not_durable_goes_with_its_consumer(
    broker: Broker, database_url: str
) -> None:
    partition = await broker.topic()
    await broker.append(partition, 3)
    reader = await broker.subscribe(partition, EXCLUSIVE, is_durable=False, start=1)
    await until(lambda: reader.offsets == [1, 2])
    assert reader.member is not None
    owned = await broker.owned(partition)
    durable = await owned.subscribe(Subscribing("s", EXCLUSIVE), Reader())
    assert isinstance(durable, Refusal)
    reader.member.leave()
    again = await broker.subscribe(partition, EXCLUSIVE, is_durable=False, start=0)
    await until(lambda: again.offsets == [0, 1, 2])
    with psycopg.connect(database_url) as psql:
        assert psql.execute("SELECT count(*) FROM subscription").fetchall() == [(0,)]


async def test_a_topic_that_is_deleted_closes_its_consumers(broker: Broker) -> None:
    partition = await broker.topic()
    reader = await broker.subscribe(partition)
    await broker.runtime.topics.delete(["t"])
    await broker.runtime.partitions.refresh([partition])
    await until(lambda: reader.is_closed)


async def test_what_is_deleted_from_the_log_counts_as_acknowledged(broker: Broker) -> None:
    partition = await broker.topic()
    first = await broker.subscribe(partition, permits=0)
    assert first.member is not None
    await broker.append(partition, 5)
    await broker.runtime.partitions.delete_records(partition, 3)
    first.member.flow(10)
    await until(lambda: first.offsets == [3, 4])
    assert first.member.mark_delete == 3


async def test_what_was_not_read_lately_is_looked_up(broker: Broker) -> None:
    partition = await broker.topic()
    reader = await broker.subscribe(partition, permits=0)
    assert reader.member is not None
    found = await broker.runtime.topics.get("t")
    assert found is not None
    payload = entry_of(b"", num_messages_in_batch=10)
    batch = RecordBatch(10, T0, len(payload), BatchFormat.PULSAR)
    await broker.runtime.partitions.append(partition, found.config, batch, memoryview(payload))
    owned = await broker.owned(partition)
    assert owned.end_of(0) is None
    assert await owned.look_up_end(0) == 10
    assert await owned.look_up_end(4) == 5  # no entry begins here: the message itself
    reader.member.acknowledge_up_to(10)
    assert reader.member.mark_delete == 10
