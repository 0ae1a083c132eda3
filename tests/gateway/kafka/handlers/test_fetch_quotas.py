"""Fetch of a client with a quota: many of its connections at once have it together, not each."""

from __future__ import annotations

import asyncio

from core.quota.changes import Alteration
from core.security.principal import ANONYMOUS
from tests.batches import kafka_batch
from tests.gateway.kafka.handlers.conftest import Broker
from tests.gateway.kafka.handlers.fetching import fetch_request
from tests.gateway.kafka.handlers.producing import create, produce


async def test_many_at_once_have_one_quota(log_broker: Broker) -> None:
    await create(log_broker)
    batch = kafka_batch([b"x" * 1000])
    for _ in range(3):
        await produce(log_broker, batch)
    rate = Alteration((("user", None),), [("consumer_byte_rate", float(len(batch) // 20))])
    await log_broker.quotas.alter([rate], only_validate=False, principal=ANONYMOUS, peer="here")
    answers = await asyncio.gather(*(log_broker.ask(fetch_request({0: 0}), 11) for _ in range(20)))
    given = [each for each in answers if each.responses]
    # A batch is given however large; twenty seconds' worth, as all of them are told.
    assert len(given) == 1
    assert len(given[0].responses[0].partitions[0].records) == len(batch)
    assert all(10_000 < each.throttle_time_ms <= 21_000 for each in answers)
    assert {each.error_code for each in answers} == {0}
