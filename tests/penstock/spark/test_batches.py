"""Batches as columns make them: read back by kafka-python, byte for byte what it would write."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record import MemoryRecords, MemoryRecordsBuilder

from gateway.kafka.records import KafkaBatch, parse_produce_batch
from penstock.spark.batches import (
    HEADER_SIZE,
    RECORD_OVERHEAD,
    Batch,
    Records,
    encode_headers,
    record_batches,
)
from penstock.spark.compression import UnknownCompression, compression_of

NONE = compression_of("none")
T0 = 1_700_000_000_000
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

Headers = list[tuple[str, bytes | None]]


@dataclass(frozen=True)
class Row:
    key: bytes | None
    value: bytes | None
    timestamp: int = T0
    headers: tuple[tuple[str, bytes | None], ...] = ()
    group: int = 0


def records_of(rows: list[Row]) -> Records:
    headers = pa.array([[{"key": k, "value": v} for k, v in row.headers] for row in rows], HEADERS)
    return Records(
        key=pa.array([row.key for row in rows], pa.binary()),
        value=pa.array([row.value for row in rows], pa.binary()),
        timestamps=np.array([row.timestamp for row in rows], np.int64),
        headers=encode_headers(headers),
    )


def encoded(rows: list[Row], limit: int = 1 << 20, compression: str = "none") -> list[Batch]:
    groups = np.array([row.group for row in rows], np.int64)
    return list(record_batches(records_of(rows), groups, limit, compression_of(compression)))


def bytes_of(batch: Batch) -> bytes:
    return batch.header + bytes(batch.body)


def decoded(batch: Batch) -> list[Row]:
    found = MemoryRecords(bytes_of(batch)).next_batch()
    assert found.validate_crc()
    return [
        Row(record.key, record.value, record.timestamp, tuple(record.headers), batch.group)
        for record in found
    ]


rows = st.builds(
    Row,
    key=st.none() | st.binary(max_size=200),
    value=st.none() | st.binary(max_size=300),
    timestamp=st.integers(0, 2**45),
    headers=st.lists(
        st.tuples(st.text(max_size=80), st.none() | st.binary(max_size=80)), max_size=3
    ).map(tuple),
    group=st.integers(0, 3),
)


@given(st.lists(rows, max_size=40), st.integers(100, 2000))
def test_every_record_is_in_its_groups_batches_in_order(rows: list[Row], limit: int) -> None:
    batches = encoded(rows, limit)

    for group in range(4):
        found = [row for each in batches if each.group == group for row in decoded(each)]
        assert found == [row for row in rows if row.group == group]
    for batch in batches:
        assert isinstance(parse_produce_batch(memoryview(bytes_of(batch)), 9), KafkaBatch)
        assert batch.size <= limit or batch.count == 1


@given(st.lists(rows, min_size=1, max_size=40))
def test_bytes_are_those_of_kafka_python(rows: list[Row]) -> None:
    rows = [Row(row.key, row.value, row.timestamp, row.headers) for row in rows]
    builder = MemoryRecordsBuilder(2, 0, 1 << 30)
    for row in rows:
        builder.append(row.timestamp, row.key, row.value, list(row.headers))
    builder.close()

    (batch,) = encoded(rows)

    # kafka-python does not know the leader's epoch, either, and writes 0.
    expected = bytearray(builder.buffer())
    expected[12:16] = b"\xff" * 4
    assert bytes_of(batch) == bytes(expected)


@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd"])
def test_what_cannot_be_compressed_stays_within_the_limit(compression: str) -> None:
    """Ten records that fill a batch: compressed, they would be larger than the topic takes."""
    limit = 1 << 20
    size = (limit - HEADER_SIZE) // 10 - RECORD_OVERHEAD - 1  # no headers
    rows = [Row(None, np.random.default_rng(n).bytes(size)) for n in range(10)]
    (batch,) = encoded(rows, limit, compression)
    assert batch.size <= limit
    assert decoded(batch) == rows


def test_offset_deltas_begin_anew_in_each_batch() -> None:
    many = [Row(None, bytes([each % 256]) * 100, T0 + each) for each in range(1000)]

    batches = encoded(many, limit=16_384)

    assert len(batches) == -(-1000 // ((16_384 - 61) // (100 + RECORD_OVERHEAD)))
    offset = 0
    for batch in batches:
        found = list(MemoryRecords(bytes_of(batch)).next_batch())
        assert [record.offset for record in found] == list(range(batch.count))
        assert [record.timestamp for record in found] == [
            T0 + each for each in range(offset, offset + batch.count)
        ]
        offset += batch.count
    assert offset == 1000


def test_a_slice_of_a_column_is_only_that() -> None:
    values = pa.array([b"no", b"one", b"two", b"no"], pa.binary()).slice(1, 2)
    keys = pa.array([None, b"k", None, None], pa.binary()).slice(1, 2)
    lists = [[("no", b"no")], [("a", b"1")], None, [("no", None)]]
    headers = pa.array(
        [None if each is None else [{"key": k, "value": v} for k, v in each] for each in lists],
        HEADERS,
    ).slice(1, 2)
    records = Records(keys, values, np.full(2, T0), encode_headers(headers))

    (batch,) = record_batches(records, np.zeros(2, np.int64), 1 << 20, NONE)

    assert decoded(batch) == [Row(b"k", b"one", T0, (("a", b"1"),)), Row(None, b"two", T0)]


def test_without_keys_and_headers() -> None:
    records = Records(None, pa.array([b"a", None, b""], pa.binary()), np.full(3, T0))

    (batch,) = record_batches(records, np.zeros(3, np.int64), 1 << 20, NONE)

    assert decoded(batch) == [Row(None, b"a"), Row(None, None), Row(None, b"")]


def test_no_rows_are_no_batches() -> None:
    assert encoded([]) == []


@pytest.mark.parametrize("name", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed(name: str) -> None:
    # More than one block of each format.
    many = [Row(b"key", b"%d" % each * 50, T0 + each) for each in range(5000)]

    (batch,) = encoded(many, limit=1 << 30, compression=name)

    assert decoded(batch) == many
    assert batch.size < 5000 * 50


def test_lz4_blocks_are_independent() -> None:
    """The Java client refuses others: bit 5 of the frame's flags says it."""
    (batch,) = encoded([Row(None, bytes(300_000))], compression="lz4")

    assert bytes(batch.body[:4]) == b"\x04\x22\x4d\x18"
    assert batch.body[4] & 0x20


def test_an_unknown_compression_is_refused() -> None:
    with pytest.raises(UnknownCompression, match="not 'brotli'"):
        compression_of("brotli")
