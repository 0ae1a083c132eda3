"""Fetch and ListOffsets for readers of committed data: how far they get, what they leave out."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from core.transaction.values import Marker
from gateway.kafka.codec import ListOffsetsRequest
from gateway.kafka.markers import control_batch
from tests.batches import T0, kafka_batch
from tests.gateway.kafka.handlers.conftest import Broker
from tests.gateway.kafka.handlers.fetching import batches, fetch_request
from tests.gateway.kafka.handlers.producing import create, produce
from tests.gateway.kafka.handlers.test_list_offsets import EARLIEST, LATEST, MAX_TIMESTAMP
from tests.gateway.kafka.handlers.transacting import producer_of
from tests.kafka_codes import Code

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
FETCHES = range(4, 13)  # by name
LISTINGS = range(2, 12)


async def fetch(broker: Broker, isolation: int, offset: int = 0, version: int = 11) -> Any:
    request = fetch_request({0: offset}, isolation=isolation)
    answer = await broker.ask(request, version)
    ((part,),) = [topic.partitions for topic in answer.responses]
    assert part.error_code == Code.NONE
    return part


async def offset_of(
    broker: Broker, timestamp: int, isolation: int, version: int = 9
) -> tuple[int, int]:
    kind = ListOffsetsRequest.ListOffsetsTopic
    asked = kind.ListOffsetsPartition(
        partition_index=0, timestamp=timestamp, current_leader_epoch=-1
    )
    request = ListOffsetsRequest(
        replica_id=-1, isolation_level=isolation, topics=[kind(name="t", partitions=[asked])]
    )
    ((part,),) = [topic.partitions for topic in (await broker.ask(request, version)).topics]
    assert part.error_code == Code.NONE
    return part.offset, part.timestamp


def aborted(part: Any, producer_id: int) -> list[int]:
    """First offsets of the producer's aborted transactions in an answer."""
    told = part.aborted_transactions or []
    return [each.first_offset for each in told if each.producer_id == producer_id]


async def plain(broker: Broker, at: int) -> None:
    """Two records outside transactions."""
    assert (
        await produce(broker, kafka_batch([b"p"] * 2, timestamps=[T0 + at] * 2))
    ).error_code == 0


@pytest.mark.parametrize("version", FETCHES)
async def test_an_open_transaction_holds_back_what_follows(
    log_broker: Broker, version: int
) -> None:
    await create(log_broker)
    producer = await (await producer_of(log_broker)).begin()
    await plain(log_broker, 0)
    await producer.write(values=[b"v"] * 2)
    await plain(log_broker, 2)
    part = await fetch(log_broker, READ_COMMITTED, version=version)
    assert [base for base, _, _ in batches(part)] == [0]
    assert (part.high_watermark, part.last_stable_offset) == (6, 2)
    part = await fetch(log_broker, READ_UNCOMMITTED, version=version)
    assert [base for base, _, _ in batches(part)] == [0, 2, 4]
    await producer.end(False)
    part = await fetch(log_broker, READ_COMMITTED, version=version)
    assert [base for base, _, _ in batches(part)] == [0, 2, 4, 6]
    assert (part.high_watermark, part.last_stable_offset) == (7, 7)
    assert aborted(part, producer.producer_id) == [2]
    part = await fetch(log_broker, READ_UNCOMMITTED, version=version)
    assert aborted(part, producer.producer_id) == []


async def test_a_fetch_is_told_what_touches_its_answer(log_broker: Broker) -> None:
    """Each transaction: records at 3n and 3n + 1, its marker at 3n + 2; every other is aborted."""
    await create(log_broker)
    producer = await producer_of(log_broker)
    for number in range(6):
        await producer.begin()
        await producer.write(number * 2, values=[b"v"])
        await producer.write(number * 2 + 1, values=[b"v"])
        await producer.end(number % 2 == 1)
    every = [0, 6, 12]
    for offset in range(18):
        part = await fetch(log_broker, READ_COMMITTED, offset)
        # The first batch may lie in the middle of one, and the marker is part of it.
        assert aborted(part, producer.producer_id) == [f for f in every if f + 2 >= offset]
        assert batches(part)[0][0] == offset


@pytest.mark.parametrize("is_commit", [True, False])
async def test_the_marker_is_a_batch_like_any_other(log_broker: Broker, is_commit: bool) -> None:
    await create(log_broker)
    producer = await (await producer_of(log_broker)).begin()
    await producer.write()
    answer = await producer.end(is_commit, 5)
    part = await fetch(log_broker, READ_COMMITTED)
    _, (base, leader_epoch, body) = batches(part)
    assert (base, leader_epoch) == (1, 0)
    (timestamp,) = struct.unpack_from(">q", body, 27 - 16)
    marker = Marker(producer.producer_id, answer.producer_epoch, is_commit, 0)
    assert body == control_batch(marker, timestamp)[16:]


@pytest.mark.parametrize("version", LISTINGS)
async def test_the_latest_offset_follows_the_isolation_level(
    log_broker: Broker, version: int
) -> None:
    await create(log_broker)
    producer = await (await producer_of(log_broker)).begin()
    await plain(log_broker, 0)
    await producer.write(values=[b"v"] * 2, at=T0 + 1)
    await plain(log_broker, 2)
    found = [await offset_of(log_broker, LATEST, each, version) for each in (0, 1)]
    assert found == [(6, -1), (2, -1)]
    await producer.end()
    found = [await offset_of(log_broker, LATEST, each, version) for each in (0, 1)]
    assert found == [(7, -1), (7, -1)]
    assert await offset_of(log_broker, EARLIEST, READ_COMMITTED, version) == (0, -1)


@pytest.mark.parametrize("version", LISTINGS)
async def test_a_lookup_by_time_ends_where_the_reader_does(
    log_broker: Broker, version: int
) -> None:
    await create(log_broker)
    producer = await (await producer_of(log_broker)).begin()
    await plain(log_broker, 0)
    await producer.write(values=[b"v"] * 2, at=T0 + 1)
    await plain(log_broker, 2)
    for timestamp, everybody, committed in (
        (T0, (0, T0), (0, T0)),
        (T0 + 1, (2, T0 + 1), (-1, -1)),
        (T0 + 2, (4, T0 + 2), (-1, -1)),
        (T0 + 3, (-1, -1), (-1, -1)),
    ):
        assert await offset_of(log_broker, timestamp, READ_UNCOMMITTED, version) == everybody
        assert await offset_of(log_broker, timestamp, READ_COMMITTED, version) == committed
    if version >= 7:
        assert await offset_of(log_broker, MAX_TIMESTAMP, READ_COMMITTED, version) == (-1, -1)
    await producer.end()
    for timestamp, offset in ((T0 + 1, 2), (T0 + 2, 4)):
        found = await offset_of(log_broker, timestamp, READ_COMMITTED, version)
        assert found == (offset, timestamp)
    # Kafka counts the marker as a record here, stamped when it was written.
    found = await offset_of(log_broker, T0 + 3, READ_COMMITTED, version)
    assert found[0] == 6
