"""Whatever the header of a batch says: a verdict on it, and none on the batch beside it."""

from __future__ import annotations

import random
import struct

import pytest
from crc32c import crc32c

from tests.batches import T0, kafka_batch
from tests.gateway.kafka.handlers.conftest import Broker
from tests.gateway.kafka.handlers.fetching import batches, fetch_request
from tests.gateway.kafka.handlers.producing import create, produce_request
from tests.gateway.kafka.handlers.transacting import producer_of
from tests.kafka_codes import Code

MOST, LEAST = 2**63 - 1, -(2**63)
MOST_RECORDS = 2**31 - 1
# The first value of each is the usual one.
FIELDS: dict[str, tuple[int, ...]] = {
    "attributes": (0, 0x08, 0x10, 0x18, 0x20, 0x30, 0x40, 0x70, -0x80),
    "last_offset_delta": (0, -1, 1, MOST_RECORDS - 1, MOST_RECORDS),
    "base_timestamp": (T0, -1, 0, MOST, LEAST),
    "max_timestamp": (T0, -1, 0, -2, MOST, LEAST),
    "producer_id": (-1, 0, 1, -2, MOST, LEAST),
    "producer_epoch": (0, -1, 1, 2**15 - 1, -(2**15)),
    "base_sequence": (0, -1, 1, 2**31 - 1, -(2**31)),
    "record_count": (1, 0, -1, MOST_RECORDS),
}
RULES = (
    (),
    ("message_timestamp_type", "LogAppendTime"),
    ("message_timestamp_before_max_ms", "1000"),
    ("cleanup_policy", "compact"),
)
TRANSACTIONAL = 0x10


def any_header(chance: random.Random, producer_ids: tuple[int, ...]) -> bytes:
    """A batch of one record that says anything, with the right checksum."""
    said = {name: chance.choice((values[0],) * 6 + values) for name, values in FIELDS.items()}
    if 0 < said["last_offset_delta"] < MOST_RECORDS and chance.random() < 0.8:
        said["record_count"] = said["last_offset_delta"] + 1
    said["producer_id"] = chance.choice((said["producer_id"], *producer_ids))
    said["attributes"] = chance.choice((said["attributes"], TRANSACTIONAL))
    good = kafka_batch(keys=[chance.choice((b"key", None))])
    checked = struct.pack(">hiqqqhii", *said.values()) + good[61:]
    return good[:17] + struct.pack(">I", crc32c(checked)) + checked


@pytest.mark.parametrize("rule", RULES, ids="".join)
async def test_one_batch_of_any_header(log_broker: Broker, rule: tuple[str, ...]) -> None:
    chance = random.Random(2)
    topic = await create(log_broker, partitions=2, **dict([rule] if rule else []))
    log_broker.clock = lambda: T0
    producer = await producer_of(log_broker, "named")
    await producer.begin(0)
    stored = beside = 0
    for _ in range(300):
        batch = any_header(chance, (producer.producer_id,))
        request = produce_request({0: batch, 1: kafka_batch(keys=[b"key"])})
        request.transactional_id = chance.choice((None, "named", "unknown"))
        (answer,) = (await log_broker.ask(request, chance.choice(range(3, 13)))).responses
        one, other = answer.partition_responses
        assert one.error_code != Code.UNKNOWN_SERVER_ERROR, batch[:61].hex()
        assert (other.error_code, other.base_offset) == (0, beside)
        stored += one.error_code == 0
        beside += 1
    assert stored > 10  # else nothing has been shown
    states = await log_broker.partitions.refresh(topic.partition_ids)
    assert states[topic.partition_ids[1]].next_offset == beside
    for isolation in (0, 1):
        (found,) = (
            await log_broker.ask(fetch_request({0: 0, 1: 0}, isolation=isolation), 11)
        ).responses
        assert [part.error_code for part in found.partitions] == [0, 0]
        assert len(batches(found.partitions[1])) == beside
