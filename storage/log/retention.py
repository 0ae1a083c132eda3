"""What retention does to the tables: deletes index rows in batches, seals and drops segments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from psycopg.errors import LockNotAvailable, QueryCanceled, UndefinedTable

from core.ports.retention import PartitionUsage
from storage.connection.client_text import key_of
from storage.flush.segments import OpenSegment, Segments, should_seal
from storage.flush.staging import DROP_TOKENS, FORGET_GUARDS, LOCK_EXPIRED
from storage.schema import chunk_table_name, create_chunk_table_sql

if TYPE_CHECKING:
    from storage.connection.pool import Database

USAGE = """
SELECT p.partition_id, t.name, p.log_start_offset, p.next_offset, p.size_bytes
FROM penstock.topic_partition p JOIN penstock.topic t USING (topic_id)
ORDER BY p.partition_id
"""

# The first batch that is not older than the timestamp, where the log should start: checks batches
# in order of offset, as Kafka checks its segments. For records without a timestamp Kafka takes the
# file's time; here a batch without one is kept, and so are all after it.
FIRST_YOUNG_BATCH = """
SELECT base_offset FROM penstock.record_batch
WHERE partition_id = %(partition_id)s AND last_offset >= %(start)s
  AND (running_max_timestamp >= %(timestamp)s OR max_timestamp < 0)
ORDER BY last_offset LIMIT 1
"""
# The first batch to keep: all before it can be deleted without leaving less than the limit. Counts
# the rows themselves: the partition's total may include rows still to be deleted.
FIRST_WITHIN_SIZE = """
SELECT base_offset FROM (
    SELECT base_offset, last_offset, sum(size) OVER (ORDER BY last_offset) AS bytes_up_to,
           sum(size) OVER () AS bytes
    FROM penstock.record_batch WHERE partition_id = %(partition_id)s AND last_offset >= %(start)s
) AS b
WHERE bytes_up_to > bytes - %(retention_bytes)s ORDER BY last_offset LIMIT 1
"""
ACKNOWLEDGED_UP_TO = """
SELECT min(mark_delete) FROM penstock.subscription WHERE partition_id = %(partition_id)s
"""

# Deletes index rows wholly before the log start, a limited number at once, and updates the
# partition's totals. Also deletes aborted transactions with their marker among these rows: a reader
# from the log start on needs none of them.
DELETE_ROWS = """
WITH doomed AS MATERIALIZED (
    SELECT b.ctid, b.size, b.last_offset FROM penstock.record_batch b
    JOIN penstock.topic_partition p USING (partition_id)
    WHERE b.partition_id = %(partition_id)s AND b.last_offset < p.log_start_offset
    ORDER BY b.last_offset LIMIT %(limit)s
), deleted AS (
    DELETE FROM penstock.record_batch b USING doomed d WHERE b.ctid = d.ctid RETURNING b.size
), aborted AS (
    DELETE FROM penstock.aborted_transaction
    WHERE partition_id = %(partition_id)s AND last_offset <= (SELECT max(last_offset) FROM doomed)
), total AS (
    SELECT count(*) AS batches, coalesce(sum(size), 0) AS bytes FROM deleted
)
UPDATE penstock.topic_partition p SET size_bytes = p.size_bytes - total.bytes,
    batch_count = p.batch_count - total.batches
FROM total WHERE p.partition_id = %(partition_id)s AND total.batches > 0
RETURNING total.batches
"""
DELETE_ROWS_OF_DELETED = """
WITH doomed AS MATERIALIZED (
    SELECT ctid FROM penstock.record_batch WHERE partition_id = %(partition_id)s LIMIT %(limit)s
)
DELETE FROM penstock.record_batch b USING doomed d WHERE b.ctid = d.ctid
"""
FORGET_DELETED = """
WITH producers AS (DELETE FROM penstock.producer_state WHERE partition_id = %(partition_id)s),
     names AS (DELETE FROM penstock.named_producer WHERE partition_id = %(partition_id)s),
     epochs AS (DELETE FROM penstock.leader_epoch WHERE partition_id = %(partition_id)s),
     aborted AS (DELETE FROM penstock.aborted_transaction WHERE partition_id = %(partition_id)s)
