"""Produce over the real log: every refusal by Kafka's code, and what an answer tells."""

from __future__ import annotations

import struct
from uuid import UUID, uuid4

import pytest
from crc32c import crc32c

from core.topic.rules import INTERNAL_TOPICS
from gateway.kafka.api import CLOSE_CONNECTION
from gateway.kafka.records import iterate_records, with_log_append_time
from gateway.kafka.validation import MOST_NAMED
from tests.batches import T0, kafka_batch
from tests.gateway.kafka.handlers.conftest import Broker
from tests.gateway.kafka.handlers.producing import create, produce, produce_request
from tests.kafka_codes import Code


@pytest.mark.parametrize("version", range(3, 13))
async def test_every_version_by_name(log_broker: Broker, version: int) -> None:
    await create(log_broker)
    for expected in (0, 2):
        part = await produce(log_broker, kafka_batch([b"a", b"b"]), version=version)
        assert (part.error_code, part.base_offset) == (0, expected)
        assert part.log_append_time_ms == -1
        if version >= 5:
            assert part.log_start_offset == 0


async def test_topic_ids(log_broker: Broker) -> None:
    topic = await create(log_broker)
    part = await produce(log_broker, kafka_batch(), version=13, name="", topic_id=topic.topic_id)
    assert (part.error_code, part.base_offset) == (0, 0)
    for unknown in (uuid4(), UUID(int=0)):
        part = await produce(log_broker, kafka_batch(), version=13, name="", topic_id=unknown)
        assert (part.error_code, part.base_offset) == (Code.UNKNOWN_TOPIC_ID, -1)


async def test_several_partitions_each_with_its_own_answer(log_broker: Broker) -> None:
    await create(log_broker, partitions=2)
    request = produce_request({1: kafka_batch([b"x"] * 3), 2: kafka_batch(), 0: None})
    (topic,) = (await log_broker.ask(request, 9)).responses
    assert topic.name == "t"
    assert [(p.index, p.error_code, p.base_offset) for p in topic.partition_responses] == [
        (1, 0, 0),
        (2, Code.UNKNOWN_TOPIC_OR_PARTITION, -1),
        (0, Code.INVALID_RECORD, -1),
    ]
    part = await produce(log_broker, kafka_batch(), name="none")
    assert part.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION


async def test_acks(log_broker: Broker) -> None:
    await create(log_broker)
    for acks in (1, -1):
        assert (await produce(log_broker, kafka_batch(), acks=acks)).error_code == 0
    for acks in (2, -2):
        part = await produce(log_broker, kafka_batch(), acks=acks)
        assert (part.error_code, part.base_offset) == (Code.INVALID_REQUIRED_ACKS, -1)
    request = produce_request({0: kafka_batch()}, acks=0)
    assert await log_broker.handle(request, 9) is None
    assert (await produce(log_broker, kafka_batch())).base_offset == 3
    wrong = produce_request({7: kafka_batch()}, acks=0)
    assert await log_broker.handle(wrong, 9) is CLOSE_CONNECTION


