"""Producers, as partitions remember them: implements `core.ports.console.producers`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from core.ports.console.producers import NamedProducerRow, ProducerClientRow, ProducerRow
from storage.console.reading import Reading

# Topics are looked up only where they are asked for: this may be of a million rows.
_WANTED: Final = """
FROM penstock.producer_state s
WHERE (CAST(:topics AS text[]) IS NULL OR s.partition_id IN (
        SELECT p.partition_id FROM penstock.topic_partition p
        JOIN penstock.topic t USING (topic_id) WHERE t.name = ANY (:topics)))
  AND (CAST(:producer_ids AS bigint[]) IS NULL OR s.producer_id = ANY (:producer_ids))
"""
_ROW: Final = """
SELECT t.name AS topic, p.partition, s.producer_id, s.producer_epoch,
       s.last_sequences[cardinality(s.last_sequences)] AS last_sequence,
       s.last_offsets[cardinality(s.last_offsets)] AS last_offset,
       s.last_offsets[1] AS known_from,
       penstock.from_unix_ms(s.last_timestamp) AS last_record, s.updated_at AS written_at,
       x.transactional_id, x.kind, s.txn_first_offset AS open_from,
       x.producer_epoch AS newest_epoch, penstock.from_unix_ms(x.updated_at) AS newest_since,
       nullif(coalesce(x.client_id, c.client_id), '') AS client_id,
       nullif(coalesce(x.client_host, c.client_host), '') AS client_host,
       nullif(coalesce(x.owner, c.owner), '') AS owner
"""
_JOINED: Final = """
JOIN penstock.topic_partition p USING (partition_id)
JOIN penstock.topic t USING (topic_id)
LEFT JOIN penstock.transaction_state x USING (producer_id)
LEFT JOIN penstock.producer_client c USING (producer_id)
"""
PAGE: Final = f"""
{_ROW}
FROM (SELECT s.* {_WANTED}
      ORDER BY s.updated_at DESC, s.partition_id, s.producer_id LIMIT :count OFFSET :skipped) AS s
{_JOINED}
ORDER BY s.updated_at DESC, s.partition_id, s.producer_id
"""
COUNT: Final = f"SELECT count(*) AS number FROM (SELECT {_WANTED} LIMIT :most) AS counted"
OF_PRODUCER: Final = f"""
{_ROW} FROM penstock.producer_state s {_JOINED} WHERE s.producer_id = :producer_id
ORDER BY s.updated_at DESC, t.name, p.partition LIMIT :most
"""
CLIENT: Final = """
SELECT client_id, client_host, owner, since FROM penstock.v_producer_client
WHERE producer_id = :producer_id AND transactional_id IS NULL
"""
IDS_OF_CLIENTS: Final = """
SELECT producer_id AS number FROM penstock.v_producer_client
WHERE transactional_id IS NULL
  AND position(lower(:search) IN lower(concat_ws(E'\\n', client_id, client_host, owner))) > 0
ORDER BY since DESC LIMIT :most
"""
_NAMED: Final = """
FROM penstock.named_producer n
JOIN penstock.topic_partition p USING (partition_id)
JOIN penstock.topic t USING (topic_id)
WHERE (CAST(:topics AS text[]) IS NULL OR t.name = ANY (:topics))
  AND (:search = '' OR position(lower(:search) IN lower(n.name)) > 0)
"""
NAMED_PAGE: Final = f"""
SELECT t.name AS topic, p.partition, n.name,
       nullif(n.highest_sequence_id, -1) AS last_sequence_id, n.updated_at AS written_at
{_NAMED}
ORDER BY n.updated_at DESC, n.partition_id, n.name_key LIMIT :count OFFSET :skipped
"""
NAMED_COUNT: Final = f"SELECT count(*) AS number FROM (SELECT {_NAMED} LIMIT :most) AS counted"


@dataclass(frozen=True, slots=True)
class _Number:
    number: int


class PostgresProducers:
    """`core.ports.console.producers.ProducerReads`."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    async def page(
        self,
        topics: Collection[str] | None,
        producer_ids: Collection[int] | None,
        skipped: int,
        count: int,
    ) -> Sequence[ProducerRow]:
        """See ProducerReads."""
        return await self._reading.rows(
            "producers",
            ProducerRow,
            PAGE,
            topics=_array(topics),
            producer_ids=_array(producer_ids),
            skipped=skipped,
            count=count,
        )

    async def count(
        self, topics: Collection[str] | None, producer_ids: Collection[int] | None, most: int
    ) -> int:
        """See ProducerReads."""
        found = await self._reading.row(
            "producer_count",
            _Number,
            COUNT,
            topics=_array(topics),
            producer_ids=_array(producer_ids),
            most=most,
        )
        return found.number

    async def named_page(
        self, topics: Collection[str] | None, search: str, skipped: int, count: int
    ) -> Sequence[NamedProducerRow]:
        """See ProducerReads."""
        return await self._reading.rows(
            "named_producers",
            NamedProducerRow,
            NAMED_PAGE,
            topics=_array(topics),
            search=search,
            skipped=skipped,
            count=count,
        )

    async def named_count(self, topics: Collection[str] | None, search: str, most: int) -> int:
        """See ProducerReads."""
        found = await self._reading.row(
            "named_producer_count",
            _Number,
            NAMED_COUNT,
            topics=_array(topics),
            search=search,
            most=most,
        )
        return found.number

    async def of_producer(self, producer_id: int, most: int) -> Sequence[ProducerRow]:
        """See ProducerReads."""
        return await self._reading.rows(
            "producer", ProducerRow, OF_PRODUCER, producer_id=producer_id, most=most
        )

    async def ids_of_clients(self, search: str, most: int) -> Collection[int]:
        """See ProducerReads."""
        found = await self._reading.rows(
            "producer_clients", _Number, IDS_OF_CLIENTS, search=search, most=most
        )
        return [each.number for each in found]

    async def client(self, producer_id: int) -> ProducerClientRow | None:
        """See ProducerReads."""
        found = await self._reading.rows(
            "producer_client", ProducerClientRow, CLIENT, producer_id=producer_id
        )
        return next(iter(found), None)


def _array(values: Collection[object] | None) -> list[object] | None:
    return None if values is None else list(values)
