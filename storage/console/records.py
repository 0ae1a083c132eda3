"""Records in the log: implements `core.ports.console.records`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from core.ports.console.records import BatchRow, ProducerRow, WriterRow
from storage.connection.client_text import key_of
from storage.console.reading import Reading

BATCH_AT: Final = """
SELECT base_offset, last_offset, size, producer_id, producer_epoch, base_sequence
FROM penstock.record_batch
WHERE partition_id = :partition_id AND last_offset >= :offset ORDER BY last_offset LIMIT 1
"""
# Backwards through the index, from the batch that has the offset before the end. Every batch has an
# offset at least, so there are not more of them than records wanted.
STRETCH_BEFORE: Final = """
SELECT min(base_offset) AS base_offset
FROM (
    SELECT base_offset, sum(size) OVER back - size AS bytes_behind,
           sum(last_offset - base_offset + 1) OVER back - (last_offset - base_offset + 1)
               AS records_behind, size
    FROM (
        SELECT base_offset, last_offset, size FROM penstock.record_batch
        WHERE partition_id = :partition_id AND last_offset <= (
            SELECT coalesce(min(last_offset), :end_offset) FROM penstock.record_batch
            WHERE partition_id = :partition_id AND last_offset >= :end_offset - 1
        )
        ORDER BY last_offset DESC LIMIT :most_records
    ) AS batch
    WINDOW back AS (ORDER BY last_offset DESC)
) AS batch
WHERE bytes_behind = 0 OR (bytes_behind + size <= :most_bytes AND records_behind < :most_records)
"""
WRITERS: Final = """
SELECT c.producer_id, c.transactional_id, t.protocol, c.client_id, c.client_host, c.owner
FROM penstock.v_producer_client c LEFT JOIN penstock.v_transaction t USING (producer_id)
WHERE c.producer_id = ANY (:producer_ids)
"""
PRODUCER: Final = """
SELECT last_sequences[cardinality(last_sequences)]::bigint AS last_sequence, updated_at
FROM penstock.producer_state WHERE partition_id = :partition_id AND producer_id = :producer_id
"""
NAMED_PRODUCER: Final = """
SELECT nullif(highest_sequence_id, -1)::numeric AS last_sequence, updated_at
FROM penstock.named_producer WHERE partition_id = :partition_id AND name_key = :name_key
"""


@dataclass(frozen=True, slots=True)
class _Stretch:
    base_offset: int | None


class PostgresRecords:
    """`core.ports.console.records.RecordReads`."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    async def batch_at(self, partition_id: int, offset: int) -> BatchRow | None:
        """See RecordReads."""
        rows = await self._reading.rows(
            "batch_at", BatchRow, BATCH_AT, partition_id=partition_id, offset=offset
        )
        return rows[0] if rows else None

    async def stretch_before(
        self, partition_id: int, end_offset: int, most_bytes: int, most_records: int
    ) -> int | None:
        """See RecordReads."""
        found = await self._reading.row(
            "stretch_before",
            _Stretch,
            STRETCH_BEFORE,
            partition_id=partition_id,
            end_offset=end_offset,
            most_bytes=most_bytes,
            most_records=most_records,
        )
        return found.base_offset

    async def writers(self, producer_ids: Collection[int]) -> Mapping[int, WriterRow]:
        """See RecordReads."""
        rows = await self._reading.rows(
            "writers", WriterRow, WRITERS, producer_ids=list(producer_ids)
        )
        return {row.producer_id: row for row in rows}

    async def producer(self, partition_id: int, producer_id: int) -> ProducerRow | None:
        """See RecordReads."""
        rows = await self._reading.rows(
            "producer", ProducerRow, PRODUCER, partition_id=partition_id, producer_id=producer_id
        )
        return rows[0] if rows else None

    async def named_producer(self, partition_id: int, name: str) -> ProducerRow | None:
        """See RecordReads."""
        rows = await self._reading.rows(
            "named_producer",
            ProducerRow,
            NAMED_PRODUCER,
            partition_id=partition_id,
            name_key=UUID(bytes=key_of(name)),
        )
        return rows[0] if rows else None
