"""Subscriptions of partitions: read, made, deleted. Implements SubscriptionStore.

Cursors are written by `storage/flush/subscriptions.py`. Knows no rule of dispatch.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any
from uuid import UUID

from core.ports.subscriptions import (
    LiveConsumer,
    NewSubscription,
    StoredAck,
    StoredSubscription,
)
from core.subscription.cursor import StoredCursor
from core.subscription.offset_ranges import OffsetRange
from core.subscription.values import SubscriptionType
from core.transaction.values import OpenTransaction
from storage.connection.binary import (
    bigint_array,
    integer,
    integer_array,
    jsonb_array,
    rows_of,
    text_array,
)
from storage.connection.client_text import key_of, read, written
from storage.connection.kept_session import KeptSession
from storage.flush.groups import HOLD_LEASES
from storage.flush.subscriptions import SubscriptionFlush

if TYPE_CHECKING:
    from core.ports.leases import Lease
    from storage.connection.pool import Database
    from storage.connection.session import Statement

# A partition's subscriptions, ranges as arrays in order: one row each, one snapshot for all.
LOAD = """
SELECT s.subscription_id, s.name, s.type, s.mark_delete, s.properties,
       array(SELECT r.start_offset FROM penstock.subscription_range r
             WHERE r.subscription_id = s.subscription_id ORDER BY r.start_offset),
       array(SELECT r.end_offset FROM penstock.subscription_range r
             WHERE r.subscription_id = s.subscription_id ORDER BY r.start_offset),
       (SELECT jsonb_agg(jsonb_build_array(
            a.producer_id, a.open_version, a.start_offset, a.end_offset, a.is_cumulative,
            a.is_committed))
        FROM penstock.pending_ack a WHERE a.subscription_id = s.subscription_id)
FROM penstock.subscription s WHERE s.partition_id = %(partition_id)s
"""
FIND = """
SELECT subscription_id FROM penstock.subscription
WHERE partition_id = %(partition_id)s AND name_key = %(name_key)s
"""
READ_PENDING = """
SELECT a.subscription_id, a.producer_id, a.open_version, a.start_offset, a.end_offset,
       a.is_cumulative, a.is_committed
FROM penstock.pending_ack a WHERE a.subscription_id = ANY (%(subscription_ids)s::bigint[])
"""
# Of a partition that is there, and stays until this is committed: deleting locks its row first.
CREATE = """
WITH there AS MATERIALIZED (
    SELECT partition_id FROM penstock.topic_partition WHERE partition_id = $1::bigint FOR KEY SHARE
)
INSERT INTO penstock.subscription (partition_id, name_key, name, type, mark_delete, properties)
SELECT partition_id, $2::uuid, ($3::text[])[1], ($4::text[])[1], $5::bigint, ($6::jsonb[])[1]
FROM there
RETURNING subscription_id
"""
# The ranges go in a later statement, which sees what was there when the row was locked.
DELETE = "DELETE FROM penstock.subscription WHERE subscription_id = $1::bigint"
DELETE_ACKS = "DELETE FROM penstock.pending_ack WHERE subscription_id = $1::bigint"
DELETE_RANGES = "DELETE FROM penstock.subscription_range WHERE subscription_id = $1::bigint"

SHOW = """
INSERT INTO penstock.live_consumer AS l (broker_id, incarnation, number, partition_id, subscription,
    consumer, type, address, client, connected_at, priority_level, permits, unacknowledged,
    is_active, is_blocked)
SELECT %(broker_id)s, %(incarnation)s, c.number, c.partition_id, c.subscription, c.consumer, c.type,
       c.address, c.client, to_timestamp(c.connected_at / 1000.0), c.priority_level, c.permits,
       c.unacknowledged, c.is_active, c.is_blocked
FROM jsonb_to_recordset(%(changed)s::jsonb) AS c(
    number bigint, partition_id bigint, subscription text, consumer text, type text, address text,
    client text, connected_at bigint, priority_level integer, permits bigint,
    unacknowledged bigint, is_active boolean, is_blocked boolean)
ON CONFLICT (broker_id, number) DO UPDATE
SET incarnation = excluded.incarnation, partition_id = excluded.partition_id,
    subscription = excluded.subscription, consumer = excluded.consumer, type = excluded.type,
    address = excluded.address, client = excluded.client, connected_at = excluded.connected_at,
    priority_level = excluded.priority_level, permits = excluded.permits,
    unacknowledged = excluded.unacknowledged, is_active = excluded.is_active,
    is_blocked = excluded.is_blocked, seen_at = clock_timestamp()
