"""Transactions of both protocols: implements `core.ports.console.transactions`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final
from uuid import UUID

from core.ports.console.transactions import (
    AbortedStretch,
    HangingTransaction,
    HeldBack,
    NamedTransaction,
    TransactionParticipant,
    TransactionPlace,
    TransactionRow,
    WrittenThere,
)
from storage.connection.client_text import key_of
from storage.console.reading import Reading

_NAMES: Final = """
SELECT producer_id, kind, transactional_id AS name
FROM penstock.transaction_state
WHERE {} AND (:search = ''
    OR :search = producer_id::text
    OR position(lower(:search) IN lower(concat_ws(E'\\n',
        concat(CASE kind WHEN 1 THEN 'pulsar:' END, transactional_id),
        client_id, client_host, owner))) > 0)
ORDER BY {} LIMIT :most
"""
OPEN_NAMES: Final = _NAMES.format("started_at >= 0", "started_at, producer_id")
ALL_NAMES: Final = _NAMES.format(
    "state <> 'Dead'", "started_at < 0, greatest(started_at, 0), updated_at DESC, producer_id"
)
_ROWS: Final = """
SELECT producer_id, CASE protocol WHEN 'Kafka' THEN 0 ELSE 1 END AS kind,
       transactional_id AS name, producer_epoch, state, version, started_at, changed_at, age,
       timeout_left AS left, timeout, client_id, client_host, owner
FROM penstock.v_transaction
"""
ROWS: Final = f"{_ROWS} WHERE producer_id = ANY (:producer_ids)"
FIND: Final = f"""
{_ROWS} WHERE producer_id = (
    SELECT producer_id FROM penstock.transaction_state WHERE txn_key = :key AND state <> 'Dead')
"""
# waiting: as v_open_transaction_blocking has it, but of these transactions alone.
PLACES: Final = """
SELECT x.producer_id, t.name AS topic, p.partition, s.txn_first_offset AS first_offset,
       CASE WHEN is_oldest THEN p.next_offset - begins - (
           SELECT count(*) FROM penstock.record_batch b
           WHERE b.partition_id = p.partition_id AND b.last_offset >= begins AND b.is_control
       ) END AS waiting
FROM penstock.transaction_state x
JOIN penstock.transaction_partition j USING (txn_key)
JOIN penstock.topic_partition p USING (partition_id)
JOIN penstock.topic t USING (topic_id)
LEFT JOIN penstock.producer_state s
    ON s.partition_id = j.partition_id AND s.producer_id = x.producer_id
CROSS JOIN LATERAL (
    SELECT greatest(p.log_start_offset, s.txn_first_offset) AS begins,
           s.txn_first_offset IS NOT NULL AND NOT EXISTS (
               SELECT FROM penstock.producer_state o
               WHERE o.partition_id = s.partition_id AND o.txn_first_offset < s.txn_first_offset
           ) AS is_oldest
) AS r
WHERE x.producer_id = ANY (:producer_ids) AND x.started_at >= 0
ORDER BY waiting DESC NULLS LAST, t.name, p.partition LIMIT 2000
"""
PARTICIPANTS: Final = """
SELECT x.producer_id, j.name, NULL AS topic, NULL AS partition,
       (SELECT count(*) FROM penstock.pending_offset o
        WHERE o.group_key = j.participant_key AND o.producer_id = x.producer_id) AS pending
FROM penstock.transaction_state x
JOIN penstock.transaction_participant j USING (txn_key)
WHERE x.producer_id = ANY (:producer_ids) AND x.started_at >= 0 AND j.kind = 0
UNION ALL
SELECT x.producer_id, s.name, t.name, p.partition,
       (SELECT count(*) FROM penstock.pending_ack a
        WHERE a.subscription_id = s.subscription_id AND a.producer_id = x.producer_id
          AND NOT a.is_committed)
