"""Acknowledgements on a subscription in a Kafka transaction, in every version of its requests."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import psycopg
import pytest

from core.ports.log import StoreUnavailable
from core.ports.subscriptions import StoredAck
from core.subscription.values import SubscriptionType
from gateway.kafka.codec import FindCoordinatorRequest
from gateway.runtime.subscriptions.values import StartPosition, Subscribing
from tests.gateway.kafka.handlers.conftest import Broker
from tests.gateway.kafka.handlers.grouping import topic_of
from tests.gateway.kafka.handlers.transacting import Producer, producer_of
from tests.kafka_codes import Code

VERSIONS = range(6)
V2 = 5
WAITING = "SELECT FROM pg_locks WHERE NOT granted AND relation = 'pending_ack'::regclass"
GROUP = "pulsar-subscription:t:0:s: one"


async def ready(broker: Broker, version: int) -> Producer:
    """Of a subscription of eight messages, and a producer; V1 has it take part first."""
    partition_id = (await topic_of(broker)).partition_id(0)
    assert partition_id is not None
    owned = await broker.runtime.subscriptions.find(partition_id)
    assert owned is not None
    wanted = Subscribing("s: one", SubscriptionType.SHARED, start=StartPosition.EARLIEST)
    assert await owned.ensure(wanted) is None
    producer = await producer_of(broker)
    values = [b"v"] * 8
    assert await producer.write(values=values, name=None, transactional=False) == Code.NONE
    return await begun(producer, version)


async def begun(producer: Producer, version: int) -> Producer:
    if version < V2:
        assert await producer.add_offsets(GROUP) == Code.NONE
    return producer


async def acknowledge(producer: Producer, version: int, metadata: str, offset: int = 8) -> int:
    answer = await producer.commit_offsets({"t": {0: offset}}, GROUP, version, metadata)
    ((code,),) = answer.values()
    return code


def rows(url: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(
            "SELECT start_offset, end_offset, is_cumulative, is_committed FROM pending_ack"
            " ORDER BY start_offset"
        ).fetchall()


@pytest.mark.parametrize("version", VERSIONS)
async def test_they_end_with_the_transaction(
    txn_broker: Broker, database_url: str, version: int
) -> None:
    producer = await ready(txn_broker, version)
    assert await acknowledge(producer, version, "1,3-5") == Code.NONE
    assert rows(database_url) == [(1, 2, False, False), (3, 6, False, False)]
    # Its second copies of 4, of 1 beside what is new, and of 6 at once.
    for wrong in ("4", "0-1", "6,6", "6-7,7"):
        assert await acknowledge(producer, version, wrong) == Code.ILLEGAL_GENERATION
    assert len(rows(database_url)) == 2
    assert (await producer.end(False)).error_code == Code.NONE
    assert rows(database_url) == []
    await begun(producer, version)
    assert (
        await acknowledge(producer, version, "1,3-5\0") == Code.NONE
    )  # as confluent-kafka ends it
    assert (await producer.end()).error_code == Code.NONE
    await begun(producer, version)
    assert await acknowledge(producer, version, "5") == Code.ILLEGAL_GENERATION
    assert await acknowledge(producer, version, "6") == Code.NONE


@pytest.mark.parametrize("version", VERSIONS)
async def test_without_metadata_all_below_is_done(
    txn_broker: Broker, database_url: str, version: int
) -> None:
    producer = await ready(txn_broker, version)
    assert await acknowledge(producer, version, "", 3) == Code.NONE
    assert await acknowledge(producer, version, "", 3) == Code.ILLEGAL_GENERATION
    assert await acknowledge(producer, version, "", 5) == Code.NONE
    assert rows(database_url) == [(-1, 5, True, False)]


@pytest.mark.parametrize(("metadata", "offset"), [("what?", 8), ("1-", 8), ("1,,2", 8), ("", -1)])
async def test_what_names_no_messages_is_invalid(
    txn_broker: Broker, database_url: str, metadata: str, offset: int
) -> None:
    producer = await ready(txn_broker, V2)
    assert await acknowledge(producer, V2, metadata, offset) == Code.INVALID_REQUEST
    assert rows(database_url) == []


async def test_v1_has_to_have_it_take_part(txn_broker: Broker, database_url: str) -> None:
    """A late request of a transaction that has ended opens none."""
    producer = await ready(txn_broker, V2)
    assert await acknowledge(producer, 3, "1") != Code.NONE
    assert rows(database_url) == []


@pytest.mark.parametrize(
    "group_id", [f"{GROUP}?", GROUP.replace(":t:", ":u:"), GROUP.replace(":0:", ":1:"), GROUP[:22]]
)
async def test_no_such_subscription_is_told(
    txn_broker: Broker, database_url: str, group_id: str
) -> None:
    """As offsets of a group they would acknowledge nothing, and nobody would know."""
    producer = await ready(txn_broker, V2)
    assert await producer.add_offsets(group_id) == Code.INVALID_GROUP_ID
    answer = await producer.commit_offsets({"t": {0: 5}}, group_id, V2, "1")
    assert answer == {"t": [Code.INVALID_GROUP_ID]}
    assert rows(database_url) == []


async def test_a_look_at_the_rows_takes_back_nothing_that_is_written_meanwhile(
    txn_broker: Broker, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look begins while the row is on its way, and ends when that is answered."""
    producer, other = await ready(txn_broker, V2), await producer_of(txn_broker, "other")
    assert await acknowledge(producer, V2, "0") == Code.NONE
    subscriptions = txn_broker.runtime.subscriptions
    (owned,) = subscriptions.owned
    subscription_id = owned.id_of("s: one")
    read, is_read, may_end = subscriptions._store.read_pending, asyncio.Event(), asyncio.Event()

    async def held_up(ids: Sequence[int]) -> Mapping[int, Sequence[StoredAck]]:
        found = await read(ids)
        is_read.set()
        await may_end.wait()
        return found

    monkeypatch.setattr(subscriptions._store, "read_pending", held_up)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        with psycopg.connect(database_url) as connection:
            connection.execute("LOCK TABLE pending_ack IN SHARE MODE")
            writing = group.create_task(acknowledge(other, V2, "1"))
            while not connection.execute(WAITING).fetchall():
                await asyncio.sleep(0.01)
            group.create_task(subscriptions.pending_acks.take_in(subscription_id))
            await is_read.wait()
        assert await writing == Code.NONE
        may_end.set()
    assert await acknowledge(producer, V2, "1") == Code.ILLEGAL_GENERATION
    assert (await other.end()).error_code == Code.NONE
    assert rows(database_url)[1] == (1, 2, False, True)


