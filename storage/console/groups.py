"""Groups: implements `core.ports.console.groups`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

from core.group.expressions import read_expression
from core.group.progress import HeldPartition
from core.ports.console.groups import GroupFacts, GroupMember, GroupPlace, GroupRow, Place
from storage.connection.client_text import key_of
from storage.console.reading import Reading

IDS: Final = """
SELECT group_id FROM penstock.consumer_group
WHERE strpos(lower(group_id), lower(:search)) > 0 ORDER BY group_id
"""
# Of a group, in some topics or in all.
_BEHIND: Final = (
    "sum(greatest(p.next_offset - greatest(o.committed_offset, p.log_start_offset), 0))"
)
_COMMITTED: Final = """
    penstock.committed_offset o
    JOIN penstock.topic_partition p USING (partition_id) JOIN penstock.topic t USING (topic_id)
    WHERE (CAST(:topics AS text[]) IS NULL OR t.name = ANY (CAST(:topics AS text[])))
"""
IDS_BY_LAG: Final = f"""
SELECT g.group_id
FROM penstock.consumer_group g
LEFT JOIN (
    SELECT o.group_key, {_BEHIND} AS behind FROM {_COMMITTED} GROUP BY o.group_key
) AS of_group USING (group_key)
WHERE strpos(lower(group_id), lower(:search)) > 0
ORDER BY of_group.behind DESC NULLS LAST, g.group_id
"""
ROWS: Final = f"""
SELECT g.group_id, g.protocol, nullif(g.protocol_type, '') AS protocol_type, g.state,
       (SELECT count(*) FROM penstock.group_member m WHERE m.group_key = g.group_key) AS members,
       (SELECT {_BEHIND}::bigint FROM {_COMMITTED} AND o.group_key = g.group_key) AS behind
FROM unnest(CAST(:keys AS uuid[])) WITH ORDINALITY AS w (group_key, n)
JOIN penstock.consumer_group g USING (group_key) ORDER BY w.n
"""
FACTS: Final = """
SELECT v.group_id, v.protocol, v.protocol_type, v.state, v.since, v.assignor, v.generation,
       v.assignment_epoch, v.leader, g.waiting_for, v.coordinator
FROM penstock.v_group v CROSS JOIN penstock.consumer_group g
WHERE v.group_id = :group_id AND g.group_key = :key
"""
# By topics' names: classic members' assignments have names already.
_BY_NAME: Final = """(
    SELECT coalesce(jsonb_object_agg(coalesce(t.name, a.key), a.value), '{{}}')
    FROM jsonb_each(m.{column}) AS a
    LEFT JOIN penstock.topic t ON t.topic_id = CASE
        WHEN a.key ~ '^[0-9a-f]{{8}}(-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}$' THEN a.key::uuid END
) AS {column}"""
MEMBERS: Final = f"""
SELECT m.member_id, m.group_instance_id AS instance_id, m.client_id, m.client_host AS host,
       m.protocol, nullif(m.state, '') AS state,
       CASE g.protocol WHEN 'consumer' THEN m.member_epoch ELSE g.generation_id END AS epoch,
       g.leader IS NOT DISTINCT FROM m.member_id AS is_leader,
       m.session_timeout_ms / 1000.0::float8 AS session_timeout_s,
       {", ".join(_BY_NAME.format(column=each) for each in ("assigned", "revoking", "target"))},
       m.subscribed_topic_names AS subscribed, m.subscribed_topic_regex AS regex
FROM penstock.group_member m JOIN penstock.consumer_group g USING (group_key)
WHERE m.group_key = :key ORDER BY m.member_id
"""
PLACES: Final = """
WITH place AS (
    SELECT partition_id FROM penstock.committed_offset WHERE group_key = :key
    UNION SELECT partition_id FROM penstock.pending_offset WHERE group_key = :key
    UNION SELECT p.partition_id
    FROM unnest(CAST(:topics AS text[]), CAST(:partitions AS integer[])) AS w (name, partition)
    JOIN penstock.topic t USING (name)
    JOIN penstock.topic_partition p ON p.topic_id = t.topic_id AND p.partition = w.partition
)
SELECT t.name AS topic, p.partition, o.committed_offset, p.log_start_offset,
       greatest(p.log_start_offset, least(p.next_offset, (
           SELECT min(s.txn_first_offset) FROM penstock.producer_state s
           WHERE s.partition_id = p.partition_id AND s.txn_first_offset IS NOT NULL
       ))) AS last_stable_offset,
       p.next_offset AS end_offset,
       penstock.from_unix_ms(o.commit_timestamp) AS committed_at,
       nullif(o.metadata, '') AS metadata,
       w.committed_offset AS pending_offset, x.transactional_id AS pending_id,
       w.producer_id AS pending_producer_id
