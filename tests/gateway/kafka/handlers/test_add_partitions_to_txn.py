"""AddPartitionsToTxn: who takes part, all of them or none, in every version's words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.kafka.codec import AddPartitionsToTxnRequest
from tests.gateway.kafka.handlers.conftest import Broker
from tests.gateway.kafka.handlers.producing import create
from tests.gateway.kafka.handlers.transacting import (
    Producer,
    add_request,
    describe,
    producer_of,
    state_of,
)
from tests.kafka_codes import Code

VERSIONS = range(6)
FOR_BROKERS = VERSIONS[4:]


async def second_epoch(broker: Broker) -> Producer:
    """A producer with an epoch that another one of its name had before it."""
    await producer_of(broker)
    return await producer_of(broker)


@pytest.mark.parametrize("version", VERSIONS)
async def test_partitions_take_part_in_their_transaction(log_broker: Broker, version: int) -> None:
    await create(log_broker, "t", 3)
    await create(log_broker, "u")
    producer = await producer_of(log_broker)
    wanted = {"t": [2, 0], "u": [0]}
    assert await producer.add(wanted, version) == {"t": [0, 0], "u": [0]}
    assert await producer.add(wanted, version) == {"t": [0, 0], "u": [0]}
    assert await producer.add({"t": [0, 1]}, version) == {"t": [0, 0]}
    [described] = await describe(log_broker)
    assert described.transaction_state == "Ongoing"
    assert {each.topic: each.partitions for each in described.topics} == {
        "t": [0, 1, 2],
        "u": [0],
    }


@pytest.mark.parametrize("version", VERSIONS)
async def test_stale_or_foreign_producer_is_refused(log_broker: Broker, version: int) -> None:
    await create(log_broker)
    producer = await second_epoch(log_broker)
    fenced = Code.PRODUCER_FENCED if version >= 2 else Code.INVALID_PRODUCER_EPOCH
    epoch, producer_id = producer.producer_epoch, producer.producer_id
    for other, error in (
        (replace(producer, producer_epoch=epoch - 1), fenced),
        (replace(producer, producer_epoch=epoch + 1), fenced),
        (replace(producer, producer_id=producer_id + 1), Code.INVALID_PRODUCER_ID_MAPPING),
        (replace(producer, name="nobody"), Code.INVALID_PRODUCER_ID_MAPPING),
        (replace(producer, name=""), Code.INVALID_REQUEST),
    ):
        assert await other.add({"t": [0]}, version) == {"t": [error]}
    assert await state_of(log_broker) == "Empty"


@pytest.mark.parametrize("version", VERSIONS)
async def test_where_one_partition_is_not_there_none_takes_part(
    log_broker: Broker, version: int
) -> None:
    await create(log_broker)
    producer = await second_epoch(log_broker)
    found = await producer.add({"t": [0, 9], "none": [0], "a/b": [0]}, version)
    unknown = Code.UNKNOWN_TOPIC_OR_PARTITION
    assert found == {
        "t": [Code.OPERATION_NOT_ATTEMPTED, unknown],
        "none": [unknown],
        "a/b": [unknown],
    }
    assert await state_of(log_broker) == "Empty"
    # Topics come first, as in KafkaApis.
    old = replace(producer, producer_epoch=0)
    assert await old.add({"none": [0]}, version) == {"none": [unknown]}


@pytest.mark.parametrize("version", VERSIONS)
async def test_internal_topics_are_not_for_clients(log_broker: Broker, version: int) -> None:
    await create(log_broker)
    await create(log_broker, "__consumer_offsets")
    producer = await producer_of(log_broker)
    found = await producer.add(
        {"t": [0], "__consumer_offsets": [0], "__transaction_state": [0]}, version
    )
    not_tried, unknown = Code.OPERATION_NOT_ATTEMPTED, Code.UNKNOWN_TOPIC_OR_PARTITION
    denied = Code.TOPIC_AUTHORIZATION_FAILED
    assert found == {
        "t": [not_tried],
        "__consumer_offsets": [not_tried if version in FOR_BROKERS else denied],
        "__transaction_state": [unknown if version in FOR_BROKERS else denied],
    }
    assert await state_of(log_broker) == "Empty"


@pytest.mark.parametrize("version", FOR_BROKERS)
async def test_only_asking_changes_nothing(log_broker: Broker, version: int) -> None:
    await create(log_broker, "t", 2)
    producer = await second_epoch(log_broker)
    asked: dict[str, list[int]] = {"t": [0, 1]}
    abortable = Code.TRANSACTION_ABORTABLE
    assert await producer.add(asked, version, verify_only=True) == {"t": [abortable, abortable]}
    await producer.begin(1)
    assert await producer.add(asked, version, verify_only=True) == {"t": [abortable, Code.NONE]}
    old = replace(producer, producer_epoch=0)
    assert await old.add({"t": [1]}, version, verify_only=True) == {"t": [Code.PRODUCER_FENCED]}
    found = await producer.add({"t": [1, 9]}, version, verify_only=True)
    assert found == {"t": [Code.OPERATION_NOT_ATTEMPTED, Code.UNKNOWN_TOPIC_OR_PARTITION]}
    nameless = replace(producer, name="")
    assert await nameless.add({"t": [1]}, version, verify_only=True) == {
        "t": [Code.INVALID_REQUEST]
    }
    await producer.end()
    assert await producer.add({"t": [1]}, version, verify_only=True) == {"t": [abortable]}


@pytest.mark.parametrize("version", FOR_BROKERS)
async def test_many_transactions_in_one_request(log_broker: Broker, version: int) -> None:
    await create(log_broker)
    one = await producer_of(log_broker, "one")
    two = replace(await producer_of(log_broker, "two"), producer_epoch=7)
    requests = [add_request(each, {"t": [0]}) for each in (one, two)]
    both = AddPartitionsToTxnRequest(
        transactions=[transaction for each in requests for transaction in each.transactions]
    )
    answer = await log_broker.ask(both, version)
    assert {
        each.transactional_id: each.topic_results[0].results_by_partition[0].partition_error_code
        for each in answer.results_by_transaction
    } == {"one": Code.NONE, "two": Code.PRODUCER_FENCED}
    assert await state_of(log_broker, "one") == "Ongoing"
    assert await state_of(log_broker, "two") == "Empty"
    answer = await log_broker.ask(AddPartitionsToTxnRequest(transactions=[]), version)
    assert (answer.error_code, answer.results_by_transaction) == (Code.NONE, [])


@pytest.mark.parametrize("version", VERSIONS)
async def test_without_a_database(cut_off: Broker, version: int) -> None:
    cut_off.with_log()
    answer = await cut_off.ask(add_request(Producer(cut_off, 1, 0), {"t": [0]}), version)
    if version >= 4:
        assert answer.error_code == Code.COORDINATOR_NOT_AVAILABLE
    else:
        [topic] = answer.results_by_topic_v3_and_below
        codes = [each.partition_error_code for each in topic.results_by_partition]
        assert codes == [Code.COORDINATOR_NOT_AVAILABLE]
    await cut_off.close_log()