async def test_its_coordinator_is_who_dispatches(txn_broker: Broker) -> None:
    await ready(txn_broker, V2)
    answer = await txn_broker.ask(FindCoordinatorRequest(key=GROUP, key_type=0), 3)
    assert (answer.error_code, answer.node_id) == (Code.NONE, txn_broker.cluster.broker_id)


@pytest.mark.parametrize(("version", "writes", "reads"), [(3, 1, 1), (V2, 2, 0)])
async def test_how_often_it_asks_the_database(
    txn_broker: Broker,
    monkeypatch: pytest.MonkeyPatch,
    version: int,
    writes: int,
    reads: int,
) -> None:
    """Once memory has the subscription and the log's end; see docs/architecture.md."""
    producer = await ready(txn_broker, version)
    assert await acknowledge(producer, version, "0") == Code.NONE
    runtime = txn_broker.runtime
    store, asked = runtime.transactions._store, []
    for name in ("load", "join", "put_pending_acks"):
        method = getattr(store, name)

        async def note(*given: object, name: str = name, method: object = method) -> object:
            asked.append(name)
            return await method(*given)  # type: ignore[operator]

        monkeypatch.setattr(store, name, note)
    monkeypatch.setattr(runtime.transactions._joins, "_put", store.join)
    monkeypatch.setattr(runtime.transactions._acks, "_put", store.put_pending_acks)

    async def away(*_: object) -> None:
        raise StoreUnavailable("memory has it")

    monkeypatch.setattr(runtime.subscriptions._store, "find_id", away)
    monkeypatch.setattr(runtime.partitions, "refresh", away)
    assert await acknowledge(producer, version, "1") == Code.NONE
    assert (len(asked) - asked.count("load"), asked.count("load")) == (writes, reads)