DELETE FROM penstock.deleted_partition WHERE partition_id = %(partition_id)s
"""
# Never a producer with an open transaction here: it would stay open for ever
# (ProducerStateManager).
EXPIRE_PRODUCERS = """
WITH idle AS MATERIALIZED (
    SELECT ctid FROM penstock.producer_state
    WHERE updated_at < clock_timestamp() - make_interval(secs => %(idle_s)s)
      AND txn_first_offset IS NULL
    LIMIT %(limit)s FOR UPDATE SKIP LOCKED
)
DELETE FROM penstock.producer_state s USING idle WHERE s.ctid = idle.ctid
"""

# Locks as few rows as it must, and waits for none: a flush that holds one is writing it.
TOUCH_NAMES = """
WITH used AS MATERIALIZED (
    SELECT n.ctid FROM unnest(%(partition_ids)s::bigint[], %(name_keys)s::uuid[])
        AS w (partition_id, name_key)
    JOIN penstock.named_producer n USING (partition_id, name_key)
    WHERE n.updated_at < clock_timestamp() - interval '1 minute'
    FOR UPDATE OF n SKIP LOCKED
)
UPDATE penstock.named_producer n SET updated_at = clock_timestamp()
FROM used WHERE n.ctid = used.ctid
"""
# A topic may have been switched on a moment ago: what is written now is not forgotten.
EXPIRE_NAMES = """
WITH idle AS MATERIALIZED (
    SELECT ctid FROM penstock.named_producer
    WHERE updated_at < clock_timestamp() - make_interval(secs => %(idle_s)s)
       OR NOT partition_id = ANY (%(deduplicated)s::bigint[])
          AND updated_at < clock_timestamp() - interval '1 minute'
    LIMIT %(limit)s FOR UPDATE SKIP LOCKED
)
DELETE FROM penstock.named_producer n USING idle WHERE n.ctid = idle.ctid
"""

OPEN_SEGMENTS = """
SELECT segment_id, retention_class,
       pg_total_relation_size(to_regclass('penstock.record_chunk_' || segment_id)),
       extract(epoch FROM clock_timestamp() - created_at)::double precision,
       EXISTS (SELECT FROM penstock.record_batch b WHERE b.segment_id = s.segment_id)
           OR EXISTS (SELECT FROM penstock.staged_batch b WHERE b.segment_id = s.segment_id)
FROM penstock.segment s WHERE sealed_at IS NULL
"""
SEALED_SEGMENTS = """
SELECT segment_id FROM penstock.segment WHERE sealed_at IS NOT NULL ORDER BY segment_id
"""
SEAL = """
UPDATE penstock.segment SET sealed_at = clock_timestamp()
WHERE segment_id = %(segment_id)s AND sealed_at IS NULL RETURNING retention_class
"""
OPEN_NEXT = (
    "INSERT INTO penstock.segment (retention_class) VALUES (%(retention_class)s)"
    " RETURNING segment_id"
)
# One statement, so that a batch that is being published is seen in one place or the other.
IS_USED = """
SELECT EXISTS (SELECT FROM penstock.record_batch WHERE segment_id = %(segment_id)s)
    OR EXISTS (SELECT FROM penstock.staged_batch WHERE segment_id = %(segment_id)s)
