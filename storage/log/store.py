"""The log outside the flush: producer ids, reads, lookups. Implements LogStore."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from psycopg import sql

from core.log.aborted_txns import AbortedTransaction
from core.log.effects import OpenTransaction
from core.log.named_sequences import NamedSequence
from core.log.partition_log import PartitionState
from core.log.producer_state import AppendedBatch, ProducerState
from core.ports.log import EpochStart, Loaded, ReadRange, SegmentGone, StoredBatch
from core.transaction.values import StoredTransaction
from core.types import BatchFormat, Payload
from storage.connection.binary import (
    bigint_array,
    integer_array,
    rows_of,
    text_array,
    uuid_array,
)
from storage.connection.client_text import key_of, read, written
from storage.connection.kept_session import KeptSession
from storage.flush.groups import HOLD_LEASES
from storage.flush.log import NAME_COLUMNS, PARTITION_COLUMNS, FlushSession, named_sequence
from storage.flush.row_places import RowPlaces
from storage.flush.transactions import READ_TRANSACTIONS, transactions
from storage.schema import CHUNK_BYTES, chunk_table_name

if TYPE_CHECKING:
    from core.ports.leases import Lease
    from storage.connection.pool import Cursor, Database
    from storage.flush.segments import Segments

LOAD_PARTITIONS = f"""
SELECT {PARTITION_COLUMNS}
FROM penstock.topic_partition p WHERE p.partition_id = ANY (%(partition_ids)s::bigint[])
"""
# One statement, so that a producer's state belongs to the version that comes with it. One row for
# each partition, then one for each known producer.
LOAD_PARTITIONS_AND_PRODUCERS = f"""
SELECT {PARTITION_COLUMNS}, NULL::bigint, NULL::smallint, NULL::bigint, NULL::integer[],
       NULL::bigint[], NULL::integer[], NULL::bigint[], NULL::bigint, NULL::integer
FROM penstock.topic_partition p WHERE p.partition_id = ANY (%(partition_ids)s::bigint[])
UNION ALL
SELECT s.partition_id, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, s.producer_id,
       s.producer_epoch, s.last_timestamp, s.last_sequences, s.last_offsets,
       s.offset_deltas, s.timestamps, s.txn_first_offset, s.coordinator_epoch
FROM unnest(%(of_partitions)s::bigint[], %(producer_ids)s::bigint[])
     AS w (partition_id, producer_id)
JOIN penstock.producer_state s USING (partition_id, producer_id)
"""

# The same with names: the columns above are null in their rows, and are all there is of the others.
LOAD_WITH_NAMES = f"""
SELECT l.*, NULL::text, NULL::text, NULL::text, NULL::integer, NULL::bigint
FROM ({LOAD_PARTITIONS_AND_PRODUCERS}) AS l
UNION ALL
SELECT n.partition_id, {"NULL, " * 17} {NAME_COLUMNS.partition(",")[2]}
FROM unnest(%(of_named)s::bigint[], %(name_keys)s::uuid[]) AS w (partition_id, name_key)
JOIN penstock.named_producer n USING (partition_id, name_key)
"""
# Of a partition that is there: deleting locks its row first. A flush that has decided under an
# earlier claim holds that row or finds the claim changed; what it has stored is in the answer, for
# an upsert goes by the row as it is after the wait.
CLAIM_NAME = f"""
WITH there AS MATERIALIZED (
    SELECT partition_id FROM penstock.topic_partition WHERE partition_id = $1::bigint
    FOR NO KEY UPDATE
)
INSERT INTO penstock.named_producer AS n (partition_id, name_key, name, claim)
SELECT partition_id, $2::uuid, ($3::text[])[1], $4::bigint FROM there
ON CONFLICT (partition_id, name_key) DO UPDATE SET
    claim = excluded.claim, updated_at = clock_timestamp()
