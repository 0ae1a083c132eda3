"""Kafka batches from and to neutral records, against kafka-python's own reading and writing."""

import struct
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from kafka.record import MemoryRecords, MemoryRecordsBuilder

from core.log.records import Compression, Extras, Record, RecordSet
from core.transaction.values import ProducerIdAndEpoch
from core.types import TimestampType
from gateway.kafka import records as batches
from gateway.kafka.compression import InvalidRecords
from gateway.kafka.conversion import read_batch, write_batch
from gateway.kafka.records import KafkaBatch

T0 = 1_700_000_000_000
KINDS = list(Compression)
kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
RECORDS = (
    Record(b"a", b"1", (("h", b"x"), ("h", None)), event_time=T0, key_is_text=True),
    Record(None, None, event_time=T0 + 500),
    Record(b"\xff", b"", (("", b""),), event_time=T0 - 200),
    Record(b"", b"x" * 100_000, event_time=-1, key_is_text=True),
)


def a_set(records: tuple[Record | None, ...] = RECORDS, **fields: Any) -> RecordSet:
    return RecordSet(records, T0 + 500, **fields)


@kinds
def test_records_come_back(kind: Compression) -> None:
    written = a_set(compression=kind)
    assert read_batch(write_batch(written)) == written


@kinds
def test_kafka_python_reads_the_same(kind: Compression) -> None:
    memory = MemoryRecords(write_batch(a_set(compression=kind), base_offset=70))
    batch = memory.next_batch()
    assert batch.validate_crc()
    found = list(batch)
    assert [record.offset for record in found] == [70, 71, 72, 73]
    for record, expected in zip(found, RECORDS, strict=True):
        assert (record.key, record.value) == (expected.key, expected.value)
        assert record.timestamp == expected.event_time
        assert tuple(record.headers) == expected.headers
    assert not memory.has_next()


@kinds
def test_the_server_itself_would_take_it(kind: Compression) -> None:
    batch = batches.parse_produce_batch(memoryview(write_batch(a_set(compression=kind))), 12)
    assert isinstance(batch, KafkaBatch)
    assert batch.batch.record_count == 4
    assert batch.batch.max_timestamp == T0 + 500
    assert [each.value_size for each in batches.iterate_records(batch.payload)] == [
        *(1, -1, 0, 100_000)
    ]


def test_a_producers_batch_comes_back_byte_for_byte_but_for_its_producer() -> None:
    def built(producer_id: int, epoch: int, sequence: int) -> bytes:
        builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=1 << 20)
        builder.set_producer_state(producer_id, epoch, sequence, False)
        for at in range(3):
            headers = [("h", b"x")] * at
            builder.append(timestamp=T0 + at, key=b"k" * at, value=None, headers=headers)
        builder.close()
        return bytes(builder.buffer())

    records = read_batch(built(7, 2, 30))
    assert (records.producer, records.sequence) == ("kafka-7-2", 30)
    nobodys = bytearray(built(-1, -1, -1))
    struct.pack_into(">i", nobodys, 12, -1)  # kafka-python writes a leader epoch of 0
    assert write_batch(records) == nobodys


def test_a_batch_of_a_transaction() -> None:
    payload = write_batch(a_set(), producer=ProducerIdAndEpoch(9, 1), is_transactional=True)
    batch = batches.parse_produce_batch(memoryview(payload), 12)
    refusal = batch  # a sequence of -1 is for readers only
    assert not isinstance(refusal, KafkaBatch) and "sequence -1" in str(refusal.message)
    attributes, producer_id, epoch = struct.unpack_from(">h20xqh", payload, 21)
    assert (attributes, producer_id, epoch) == (0x10, 9, 1)


def test_a_batch_stamped_by_the_log() -> None:
    records = (Record(None, b"1"), Record(None, b"2"))
    written = a_set(records, timestamp_type=TimestampType.LOG_APPEND_TIME)
    payload = write_batch(written)
    assert read_batch(payload) == written
    assert [each.timestamp for each in batches.iterate_records(payload)] == [T0 + 500] * 2
    stamped = batches.with_log_append_time(write_batch(a_set()), T0 + 900)
    found = read_batch(stamped)
    assert found.timestamp == T0 + 900
    assert {record.event_time for record in found.records if record} == {None}


def test_what_has_no_event_time_has_the_time_of_its_set() -> None:
    records = read_batch(write_batch(a_set((Record(None, b"1"),)))).records
    assert records == (Record(None, b"1", event_time=T0 + 500),)


def test_offsets_without_records() -> None:
    records = (None, RECORDS[0], None, None, RECORDS[1], None)
    payload = write_batch(a_set(records))
    assert read_batch(payload).records == records
    memory = MemoryRecords(payload)
    assert [record.offset for record in memory.next_batch()] == [1, 4]


@kinds
def test_a_batch_without_any_record(kind: Compression) -> None:
    payload = write_batch(a_set((None, None, None), compression=kind))
    assert read_batch(payload) == a_set((None, None, None))
    assert len(payload) == batches.HEADER_SIZE


def test_fields_that_kafka_lacks_are_headers() -> None:
    record = Record(
        b"k",
        b"v",
        (("mine", b"1"),),
        event_time=T0 + 500,
        ordering_key=b"o",
        extras=Extras(schema_version=b"\0\x01"),
    )
    payload = write_batch(a_set((record,)))
    (found,) = MemoryRecords(payload).next_batch()
    assert tuple(found.headers) == (
        ("mine", b"1"),
        ("penstock.schema_version", b"\0\x01"),
        ("penstock.ordering_key", b"o"),
        ("penstock.bytes_key", b""),
    )
    assert read_batch(payload) == a_set((record,))


def test_header_names_that_are_not_text() -> None:
    written = a_set((Record(None, b"", (("\udcff\udc80", b"1"),), event_time=T0 + 500),))
    assert read_batch(write_batch(written)) == written


def sealed(payload: bytearray) -> bytes:
    struct.pack_into(">i", payload, 8, len(payload) - 12)
    struct.pack_into(">I", payload, 17, crc32c(bytes(payload[21:])))
    return bytes(payload)


@pytest.mark.parametrize(
    ("last_offset_delta", "count"), [(3, 5), (2, 4), (3, 3), (-1, 0), (2**31 - 1, 4), (3, -1)]
)
def test_headers_that_lie(last_offset_delta: int, count: int) -> None:
    payload = bytearray(write_batch(a_set()))
    struct.pack_into(">i", payload, 23, last_offset_delta)
    struct.pack_into(">i", payload, 57, count)
    with pytest.raises(InvalidRecords):
        read_batch(sealed(payload))


@given(st.binary(max_size=60), st.integers(0, 7), st.integers(0, 5))
def test_any_body_is_records_or_invalid(body: bytes, codec: int, count: int) -> None:
    payload = bytearray(write_batch(a_set()))[: batches.HEADER_SIZE] + body
    payload[22] = codec
    struct.pack_into(">i", payload, 57, count)
    struct.pack_into(">i", payload, 23, 4)
    try:
        read_batch(sealed(payload))
    except InvalidRecords as invalid:
        assert str(invalid)


@given(st.binary(min_size=1, max_size=300), st.data())
def test_any_changed_record_is_read_or_invalid(noise: bytes, data: st.DataObject) -> None:
    payload = bytearray(write_batch(a_set(RECORDS[:3])))
    at = data.draw(st.integers(batches.HEADER_SIZE, len(payload) - 1))
    payload[at : at + len(noise)] = noise
    try:
        read_batch(sealed(payload))
    except InvalidRecords as invalid:
        assert str(invalid)