FROM place
JOIN penstock.topic_partition p USING (partition_id)
JOIN penstock.topic t USING (topic_id)
LEFT JOIN penstock.committed_offset o
    ON o.group_key = :key AND o.partition_id = p.partition_id
LEFT JOIN LATERAL (
    SELECT w.* FROM penstock.pending_offset w
    WHERE w.group_key = :key AND w.partition_id = p.partition_id
    ORDER BY w.commit_timestamp LIMIT 1
) AS w ON true
LEFT JOIN penstock.transaction_state x ON x.producer_id = w.producer_id
ORDER BY t.name, p.partition
"""
LAGS: Final = """
SELECT topic, partition, lag::bigint AS lag FROM penstock.v_group_lag
WHERE group_id = :group_id AND topic = ANY (CAST(:topics AS text[]))
"""
HELD: Final = """
SELECT topic, partition, transactional_id, producer_id, last_stable_offset AS first_offset,
       records_waiting AS waiting, extract(epoch FROM age)::float8 AS age_s,
       extract(epoch FROM timeout_left)::float8 AS timeout_left_s, client_host AS host
FROM penstock.v_open_transaction_blocking WHERE topic = ANY (CAST(:topics AS text[]))
"""


@dataclass(frozen=True, slots=True)
class _Id:
    group_id: str


@dataclass(frozen=True, slots=True)
class _Lag:
    topic: str
    partition: int
    lag: int


class PostgresGroups:
    """`core.ports.console.groups.GroupReads`."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    async def ids(self, search: str) -> list[str]:
        """See GroupReads."""
        rows = await self._reading.rows("group_ids", _Id, IDS, search=search)
        return [row.group_id for row in rows]

    async def ids_by_lag(self, search: str, topics: Collection[str] | None) -> list[str]:
        """See GroupReads."""
        rows = await self._reading.rows(
            "group_ids", _Id, IDS_BY_LAG, search=search, topics=_listed(topics)
        )
        return [row.group_id for row in rows]

    async def rows(
        self, group_ids: Collection[str], topics: Collection[str] | None
    ) -> list[GroupRow]:
        """See GroupReads."""
        keys = [_key(each) for each in group_ids]
        return await self._reading.rows("groups", GroupRow, ROWS, keys=keys, topics=_listed(topics))

    async def facts(self, group_id: str) -> GroupFacts | None:
        """See GroupReads."""
        found = await self._reading.rows(
            "group", GroupFacts, FACTS, key=_key(group_id), group_id=group_id
        )
        return found[0] if found else None

    async def members(self, group_id: str) -> list[GroupMember]:
        """See GroupReads."""
        return await self._reading.rows("group_members", _member, MEMBERS, key=_key(group_id))

    async def places(self, group_id: str, assigned: Collection[Place]) -> list[GroupPlace]:
        """See GroupReads."""
        return await self._reading.rows(
            "group_places",
            GroupPlace,
            PLACES,
            key=_key(group_id),
            topics=[topic for topic, _ in assigned],
            partitions=[partition for _, partition in assigned],
        )

    async def lags(self, group_id: str, topics: Collection[str]) -> Mapping[Place, int]:
        """See GroupReads."""
        rows = await self._reading.rows(
            "group_lags", _Lag, LAGS, group_id=group_id, topics=list(topics)
        )
        return {(row.topic, row.partition): row.lag for row in rows}

    async def held(self, topics: Collection[str]) -> list[HeldPartition]:
        """See GroupReads."""
        return await self._reading.rows("held", HeldPartition, HELD, topics=list(topics))


def _listed(topics: Collection[str] | None) -> list[str] | None:
    return None if topics is None else list(topics)


def _key(group_id: str) -> UUID:
    return UUID(bytes=key_of(group_id))


def _member(**columns: Any) -> GroupMember:
    row = GroupMember(**columns)
    return row if row.regex is None else replace(row, regex=read_expression(row.regex)[0])