RETURNING {NAME_COLUMNS.partition(",")[2]}
"""

# The batches of each range up to its limit in bytes, but always the first one.
READ_INDEX = """
SELECT r.n, b.base_offset, b.last_offset, b.payload_id, b.position, b.segment_id,
       b.size, b.format, b.is_control, b.producer_id
FROM unnest(%(partition_ids)s::bigint[], %(from_offsets)s::bigint[], %(to_offsets)s::bigint[],
            %(max_bytes)s::bigint[], %(limits)s::bigint[]) WITH ORDINALITY
     AS r (partition_id, from_offset, to_offset, max_bytes, most, n),
LATERAL (
    SELECT base_offset, last_offset, payload_id, position, segment_id, size, format,
           is_control, producer_id,
           sum(size) OVER (ORDER BY last_offset) - size AS bytes_before
    FROM (SELECT * FROM penstock.record_batch
          WHERE partition_id = r.partition_id AND last_offset >= r.from_offset
            AND last_offset < r.to_offset
          ORDER BY last_offset LIMIT r.most) AS stretch
) AS b
WHERE b.bytes_before = 0 OR b.bytes_before + b.size <= r.max_bytes ORDER BY r.n, b.last_offset
"""
# Stretches of payloads, joined by the server: one row per chunk would cost both sides twice as much
# as the bytes themselves.
READ_STRETCHES = """
SELECT c.chunks, c.data
FROM unnest(%(payload_ids)s::bigint[], %(firsts)s::integer[], %(lasts)s::integer[])
     WITH ORDINALITY AS w (payload_id, first, last, n),
LATERAL (
    SELECT count(*) AS chunks, string_agg(c.data, ''::bytea ORDER BY c.seq) AS data
    FROM {} AS c WHERE c.payload_id = w.payload_id AND c.seq BETWEEN w.first AND w.last
) AS c
ORDER BY w.n
"""
BATCHES_PER_READ = 1_000
"""Most index rows read for one range; the next read takes the rest."""
FEWEST_PER_READ = 16
SIZES_REMEMBERED = 10_000

# A binary search over offsets, about twenty probes of one index row each. Batches that end before
# `low` have a running maximum below the wanted timestamp; those that end at or after `high` do not.
# The running maximum includes deleted batches, so the result is a lower bound; the last step checks
# each batch's own maximum.
FIND_TIMESTAMP = """
WITH RECURSIVE search (low, high) AS (
    SELECT greatest(p.log_start_offset, %(from_offset)s::bigint), p.next_offset
    FROM penstock.topic_partition p
    WHERE p.partition_id = %(partition_id)s AND p.max_timestamp >= %(timestamp)s
    UNION ALL
    SELECT CASE WHEN probe.running_max_timestamp < %(timestamp)s
                THEN probe.last_offset + 1 ELSE s.low END,
           CASE WHEN probe.running_max_timestamp < %(timestamp)s
                THEN s.high ELSE (s.low + s.high) / 2 END
    FROM search s LEFT JOIN LATERAL (
        SELECT b.last_offset, b.running_max_timestamp FROM penstock.record_batch b
        WHERE b.partition_id = %(partition_id)s AND b.last_offset >= (s.low + s.high) / 2
        ORDER BY b.last_offset LIMIT 1
    ) AS probe ON true
    WHERE s.low < s.high
)
SELECT 1, b.* FROM search s, LATERAL (
    SELECT base_offset, last_offset, payload_id, position, segment_id, size, format,
           is_control, producer_id
    FROM penstock.record_batch
    WHERE partition_id = %(partition_id)s AND last_offset >= s.low
      AND max_timestamp >= %(timestamp)s
    ORDER BY last_offset LIMIT 1
) AS b
WHERE s.low >= s.high
"""
GREATEST_TIMESTAMP = """
SELECT max_timestamp FROM penstock.record_batch
WHERE partition_id = %(partition_id)s AND last_offset >= %(offset)s
ORDER BY max_timestamp DESC LIMIT 1
"""

EPOCH_STARTS = """
SELECT leader_epoch, start_offset FROM penstock.leader_epoch
WHERE partition_id = %(partition_id)s ORDER BY leader_epoch
"""

# Monotone, so it needs no version: a later, smaller move changes nothing.
ADVANCE_LOG_START = """
UPDATE penstock.topic_partition p
SET log_start_offset = greatest(log_start_offset, least(%(offset)s, next_offset))
WHERE partition_id = %(partition_id)s
RETURNING p.partition_id
"""

# Once, and for good. It waits for a flush that holds the row; one that comes later finds another
# version than it has decided on.
TERMINATE = """
UPDATE penstock.topic_partition SET terminated_offset = next_offset
WHERE partition_id = %(partition_id)s AND terminated_offset = -1
"""

# Under the lease of the partition's shard: what a former holder sends comes to nothing. It never
# falls. A flush that holds the row is waited for; one that comes later finds another version.
RAISE_TOPIC_EPOCH = """
UPDATE penstock.topic_partition SET topic_epoch = greatest(topic_epoch, $2::bigint)
WHERE partition_id = $1::bigint
"""

# The aborted transactions that touch each range, by last offset, the newest last.
READ_ABORTED = """
SELECT r.n, a.producer_id, a.first_offset, a.last_offset
FROM unnest(%(partition_ids)s::bigint[], %(from_offsets)s::bigint[], %(to_offsets)s::bigint[])
     WITH ORDINALITY AS r (partition_id, from_offset, to_offset, n)
