"""What the columns of a frame mean to the sink: the same as to Spark's Kafka sink.

Knows Arrow's columns and records; must not know partitions, batches or a socket.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.spark.batches import Records, encode_headers
from penstock.spark.partitioner import Numbers
from penstock.spark.schema import ColumnError


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows as records, with what says where they go.

    topics: which of `names` each record is for. partitions: -1 where a row names none.
    """

    records: Records
    names: list[str]
    topics: Numbers
    partitions: Numbers | None


def rows_of(batch: pa.RecordBatch, topic: str | None, *, include_headers: bool) -> Rows:
    """The rows of an Arrow batch. topic: for all; None: as the column says. Raises ColumnError."""

    def column(name: str) -> pa.Array | None:
        return batch.column(name) if name in batch.schema.names else None

    names, topics = _topics(batch, topic)
    key, headers, partitions = column("key"), column("headers"), column("partition")
    records = Records(
        key=_bytes(key) if key is not None and key.null_count < len(key) else None,
        value=_bytes(batch.column("value")),
        timestamps=_timestamps(column("timestamp"), batch.num_rows),
        headers=_headers(headers) if include_headers and headers is not None else None,
    )
    return Rows(records, names, topics, _partitions(partitions))


def _bytes(column: pa.Array) -> pa.Array:
    return column.cast(pa.binary())


def _topics(batch: pa.RecordBatch, topic: str | None) -> tuple[list[str], Numbers]:
    if topic is not None:
        return [topic], np.zeros(batch.num_rows, np.int64)
    column = batch.column("topic")
    if column.null_count:
        raise ColumnError("A row's topic is null, and there is no option 'topic'.")
    found = column.dictionary_encode()
    return found.dictionary.to_pylist(), np.asarray(found.indices, dtype=np.int64)


def _timestamps(column: pa.Array | None, rows: int) -> Numbers:
    """Milliseconds; now, where there is none."""
    now = time.time_ns() // 1_000_000
    if column is None:
        return np.full(rows, now, np.int64)
    micros = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).fill_null(now * 1000)
    millis = np.asarray(micros, dtype=np.int64) // 1000
    if len(millis) and millis.min() < 0:
        raise ColumnError("A row's timestamp is before 1970, which a record's cannot be.")
    return millis


def _partitions(column: pa.Array | None) -> Numbers | None:
    if column is None or column.null_count == len(column):
        return None
    if (least := pc.min(column).as_py()) < 0:
        raise ColumnError(f"A row's partition is {least}.")
    return np.asarray(column.fill_null(-1), dtype=np.int64)


def _headers(column: pa.Array) -> pa.Array:
    flat = column.flatten()
    if flat.null_count or pc.struct_field(flat, "key").null_count:
        raise ColumnError("A row has a header without a key.")
    return encode_headers(column)