"""
HIDE = """
DELETE FROM penstock.live_consumer
WHERE broker_id = %(broker_id)s AND number = ANY(%(gone)s::bigint[])
"""
HIDE_OTHERS = """
DELETE FROM penstock.live_consumer
WHERE broker_id = %(broker_id)s
  AND (incarnation <> %(incarnation)s OR number <> ALL(%(numbers)s::bigint[]))
"""

STATEMENTS: Mapping[bytes, str] = {
    b"hold_leases": HOLD_LEASES,
    b"create_subscription": CREATE,
    b"delete_subscription": DELETE,
    b"delete_ranges": DELETE_RANGES,
    b"delete_acks": DELETE_ACKS,
}

_BIGINT = struct.Struct(">q")


class SubscriptionStore:
    """`core.ports.subscriptions.SubscriptionStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._session = KeptSession(database, STATEMENTS)

    def open_flush(self) -> SubscriptionFlush:
        """See SubscriptionStore."""
        return SubscriptionFlush(self._database)

    async def load(self, partition_id: int) -> list[StoredSubscription]:
        """See SubscriptionStore."""
        async with self._database.reader("load_subscriptions") as cursor:
            await cursor.execute(LOAD, {"partition_id": partition_id})
            return [
                StoredSubscription(
                    subscription_id,
                    read(name),
                    StoredCursor(mark_delete, tuple(map(OffsetRange, starts, ends))),
                    None if kind is None else SubscriptionType[kind],
                    {read(key): read(value) for key, value in properties.items()},
                    tuple(map(_ack, pending or ())),
                )
                for subscription_id, name, kind, mark_delete, properties, starts, ends, pending in (
                    await cursor.fetchall()
                )
            ]

    async def find_id(self, partition_id: int, name: str) -> int | None:
        """See SubscriptionStore."""
        wanted = {"partition_id": partition_id, "name_key": UUID(bytes=key_of(name))}
        async with self._database.reader("find_subscription") as cursor:
            await cursor.execute(FIND, wanted)
            row = await cursor.fetchone()
            return None if row is None else int(row[0])

    async def read_pending(self, subscription_ids: Sequence[int]) -> dict[int, list[StoredAck]]:
        """See SubscriptionStore."""
        found: dict[int, list[StoredAck]] = {}
        async with self._database.reader("pending_acks") as cursor:
            await cursor.execute(READ_PENDING, {"subscription_ids": list(subscription_ids)})
            for subscription_id, *row in await cursor.fetchall():
                found.setdefault(subscription_id, []).append(_ack(row))
        return found

    async def create(self, lease: Lease, new: NewSubscription) -> int | None:
        """See SubscriptionStore."""
        properties = {written(key): written(value) for key, value in new.properties.items()}
        parameters = (
            _BIGINT.pack(new.partition_id),
            key_of(new.name),
            text_array([written(new.name)]),
            text_array([None if new.type is None else new.type.name]),
            _BIGINT.pack(new.mark_delete),
            jsonb_array([json.dumps(properties, ensure_ascii=False)]),
        )
        results = await self._session.run_or_fail(
            "create_subscription", [_hold(lease), (b"create_subscription", parameters)]
        )
        found = rows_of(results[1])
        return integer(found[0][0]) if found else None

    async def delete(self, lease: Lease, subscription_id: int) -> None:
        """See SubscriptionStore."""
        parameters = (_BIGINT.pack(subscription_id),)
        await self._session.run_or_fail(
            "delete_subscription",
            [
                _hold(lease),
                (b"delete_subscription", parameters),
                (b"delete_ranges", parameters),
                (b"delete_acks", parameters),
            ],
        )

    async def show(
        self,
        broker_id: int,
        incarnation: UUID,
        changed: Sequence[LiveConsumer],
        gone: Sequence[int] | None,
    ) -> None:
        """See SubscriptionStore."""
        broker = {"broker_id": broker_id, "incarnation": incarnation}
        async with self._database.reader("show_consumers") as cursor:
            if changed:
                rows = json.dumps([_shown(each) for each in changed], ensure_ascii=False)
                await cursor.execute(SHOW, {**broker, "changed": rows})
            if gone is None:
                numbers = [each.number for each in changed]
                await cursor.execute(HIDE_OTHERS, {**broker, "numbers": numbers})
            elif gone:
                await cursor.execute(HIDE, {**broker, "gone": list(gone)})


def _ack(row: Sequence[Any]) -> StoredAck:
    producer_id, open_version, *rest = row
    return StoredAck(OpenTransaction(producer_id, open_version), *rest)


def _shown(consumer: LiveConsumer) -> dict[str, Any]:
    row = asdict(consumer)
    texts = {key: written(value) for key, value in row.items() if isinstance(value, str)}
    return {**row, **texts, "type": consumer.type.name}


def _hold(lease: Lease) -> Statement:
    return b"hold_leases", (integer_array([lease.shard]), bigint_array([lease.generation]))