JOIN penstock.aborted_transaction a
  ON a.partition_id = r.partition_id AND a.last_offset >= r.from_offset
     AND a.first_offset < r.to_offset
ORDER BY r.n, a.last_offset
"""

COUNT_ABORTED = """
SELECT count(*) FROM penstock.aborted_transaction
WHERE partition_id = %(partition_id)s
  AND (%(producer_id)s::bigint IS NULL OR producer_id = %(producer_id)s::bigint)
"""

ALLOCATE_PRODUCER_IDS = """
UPDATE penstock.cluster SET next_producer_id = next_producer_id + %(count)s
RETURNING next_producer_id - %(count)s
"""

CLAIMS = {
    b"hold_leases": HOLD_LEASES,
    b"claim_name": CLAIM_NAME,
    b"raise_topic_epoch": RAISE_TOPIC_EPOCH,
}

_BIGINT = struct.Struct(">q")


class _IndexRow(NamedTuple):
    """A row of READ_INDEX. n: the number of its range, from 1."""

    n: int
    base_offset: int
    last_offset: int
    payload_id: int
    position: int
    segment_id: int
    size: int
    format: int
    is_control: bool
    producer_id: int

    @property
    def first_seq(self) -> int:
        """The chunk the batch begins in."""
        return self.position // CHUNK_BYTES

    @property
    def last_seq(self) -> int:
        """The chunk the batch ends in."""
        return (self.position + self.size - 1) // CHUNK_BYTES


@dataclass(slots=True)
class _Stretch:
    """Chunks of one payload, from `first` to `last`, and the batches in them."""

    payload_id: int
    first: int
    last: int
    rows: list[_IndexRow]

    def cut(self, chunks: int, data: bytes | None) -> Iterator[tuple[_IndexRow, Payload]]:
        """Each batch's bytes, cut from the chunks that the server found. Raises SegmentGone."""
        if data is None or chunks != self.last - self.first + 1:
            raise SegmentGone(f"payload {self.payload_id} is not there")
        whole = memoryview(data)
        for row in self.rows:
            start = row.position - self.first * CHUNK_BYTES
            payload = whole[start : start + row.size]
            if len(payload) != row.size:
                raise SegmentGone(f"payload {self.payload_id} is shorter than its batches")
            yield row, payload