"""
FORGET_SEGMENT = "DELETE FROM penstock.segment WHERE segment_id = %(segment_id)s"

DROP_EXPIRED = DROP_TOKENS.replace("$1", "%(tokens)s")

ROWS_PER_DELETE = 2_000
TOKENS_PER_DELETE = 100


class PostgresRetentionStore:
    """`core.ports.retention.RetentionStore` on PostgreSQL."""

    def __init__(self, database: Database, segments: Segments) -> None:
        self._database = database
        self._segments = segments

    async def usage(self) -> list[PartitionUsage]:
        """See RetentionStore."""
        async with self._database.reader("partition_usage") as cursor:
            await cursor.execute(USAGE)
            return [PartitionUsage(*row) for row in await cursor.fetchall()]

    async def first_young_batch(self, partition_id: int, start: int, timestamp: int) -> int | None:
        """See RetentionStore."""
        async with self._database.reader("first_young_batch") as cursor:
            await cursor.execute(
                FIRST_YOUNG_BATCH,
                {"partition_id": partition_id, "start": start, "timestamp": timestamp},
            )
            row = await cursor.fetchone()
            return row[0] if row else None

    async def first_within_size(
        self, partition_id: int, start: int, retention_bytes: int
    ) -> int | None:
        """See RetentionStore."""
        async with self._database.reader("first_within_size") as cursor:
            await cursor.execute(
                FIRST_WITHIN_SIZE,
                {"partition_id": partition_id, "start": start, "retention_bytes": retention_bytes},
            )
            row = await cursor.fetchone()
            return row[0] if row else None

    async def acknowledged_up_to(self, partition_id: int) -> int | None:
        """See RetentionStore."""
        async with self._database.reader("acknowledged_up_to") as cursor:
            await cursor.execute(ACKNOWLEDGED_UP_TO, {"partition_id": partition_id})
            row = await cursor.fetchone()
            return row[0] if row else None

    async def delete_rows(self, partition_id: int) -> int:
        """See RetentionStore."""
        async with self._database.reader("delete_rows") as cursor:
            try:
                await cursor.execute(
                    DELETE_ROWS, {"partition_id": partition_id, "limit": ROWS_PER_DELETE}
                )
            except LockNotAvailable:
                return 0
            row = await cursor.fetchone()
            return row[0] if row else 0

    async def clean_deleted_partitions(self) -> int:
        """See RetentionStore."""
        done = 0
        async with self._database.reader("clean_deleted_partitions") as cursor:
            await cursor.execute("SELECT partition_id FROM penstock.deleted_partition LIMIT 1000")
            for (partition_id,) in await cursor.fetchall():
                parameters = {"partition_id": partition_id, "limit": ROWS_PER_DELETE}
                while True:
                    await cursor.execute(DELETE_ROWS_OF_DELETED, parameters)
                    if cursor.rowcount < ROWS_PER_DELETE:
                        break
                await cursor.execute(FORGET_DELETED, {"partition_id": partition_id})
                done += 1
        return done

    async def expire_producers(self, idle_s: float) -> int:
        """See RetentionStore."""
        done = 0
        async with self._database.reader("expire_producers") as cursor:
            while True:
                # Some at a time, so that no flush waits long for a producer that came back.
                parameters = {"idle_s": idle_s, "limit": ROWS_PER_DELETE}
                await cursor.execute(EXPIRE_PRODUCERS, parameters)
                done += cursor.rowcount
                if cursor.rowcount < ROWS_PER_DELETE:
                    return done

    async def touch_names(self, names: Sequence[tuple[int, str]]) -> None:
        """See RetentionStore."""
        async with self._database.reader("touch_names") as cursor:
            parameters = {
                "partition_ids": [partition_id for partition_id, _ in names],
                "name_keys": [UUID(bytes=key_of(name)) for _, name in names],
            }
            await cursor.execute(TOUCH_NAMES, parameters)

    async def expire_names(self, idle_s: float, deduplicated: Sequence[int]) -> int:
        """See RetentionStore."""
        done = 0
        async with self._database.reader("expire_names") as cursor:
            while True:
                parameters = {
                    "idle_s": idle_s,
                    "deduplicated": list(deduplicated),
                    "limit": ROWS_PER_DELETE,
                }
                await cursor.execute(EXPIRE_NAMES, parameters)
                done += cursor.rowcount
                if cursor.rowcount < ROWS_PER_DELETE:
                    return done

    async def expire_tokens(self) -> int:
        """See RetentionStore."""
        done = 0
        async with self._database.reader("expire_tokens") as cursor:
            while True:
                # Some at a time, so that none is locked for long. One statement locks them; a later
                # one, which sees all that was added, deletes them.
                async with cursor.connection.transaction():
                    await cursor.execute(LOCK_EXPIRED, {"limit": TOKENS_PER_DELETE})
                    tokens = [token for (token,) in await cursor.fetchall()]
                    await cursor.execute(DROP_EXPIRED, {"tokens": tokens})
                done += len(tokens)
                if len(tokens) < TOKENS_PER_DELETE:
                    return done

    async def forget_published(self, idle_s: float) -> int:
        """See RetentionStore."""
        async with self._database.reader("forget_published") as cursor:
            await cursor.execute(FORGET_GUARDS, {"idle_s": idle_s})
            return cursor.rowcount

    async def seal_segments(self, segment_bytes: int) -> None:
        """See RetentionStore."""
        for segment in await self.open_segments():
            if should_seal(segment, segment_bytes):
                await self.seal(segment.segment_id)
        # A segment that is still written to would always be in use.
        self._segments.forget()

    def forget_segments(self) -> None:
        """See RetentionStore."""
        self._segments.forget()

    async def open_segments(self) -> list[OpenSegment]:
        """The segments that are written to now."""
        async with self._database.reader("open_segments") as cursor:
            await cursor.execute(OPEN_SEGMENTS)
            return [OpenSegment(*row) for row in await cursor.fetchall()]

    async def seal(self, segment_id: int) -> None:
        """Ends a segment and opens the next of its class.

        A broker that has not noticed goes on writing to the old one; so a segment is dropped only
        if nothing refers to it, under a lock that excludes writers.
        """
        async with (
            self._database.reader("seal_segment") as cursor,
            cursor.connection.transaction(),
        ):
            await cursor.execute(SEAL, {"segment_id": segment_id})
            row = await cursor.fetchone()
            if row is None:
                return
            await cursor.execute(OPEN_NEXT, {"retention_class": row[0]})
            opened = await cursor.fetchone()
            assert opened is not None, "INSERT … RETURNING gives a row"
            for statement in create_chunk_table_sql(opened[0]):
                await cursor.execute(statement.encode())

    async def drop_unused_segments(self) -> list[int]:
        """See RetentionStore."""
        dropped = []
        async with self._database.reader("drop_segments") as cursor:
            await cursor.execute(SEALED_SEGMENTS)
            sealed: Sequence[tuple[int]] = await cursor.fetchall()
            for (segment_id,) in sealed:
                parameters = {"segment_id": segment_id}
                await cursor.execute(IS_USED, parameters)
                row = await cursor.fetchone()
                if row is None or row[0]:
                    continue
                try:
                    async with cursor.connection.transaction():
                        # Waits for flushes under way (at most lock_timeout) and keeps new ones
                        # out, so that the next check stays true until the table is dropped.
                        table = chunk_table_name(segment_id)
                        await cursor.execute(
                            f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE".encode()
                        )
                        await cursor.execute(IS_USED, parameters)
                        row = await cursor.fetchone()
                        if row is not None and not row[0]:
                            await cursor.execute(f"DROP TABLE {table}".encode())
                            await cursor.execute(FORGET_SEGMENT, parameters)
                            dropped.append(segment_id)
                except (LockNotAvailable, QueryCanceled, UndefinedTable):
                    # It is being read or written: the next round tries again. Or another broker has
                    # dropped it meanwhile.
                    continue
        return dropped