async def test_wrong_acks_are_told_behind_what_is_not_there_and_before_what_a_batch_holds(
    log_broker: Broker,
) -> None:
    await create(log_broker)
    parts = {0: kafka_batch(), 1: kafka_batch()}
    (topic,) = (await log_broker.ask(produce_request(parts, acks=2), 9)).responses
    assert [part.error_code for part in topic.partition_responses] == [
        Code.INVALID_REQUIRED_ACKS,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    part = await produce(log_broker, kafka_batch(), name="none", acks=2)
    assert part.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
    cut_short = kafka_batch()[:-1]
    assert (await produce(log_broker, cut_short, acks=2)).error_code == Code.INVALID_RECORD
    corrupt = cut_short + b"\1"
    assert (await produce(log_broker, corrupt, acks=2)).error_code == Code.INVALID_REQUIRED_ACKS
    assert (await produce(log_broker, corrupt)).error_code == Code.CORRUPT_MESSAGE


async def test_a_topic_without_partitions_is_not_answered(log_broker: Broker) -> None:
    topic = await create(log_broker)
    for name in ("t", "none"):
        assert (await log_broker.ask(produce_request({}, name=name), 9)).responses == []
    by_id = produce_request({}, name="", topic_id=topic.topic_id)
    assert (await log_broker.ask(by_id, 13)).responses == []


async def test_a_partition_named_twice_gets_both_batches(log_broker: Broker) -> None:
    await create(log_broker)
    request = produce_request({0: kafka_batch([b"a"], producer=7, epoch=0, sequence=0)})
    second = produce_request({0: kafka_batch([b"b"], producer=7, epoch=0, sequence=1)})
    request.topic_data[0].partition_data += second.topic_data[0].partition_data
    for _ in range(2):  # sent again: both are duplicates
        (topic,) = (await log_broker.ask(request, 9)).responses
        assert [(p.error_code, p.base_offset) for p in topic.partition_responses] == [
            (0, 0),
            (0, 1),
        ]


async def test_broken_batches(log_broker: Broker) -> None:
    await create(log_broker)
    good = kafka_batch()
    broken = good[:-1] + bytes([good[-1] ^ 1])
    assert (await produce(log_broker, broken)).error_code == Code.CORRUPT_MESSAGE
    assert (await produce(log_broker, good[:40])).error_code != 0
    assert (await produce(log_broker, good + good)).error_code == Code.INVALID_RECORD
    assert (await produce(log_broker, good)).base_offset == 0


async def test_size_limit(log_broker: Broker) -> None:
    await create(log_broker, max_message_bytes="200")
    part = await produce(log_broker, kafka_batch([b"x" * 300]))
    assert part.error_code == Code.MESSAGE_TOO_LARGE
    assert "200" in part.error_message


async def test_records_that_are_ahead_are_named(log_broker: Broker) -> None:
    """The greatest timestamp alone shows that there is one."""
    await create(log_broker, message_timestamp_after_max_ms="1000")
    log_broker.clock = lambda: T0
    stamps = [T0, T0 + 5000, T0 + 6000]
    part = await produce(log_broker, kafka_batch([b"a", b"b", b"c"], timestamps=stamps))
    assert part.error_code == Code.INVALID_TIMESTAMP
    assert [each.batch_index for each in part.record_errors] == [1, 2]


async def test_so_many_records_that_are_ahead_are_not_all_named(log_broker: Broker) -> None:
    await create(log_broker, message_timestamp_after_max_ms="1000")
    log_broker.clock = lambda: T0
    part = await produce(log_broker, kafka_batch([b""] * 1100, timestamps=[T0 + 5000] * 1100))
    assert part.error_code == Code.INVALID_TIMESTAMP
    assert [each.batch_index for each in part.record_errors] == list(range(MOST_NAMED))


async def test_what_cannot_be_read_is_refused_by_its_header(log_broker: Broker) -> None:
    await create(log_broker, message_timestamp_after_max_ms="1000")
    log_broker.clock = lambda: T0
    broken = bytearray(kafka_batch([b"x" * 50], timestamps=[T0 + 5000]))
    broken[61:] = bytes(len(broken) - 61)
    struct.pack_into(">I", broken, 17, crc32c(bytes(broken[21:])))
    part = await produce(log_broker, bytes(broken))
    assert (part.error_code, len(part.record_errors)) == (Code.INVALID_TIMESTAMP, 0)


@pytest.mark.parametrize("announced", [-1, T0 + 10**10])
async def test_a_header_with_another_greatest_timestamp_than_its_records(
    log_broker: Broker, announced: int
) -> None:
    """Retention, and lookups by time, go by what is stored."""
    topic = await create(log_broker, message_timestamp_after_max_ms="60000")
    log_broker.clock = lambda: T0
    batch = bytearray(kafka_batch([b"a", b"b"], timestamps=[T0, T0 + 10]))
    struct.pack_into(">q", batch, 35, announced)
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    assert (await produce(log_broker, bytes(batch))).error_code == 0
    found = await log_broker.partitions.find_timestamp(topic.partition_ids[0], T0 + 10, 0)
    assert found is not None
    assert struct.unpack_from(">q", found.payload, 35) == (T0 + 10,)
    assert len(list(iterate_records(found.payload))) == 2


async def test_timestamp_out_of_range_is_refused(log_broker: Broker) -> None:
    await create(log_broker, message_timestamp_before_max_ms="1000")
    log_broker.clock = lambda: T0 + 2000
    part = await produce(
        log_broker, kafka_batch([b"a", b"b", b"c"], timestamps=[T0 + 1500, T0, T0 + 1800])
    )
    assert part.error_code == Code.INVALID_TIMESTAMP
    assert [each.batch_index for each in part.record_errors] == [1]
    log_broker.clock = lambda: T0 - 3_600_001
    part = await produce(log_broker, kafka_batch())
    assert part.error_code == Code.INVALID_TIMESTAMP


async def test_log_append_time(log_broker: Broker) -> None:
    topic = await create(log_broker, message_timestamp_type="LogAppendTime")
    log_broker.clock = lambda: T0 + 77
    one = kafka_batch([b"a", b"b"], producer=1000, epoch=0, sequence=0)
    assert (await produce(log_broker, one)).log_append_time_ms == T0 + 77
    log_broker.clock = lambda: T0 + 99
    again = await produce(log_broker, one)  # a duplicate: told as it was stored
    assert (again.base_offset, again.log_append_time_ms) == (0, T0 + 77)
    state = (await log_broker.partitions.refresh(topic.partition_ids))[topic.partition_ids[0]]
    found = await log_broker.partitions.find_timestamp(state.partition_id, T0, 0)
    assert found is not None
    assert {each.timestamp for each in iterate_records(found.payload)} == {T0 + 77}
    flagged = await produce(log_broker, with_log_append_time(kafka_batch([b"a"]), T0))
    assert flagged.error_code == Code.INVALID_TIMESTAMP


async def test_a_duplicate_is_told_with_its_greatest_timestamp(log_broker: Broker) -> None:
    await create(log_broker)
    stamps = [T0 + 5, T0 + 9, T0 + 7]
    one = kafka_batch([b"x"] * 3, timestamps=stamps, producer=1000, epoch=0, sequence=0)
    assert (await produce(log_broker, one)).log_append_time_ms == -1
    again = await produce(log_broker, one)
    assert (again.base_offset, again.log_append_time_ms) == (0, T0 + 9)


@pytest.mark.parametrize("name", sorted(INTERNAL_TOPICS))
async def test_internal_topics_are_written_by_nobody(log_broker: Broker, name: str) -> None:
    """Kafka lets whoever calls himself __admin_client (KIP-1246)."""
    topic = await create(log_broker, name)
    part = await produce(log_broker, kafka_batch(), name=name)
    assert (part.error_code, part.base_offset) == (Code.INVALID_TOPIC_EXCEPTION, -1)
    by_id = {"version": 13, "name": "", "topic_id": topic.topic_id}
    part = await produce(log_broker, kafka_batch(), **by_id)
    assert part.error_code == Code.INVALID_TOPIC_EXCEPTION
    request = produce_request({0: kafka_batch()}, name=name)
    (answered,) = (await log_broker.ask(request, 9, client_id="__admin_client")).responses
    [part] = answered.partition_responses
    assert part.error_code == Code.INVALID_TOPIC_EXCEPTION


async def test_idempotent_producers(log_broker: Broker) -> None:
    await create(log_broker)

    async def send(sequence: int, epoch: int = 0) -> tuple[int, int]:
        part = await produce(log_broker, kafka_batch(producer=1000, epoch=epoch, sequence=sequence))
        return part.error_code, part.base_offset

    assert await send(0) == (0, 0)
    assert await send(1) == (0, 1)
    assert await send(0) == (0, 0)
    assert await send(3) == (Code.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert await send(0, epoch=1) == (0, 2)
    assert await send(2) == (Code.INVALID_PRODUCER_EPOCH, -1)


async def test_a_compacted_topic_wants_keys(log_broker: Broker) -> None:
    await create(log_broker, cleanup_policy="compact")
    part = await produce(log_broker, kafka_batch([b"a", b"b", b"c"], keys=[b"k", None, b"l"]))
    assert part.error_code == Code.INVALID_RECORD
    assert [each.batch_index for each in part.record_errors] == [1]
    assert (await produce(log_broker, kafka_batch([b"a"], keys=[b"k"]))).error_code == 0


async def test_without_a_database_a_topic_not_yet_known_is_refused_for_now(
    cut_off: Broker,
) -> None:
    """It is certainly not stored; clients send it again."""
    cut_off.with_log()
    assert (await produce(cut_off, kafka_batch())).error_code == Code.NOT_ENOUGH_REPLICAS
    await cut_off.close_log()