def _stretches(rows: Sequence[_IndexRow]) -> list[_Stretch]:
    """The stretches for these rows, each chunk once: neighbouring batches may share a chunk."""
    found: list[_Stretch] = []
    for row in sorted(rows, key=lambda row: (row.payload_id, row.position)):
        last = found[-1] if found else None
        if last and last.payload_id == row.payload_id and row.first_seq <= last.last + 1:
            last.last = max(last.last, row.last_seq)
            last.rows.append(row)
        else:
            found.append(_Stretch(row.payload_id, row.first_seq, row.last_seq, [row]))
    return found


async def _with_payload(cursor: Cursor, index: Sequence[_IndexRow]) -> list[StoredBatch]:
    """The batches of these rows: a round trip for each segment. Raises SegmentGone."""
    by_segment: dict[int, list[_IndexRow]] = {}
    for row in index:
        by_segment.setdefault(row.segment_id, []).append(row)
    payloads: dict[_IndexRow, Payload] = {}
    for segment_id, rows in by_segment.items():
        stretches = _stretches(rows)
        await cursor.execute(
            sql.SQL(READ_STRETCHES).format(sql.SQL(chunk_table_name(segment_id))),
            {
                "payload_ids": [each.payload_id for each in stretches],
                "firsts": [each.first for each in stretches],
                "lasts": [each.last for each in stretches],
            },
        )
        for stretch, (chunks, data) in zip(stretches, await cursor.fetchall(), strict=True):
            payloads.update(stretch.cut(chunks, data))
    return [
        StoredBatch(
            row.base_offset,
            row.last_offset,
            payloads[row],
            BatchFormat(row.format),
            row.is_control,
            row.producer_id,
        )
        for row in index
    ]