FROM penstock.transaction_state x
JOIN penstock.transaction_participant j USING (txn_key)
JOIN penstock.subscription s ON s.subscription_id = j.name::bigint
JOIN penstock.topic_partition p USING (partition_id)
JOIN penstock.topic t USING (topic_id)
WHERE x.producer_id = ANY (:producer_ids) AND x.started_at >= 0 AND j.kind = 1
ORDER BY 3 NULLS FIRST, 4, 2 LIMIT 2000
"""
# So many batches of a partition are counted, which takes some ten milliseconds.
WRITTEN: Final = """
SELECT t.name AS topic, p.partition, w.records, w.last_offset, w.batches = 20000 AS is_more
FROM penstock.producer_state s
JOIN penstock.topic_partition p USING (partition_id)
JOIN penstock.topic t USING (topic_id)
CROSS JOIN LATERAL (
    SELECT coalesce(sum(last_offset - base_offset + 1), 0)::bigint AS records,
           coalesce(max(last_offset), s.txn_first_offset) AS last_offset, count(*) AS batches
    FROM (SELECT b.base_offset, b.last_offset FROM penstock.record_batch b
          WHERE b.partition_id = s.partition_id AND b.last_offset >= s.txn_first_offset
            AND b.producer_id = s.producer_id AND NOT b.is_control
          ORDER BY b.last_offset LIMIT 20000) AS counted
) AS w
WHERE s.producer_id = :producer_id AND s.txn_first_offset IS NOT NULL
ORDER BY t.name, p.partition LIMIT 500
"""
HELD_BACK: Final = """
SELECT f.name, f.is_group, b.topic, b.partition, b.last_stable_offset AS offset
FROM penstock.v_open_transaction_blocking b
JOIN penstock.topic t ON t.name = b.topic
JOIN penstock.topic_partition p ON p.topic_id = t.topic_id AND p.partition = b.partition
CROSS JOIN LATERAL (
    SELECT g.group_id AS name, true AS is_group
    FROM penstock.committed_offset o JOIN penstock.consumer_group g USING (group_key)
    WHERE o.partition_id = p.partition_id AND o.committed_offset = b.last_stable_offset
    UNION ALL
    SELECT s.name, false FROM penstock.subscription s
    WHERE s.partition_id = p.partition_id AND s.mark_delete = b.last_stable_offset
) AS f
WHERE b.producer_id = :producer_id AND b.records_waiting > 0
ORDER BY f.name, b.topic, b.partition LIMIT 500
"""
HANGING: Final = """
SELECT t.name AS topic, p.partition, s.producer_id, s.producer_epoch,
       s.txn_first_offset AS first_offset, s.updated_at AS since
FROM penstock.producer_state s
JOIN penstock.topic_partition p USING (partition_id)
JOIN penstock.topic t USING (topic_id)
WHERE s.txn_first_offset IS NOT NULL
  AND s.producer_id = coalesce(:producer_id, s.producer_id)
  AND NOT EXISTS (
      SELECT FROM penstock.transaction_state x
      JOIN penstock.transaction_partition j USING (txn_key)
      WHERE x.producer_id = s.producer_id AND x.started_at >= 0
        AND j.partition_id = s.partition_id)
ORDER BY s.updated_at, t.name, p.partition LIMIT 500
"""
ABORTED: Final = """
SELECT topic, partition, first_offset, last_offset, aborted_at
FROM penstock.v_aborted_transaction WHERE producer_id = :producer_id
ORDER BY aborted_at DESC NULLS LAST, topic, partition, last_offset DESC LIMIT 50
"""


class PostgresTransactions:
    """`core.ports.console.transactions.TransactionReads`."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    async def names(self, search: str, most: int, *, is_open: bool) -> Sequence[NamedTransaction]:
        """See TransactionReads."""
        return await self._reading.rows(
            "transaction_names",
            NamedTransaction,
            OPEN_NAMES if is_open else ALL_NAMES,
            search=search,
            most=most,
        )

    async def rows(self, producer_ids: Collection[int]) -> Sequence[TransactionRow]:
        """See TransactionReads."""
        found = await self._reading.rows(
            "transactions", TransactionRow, ROWS, producer_ids=list(producer_ids)
        )
        by_id = {each.producer_id: each for each in found}
        return [by_id[each] for each in producer_ids if each in by_id]  # else ended meanwhile

    async def find(self, name: str) -> TransactionRow | None:
        """See TransactionReads."""
        key = UUID(bytes=key_of(name))
        found = await self._reading.rows("transaction", TransactionRow, FIND, key=key)
        return next(iter(found), None)

    async def places(self, producer_ids: Collection[int]) -> Sequence[TransactionPlace]:
        """See TransactionReads."""
        return await self._reading.rows(
            "transaction_places", TransactionPlace, PLACES, producer_ids=list(producer_ids)
        )

    async def participants(self, producer_ids: Collection[int]) -> Sequence[TransactionParticipant]:
        """See TransactionReads."""
        return await self._reading.rows(
            "transaction_participants",
            TransactionParticipant,
            PARTICIPANTS,
            producer_ids=list(producer_ids),
        )

    async def written(self, producer_id: int) -> Sequence[WrittenThere]:
        """See TransactionReads."""
        return await self._reading.rows(
            "transaction_written", WrittenThere, WRITTEN, producer_id=producer_id
        )

    async def held_back(self, producer_id: int) -> Sequence[HeldBack]:
        """See TransactionReads."""
        return await self._reading.rows(
            "transaction_held_back", HeldBack, HELD_BACK, producer_id=producer_id
        )

    async def hanging(self, producer_id: int | None = None) -> Sequence[HangingTransaction]:
        """See TransactionReads."""
        return await self._reading.rows(
            "hanging_transactions", HangingTransaction, HANGING, producer_id=producer_id
        )

    async def aborted(self, producer_id: int) -> Sequence[AbortedStretch]:
        """See TransactionReads."""
        return await self._reading.rows(
            "aborted_transactions", AbortedStretch, ABORTED, producer_id=producer_id
        )
