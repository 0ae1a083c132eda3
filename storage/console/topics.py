"""Topics: implements `core.ports.console.topics`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from core.ports.console.topics import (
    GroupReading,
    HeldBack,
    PartitionRow,
    Rank,
    SubscriptionReading,
    TopicFigures,
)
from storage.console.reading import Reading

# Not by v_topic: it reads every topic, whichever are asked for.
FIGURES: Final = """
SELECT t.name, coalesce(sum(p.next_offset - p.log_start_offset), 0)::bigint AS offsets,
       coalesce(sum(p.size_bytes), 0)::bigint AS size_bytes,
       penstock.from_unix_ms(max(p.max_timestamp) FILTER (WHERE p.next_offset > p.log_start_offset))
           AS newest_record, t.created_at
FROM penstock.topic t LEFT JOIN penstock.topic_partition p USING (topic_id)
WHERE t.name = ANY (:topics) GROUP BY t.topic_id
"""
_RANKED: Final = """
SELECT array_agg(t.name ORDER BY p.key, t.name) AS names
FROM (
    SELECT topic_id, {key} AS key FROM penstock.topic_partition GROUP BY topic_id
) AS p JOIN penstock.topic t USING (topic_id)
"""
RANKED: Final = {
    rank: _RANKED.format(key=key)
    for rank, key in (
        (Rank.OFFSETS, "sum(next_offset - log_start_offset)"),
        (Rank.SIZE, "sum(size_bytes)"),
        (
            Rank.NEWEST,
            "max(CASE WHEN next_offset > log_start_offset THEN max_timestamp ELSE -1 END)",
        ),
    )
}
PARTITIONS: Final = """
SELECT partition, partition_id, log_start_offset, last_stable_offset, high_watermark, size_bytes,
       CASE WHEN high_watermark > log_start_offset THEN newest_record END AS newest_record,
       leader_epoch, terminated_offset
FROM penstock.v_topic_partition
WHERE topic = :topic AND partition BETWEEN :first AND :last ORDER BY partition
"""
GROUPS: Final = """
SELECT g.group_id, count(*) AS partitions,
       sum(greatest(p.next_offset - greatest(o.committed_offset, p.log_start_offset), 0))::bigint
           AS behind,
       max(penstock.from_unix_ms(o.commit_timestamp)) AS committed_at
FROM penstock.topic t
JOIN penstock.topic_partition p USING (topic_id)
JOIN penstock.committed_offset o USING (partition_id)
JOIN penstock.consumer_group g USING (group_key)
WHERE t.name = :topic GROUP BY g.group_id ORDER BY g.group_id
"""
SUBSCRIPTIONS: Final = """
SELECT subscription AS name, count(*) AS partitions, sum(backlog)::bigint AS backlog,
       (array_agg(partition ORDER BY backlog DESC, partition))[1] AS furthest
FROM penstock.v_subscription_backlog WHERE topic = :topic
GROUP BY subscription ORDER BY subscription
"""
HELD_BACK: Final = """
SELECT transactional_id, protocol, producer_id, count(*) AS partitions,
       min(partition) AS partition, sum(records_waiting)::bigint AS records_waiting,
       max(extract(epoch FROM age))::float8 AS age_s
FROM penstock.v_open_transaction_blocking WHERE topic = :topic
GROUP BY transactional_id, protocol, producer_id ORDER BY age_s DESC, producer_id LIMIT 50
"""


@dataclass(frozen=True, slots=True)
class _Ranked:
    names: list[str] | None


class PostgresTopics:
    """`core.ports.console.topics.TopicReads`."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    async def figures(self, topics: Collection[str]) -> Mapping[str, TopicFigures]:
        """See TopicReads."""
        rows = await self._reading.rows("topic_figures", TopicFigures, FIGURES, topics=list(topics))
        return {row.name: row for row in rows}

    async def ranked(self, rank: Rank) -> Sequence[str]:
        """See TopicReads."""
        found = await self._reading.row("topics_ranked", _Ranked, RANKED[rank])
        return found.names or ()

    async def partitions(self, topic: str, first: int, last: int) -> list[PartitionRow]:
        """See TopicReads."""
        place = {"topic": topic, "first": first, "last": last}
        return await self._reading.rows("topic_partitions", PartitionRow, PARTITIONS, **place)

    async def groups(self, topic: str) -> list[GroupReading]:
        """See TopicReads."""
        return await self._reading.rows("topic_groups", GroupReading, GROUPS, topic=topic)

    async def subscriptions(self, topic: str) -> list[SubscriptionReading]:
        """See TopicReads."""
        query = SUBSCRIPTIONS
        return await self._reading.rows(
            "topic_subscriptions", SubscriptionReading, query, topic=topic
        )

    async def held_back(self, topic: str) -> list[HeldBack]:
        """See TopicReads."""
        return await self._reading.rows("topic_held_back", HeldBack, HELD_BACK, topic=topic)
