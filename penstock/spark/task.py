"""A task's work: rows into batches of partitions, and the batches into the broker.

Knows columns, partitions and staging; must not know Spark. Rows are gathered until they are worth
an encoding, so that a batch is not cut where Spark's Arrow batches are.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from penstock.spark.batches import data_of, lengths_of, offsets_of, record_batches
from penstock.spark.columns import Rows, rows_of
from penstock.spark.compression import compression_of
from penstock.spark.options import SinkOptions
from penstock.spark.partitioner import Numbers, StickyPartitioner, partitions_of_keys
from penstock.spark.schema import TYPES, ColumnError
from penstock.spark.staging import Cluster, Staged, Stager, drop

GATHERED_BYTES: Final = 8 * 1024 * 1024
# Arrow's joined columns have offsets of 32 bits.
_MOST_BYTES: Final = 512 * 1024 * 1024

_PARTITION_BITS: Final = 32


def stage(batches: Iterable[pa.RecordBatch], options: SinkOptions, cluster: Cluster) -> Staged:
    """Stages the rows of a task. Raises SinkError, ColumnError."""
    stager = Stager(cluster)
    encoder = Encoder(options, cluster, stager)
    try:
        for batch in gathered(batches):
            encoder.write(rows_of(batch, options.topic, include_headers=options.include_headers))
        count = stager.finish()
    except Exception:
        stager.close()
        drop(cluster, [stager.token])
        raise
    return Staged(stager.token if count else None, count, encoder.rows)


def gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows in larger pieces, of the columns that matter; none too large to be encoded."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in _cut(batches):
        waiting.append(batch)
        size += batch.nbytes
        if size >= GATHERED_BYTES:
            yield _one(waiting)
            waiting, size = [], 0
    if waiting:
        yield _one(waiting)


def _cut(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        needed = batch.select([name for name in batch.schema.names if name in TYPES])
        if needed.nbytes > _MOST_BYTES and needed.num_rows > 1:
            yield from _cut((needed.slice(0, needed.num_rows // 2),))
            yield from _cut((needed.slice(needed.num_rows // 2),))
        elif needed.num_rows:
            yield needed


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


class Encoder:
    """Gives every row its partition, and batches to the stager."""

    def __init__(self, options: SinkOptions, cluster: Cluster, stager: Stager) -> None:
        self.rows = 0
        self._cluster = cluster
        self._stager = stager
        self._batch_size = options.batch_size
        self._compression = compression_of(options.compression)
        # Each task begins elsewhere, so that small ones spread, too.
        self._sticky = StickyPartitioner(options.batch_size, random.randrange(1 << 30))

    def write(self, rows: Rows) -> None:
        topics = [self._cluster.topic(name) for name in rows.names]
        counts = np.array([topic.partitions for topic in topics], np.int64)[rows.topics]
        partitions = self._partitions(rows, counts)
        groups = (rows.topics << _PARTITION_BITS) | partitions
        limit = min(self._batch_size, *(topic.max_batch_bytes for topic in topics))
        for batch in record_batches(rows.records, groups, limit, self._compression):
            topic, index = batch.group >> _PARTITION_BITS, batch.group & (1 << _PARTITION_BITS) - 1
            self._stager.add(rows.names[topic], index, batch)
        self.rows += len(rows.records)

    def _partitions(self, rows: Rows, counts: Numbers) -> Numbers:
        """The column's partition, else the key's, else one after another."""
        chosen = np.full(len(counts), -1, np.int64) if rows.partitions is None else rows.partitions
        if np.any(wrong := chosen >= counts):
            row = int(np.argmax(wrong))
            raise ColumnError(
                f"A row's partition is {chosen[row]}, but topic '{rows.names[rows.topics[row]]}' "
                f"has {counts[row]}, from 0 on."
            )
        key = rows.records.key
        is_open = chosen < 0
        if key is not None and is_open.any():
            lengths = lengths_of(key)
            keyed = is_open & (lengths >= 0)
            starts = offsets_of(key)[:-1][keyed]
            hashed = partitions_of_keys(data_of(key), starts, lengths[keyed], counts[keyed])
            chosen = chosen.copy()
            chosen[keyed] = hashed
            is_open &= ~keyed
        if is_open.any():
            chosen = chosen.copy()
            sizes = rows.records.sizes()[is_open]
            chosen[is_open] = self._sticky.partitions(sizes, counts[is_open])
        return chosen
