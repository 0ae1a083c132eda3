"""EndTxn: every end in every state, V1 and V2."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.gateway.kafka.handlers.conftest import NO_DELAY, Broker, MakeBroker
from tests.gateway.kafka.handlers.producing import create
from tests.gateway.kafka.handlers.transacting import Producer, producer_of, state_of
from tests.kafka_codes import Code

VERSIONS = range(6)
V1, V2 = VERSIONS[:5], 5
ENDS = {True: "CompleteCommit", False: "CompleteAbort"}


async def opened(broker: Broker) -> Producer:
    """A producer, not the first of its name, with an open transaction."""
    await create(broker)
    await producer_of(broker)
    return await (await producer_of(broker)).begin()


@pytest.mark.parametrize("is_commit", ENDS)
@pytest.mark.parametrize("version", V1)
async def test_v1_ends_and_keeps_its_epoch(
    log_broker: Broker, version: int, is_commit: bool
) -> None:
    producer = await opened(log_broker)
    for _ in range(2):  # the second one is a retry
        assert (await producer.end(is_commit, version)).error_code == Code.NONE
        assert await state_of(log_broker) == ENDS[is_commit]
    assert (await producer.end(not is_commit, version)).error_code == Code.INVALID_TXN_STATE
    await producer.begin()
    assert await producer.write() == Code.NONE


@pytest.mark.parametrize("is_commit", ENDS)
async def test_v2_ends_and_bumps_the_epoch(log_broker: Broker, is_commit: bool) -> None:
    producer = await opened(log_broker)
    for _ in range(2):  # the second one is a retry
        answer = await producer.end(is_commit, V2)
        assert answer.error_code == Code.NONE
        assert answer.producer_id == producer.producer_id
        assert answer.producer_epoch == producer.producer_epoch + 1
    refused = await producer.end(not is_commit, V2)
    other = Code.INVALID_TXN_STATE if is_commit else Code.PRODUCER_FENCED
    assert refused.error_code == other
    assert (refused.producer_id, refused.producer_epoch) == (-1, -1)
    assert await producer.write(version=12) == Code.INVALID_PRODUCER_EPOCH
    following = replace(producer, producer_epoch=answer.producer_epoch)
    assert await following.write(version=12) == Code.NONE
    assert await state_of(log_broker) == "Ongoing"


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_commit_of_nothing_is_refused(log_broker: Broker, version: int) -> None:
    producer = await producer_of(log_broker)
    assert (await producer.end(True, version)).error_code == Code.INVALID_TXN_STATE


@pytest.mark.parametrize("version", V1)
async def test_an_abort_that_overtakes_its_partitions_succeeds(
    log_broker: Broker, version: int
) -> None:
    """Kafka says INVALID_TXN_STATE, which librdkafka takes as fatal."""
    producer = await producer_of(log_broker)
    assert (await producer.end(False, version)).error_code == Code.NONE


async def test_v2_aborts_what_has_not_written_yet(log_broker: Broker) -> None:
    producer = await producer_of(log_broker)
    answer = await producer.end(False, V2)
    assert (answer.error_code, answer.producer_epoch) == (Code.NONE, 1)


@pytest.mark.parametrize("is_commit", ENDS)
@pytest.mark.parametrize("version", VERSIONS)
async def test_stale_or_foreign_producer_is_refused(
    log_broker: Broker, version: int, is_commit: bool
) -> None:
    producer = await opened(log_broker)
    fenced = Code.PRODUCER_FENCED if version >= 2 else Code.INVALID_PRODUCER_EPOCH
    epoch, producer_id = producer.producer_epoch, producer.producer_id
    for other, error in (
        (replace(producer, producer_epoch=epoch - 1), fenced),
        (replace(producer, producer_epoch=epoch + 1), fenced),
        (replace(producer, producer_id=producer_id + 1), Code.INVALID_PRODUCER_ID_MAPPING),
        (replace(producer, name="nobody"), Code.INVALID_PRODUCER_ID_MAPPING),
        (replace(producer, name=""), Code.INVALID_REQUEST),
    ):
        assert (await other.end(is_commit, version)).error_code == error
    assert await state_of(log_broker) == "Ongoing"
    await producer_of(log_broker)
    assert (await producer.end(is_commit, version)).error_code == fenced


@pytest.mark.parametrize("version", VERSIONS)
async def test_without_a_database(cut_off: Broker, version: int) -> None:
    cut_off.with_log()
    answer = await Producer(cut_off, 1, 0).end(True, version)
    assert answer.error_code == Code.COORDINATOR_NOT_AVAILABLE
    await cut_off.close_log()


async def test_a_late_end_that_lay_at_another_broker_ends_no_later_transaction(
    make_broker: MakeBroker,
) -> None:
    """V1: the client asked here, gave up, asked at the other broker, and has begun anew there."""
    here, there = [await (await make_broker(NO_DELAY)).with_log().with_groups() for _ in range(2)]
    await create(here)
    late = await producer_of(here)
    producer = replace(late, broker=there)
    await producer.begin(0)
    assert await producer.write(0) == Code.NONE
    assert (await producer.end()).error_code == Code.NONE
    await producer.begin(0)
    assert await producer.write(1) == Code.NONE
    for here.connection in (2, 3):
        answer = await late.end(here.connection == 2)
        assert answer.error_code == Code.COORDINATOR_LOAD_IN_PROGRESS
    assert await producer.write(2) == Code.NONE
    here.connection = 4
    # Whoever has come over in the middle of a transaction asks again, and is heard.
    assert (await late.end()).error_code == Code.COORDINATOR_LOAD_IN_PROGRESS
    assert (await late.end()).error_code == Code.NONE
    assert (await late.end()).error_code == Code.NONE  # the same again
    for each in (here, there):
        await each.groups.close()
        await each.close_log()
