"""The cluster as a whole: implements `core.ports.console.overview`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from core.ports.console.overview import BrokerRow, DatabaseState, Totals
from storage.console.reading import Reading
from storage.snapshots import OLDEST

BROKERS: Final = """
SELECT broker_id, address, rack, state, started_at, silent_s::float8 AS silent_s, version
FROM penstock.v_broker ORDER BY broker_id
"""
# Of standbys a role without pg_monitor sees that they are there, and no more.
DATABASE: Final = f"""
SELECT current_setting('server_version') AS version,
       pg_database_size(current_database()) AS size_bytes,
       (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')
           AS connections,
       current_setting('max_connections')::integer AS max_connections,
       oldest.seconds AS snapshot_s, oldest.holder AS snapshot_holder,
       standby.count AS standbys, standby.bytes AS standby_bytes, standby.seconds AS standby_s
FROM (
    SELECT count(*), max(pg_current_wal_lsn() - replay_lsn)::bigint,
           max(extract(epoch FROM replay_lag))::float8
    FROM pg_stat_replication WHERE application_name NOT LIKE 'pg\\_basebackup%'
) AS standby (count, bytes, seconds)
LEFT JOIN ({OLDEST}) AS oldest (seconds, holder) ON true
"""
TOTALS: Final = """
SELECT t.topics, p.*, g.groups, s.subscriptions, c.committed
FROM (SELECT count(*) AS topics FROM penstock.topic) AS t,
     (SELECT count(*) AS partitions, coalesce(sum(size_bytes), 0)::bigint AS size_bytes,
             coalesce(sum(next_offset), 0)::bigint AS appended
      FROM penstock.topic_partition) AS p,
     (SELECT count(*) AS groups FROM penstock.consumer_group) AS g,
     (SELECT count(*) AS subscriptions FROM penstock.subscription) AS s,
     (SELECT (coalesce((SELECT sum(committed_offset) FROM penstock.committed_offset), 0)
              + coalesce((SELECT sum(mark_delete) FROM penstock.subscription), 0))::bigint
          AS committed) AS c
"""
APPENDED: Final = """
SELECT t.name, sum(p.next_offset)::bigint AS number
FROM penstock.topic t JOIN penstock.topic_partition p USING (topic_id)
WHERE t.name = ANY (:topics) GROUP BY t.name
"""
UNREAD: Final = """
SELECT g.group_id AS name, t.name || '-' || p.partition AS place,
       greatest(p.next_offset - greatest(o.committed_offset, p.log_start_offset), 0) AS number
FROM penstock.committed_offset o
JOIN penstock.consumer_group g USING (group_key)
JOIN penstock.topic_partition p USING (partition_id)
JOIN penstock.topic t USING (topic_id)
WHERE g.group_id = ANY (:groups)
ORDER BY g.group_id, t.name, p.partition
"""


@dataclass(frozen=True, slots=True)
class _Number:
    name: str
    number: int
    place: str = ""


class PostgresOverview:
    """`core.ports.console.overview.OverviewReads`."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    async def brokers(self) -> list[BrokerRow]:
        """See OverviewReads."""
        return await self._reading.rows("brokers", BrokerRow, BROKERS)

    async def database(self) -> DatabaseState:
        """See OverviewReads."""
        return await self._reading.row("database", DatabaseState, DATABASE)

    async def totals(self) -> Totals:
        """See OverviewReads."""
        return await self._reading.row("totals", Totals, TOTALS)

    async def appended(self, topics: Collection[str]) -> Mapping[str, int]:
        """See OverviewReads."""
        rows = await self._reading.rows("appended", _Number, APPENDED, topics=list(topics))
        return {row.name: row.number for row in rows}

    async def unread(self, groups: Collection[str]) -> Mapping[str, Mapping[str, int]]:
        """See OverviewReads."""
        found: dict[str, dict[str, int]] = {}
        for row in await self._reading.rows("unread", _Number, UNREAD, groups=list(groups)):
            found.setdefault(row.name, {})[row.place] = row.number
        return found