class PostgresLogStore:
    """`core.ports.log.LogStore` on PostgreSQL."""

    def __init__(self, database: Database, segments: Segments) -> None:
        self._database = database
        self._segments = segments
        self._places = RowPlaces()
        self._batch_sizes: dict[int, int] = {}  # mean size of batches in a partition's last read
        self._claims = KeptSession(database, CLAIMS)
        self._transactions = KeptSession(database, {b"read_transactions": READ_TRANSACTIONS})

    def open_flush(self) -> FlushSession:
        """See LogStore."""
        return FlushSession(self._database, self._segments, self._places)

    async def allocate_producer_ids(self, count: int) -> range:
        """See LogStore."""
        async with self._database.reader("allocate_producer_ids") as cursor:
            await cursor.execute(ALLOCATE_PRODUCER_IDS, {"count": count})
            row = await cursor.fetchone()
            assert row is not None, "the cluster row exists since the first migration"
            return range(row[0], row[0] + count)

    async def load(
        self,
        partition_ids: Sequence[int],
        producers: Sequence[tuple[int, int]] = (),
        names: Sequence[tuple[int, str]] = (),
    ) -> Loaded:
        """See LogStore."""
        states: dict[int, PartitionState] = {}
        known: dict[tuple[int, int], ProducerState] = {}
        named: dict[tuple[int, str], NamedSequence] = {}
        parameters: dict[str, list[Any]] = {"partition_ids": list(partition_ids)}
        async with self._database.reader("load_partitions") as cursor:
            if not (producers or names):
                await cursor.execute(LOAD_PARTITIONS, parameters)
                states = {row[0]: partition_state(row) for row in await cursor.fetchall()}
                return Loaded(states, known, named)
            parameters["of_partitions"] = [partition_id for partition_id, _ in producers]
            parameters["producer_ids"] = [producer_id for _, producer_id in producers]
            if names:
                parameters["of_named"] = [partition_id for partition_id, _ in names]
                parameters["name_keys"] = [UUID(bytes=key_of(name)) for _, name in names]
            await cursor.execute(
                LOAD_WITH_NAMES if names else LOAD_PARTITIONS_AND_PRODUCERS, parameters
            )
            for row in await cursor.fetchall():
                producer_id, epoch, timestamp, *columns, first_offset, coordinator_epoch = row[9:18]
                if names and row[18] is not None:
                    each = _named(row[18:])
                    named[row[0], each.name] = each
                elif producer_id is None:
                    states[row[0]] = partition_state(row)
                else:
                    batches = tuple(map(AppendedBatch, *columns))
                    known[row[0], producer_id] = ProducerState(
                        producer_id, epoch, timestamp, batches, first_offset, coordinator_epoch
                    )
        return Loaded(states, known, named)

    async def claim_name(self, partition_id: int, name: str, claim: int) -> NamedSequence | None:
        """See LogStore: durable when it returns, and so is all that it tells."""
        parameters = (
            _BIGINT.pack(partition_id),
            key_of(name),
            text_array([written(name)]),
            _BIGINT.pack(claim),
        )
        (result, *_) = await self._claims.run_or_fail("claim_name", [(b"claim_name", parameters)])
        found = rows_of(result)
        return named_sequence(found[0]) if found else None

    async def raise_topic_epoch(self, lease: Lease, partition_id: int, topic_epoch: int) -> None:
        """See LogStore. One round trip, durable when it returns."""
        await self._claims.run_or_fail(
            "raise_topic_epoch",
            [
                (b"hold_leases", (integer_array([lease.shard]), bigint_array([lease.generation]))),
                (b"raise_topic_epoch", (_BIGINT.pack(partition_id), _BIGINT.pack(topic_epoch))),
            ],
        )

    async def load_transactions(self, producer_ids: Sequence[int]) -> dict[int, StoredTransaction]:
        """See LogStore."""
        statement = (b"read_transactions", (uuid_array(()), bigint_array(producer_ids)))
        (result, *_) = await self._transactions.run("load_transactions", [statement])
        return {each.metadata.producer_id: each for _, each in transactions(result)}

    async def aborted(
        self, ranges: Sequence[tuple[int, int, int]]
    ) -> list[Sequence[AbortedTransaction]]:
        """See LogStore: one round trip."""
        found: list[list[AbortedTransaction]] = [[] for _ in ranges]
        async with self._database.reader("read_aborted") as cursor:
            await cursor.execute(
                READ_ABORTED,
                {
                    "partition_ids": [partition_id for partition_id, _, _ in ranges],
                    "from_offsets": [from_offset for _, from_offset, _ in ranges],
                    "to_offsets": [to_offset for _, _, to_offset in ranges],
                },
            )
            for n, *columns in await cursor.fetchall():
                found[n - 1].append(AbortedTransaction(*columns))
        return list(found)

    async def count_aborted(self, partition_id: int, producer_id: int | None = None) -> int:
        """See LogStore."""
        async with self._database.reader("count_aborted") as cursor:
            await cursor.execute(
                COUNT_ABORTED, {"partition_id": partition_id, "producer_id": producer_id}
            )
            (row,) = await cursor.fetchall()
        count: int = row[0]
        return count

    async def read(self, ranges: Sequence[ReadRange], max_bytes: int) -> list[list[StoredBatch]]:
        """See LogStore: two round trips, and one more for each further segment touched."""
        async with self._database.reader("read_batches") as cursor:
            await cursor.execute(
                READ_INDEX,
                {
                    "partition_ids": [r.partition_id for r in ranges],
                    "from_offsets": [r.from_offset for r in ranges],
                    "to_offsets": [r.to_offset for r in ranges],
                    "max_bytes": [r.max_bytes for r in ranges],
                    "limits": [self._batches_of(r) for r in ranges],
                },
            )
            index = [_IndexRow(*row) for row in await cursor.fetchall()]
            self._note_sizes(ranges, index)
            sizes = accumulate(row.size for row in index)
            index = [
                row
                for n, (row, size) in enumerate(zip(index, sizes, strict=True))
                if size <= max_bytes or n == 0
            ]
            stored = await _with_payload(cursor, index)
        found: list[list[StoredBatch]] = [[] for _ in ranges]
        for row, batch in zip(index, stored, strict=True):
            found[row.n - 1].append(batch)
        return found

    def _batches_of(self, wanted: ReadRange) -> int:
        """How many index rows will probably fill the range's limit, judging by the partition's last
        read. To read a thousand rows and use sixty costs a fifth of the server's time.
        """
        size = self._batch_sizes.get(wanted.partition_id)
        if size is None:
            return BATCHES_PER_READ
        likely = FEWEST_PER_READ + 3 * wanted.max_bytes // (2 * size)
        return min(likely, BATCHES_PER_READ)

    def _note_sizes(self, ranges: Sequence[ReadRange], index: Sequence[_IndexRow]) -> None:
        bytes_of: dict[int, int] = {}
        count_of: dict[int, int] = {}
        for row in index:
            bytes_of[row.n] = bytes_of.get(row.n, 0) + row.size
            count_of[row.n] = count_of.get(row.n, 0) + 1
        if len(self._batch_sizes) > SIZES_REMEMBERED:
            self._batch_sizes.clear()
        for n, count in count_of.items():
            self._batch_sizes[ranges[n - 1].partition_id] = max(1, bytes_of[n] // count)

    async def find_timestamp(
        self, partition_id: int, timestamp: int, from_offset: int
    ) -> StoredBatch | None:
        """See LogStore: two round trips."""
        wanted = {
            "partition_id": partition_id,
            "timestamp": timestamp,
            "from_offset": from_offset,
        }
        try:
            async with self._database.reader("find_timestamp") as cursor:
                await cursor.execute(FIND_TIMESTAMP, wanted)
                row = await cursor.fetchone()
                if row is None:
                    return None
                (found,) = await _with_payload(cursor, [_IndexRow(*row)])
                return found
        except SegmentGone:  # retention has deleted it meanwhile
            return None

    async def find_max_timestamp(self, partition_id: int) -> StoredBatch | None:
        """See LogStore: a search by the maximum; a scan only if that batch is deleted."""
        state = (await self.load([partition_id]))[0].get(partition_id)
        if state is None or state.next_offset == state.log_start_offset:
            return None
        start = state.log_start_offset
        if found := await self.find_timestamp(partition_id, state.max_timestamp, start):
            return found
        async with self._database.reader("find_max_timestamp") as cursor:
            await cursor.execute(
                GREATEST_TIMESTAMP,
                {"partition_id": partition_id, "offset": start},
            )
            row = await cursor.fetchone()
        return await self.find_timestamp(partition_id, row[0], start) if row else None

    async def epoch_starts(self, partition_id: int) -> list[EpochStart]:
        """See LogStore."""
        async with self._database.reader("epoch_starts") as cursor:
            await cursor.execute(EPOCH_STARTS, {"partition_id": partition_id})
            return [EpochStart(*row) for row in await cursor.fetchall()]

    async def advance_log_start(self, partition_id: int, offset: int) -> PartitionState | None:
        """See LogStore."""
        async with self._database.reader("advance_log_start") as cursor:
            await cursor.execute(
                ADVANCE_LOG_START, {"partition_id": partition_id, "offset": offset}
            )
        return (await self.load([partition_id]))[0].get(partition_id)

    async def terminate(self, partition_id: int) -> PartitionState | None:
        """See LogStore."""
        async with self._database.reader("terminate") as cursor:
            await cursor.execute(TERMINATE, {"partition_id": partition_id})
        return (await self.load([partition_id]))[0].get(partition_id)


def _named(row: Sequence[Any]) -> NamedSequence:
    """A row of NAME_COLUMNS without the partition."""
    name, highest, chunked, chunk_id, claim = row
    return NamedSequence(read(name), int(highest), int(chunked), chunk_id, claim)


def partition_state(row: Sequence[Any]) -> PartitionState:
    """A row that begins with PARTITION_COLUMNS."""
    opened = tuple(map(OpenTransaction, row[7], row[8]))
    return PartitionState(row[0], row[1], row[2], row[3], row[4], opened, row[5], row[6])
