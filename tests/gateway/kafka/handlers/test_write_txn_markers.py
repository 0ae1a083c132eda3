"""WriteTxnMarkers: what brokers of Kafka and `kafka-transactions abort` send, from outside."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.kafka.codec import WriteTxnMarkersRequest
from tests.gateway.kafka.handlers.conftest import Broker
from tests.gateway.kafka.handlers.producing import create
from tests.gateway.kafka.handlers.transacting import Places, Producer, producer_of, state_of
from tests.kafka_codes import Code

VERSIONS = range(1, 3)


def marker_of(
    producer: Producer,
    places: Places,
    *,
    is_commit: bool = False,
    coordinator_epoch: int = 0,
    transaction_version: int = 0,
) -> Any:
    kind = WriteTxnMarkersRequest.WritableTxnMarker
    return kind(
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        transaction_result=is_commit,
        topics=[
            kind.WritableTxnMarkerTopic(name=name, partition_indexes=list(numbers))
            for name, numbers in places.items()
        ],
        coordinator_epoch=coordinator_epoch,
        transaction_version=transaction_version,
    )


async def ask(broker: Broker, *markers: Any, version: int = 1) -> list[dict[str, dict[int, int]]]:
    """The errors of each marker, by topic and partition."""
    answer = await broker.ask(WriteTxnMarkersRequest(markers=list(markers)), version)
    assert [each.producer_id for each in answer.markers] == [each.producer_id for each in markers]
    return [
        {
            topic.name: {each.partition_index: each.error_code for each in topic.partitions}
            for topic in marker.topics
        }
        for marker in answer.markers
    ]


async def write(broker: Broker, producer: Producer, *, partition: int = 0, **how: Any) -> int:
    """One marker for one partition of topic `t`."""
    version = how.pop("version", 1)
    marker = marker_of(producer, {"t": [partition]}, **how)
    [found] = await ask(broker, marker, version=version)
    return found["t"][partition]


async def opened(broker: Broker) -> Producer:
    """A producer, not the first of its name, with records in two partitions and a third joined."""
    await create(broker, "t", 4)
    await producer_of(broker)
    producer = await (await producer_of(broker)).begin(0, 1, 2)
    for partition in (0, 1):
        assert await producer.write(partition=partition) == Code.NONE
    return producer


@pytest.mark.parametrize("partition", [0, 1, 2])
@pytest.mark.parametrize("version", VERSIONS)
async def test_an_abort_of_a_part_ends_the_whole(
    log_broker: Broker, version: int, partition: int
) -> None:
    producer = await opened(log_broker)
    assert await write(log_broker, producer, partition=partition, version=version) == Code.NONE
    assert await state_of(log_broker) == "CompleteAbort"
    for each in (0, 1):
        assert await producer.write(1, partition=each) == Code.INVALID_PRODUCER_EPOCH
    assert (await producer.end()).error_code == Code.PRODUCER_FENCED
    states = await log_broker.partitions.refresh(
        (await log_broker.topics.get("t")).partition_ids[:3]
    )
    assert [each.last_stable_offset for each in states.values()] == [2, 2, 1]


async def test_a_commit_of_a_part_is_refused(log_broker: Broker) -> None:
    producer = await opened(log_broker)
    assert await write(log_broker, producer, is_commit=True) == Code.INVALID_TXN_STATE
    assert await state_of(log_broker) == "Ongoing"
    assert await producer.write(1) == Code.NONE
    assert (await producer.end()).error_code == Code.NONE


async def test_partitions_that_do_not_take_part(log_broker: Broker) -> None:
    producer = await opened(log_broker)
    for is_commit in (True, False):
        assert await write(log_broker, producer, partition=3, is_commit=is_commit) == Code.NONE
    assert await state_of(log_broker) == "Ongoing"


async def test_where_nothing_is_open_nothing_is_done(log_broker: Broker) -> None:
    producer = await opened(log_broker)
    await producer.end()
    topic = await log_broker.topics.get("t")
    assert topic is not None
    before = await log_broker.partitions.refresh(topic.partition_ids)
    nobody = replace(producer, producer_id=10**9)
    for each in (producer, nobody):
        for is_commit in (True, False):
            assert await write(log_broker, each, is_commit=is_commit) == Code.NONE
    assert await log_broker.partitions.refresh(topic.partition_ids) == before
    assert await producer.begin()


@pytest.mark.parametrize("version", VERSIONS)
async def test_unknown_topics_and_partitions(log_broker: Broker, version: int) -> None:
    producer = await opened(log_broker)
    unknown = Code.UNKNOWN_TOPIC_OR_PARTITION
    marker = marker_of(producer, {"none": [0], "t": [77, -1, 0], "__consumer_offsets": [3]})
    assert await ask(log_broker, marker, version=version) == [
        {
            "none": {0: unknown},
            "t": {77: unknown, -1: unknown, 0: Code.NONE},
            "__consumer_offsets": {3: unknown},
        }
    ]
    assert await ask(log_broker, version=version) == []


async def test_a_marker_of_an_earlier_producer_epoch(log_broker: Broker) -> None:
    producer = await opened(log_broker)
    earlier = replace(producer, producer_epoch=producer.producer_epoch - 1)
    # Partition 2 has heard of no epoch of this producer: its coordinator has.
    for partition in (0, 1, 2):
        found = await write(log_broker, earlier, partition=partition)
        assert found == Code.INVALID_PRODUCER_EPOCH
    assert await state_of(log_broker) == "Ongoing"


async def test_a_marker_of_an_earlier_coordinator(log_broker: Broker) -> None:
    producer = await opened(log_broker)
    await producer.end()  # its markers carry coordinator epoch 0
    await producer.begin(0, 3)
    assert await producer.write(1) == Code.NONE
    fenced = Code.TRANSACTION_COORDINATOR_FENCED
    assert await write(log_broker, producer, coordinator_epoch=-1) == fenced
    # Each partition for itself: 3 has had no marker yet.
    both = marker_of(producer, {"t": [0, 3]}, coordinator_epoch=-1)
    assert await ask(log_broker, both) == [{"t": {0: fenced, 3: Code.NONE}}]
    assert await state_of(log_broker) == "CompleteAbort"


async def test_a_later_coordinator_is_remembered(log_broker: Broker) -> None:
    producer = await opened(log_broker)
    assert await write(log_broker, producer, coordinator_epoch=7) == Code.NONE
    bumped = replace(producer, producer_epoch=producer.producer_epoch + 1)
    for coordinator_epoch, error in ((6, Code.TRANSACTION_COORDINATOR_FENCED), (7, Code.NONE)):
        found = await write(log_broker, bumped, coordinator_epoch=coordinator_epoch)
        assert found == error


async def test_a_marker_of_v2_has_a_new_epoch(log_broker: Broker) -> None:
    """KIP-1228: one with the partition's own epoch comes late."""
    producer = await opened(log_broker)
    found = await write(log_broker, producer, version=2, transaction_version=2)
    assert found == Code.INVALID_PRODUCER_EPOCH
    assert await state_of(log_broker) == "Ongoing"
    bumped = replace(producer, producer_epoch=producer.producer_epoch + 1)
    assert await write(log_broker, bumped, version=2, transaction_version=2) == Code.NONE
    assert await state_of(log_broker) == "CompleteAbort"


async def test_several_markers(log_broker: Broker) -> None:
    await create(log_broker, "t", 2)
    one = await (await producer_of(log_broker, "one")).begin(0, 1)
    two = await (await producer_of(log_broker, "two")).begin(0)
    found = await ask(
        log_broker,
        marker_of(one, {"t": [0]}),
        marker_of(two, {"t": [0]}, is_commit=True),
        marker_of(one, {"t": [1]}),
    )
    epoch = Code.INVALID_PRODUCER_EPOCH
    assert found == [{"t": {0: 0}}, {"t": {0: Code.INVALID_TXN_STATE}}, {"t": {1: epoch}}]
    assert await state_of(log_broker, "one") == "CompleteAbort"
    assert await state_of(log_broker, "two") == "Ongoing"


@pytest.mark.parametrize("version", VERSIONS)
async def test_without_a_database(cut_off: Broker, version: int) -> None:
    cut_off.with_log()
    found = await write(cut_off, Producer(cut_off, 1, 0), version=version)
    assert found == Code.COORDINATOR_NOT_AVAILABLE
    await cut_off.close_log()
