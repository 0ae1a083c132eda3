"""Pulsar's subscriptions: implements `core.ports.console.subscriptions`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from core.ports.console.subscriptions import (
    ConsumerRow,
    PendingAckRow,
    SubscriptionKey,
    SubscriptionPlace,
)
from storage.console.reading import Reading

KEYS: Final = """
SELECT DISTINCT t.name AS topic, s.name
FROM penstock.subscription s
JOIN penstock.topic_partition p USING (partition_id) JOIN penstock.topic t USING (topic_id)
WHERE strpos(lower(t.name || '/' || s.name), lower(:search)) > 0
ORDER BY t.name, s.name
"""
_OF: Final = """
    WHERE topic = ANY (CAST(:topics AS text[])) AND subscription = ANY (CAST(:names AS text[]))
"""
PLACES: Final = f"""
SELECT s.topic, s.partition, s.subscription, s.type, s.mark_delete, s.ranges, b.backlog, b.pending,
       b.log_start_offset, b.last_stable_offset, b.high_watermark AS end_offset, s.owner,
       s.properties, s.created_at
FROM (SELECT * FROM penstock.v_subscription {_OF}) AS s
JOIN (SELECT * FROM penstock.v_subscription_backlog {_OF}) AS b
    USING (topic, partition, subscription)
ORDER BY s.topic, s.subscription, s.partition
"""
BACKLOGS: Final = f"""
SELECT topic, subscription, partition, backlog FROM penstock.v_subscription_backlog {_OF}
ORDER BY topic, subscription, partition
"""
CONSUMERS: Final = f"""
SELECT topic, partition, subscription, consumer, type, permits, unacknowledged, is_active,
       is_blocked, priority_level, address, client, broker, connected_at, seen_at
FROM penstock.v_consumer {_OF} ORDER BY topic, subscription, partition, consumer
"""
PENDING_ACKS: Final = """
SELECT partition, transactional_id, producer_id, state, start_offset, end_offset,
       extract(epoch FROM age)::float8 AS age_s
FROM penstock.v_pending_ack WHERE topic = :topic AND subscription = :subscription
ORDER BY partition, start_offset LIMIT :most
"""


@dataclass(frozen=True, slots=True)
class _Backlog:
    topic: str
    subscription: str
    partition: int
    backlog: int


class PostgresSubscriptions:
    """`core.ports.console.subscriptions.SubscriptionReads`."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    async def keys(self, search: str) -> list[SubscriptionKey]:
        """See SubscriptionReads."""
        return await self._reading.rows("subscriptions", SubscriptionKey, KEYS, search=search)

    async def places(
        self, topics: Collection[str], names: Collection[str]
    ) -> list[SubscriptionPlace]:
        """See SubscriptionReads."""
        return await self._reading.rows(
            "subscription_places", SubscriptionPlace, PLACES, **_of(topics, names)
        )

    async def backlogs(
        self, keys: Collection[SubscriptionKey]
    ) -> Mapping[SubscriptionKey, Mapping[str, int]]:
        """See SubscriptionReads."""
        of = _of({each.topic for each in keys}, {each.name for each in keys})
        found: dict[SubscriptionKey, dict[str, int]] = {}
        for row in await self._reading.rows("backlogs", _Backlog, BACKLOGS, **of):
            key = SubscriptionKey(row.topic, row.subscription)
            found.setdefault(key, {})[str(row.partition)] = row.backlog
        return found

    async def consumers(self, topics: Collection[str], names: Collection[str]) -> list[ConsumerRow]:
        """See SubscriptionReads."""
        return await self._reading.rows("consumers", ConsumerRow, CONSUMERS, **_of(topics, names))

    async def pending_acks(self, key: SubscriptionKey, most: int) -> list[PendingAckRow]:
        """See SubscriptionReads."""
        return await self._reading.rows(
            "pending_acks",
            PendingAckRow,
            PENDING_ACKS,
            topic=key.topic,
            subscription=key.name,
            most=most,
        )


def _of(topics: Collection[str], names: Collection[str]) -> dict[str, list[str]]:
    return {"topics": list(topics), "names": list(names)}
