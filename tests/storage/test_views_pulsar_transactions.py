"""What psql shows of Pulsar's transactions: who takes part, and what that holds back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from psycopg.rows import dict_row

from core.ports.leases import Lease
from core.ports.subscriptions import NewSubscription
from core.ports.transactions import AckingSubscription, PendingAcks, TransactionJoin
from core.shard import shard_of_partition
from core.transaction.key import Participant, TransactionKey
from core.transaction.values import (
    OpenTransaction,
    StoredTransaction,
    TransactionEffects,
    TransactionMetadata,
    TransactionState,
)
from storage.subscriptions.store import SubscriptionStore
from tests.batches import batch
from tests.storage.conftest import Log
from tests.storage.transacting import LEASES, Broker, opened


@dataclass
class Topic:
    """A topic of two partitions with five messages each, and psql."""

    log: Log
    broker: Broker
    partitions: list[int]

    def dicts(self, view: str) -> list[dict[str, Any]]:
        cursor = self.log.psql.cursor(row_factory=dict_row)
        return cursor.execute(f"SELECT * FROM {view}".encode()).fetchall()

    async def subscribe(self, partition: int, name: str) -> int:
        lease = Lease(shard_of_partition(self.partitions[partition]), 1)
        new = NewSubscription(self.partitions[partition], name, 0)
        made = await SubscriptionStore(self.log.database).create(lease, new)
        assert made is not None
        return made

    async def begin(self, producer_id: int, *partitions: int) -> StoredTransaction:
        key = TransactionKey.of_pulsar(3, producer_id)
        metadata = TransactionMetadata(
            key, producer_id, 0, TransactionState.EMPTY, client_id="Pulsar-Java-v4.2.4"
        )
        joined = tuple(self.partitions[each] for each in partitions)
        await self.broker.put(TransactionEffects(key, 0, opened(metadata), joined=joined))
        return (await self.broker.store.load([key]))[key]

    async def acknowledge(
        self,
        stored: StoredTransaction,
        subscription_id: int,
        *ranges: tuple[int, int],
        partition: int = 0,
        up_to: int | None = None,
    ) -> None:
        lease = Lease(shard_of_partition(self.partitions[partition]), 1)
        known = stored.metadata
        participant = Participant.of_subscription(subscription_id)
        join = TransactionJoin(known.key, known.version, participants=(participant,))
        acks = PendingAcks(
            lease,
            join,
            OpenTransaction(known.producer_id, known.version),
            subscription_id,
            ranges,
            up_to,
        )
        await self.broker.store.put_pending_acks([acks])

    def backlog(self) -> list[tuple[str, int, int]]:
        """Subscription, backlog, and what of it is pending."""
        return self.log.rows(
            "SELECT subscription, backlog, pending FROM v_subscription_backlog"
            " ORDER BY subscription"
        )


@pytest.fixture
async def topic(log: Log) -> AsyncIterator[Topic]:
    log.rows(LEASES)
    partitions = log.new_partitions(2, name="flights")
    for each in partitions:
        await log.append(each, batch(5))
    broker = Broker(log.url)
    yield Topic(log, broker, partitions)
    await broker.close()


async def test_a_transaction_is_shown_beside_kafkas(topic: Topic) -> None:
    by_plane = await topic.subscribe(0, "by plane")
    by_train = await topic.subscribe(1, "by train")
    stored = await topic.begin(1234, 0, 1)
    await topic.broker.begin("till", 7)
    await topic.acknowledge(stored, by_plane, (0, 2))
    await topic.acknowledge(stored, by_train, partition=1, up_to=3)
    await topic.broker.join(await topic.broker.load("till"), (), ("g",))
    found, till = topic.dicts("v_transaction")
    assert (till["protocol"], till["subscriptions"]) == ("Kafka", None)
    assert (till["transactional_id"], till["groups"]) == ("till", "g (0)")
    assert timedelta() <= found["age"] < found["timeout"] == timedelta(seconds=60)
    assert found["age"] + found["timeout_left"] >= timedelta(seconds=59)
    wanted = {
        "transactional_id": "(3,1234)",
        "protocol": "Pulsar",
        "state": "Ongoing",
        "producer_id": 1234,
        "producer_epoch": 0,
        "partitions": "flights 0-1",
        "groups": None,
        "subscriptions": "flights-0/by plane; flights-1/by train",
        "client_id": "Pulsar-Java-v4.2.4",
    }
    assert {name: found[name] for name in wanted} == wanted
    key = stored.metadata.key
    assert await topic.broker.store.subscriptions_of([1234, 7]) == [
        AckingSubscription(1234, topic.partitions[0], "by plane", None),
        AckingSubscription(1234, topic.partitions[1], "by train", 3),
    ]
    listed = [each.key for each in (await topic.broker.store.list_all())[1]]
    assert key in listed
    await topic.broker.end(key)
    found, _ = topic.dicts("v_transaction")
    assert (found["state"], found["age"], found["subscriptions"]) == ("CompleteCommit", None, None)
    listed = [each.key for each in (await topic.broker.store.list_all())[1]]
    assert key not in listed
    assert len(listed) == 1
    assert await topic.broker.store.subscriptions_of([1234]) == []
    assert await topic.broker.store.newest_producer_id() == 1234


async def test_what_is_pending_is_shown_with_its_transaction(topic: Topic) -> None:
    subscription = await topic.subscribe(0, "s")
    one, other = await topic.begin(8), await topic.begin(9)
    await topic.acknowledge(one, subscription, (1, 2), (4, 5))
    await topic.acknowledge(other, subscription, up_to=1)
    columns = ("transactional_id", "state", "start_offset", "end_offset", "is_cumulative")

    def shown() -> list[tuple[Any, ...]]:
        return [tuple(each[name] for name in columns) for each in topic.dicts("v_pending_ack")]

    assert shown() == [
        ("(3,9)", "pending", None, 1, True),
        ("(3,8)", "pending", 1, 2, False),
        ("(3,8)", "pending", 4, 5, False),
    ]
    first = topic.dicts("v_pending_ack")[0]
    assert (first["topic"], first["partition"], first["subscription"]) == ("flights", 0, "s")
    assert first["producer_id"] == 9
    assert timedelta() <= first["age"] < timedelta(seconds=60)
    assert topic.backlog() == [("s", 5, 3)]  # nobody is given 0, 1 and 4, but they may come back
    await topic.broker.end(one.metadata.key)
    assert shown() == [
        ("(3,9)", "pending", None, 1, True),
        ("(3,8)", "committed", 1, 2, False),
        ("(3,8)", "committed", 4, 5, False),
    ]
    assert topic.backlog() == [("s", 3, 1)]  # though no cursor has taken them in
    topic.log.rows("DELETE FROM transaction_state WHERE producer_id = 8")
    assert [each[0] for each in shown()] == ["(3,9)", None, None]
    await topic.broker.end(other.metadata.key, commit=False)
    assert topic.backlog() == [("s", 3, 0)]
    assert [each["state"] for each in topic.dicts("v_pending_ack")] == ["committed"] * 2


async def test_who_holds_readers_back(topic: Topic) -> None:
    stored = await topic.begin(1234, 0)
    await topic.broker.append(stored, topic.partitions[0])
    await topic.broker.begin("till", 7, (topic.partitions[1],))
    await topic.broker.append(await topic.broker.load("till"), topic.partitions[1])
    found = topic.dicts("v_open_transaction_blocking")
    columns = ("partition", "transactional_id", "protocol", "state", "last_stable_offset")
    assert sorted(tuple(each[name] for name in columns) for each in found) == [
        (0, "(3,1234)", "Pulsar", "Ongoing", 5),
        (1, "till", "Kafka", "Ongoing", 5),
    ]
    assert all(each["timeout_left"] > timedelta() for each in found)
    await topic.broker.end(stored.metadata.key, commit=False)
    assert [each["partition"] for each in topic.dicts("v_open_transaction_blocking")] == [1]
    (aborted,) = topic.dicts("v_aborted_transaction")
    assert (aborted["transactional_id"], aborted["first_offset"]) == ("(3,1234)", 5)
    p = topic.partitions[0]
    logs = topic.broker.logs
    assert [await logs.count_aborted(p), await logs.count_aborted(p, 1234)] == [1, 1]
    assert [await logs.count_aborted(p, 7), await logs.count_aborted(p + 1)] == [0, 0]
