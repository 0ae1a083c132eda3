"""InitProducerId for idempotent producers."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.kafka.codec import InitProducerIdRequest
from tests.gateway.kafka.handlers.conftest import Broker, MakeBroker

COORDINATOR_NOT_AVAILABLE, INVALID_REQUEST = 15, 42


async def ask(broker: Broker, version: int = 4, **what: Any) -> tuple[int, int, int]:
    request = InitProducerIdRequest(
        **{
            "transactional_id": None,
            "transaction_timeout_ms": 2**31 - 1,
            "producer_id": -1,
            "producer_epoch": -1,
            **what,
        }
    )
    answer = await broker.ask(request, version)
    return answer.error_code, answer.producer_id, answer.producer_epoch


@pytest.mark.parametrize("version", range(6))
async def test_a_fresh_id_with_epoch_zero(log_broker: Broker, version: int) -> None:
    found = [await ask(log_broker, version) for _ in range(3)]
    assert {(error, epoch) for error, _, epoch in found} == {(0, 0)}
    ids = [producer_id for _, producer_id, _ in found]
    assert ids == sorted(set(ids))
    assert ids[0] >= 0


async def test_brokers_give_different_ids(make_broker: MakeBroker) -> None:
    brokers = [(await make_broker()).with_log() for _ in range(2)]
    ids = [(await ask(broker))[1] for _ in range(5) for broker in brokers]
    assert len(set(ids)) == 10
    for broker in brokers:
        await broker.partitions.close()


async def test_a_block_is_dropped_after_a_failover(log_broker: Broker) -> None:
    (_, first, _) = await ask(log_broker)
    log_broker.producer_ids.forget()
    assert (await ask(log_broker))[1] >= first + 1_000


async def test_without_a_transactional_id_the_current_one_does_not_matter(
    log_broker: Broker,
) -> None:
    _, old, _ = await ask(log_broker)
    error, new, epoch = await ask(log_broker, producer_id=old, producer_epoch=3)
    assert (error, epoch) == (0, 0)
    assert new != old


@pytest.mark.parametrize(
    "what", [{"producer_id": 5}, {"producer_epoch": 5}], ids=["no epoch", "no id"]
)
async def test_an_id_and_an_epoch_come_together(log_broker: Broker, what: dict[str, int]) -> None:
    # KafkaApis.handleInitProducerIdRequest
    assert await ask(log_broker, **what) == (INVALID_REQUEST, -1, -1)


async def test_transactional_ids_are_refused_for_now(log_broker: Broker) -> None:
    for transactional_id in ("t", ""):
        found = await ask(log_broker, transactional_id=transactional_id)
        assert found == (INVALID_REQUEST, -1, -1)


async def test_without_a_database(cut_off: Broker) -> None:
    cut_off.with_log()
    assert await ask(cut_off) == (COORDINATOR_NOT_AVAILABLE, -1, -1)
    await cut_off.partitions.close()
