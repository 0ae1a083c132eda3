"""What subscriptions have acknowledged, into PostgreSQL: many cursors in one round trip.

One pipeline is one transaction: the leases are locked and their generations compared first, then
come the statements that are needed. SQL compares versions here and nothing more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from core.ports.subscriptions import CursorWrite, GuardedWrites
from storage.connection.binary import bigint_array, columns, integer_array, text_array
from storage.connection.kept_session import KeptSession
from storage.connection.pool import FLUSH_DEADLINE_S
from storage.flush.groups import HOLD_LEASES

if TYPE_CHECKING:
    from storage.connection.pool import Database
    from storage.connection.session import Statement

# Locks the rows in order, so that a topic's deletion and a flush cannot deadlock.
LOCK_SUBSCRIPTIONS = """
SELECT subscription_id FROM penstock.subscription WHERE subscription_id = ANY ($1::bigint[])
ORDER BY subscription_id FOR NO KEY UPDATE
"""
# One row a subscription, of which no index has a column: the new version stays on its page.
PUT_CURSORS = """
UPDATE penstock.subscription s SET mark_delete = e.mark_delete, type = coalesce(e.type, s.type)
FROM unnest($1::bigint[], $2::bigint[], $3::text[]) AS e (subscription_id, mark_delete, type)
WHERE s.subscription_id = e.subscription_id
"""
# Ranges that have gone, into the mark-delete offset or into one another.
DELETE_RANGES = """
DELETE FROM penstock.subscription_range r
USING unnest($1::bigint[], $2::bigint[]) AS e (subscription_id, start_offset)
WHERE r.subscription_id = e.subscription_id AND r.start_offset = e.start_offset
"""
# Ranges that are new or have grown; of subscriptions that are there, since their rows are locked.
PUT_RANGES = """
INSERT INTO penstock.subscription_range (subscription_id, start_offset, end_offset)
SELECT e.subscription_id, e.start_offset, e.end_offset
FROM unnest($1::bigint[], $2::bigint[], $3::bigint[])
    AS e (subscription_id, start_offset, end_offset)
JOIN penstock.subscription s USING (subscription_id)
ON CONFLICT (subscription_id, start_offset) DO UPDATE SET end_offset = excluded.end_offset
"""

# Acknowledgements of committed transactions that the cursor has now.
FORGET_ACKS = """
DELETE FROM penstock.pending_ack a
USING unnest($1::bigint[], $2::bigint[], $3::bigint[])
    AS e (subscription_id, producer_id, open_version)
WHERE a.subscription_id = e.subscription_id AND a.producer_id = e.producer_id
  AND a.open_version = e.open_version AND a.is_committed
"""

STATEMENTS: Mapping[bytes, str] = {
    b"hold_leases": HOLD_LEASES,
    b"lock_subscriptions": LOCK_SUBSCRIPTIONS,
    b"put_cursors": PUT_CURSORS,
    b"delete_ranges": DELETE_RANGES,
    b"put_ranges": PUT_RANGES,
    b"forget_acks": FORGET_ACKS,
}


class SubscriptionFlush:
    """`core.ports.subscriptions.SubscriptionFlush`."""

    def __init__(self, database: Database) -> None:
        self._session = KeptSession(database, STATEMENTS, deadline_s=FLUSH_DEADLINE_S)

    async def commit(self, writes: Sequence[GuardedWrites]) -> None:
        """See SubscriptionFlush."""
        leases = sorted({(each.lease.shard, each.lease.generation) for each in writes})
        if not leases:
            return
        statements: list[Statement] = [
            (
                b"hold_leases",
                (
                    integer_array([shard for shard, _ in leases]),
                    bigint_array([generation for _, generation in leases]),
                ),
            )
        ]
        statements += _statements([write for each in writes for write in each.writes])
        await self._session.run("subscription_flush", statements)

    async def close(self) -> None:
        """See SubscriptionFlush."""
        await self._session.close()


def _statements(writes: list[CursorWrite]) -> Iterator[Statement]:
    """What the writes need, in the order in which they may follow each other."""
    if not writes:
        return
    writes.sort(key=lambda each: each.subscription_id)
    ids = bigint_array([each.subscription_id for each in writes])
    yield b"lock_subscriptions", (ids,)
    marks = bigint_array([each.effects.mark_delete for each in writes])
    types = text_array([None if each.type is None else each.type.name for each in writes])
    yield b"put_cursors", (ids, marks, types)
    gone = [(each.subscription_id, start) for each in writes for start in each.effects.gone]
    if gone:
        yield b"delete_ranges", columns("qq", gone)
    put = [(each.subscription_id, *row) for each in writes for row in each.effects.put]
    if put:
        yield b"put_ranges", columns("qqq", put)
    taken_in = [(each.subscription_id, *of) for each in writes for of in each.taken_in]
    if taken_in:
        yield b"forget_acks", columns("qqq", taken_in)
