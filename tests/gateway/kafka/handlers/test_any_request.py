"""Whatever a client asks, however absurd, a handler has an answer: it does not fail.

Values are drawn from the schemas: names that exist and that do not, numbers at their limits.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from contextlib import suppress
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.kafka import codec
from gateway.kafka.api import CLOSE_CONNECTION, load_handlers
from tests.batches import kafka_batch
from tests.gateway.kafka.handlers.conftest import Broker
from tests.gateway.kafka.handlers.producing import create
from tests.gateway.kafka.handlers.transacting import producer_of

APIS = load_handlers().table()
NAMES = ("t", "t", "named", "1", "", "é\0", "x" * 300, "range", "uniform", "-1", "\U0001f600")
SEEDS = 30
# How these may end without an answer: a wait for other members.
ENDS: dict[str, tuple[type[Exception], ...]] = {
    "JoinGroup": (TimeoutError,),
    "SyncGroup": (TimeoutError,),
}
WAITS = ("max_wait_ms", "rebalance_timeout_ms", "timeout_ms")
BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


class Absurd:
    """Messages of anything."""

    def __init__(self, seed: int, versions: range, topic_id: uuid.UUID, producer_id: int) -> None:
        self.random = random.Random(seed)
        self.version = self.random.choice(versions)
        self.topic_id = topic_id
        self.producer_id = producer_id

    def message(self, field: Any, data_class: Any) -> Any:
        return data_class(
            version=self.version,
            **{
                one.name: self.value(one, one.nullable_for_version_q(self.version))
                for one in field.fields.values()
                if one.for_version_q(self.version)
            },
        )

    def value(self, field: Any, nullable: bool) -> Any:
        chance = self.random
        if nullable and chance.random() < 0.2:
            return None
        if field.is_struct():
            return self.message(field, field.data_class)
        if field.is_array():
            return [
                self.value(field.array_of, False) for _ in range(chance.choice((0, 1, 1, 2, 3)))
            ]
        match field.type_str:
            case "string":
                return chance.choice(NAMES)
            case "bytes" | "records":
                return chance.choice((b"", b"\0" * 5, kafka_batch(), chance.randbytes(300)))
            case "bool":
                return chance.random() < 0.5
            case "uuid":
                return chance.choice((None, self.topic_id, uuid.UUID(int=chance.getrandbits(128))))
            case "bitfield":
                return chance.choice((None, {1, 3, 5}))
            case "float64":
                return chance.choice((1.5, -1.0, float("inf"), float("nan")))
        if field.type_str == "uint16":
            return chance.choice((0, 1, 2**16 - 1))
        if field.name in WAITS:
            return chance.choice((-1, 0, 50))
        if field.name == "isolation_level":
            return chance.choice((0, 0, 1, 1, 2, -1))
        if field.name == "session_timeout_ms" and chance.random() < 0.8:
            return 10_000
        if field.name == "producer_id" and chance.random() < 0.7:
            return self.producer_id
        most = 2 ** (BITS[field.type_str] - 1) - 1
        return chance.choice((0, 0, 1, 1, 2, -1, -1, 7, most, -most - 1))


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
async def test_any_request_is_answered(txn_broker: Broker, api: Any) -> None:
    topic = await create(txn_broker, partitions=2)
    producer = await producer_of(txn_broker, "named")
    await producer.begin(0)
    message = codec.request_class(api.key)
    answered = 0
    for seed in range(SEEDS):
        absurd = Absurd(seed, api.versions, topic.topic_id, producer.producer_id)
        request = absurd.message(message._struct, message)
        with capture_logs() as logs, suppress(*ENDS.get(api.name, ())):
            async with asyncio.timeout(60):
                answer = await txn_broker.handle(request, absurd.version)
            if answer is not CLOSE_CONNECTION and answer is not None:
                codec.encode_message(answer, absurd.version)
            answered += 1
        assert not [line for line in logs if line["log_level"] == "error"], request
    assert answered > SEEDS / 3
