"""Transactions of Pulsar's, as Kafka's requests list, describe and end them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from core.errors import Error
from core.transaction.key import Participant, TransactionKey
from core.transaction.shown_ids import pulsar_key, shown_id
from core.transaction.values import ProducerIdAndEpoch, TransactionState
from gateway.kafka.codec import EndTxnRequest
from tests.gateway.kafka.handlers.conftest import Broker, MakeBroker
from tests.gateway.kafka.handlers.grouping import topic_of
from tests.gateway.kafka.handlers.test_list_transactions import HOUR_MS, listed
from tests.gateway.kafka.handlers.test_write_txn_markers import write
from tests.gateway.kafka.handlers.transacting import Producer, describe, producer_of, state_of
from tests.kafka_codes import Code


@dataclass(frozen=True, slots=True)
class Txn:
    """A transaction of Pulsar's; as Kafka's requests name it, too."""

    broker: Broker
    key: TransactionKey
    producer: ProducerIdAndEpoch

    @property
    def name(self) -> str:
        return f"pulsar:(3,{self.producer.producer_id})"

    @property
    def as_kafkas(self) -> Producer:
        return Producer(self.broker, self.producer.producer_id, 0, self.name)

    async def join(self, *partition_ids: int) -> None:
        joined = await self.broker.transactions.add_partitions(
            self.key, self.producer, partition_ids
        )
        assert joined is Error.NONE

    async def end(self, *, is_commit: bool) -> Error:
        ended = await self.broker.transactions.end_single(
            self.key, self.producer.producer_id, is_commit=is_commit
        )
        error: Error = ended.error
        return error

    async def state(self) -> TransactionState:
        found = await self.broker.transactions.describe([self.key])
        state: TransactionState = found[self.key].metadata.state
        return state


async def begin(broker: Broker, timeout_ms: int = 60_000) -> Txn:
    begun = await broker.transactions.begin(
        lambda sequence: TransactionKey.of_pulsar(3, sequence), timeout_ms, "java", "127.0.0.1:1"
    )
    assert begun.error is Error.NONE
    key = TransactionKey.of_pulsar(3, begun.producer.producer_id)
    return Txn(broker, key, begun.producer)


@pytest.mark.parametrize(
    "text",
    [
        "(3,1234)",
        "pulsar:",
        "pulsar:3,1",
        "pulsar:(3,1",
        "pulsar:(03,1)",
        "pulsar:(3,1) ",
        "Pulsar:(3,1)",
        "pulsar:(-3,1)",
        "pulsar:(3,1,1)",
        "pulsar:(٣,1)",
        "pulsar:(3,10000000000000000000)",
    ],
)
def test_what_stands_for_no_transaction_of_pulsars(text: str) -> None:
    assert pulsar_key(text) is None


@pytest.mark.parametrize(("most", "least"), [(0, 0), (3, 1234), (15, 2**63 - 1)])
def test_what_stands_for_one(most: int, least: int) -> None:
    key = TransactionKey.of_pulsar(most, least)
    assert pulsar_key(shown_id(key)) == key
    assert key.txn_id == (most, least)
    with pytest.raises(ValueError, match="is no TxnID"):
        _ = TransactionKey.of_kafka(key.name).txn_id
    assert shown_id(TransactionKey.of_kafka(key.name)) == key.name


async def test_an_open_one_is_listed_through_every_filter(txn_broker: Broker) -> None:
    txn = await begin(txn_broker)
    ended = await begin(txn_broker)
    assert await ended.end(is_commit=True) is Error.NONE
    mine = {txn.name: "Ongoing"}
    assert await listed(txn_broker) == mine
    for version in (0, 1, 2):
        assert await listed(txn_broker, version, state_filters=["Ongoing"]) == mine
    assert await listed(txn_broker, state_filters=["CompleteCommit"]) == {}
    producer_ids = [txn.producer.producer_id]
    assert await listed(txn_broker, producer_id_filters=producer_ids) == mine
    assert await listed(txn_broker, producer_id_filters=[ended.producer.producer_id]) == {}
    assert await listed(txn_broker, duration_filter=0) in (mine, {})  # in its first millisecond
    assert await listed(txn_broker, duration_filter=HOUR_MS) == {}
    assert await listed(txn_broker, transactional_id_pattern="pulsar:.*") == mine
    assert await listed(txn_broker, transactional_id_pattern=r"\(3,.*") == {}


async def test_it_is_described_in_each_of_its_states(txn_broker: Broker) -> None:
    topic = await topic_of(txn_broker, 3)
    txn = await begin(txn_broker, 7_000)
    await txn.join(*topic.partition_ids[1:])
    joined = await txn_broker.transactions.add_participant(
        txn.key, txn.producer, Participant.of_subscription(5)
    )
    assert joined is Error.NONE
    [found] = await describe(txn_broker, txn.name)
    assert (found.error_code, found.transactional_id) == (Code.NONE, txn.name)
    assert (found.transaction_state, found.transaction_timeout_ms) == ("Ongoing", 7_000)
    assert (found.producer_id, found.producer_epoch) == (txn.producer.producer_id, 0)
    assert [(each.topic, each.partitions) for each in found.topics] == [("t", [1, 2])]
    assert await txn.end(is_commit=True) is Error.NONE
    assert await state_of(txn_broker, txn.name) == "CompleteCommit"
    [found] = await describe(txn_broker, "pulsar:(3,99)")
    assert found.error_code == Code.TRANSACTIONAL_ID_NOT_FOUND


async def test_a_kafka_producer_keeps_such_an_id(txn_broker: Broker) -> None:
    topic = await topic_of(txn_broker)
    txn = await begin(txn_broker)
    own = await producer_of(txn_broker, txn.name)
    [found] = await describe(txn_broker, txn.name)
    assert (found.producer_id, found.transaction_state) == (own.producer_id, "Empty")
    await txn.join(topic.partition_ids[0])
    await own.begin(1)
    assert (await own.end(False)).error_code == Code.NONE
    assert await state_of(txn_broker, txn.name) == "CompleteAbort"
    assert await txn.state() is TransactionState.ONGOING
    await producer_of(txn_broker, txn.name)  # it fences its own predecessor, and nobody else
    assert await txn.end(is_commit=True) is Error.NONE


async def test_a_marker_for_one_partition_ends_all_of_it(txn_broker: Broker) -> None:
    topic = await topic_of(txn_broker)
    txn = await begin(txn_broker)
    await txn.join(*topic.partition_ids)
    producer = txn.as_kafkas
    assert await write(txn_broker, producer, is_commit=True) == Code.INVALID_TXN_STATE
    assert await txn.state() is TransactionState.ONGOING
    assert await write(txn_broker, producer) == Code.NONE
    assert await txn.state() is TransactionState.COMPLETE_ABORT
    assert await txn.end(is_commit=True) is Error.INVALID_TXN_STATE
    ends = await txn_broker.partitions.refresh(topic.partition_ids)
    assert {each.next_offset for each in ends.values()} == {1}  # a marker in both
    assert await write(txn_broker, producer) == Code.NONE  # again: nothing is open
    ends = await txn_broker.partitions.refresh(topic.partition_ids)
    assert {each.next_offset for each in ends.values()} == {1}


@pytest.mark.parametrize("version", [3, 5])
async def test_an_abort_by_its_producer_id_ends_it(txn_broker: Broker, version: int) -> None:
    txn = await begin(txn_broker)  # that has no partition at all

    async def end(producer_id: int, *, committed: bool = False) -> Any:
        request = EndTxnRequest(
            transactional_id=txn.name,
            producer_id=producer_id,
            producer_epoch=0,
            committed=committed,
        )
        return (await txn_broker.ask(request, version)).error_code

    producer_id = txn.producer.producer_id
    unknown = Code.INVALID_PRODUCER_ID_MAPPING
    assert await end(producer_id, committed=True) == unknown
    assert await end(producer_id + 1) == unknown
    assert await txn.state() is TransactionState.ONGOING
    assert await end(producer_id) == Code.NONE
    assert await end(producer_id) == Code.NONE
    assert await txn.state() is TransactionState.COMPLETE_ABORT
    committed = await begin(txn_broker)
    await committed.end(is_commit=True)
    request = EndTxnRequest(
        transactional_id=committed.name,
        producer_id=committed.producer.producer_id,
        producer_epoch=0,
        committed=False,
    )
    assert (await txn_broker.ask(request, version)).error_code == Code.INVALID_TXN_STATE


async def test_each_is_listed_by_one_broker(make_broker: MakeBroker) -> None:
    brokers = [(await make_broker()).with_log() for _ in range(2)]
    for broker in brokers:
        await broker.cluster.heartbeat()
    names = {(await begin(brokers[0])).name for _ in range(20)}
    answers = [await listed(broker) for broker in brokers]
    assert all(answers)
    assert sorted(name for answer in answers for name in answer) == sorted(names)
    for broker in brokers:
        await broker.close_log()
