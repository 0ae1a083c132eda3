"""Kafka record batches, magic 2, out of columns: whole columns are encoded at once.

Knows Arrow's arrays and the bytes of a batch; must not know Spark, a topic or a socket. Sources:
DefaultRecordBatch, DefaultRecord, ByteUtils.writeVarlong.

A record is a few numbers, its key, a number, its value, its headers. The numbers of all records
become bytes in numpy; Arrow's element-wise join then lays the pieces of all records one after
another, and a batch is a stretch of the result behind a header of 61 bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from penstock.spark.compression import Compression
from penstock.spark.partitioner import Bytes, Numbers, runs

HEADER_SIZE: Final = 61
# What a record takes besides key, value and headers, at most (DefaultRecord.MAX_RECORD_OVERHEAD).
RECORD_OVERHEAD: Final = 21

_LENGTH_COUNTS_FROM: Final = 12
# base offset, length, leader epoch, magic, crc
_PREFIX: Final = struct.Struct(">qiibI")
# attributes, last offset delta, base and max timestamp, producer id and epoch, sequence, count
_CHECKED: Final = struct.Struct(">hiqqqhii")


@dataclass(frozen=True, slots=True)
class Records:
    """Records as columns of one length.

    key and value are binary and may be null. timestamps: milliseconds. headers: as `encode_headers`
    gives them; None where no record has any.
    """

    key: pa.Array | None
    value: pa.Array
    timestamps: Numbers
    headers: pa.Array | None = None

    def __len__(self) -> int:
        return len(self.timestamps)

    def take(self, order: Numbers) -> Records:
        """These rows, in this order."""
        rows = pa.array(order)
        return replace(
            self,
            key=self.key.take(rows) if self.key is not None else None,
            value=self.value.take(rows),
            timestamps=self.timestamps[order],
            headers=self.headers.take(rows) if self.headers is not None else None,
        )

    def sizes(self) -> Numbers:
        """Bytes of each record, at most."""
        total = np.maximum(lengths_of(self.value), 0) + RECORD_OVERHEAD
        if self.key is not None:
            total += np.maximum(lengths_of(self.key), 0)
        if self.headers is not None:
            total += lengths_of(self.headers)
        return total


@dataclass(frozen=True, slots=True)
class Batch:
    """A finished batch of one group. Its bytes are `header` and then `body`."""

    group: int
    count: int
    header: bytes
    body: memoryview

    @property
    def size(self) -> int:
        return len(self.header) + len(self.body)


def record_batches(
    records: Records, groups: Numbers, limit: int, compression: Compression
) -> Iterator[Batch]:
    """The records as batches, each of one group, in order within it.

    groups: of each record, a number. limit: bytes of a batch before compression; a record that is
    larger has one of its own.
    """
    if not len(records):
        return
    if np.any(groups[1:] < groups[:-1]):
        order = np.argsort(groups, kind="stable")
        records, groups = records.take(order), groups[order]
    starts = _cut(records.sizes(), groups, limit - HEADER_SIZE)
    counts = np.diff(starts, append=len(records))
    base_timestamps = records.timestamps[starts]
    offset_deltas = np.arange(len(records)) - np.repeat(starts, counts)
    timestamp_deltas = records.timestamps - np.repeat(base_timestamps, counts)
    largest = np.maximum.reduceat(records.timestamps, starts)
    encoded = _encode(records, timestamp_deltas, offset_deltas)
    places = offsets_of(encoded)[np.append(starts, len(records))]
    data = memoryview(encoded.buffers()[2])
    for number in range(len(starts)):
        body = data[places[number] : places[number + 1]]
        count = int(counts[number])
        span = int(base_timestamps[number]), int(largest[number])
        yield _finish(int(groups[starts[number]]), count, span, body, compression)


# --- columns ---


def lengths_of(column: pa.Array) -> Numbers:
    """Bytes of each element, -1 for null."""
    lengths = pc.binary_length(column)
    if lengths.null_count:
        lengths = lengths.fill_null(-1)
    return np.asarray(lengths.to_numpy(zero_copy_only=False), dtype=np.int64)


def offsets_of(column: pa.Array) -> Numbers:
    """Where the elements of a binary column begin in its data, and where the last one ends."""
    buffer = column.buffers()[1]
    return np.frombuffer(buffer, np.int32)[column.offset : column.offset + len(column) + 1].astype(
        np.int64
    )


def data_of(column: pa.Array) -> Bytes:
    """The data of a binary column."""
    buffer = column.buffers()[2]
    return np.frombuffer(buffer, np.uint8) if buffer is not None else np.zeros(0, np.uint8)


def _binary(data: Bytes, offsets: Numbers) -> pa.Array:
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def encode_headers(lists: pa.Array) -> pa.Array:
    """The headers of each record as its bytes. lists: of structs of a key and a value, or null."""
    counts = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    flat = lists.flatten()
    keys = pc.struct_field(flat, "key").cast(pa.binary())
    values = pc.struct_field(flat, "value").cast(pa.binary())
    value_lengths = lengths_of(values)
    joined = pc.binary_join_element_wise(
        _join(_varints(lengths_of(keys))),
        keys,
        _join(_varints(value_lengths)),
        values,
        pa.scalar(b"", pa.binary()),
        null_handling="replace",
        null_replacement=b"",
    )
    ends = np.append(0, np.cumsum(counts.astype(np.int64)))
    of_records = _binary(data_of(joined), offsets_of(joined)[ends])
    return pc.binary_join_element_wise(
        _join(_varints(counts.astype(np.int64))), of_records, pa.scalar(b"", pa.binary())
    )


# --- records ---


def _cut(sizes: Numbers, groups: Numbers, limit: int) -> Numbers:
    """The first record of each batch."""
    ends = np.append(np.flatnonzero(np.diff(groups)) + 1, len(groups))
    firsts = np.append(0, ends[:-1])
    return np.concatenate(
        [first + runs(sizes[first:end], limit) for first, end in zip(firsts, ends, strict=True)]
    )


def _encode(records: Records, timestamp_deltas: Numbers, offset_deltas: Numbers) -> pa.Array:
    """The records, each with its length before it."""
    value_lengths = lengths_of(records.value)
    headers = pa.scalar(b"\0", pa.binary()) if records.headers is None else records.headers
    if records.key is None:
        key_lengths = np.full(len(records), -1, np.int64)
    else:
        key_lengths = lengths_of(records.key)
    attributes = _Small(np.zeros((len(records), 1), np.uint8), np.ones(len(records), np.int64))
    inner = attributes, *map(_varints, (timestamp_deltas, offset_deltas, key_lengths))
    middle = _varints(value_lengths)
    body = np.maximum(key_lengths, 0) + np.maximum(value_lengths, 0) + middle.used
    body += sum(piece.used for piece in inner)
    body += 1 if records.headers is None else lengths_of(headers)
    start = [_varints(body), *inner]
    if records.key is None:
        pieces = [_join(*start, middle), records.value, headers]
    else:
        pieces = [_join(*start), records.key, _join(middle), records.value, headers]
    return pc.binary_join_element_wise(
        *pieces, pa.scalar(b"", pa.binary()), null_handling="replace", null_replacement=b""
    )


@dataclass(frozen=True, slots=True)
class _Small:
    """A few bytes for each record: a row each, of which so many count."""

    rows: Bytes
    used: Numbers


def _varints(values: Numbers) -> _Small:
    """Each number zigzag-encoded, in groups of seven bits, the last without the high bit."""
    left = ((values << 1) ^ (values >> 63)).view(np.uint64)
    width = max((int(left.max()).bit_length() + 6) // 7, 1) if len(left) else 1
    rows = np.empty((len(values), width), np.uint8)
    used = np.ones(len(values), np.int64)
    for place in range(width):
        rows[:, place] = left & np.uint64(0x7F)
        left = left >> np.uint64(7)
        if place < width - 1:
            more = left > 0
            rows[:, place] |= more.view(np.uint8) << 7
            used += more
    return _Small(rows, used)


def _join(*pieces: _Small) -> pa.Array:
    """The pieces of each record one after another."""
    rows = np.hstack([piece.rows for piece in pieces])
    used = sum((piece.used for piece in pieces), np.zeros(len(rows), np.int64))
    offsets = np.append(0, np.cumsum(used))
    if offsets[-1] < rows.size:
        counting = [np.arange(piece.rows.shape[1]) < piece.used[:, None] for piece in pieces]
        return _binary(rows[np.hstack(counting)], offsets)
    return _binary(rows.ravel(), offsets)


# --- one batch ---


def _finish(
    group: int, count: int, span: tuple[int, int], body: memoryview, compression: Compression
) -> Batch:
    """The batch of these records, compressed where that makes it smaller.

    span: the first and the greatest timestamp.
    """
    codec = 0
    if compression.compress is not None:
        compressed = memoryview(compression.compress(body))
        if len(compressed) < len(body):  # else it may be more than the limit, for ever
            codec, body = compression.number, compressed
    checked = _CHECKED.pack(codec, count - 1, *span, -1, -1, -1, count)
    crc = crc32c(body, crc32c(checked))
    length = HEADER_SIZE - _LENGTH_COUNTS_FROM + len(body)
    return Batch(group, count, _PREFIX.pack(0, length, -1, 2, crc) + checked, body)
