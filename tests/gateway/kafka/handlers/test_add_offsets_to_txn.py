"""AddOffsetsToTxn: a group's offsets take part."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.transaction import coordinator
from tests.gateway.kafka.handlers.conftest import Broker
from tests.gateway.kafka.handlers.transacting import Producer, describe, producer_of, state_of
from tests.kafka_codes import Code

VERSIONS = range(5)


@pytest.mark.parametrize("version", VERSIONS)
async def test_group_takes_part_in_its_transaction(log_broker: Broker, version: int) -> None:
    producer = await producer_of(log_broker)
    for _ in range(2):
        assert await producer.add_offsets("g", version) == Code.NONE
    [described] = await describe(log_broker)
    assert described.transaction_state == "Ongoing"
    # Where Kafka keeps it: abs("g".hashCode()) % 50.
    assert [(each.topic, each.partitions) for each in described.topics] == [
        ("__consumer_offsets", [ord("g") % 50])
    ]


@pytest.mark.parametrize("version", VERSIONS)
async def test_stale_or_foreign_producer_is_refused(log_broker: Broker, version: int) -> None:
    await producer_of(log_broker)
    producer = await producer_of(log_broker)
    fenced = Code.PRODUCER_FENCED if version >= 2 else Code.INVALID_PRODUCER_EPOCH
    epoch, producer_id = producer.producer_epoch, producer.producer_id
    for other, error in (
        (replace(producer, producer_epoch=epoch - 1), fenced),
        (replace(producer, producer_epoch=epoch + 1), fenced),
        (replace(producer, producer_id=producer_id + 1), Code.INVALID_PRODUCER_ID_MAPPING),
        (replace(producer, name="nobody"), Code.INVALID_PRODUCER_ID_MAPPING),
        (replace(producer, name=""), Code.INVALID_REQUEST),
    ):
        assert await other.add_offsets("g", version) == error
    assert await state_of(log_broker) == "Empty"


@pytest.mark.parametrize("version", VERSIONS)
async def test_too_many_groups_in_a_transaction_are_refused(
    log_broker: Broker, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "MAX_GROUPS", 2)
    producer = await producer_of(log_broker)
    abortable = Code.TRANSACTION_ABORTABLE if version >= 4 else Code.INVALID_TXN_STATE
    for _ in range(2):
        for group, error in (("a", 0), ("b", 0), ("a", 0), ("c", abortable), ("b", 0)):
            assert await producer.add_offsets(group, version) == error
        assert (await producer.end()).error_code == Code.NONE  # the next has room again


@pytest.mark.parametrize("version", VERSIONS)
async def test_without_a_database(cut_off: Broker, version: int) -> None:
    cut_off.with_log()
    found = await Producer(cut_off, 1, 0).add_offsets("g", version)
    assert found == Code.COORDINATOR_NOT_AVAILABLE
    await cut_off.close_log()
