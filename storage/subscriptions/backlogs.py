"""What subscriptions have left unacknowledged: implements BacklogStore. Knows no rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from core.ports.backlogs import Backlog
from storage.log.retention import FIRST_YOUNG_BATCH

if TYPE_CHECKING:
    from storage.connection.pool import Database

# One index lookup for each partition that is behind, besides its rows.
BACKLOGS = """
SELECT b.partition_id, b.start, b.next_offset, (
    SELECT r.max_timestamp FROM penstock.record_batch r
    WHERE r.partition_id = b.partition_id AND r.last_offset >= b.start AND NOT r.is_control
    ORDER BY r.last_offset LIMIT 1
), b.size_bytes
FROM (
    SELECT p.partition_id, greatest(min(s.mark_delete), p.log_start_offset) AS start,
           p.next_offset, p.size_bytes
    FROM penstock.topic_partition p JOIN penstock.subscription s USING (partition_id)
    WHERE p.partition_id = ANY (%(partition_ids)s::bigint[])
    GROUP BY p.partition_id, p.log_start_offset, p.next_offset, p.size_bytes
) AS b
WHERE b.start < b.next_offset
ORDER BY b.partition_id
"""
# From the log's end backwards, until there is enough: no more is read than that.
_FROM_THE_END = """(
    SELECT last_offset, sum(size) OVER (ORDER BY last_offset DESC ROWS UNBOUNDED PRECEDING) AS bytes
    FROM penstock.record_batch WHERE partition_id = %(partition_id)s AND last_offset >= %(start)s
    ORDER BY last_offset DESC
) AS b"""
SIZE = f"""
SELECT coalesce(
    (SELECT bytes FROM {_FROM_THE_END} WHERE bytes >= %(enough)s LIMIT 1),
    (SELECT sum(size) FROM penstock.record_batch
     WHERE partition_id = %(partition_id)s AND last_offset >= %(start)s),
    0)::bigint
"""
# All batches have to go from whose first byte on there is too much.
END_OF_EXCESS = f"""
SELECT last_offset + 1 FROM {_FROM_THE_END} WHERE bytes > %(max_bytes)s LIMIT 1
"""


class BacklogStore:
    """`core.ports.backlogs.BacklogStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def backlogs(self, partition_ids: Sequence[int]) -> list[Backlog]:
        """See BacklogStore."""
        if not partition_ids:
            return []
        async with self._database.reader("backlogs") as cursor:
            await cursor.execute(BACKLOGS, {"partition_ids": list(partition_ids)})
            return [Backlog(*row) for row in await cursor.fetchall()]

    async def size_of(self, backlog: Backlog, enough: int) -> int:
        """See BacklogStore."""
        return int(await self._one("backlog_size", SIZE, backlog, enough=enough))

    async def first_young(self, backlog: Backlog, timestamp: int) -> int:
        """See BacklogStore."""
        found = await self._one(
            "first_young_batch", FIRST_YOUNG_BATCH, backlog, timestamp=timestamp
        )
        return backlog.end if found is None else int(found)

    async def end_of_excess(self, backlog: Backlog, max_bytes: int) -> int:
        """See BacklogStore."""
        found = await self._one("backlog_excess", END_OF_EXCESS, backlog, max_bytes=max_bytes)
        return backlog.start if found is None else int(found)

    async def _one(self, name: str, query: str, backlog: Backlog, **more: int) -> Any:
        parameters = {"partition_id": backlog.partition_id, "start": backlog.start, **more}
        async with self._database.reader(name) as cursor:
            await cursor.execute(query, parameters)
            row = await cursor.fetchone()
            return row[0] if row else None
