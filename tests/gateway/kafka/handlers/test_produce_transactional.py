"""Produce in transactions: V1 writes where it has joined, V2 joins by writing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.gateway.kafka.handlers.conftest import Broker
from tests.gateway.kafka.handlers.producing import create
from tests.gateway.kafka.handlers.transacting import Producer, producer_of, state_of
from tests.kafka_codes import Code

VERSIONS = range(3, 13)  # v13 asks for topics by id, and is else as v12
V1, V2 = VERSIONS[:9], 12


async def ready(broker: Broker, version: int) -> Producer:
    """A producer, not the first of its name, that may write to partition 0."""
    await create(broker, "t", 2)
    await producer_of(broker)
    producer = await producer_of(broker)
    return await producer.begin(0) if version < V2 else producer


@pytest.mark.parametrize("version", VERSIONS)
async def test_batches_of_an_open_transaction(log_broker: Broker, version: int) -> None:
    producer = await ready(log_broker, version)
    assert await producer.write(0, version=version) == Code.NONE
    assert await producer.write(1, version=version) == Code.NONE
    assert await producer.write(0, version=version) == Code.NONE  # once more
    assert await producer.write(5, version=version) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert await state_of(log_broker) == "Ongoing"
    ended = await producer.end(version=3 if version < V2 else 5)
    assert ended.error_code == Code.NONE
    topic = await log_broker.topics.get("t")
    assert topic is not None
    [state] = (await log_broker.partitions.refresh(topic.partition_ids[:1])).values()
    assert state.high_watermark == state.last_stable_offset == 3


async def test_by_topic_id(log_broker: Broker) -> None:
    producer = await ready(log_broker, V2)
    topic = await log_broker.topics.get("t")
    assert topic is not None
    code = await producer.write(version=13, topic="", topic_id=topic.topic_id)
    assert code == Code.NONE
    assert await state_of(log_broker) == "Ongoing"


@pytest.mark.parametrize("version", V1)
async def test_v1_has_to_join_first(log_broker: Broker, version: int) -> None:
    """A late batch must not open a transaction that nobody ends."""
    producer = await ready(log_broker, version)
    error = Code.TRANSACTION_ABORTABLE if version >= 11 else Code.INVALID_TXN_STATE
    assert await producer.write(partition=1, version=version) == error
    assert await producer.write(version=version) == Code.NONE
    await producer.end()
    assert await producer.write(1, version=version) == error
    assert await producer.write(0, version=version) == Code.NONE  # an answer was lost


async def test_v2_joins_by_writing(log_broker: Broker) -> None:
    producer = await ready(log_broker, V2)
    assert await state_of(log_broker) == "Empty"
    for partition in (0, 1):
        assert await producer.write(partition=partition, version=V2) == Code.NONE
    ended = await producer.end(version=5)
    assert await producer.write(1, version=V2) == Code.INVALID_PRODUCER_EPOCH
    following = replace(producer, producer_epoch=ended.producer_epoch)
    assert await following.write(1, version=V2) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert await following.write(0, version=V2) == Code.NONE


@pytest.mark.parametrize("version", VERSIONS)
async def test_stale_or_foreign_producer_is_refused(log_broker: Broker, version: int) -> None:
    producer = await ready(log_broker, version)
    assert await producer.write(version=version) == Code.NONE
    epoch, producer_id = producer.producer_epoch, producer.producer_id
    for other, error in (
        (replace(producer, producer_epoch=epoch - 1), Code.INVALID_PRODUCER_EPOCH),
        (replace(producer, producer_epoch=epoch + 1), Code.INVALID_PRODUCER_EPOCH),
        (replace(producer, producer_id=producer_id + 1), Code.INVALID_PRODUCER_ID_MAPPING),
    ):
        assert await other.write(version=version) == error
    # Batches that are none of a transaction, while one is open.
    found = await producer.write(1, version=version, transactional=False)
    assert found == Code.INVALID_TXN_STATE
    nameless = await producer.write(1, version=version, name=None)
    assert nameless == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert await producer.write(1, version=version) == Code.NONE


@pytest.mark.parametrize("version", VERSIONS)
async def test_another_transactional_id_is_refused(log_broker: Broker, version: int) -> None:
    producer = await ready(log_broker, version)
    await producer_of(log_broker, "another")
    for name in ("another", "unknown"):
        found = await producer.write(version=version, name=name)
        assert found == Code.INVALID_PRODUCER_ID_MAPPING
    assert await producer.write(version=version, name="") == Code.INVALID_REQUEST
    assert await producer.write(version=version) == Code.NONE


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_fenced_producer_writes_nothing(log_broker: Broker, version: int) -> None:
    producer = await ready(log_broker, version)
    assert await producer.write(version=version) == Code.NONE
    await producer_of(log_broker)
    for sequence, partition in ((0, 0), (1, 0), (0, 1)):
        found = await producer.write(sequence, partition=partition, version=version)
        assert found == Code.INVALID_PRODUCER_EPOCH
