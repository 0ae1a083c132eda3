"""V1's requests on a connection that their producer has left, and V2, which needs no such rule."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tests.gateway.kafka.handlers.conftest import Broker
from tests.gateway.kafka.handlers.producing import create, produce_request
from tests.gateway.kafka.handlers.transacting import Producer, producer_of, state_of
from tests.kafka_codes import Code

Ask = Callable[[Producer], Awaitable[object]]

REQUESTS: dict[str, Ask] = {
    "AddPartitionsToTxn": lambda producer: producer.add({"t": [0]}),
    "AddOffsetsToTxn": lambda producer: producer.add_offsets(),
    "TxnOffsetCommit": lambda producer: producer.commit_offsets({"t": {0: 1}}),
    "Produce": lambda producer: producer.write(1),
    "EndTxn": lambda producer: producer.end(True, 4),
}


async def transaction(producer: Producer) -> None:
    """A whole one, but for its end."""
    await producer.begin()
    assert await producer.add_offsets() == Code.NONE
    assert await producer.commit_offsets({"t": {0: 1}}) == {"t": [Code.NONE]}


@pytest.mark.parametrize("name", REQUESTS)
async def test_v1_on_the_connection_it_has_left(txn_broker: Broker, name: str) -> None:
    await create(txn_broker)
    producer = await producer_of(txn_broker)
    txn_broker.connection = 2
    await transaction(producer)
    assert await producer.write(0) == Code.NONE
    assert (await producer.end(True, 4)).error_code == Code.NONE
    await transaction(producer)
    txn_broker.connection = 1
    with pytest.raises(ConnectionResetError):
        await REQUESTS[name](producer)
    assert await state_of(txn_broker) == "Ongoing"
    txn_broker.connection = 3
    assert await producer.write(1) == Code.NONE
    # An end has to be asked for twice where it may be one that is late.
    assert (await producer.end(True, 4)).error_code == Code.COORDINATOR_LOAD_IN_PROGRESS
    assert (await producer.end(True, 4)).error_code == Code.NONE


async def test_one_late_batch_makes_its_request_late(txn_broker: Broker) -> None:
    topic = await create(txn_broker, partitions=2)
    producer = await producer_of(txn_broker)
    txn_broker.connection = 2
    await producer.begin(0, 1)
    assert await producer.write(0) == Code.NONE
    request = produce_request({0: producer.records(1), 1: producer.records(0)}, name="t")
    request.transactional_id = producer.name
    txn_broker.connection = 1
    with pytest.raises(ConnectionResetError):
        await txn_broker.ask(request, 9)
    ends = await txn_broker.partitions.refresh(topic.partition_ids)
    assert [ends[each].high_watermark for each in topic.partition_ids] == [1, 0]
    txn_broker.connection = 2
    [answered] = (await txn_broker.ask(request, 9)).responses
    assert [part.error_code for part in answered.partition_responses] == [Code.NONE] * 2


async def test_v2_is_told_that_its_epoch_is_old(log_broker: Broker) -> None:
    await create(log_broker)
    producer = await producer_of(log_broker)
    log_broker.connection = 2
    assert await producer.write(version=12) == Code.NONE
    assert (await producer.end(True, 5)).error_code == Code.NONE
    log_broker.connection = 1
    assert await producer.write(1, version=12) == Code.INVALID_PRODUCER_EPOCH
    assert (await producer.end(True, 5)).error_code == Code.NONE  # a retry, whatever its connection


async def test_records_without_a_transaction_may_come_on_any_connection(log_broker: Broker) -> None:
    await create(log_broker)
    for sequence, connection in enumerate([2, 1, 3, 2]):
        log_broker.connection = connection
        producer = Producer(log_broker, 77, 0)
        assert await producer.write(sequence, transactional=False, name=None) == Code.NONE
