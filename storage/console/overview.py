"""The cluster as a whole: implements `core.ports.console.overview`."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from core.ports.console.overview import (
    BrokerRow,
    DatabaseState,
    Hold,
    InboxState,
    OpenTransaction,
    SlowGroup,
    StuckPlace,
    Totals,
)
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
     (SELECT count(*) AS subscriptions
      FROM (SELECT DISTINCT p.topic_id, s.name
            FROM penstock.subscription s JOIN penstock.topic_partition p USING (partition_id))
          AS named) AS s,
     (SELECT (coalesce((SELECT sum(committed_offset) FROM penstock.committed_offset), 0)
              + coalesce((SELECT sum(mark_delete) FROM penstock.subscription), 0))::bigint
          AS committed) AS c
"""
# What holds readers of committed data at this very offset (`{place}`), if anything does.
_HOLD: Final = """
LEFT JOIN LATERAL (
    SELECT x.transactional_id AS held_id, s.producer_id AS held_producer_id,
           s.txn_first_offset AS held_from, nullif(x.client_host, '') AS held_host,
           extract(epoch FROM clock_timestamp()
                   - coalesce(penstock.from_unix_ms(x.started_at), s.updated_at))::float8 AS held_s
    FROM (SELECT * FROM penstock.producer_state o
          WHERE o.partition_id = b.partition_id AND o.txn_first_offset IS NOT NULL
          ORDER BY o.txn_first_offset LIMIT 1) AS s
    LEFT JOIN penstock.transaction_state x ON x.producer_id = s.producer_id AND x.started_at >= 0
    WHERE s.txn_first_offset <= b.first_unread
) AS hold ON true
"""
# The first batch that has not been read: what it waits since, and where a hold would be.
_FIRST_UNREAD: Final = """
CROSS JOIN LATERAL (
    SELECT greatest(r.base_offset, b.next_read) AS first_unread, r.max_timestamp
    FROM penstock.record_batch r
    WHERE r.partition_id = b.partition_id AND r.last_offset >= b.next_read AND NOT r.is_control
    ORDER BY r.last_offset LIMIT 1
) AS first
"""
_MOST_BEHIND: Final = 2_000
_MOST_STUCK: Final = 200
# Of the groups that are behind, those that have committed last: who has long given up is in
# nobody's way.
STUCK_GROUPS: Final = f"""
SELECT g.group_id AS reader, g.state, t.name AS topic, b.partition, b.committed_offset AS offset,
       b.next_offset - b.next_read AS unread, b.waits_ms / 1000.0::float8 AS waits_s,
       (SELECT count(*) FROM penstock.group_member m WHERE m.group_key = g.group_key) AS members,
       owner.client_id AS owner, owner.client_host AS owner_host, g.waiting_for,
       hold.held_id, hold.held_producer_id, hold.held_from, hold.held_host, hold.held_s
FROM (
    SELECT b.*, first.first_unread, :now_ms - greatest(
               b.commit_timestamp, least(first.max_timestamp, :now_ms)) AS waits_ms
    FROM (
        SELECT o.group_key, o.partition_id, o.committed_offset, o.commit_timestamp,
               p.topic_id, p.partition, p.next_offset,
               greatest(o.committed_offset, p.log_start_offset) AS next_read
        FROM penstock.committed_offset o JOIN penstock.topic_partition p USING (partition_id)
        WHERE p.next_offset > greatest(o.committed_offset, p.log_start_offset)
          AND o.commit_timestamp < :now_ms - :after_ms
        ORDER BY o.commit_timestamp DESC LIMIT {_MOST_BEHIND}
    ) AS b {_FIRST_UNREAD}
) AS b
JOIN penstock.consumer_group g USING (group_key)
JOIN penstock.topic t USING (topic_id)
LEFT JOIN LATERAL (
    SELECT m.client_id, m.client_host FROM penstock.group_member m
    WHERE m.group_key = b.group_key
      AND (m.assigned -> b.topic_id::text @> to_jsonb(b.partition)
           OR m.assigned -> t.name @> to_jsonb(b.partition))
    LIMIT 1
) AS owner ON true
{_HOLD}
WHERE b.waits_ms >= :after_ms
ORDER BY hold.held_from IS NULL, b.waits_ms DESC LIMIT {_MOST_STUCK}
"""
STUCK_SUBSCRIPTIONS: Final = f"""
SELECT b.name AS reader, coalesce(b.type, '') AS state, t.name AS topic, b.partition,
       b.next_read AS offset, b.next_offset - b.next_read AS unread,
       b.waits_ms / 1000.0::float8 AS waits_s, c.members, c.owner, c.owner_host,
       c.unacknowledged, c.is_blocked,
       hold.held_id, hold.held_producer_id, hold.held_from, hold.held_host, hold.held_s
FROM (
    SELECT b.*, first.first_unread, :now_ms - least(first.max_timestamp, :now_ms) AS waits_ms
    FROM (
        SELECT s.subscription_id, s.partition_id, s.name, s.type, p.topic_id, p.partition,
               p.next_offset, greatest(s.mark_delete, p.log_start_offset) AS next_read
        FROM penstock.subscription s JOIN penstock.topic_partition p USING (partition_id)
        WHERE p.next_offset > greatest(s.mark_delete, p.log_start_offset)
          AND s.created_at < to_timestamp((:now_ms - :after_ms) / 1000.0)
        ORDER BY p.max_timestamp DESC LIMIT {_MOST_BEHIND}
    ) AS b {_FIRST_UNREAD}
) AS b
JOIN penstock.topic t USING (topic_id)
CROSS JOIN LATERAL (
    SELECT count(*) AS members, min(l.consumer) AS owner, min(l.address) AS owner_host,
           coalesce(sum(l.unacknowledged), 0)::bigint AS unacknowledged,
           coalesce(bool_or(l.is_blocked), false) AS is_blocked
    FROM penstock.live_consumer l
    JOIN penstock.broker k ON k.broker_id = l.broker_id AND k.incarnation = l.incarnation
        AND clock_timestamp() < k.heartbeat_at + make_interval(secs => k.session_timeout_s)
    WHERE l.partition_id = b.partition_id AND l.subscription = b.name
) AS c
{_HOLD}
WHERE b.waits_ms >= :after_ms
ORDER BY hold.held_from IS NULL, b.waits_ms DESC LIMIT {_MOST_STUCK}
"""
OPEN_TRANSACTIONS: Final = f"""
SELECT topic, partition, transactional_id, producer_id, state, client_host, records_waiting,
       extract(epoch FROM age)::float8 AS age_s,
       extract(epoch FROM timeout_left)::float8 AS timeout_left_s,
       age >= make_interval(secs => :after_s) AS is_long_open
FROM penstock.v_open_transaction_blocking LIMIT {_MOST_STUCK}
"""
SLOWEST_GROUPS: Final = """
SELECT g.group_id, sum(p.next_offset - greatest(o.committed_offset, p.log_start_offset))::bigint
           AS unread
FROM penstock.committed_offset o
JOIN penstock.topic_partition p USING (partition_id)
JOIN penstock.consumer_group g USING (group_key)
WHERE p.next_offset > greatest(o.committed_offset, p.log_start_offset)
GROUP BY g.group_key, g.group_id ORDER BY unread DESC, g.group_id LIMIT 20
"""
INBOX: Final = """
SELECT coalesce(sum(records), 0)::bigint AS waiting,
       extract(epoch FROM max(age))::float8 AS oldest_s,
       (SELECT coalesce(sum(records), 0)::bigint FROM penstock.v_inbox_refused
        WHERE refused_at > clock_timestamp() - interval '1 day') AS refused
FROM penstock.v_inbox
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


def _stuck_place(**row: Any) -> StuckPlace:
    held = {name: row.pop(name) for name in ("held_id", "held_producer_id", "held_from")}
    held |= {name: row.pop(name) for name in ("held_host", "held_s")}
    hold = None if held["held_producer_id"] is None else Hold(**held)
    return StuckPlace(**row, hold=hold)


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

    async def stuck_groups(self, after_s: float) -> list[StuckPlace]:
        """See OverviewReads."""
        return await self._stuck("stuck_groups", STUCK_GROUPS, after_s)

    async def stuck_subscriptions(self, after_s: float) -> list[StuckPlace]:
        """See OverviewReads."""
        return await self._stuck("stuck_subscriptions", STUCK_SUBSCRIPTIONS, after_s)

    async def _stuck(self, name: str, query: str, after_s: float) -> list[StuckPlace]:
        times = {"now_ms": time.time_ns() // 1_000_000, "after_ms": int(after_s * 1000)}
        return await self._reading.rows(name, _stuck_place, query, **times)

    async def open_transactions(self, after_s: float) -> list[OpenTransaction]:
        """See OverviewReads."""
        return await self._reading.rows(
            "open_transactions", OpenTransaction, OPEN_TRANSACTIONS, after_s=after_s
        )

    async def slowest_groups(self) -> list[SlowGroup]:
        """See OverviewReads."""
        return await self._reading.rows("slowest_groups", SlowGroup, SLOWEST_GROUPS)

    async def inbox(self) -> InboxState:
        """See OverviewReads."""
        return await self._reading.row("inbox", InboxState, INBOX)

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
