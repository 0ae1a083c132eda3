"""Transactions outside the flush: reads, and joins that cost no fsync. Implements TransactionStore.

A flush of the log (`flush/log.py`) ends transactions. SQL compares versions here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import itemgetter
from random import randrange
from typing import TYPE_CHECKING

from core.ports.transactions import (
    AckingSubscription,
    OpenTransactions,
    PendingAcks,
    PendingOffsets,
    TransactionJoin,
)
from core.transaction.key import (
    Participant,
    ParticipantKind,
    TransactionKey,
    TransactionKind,
)
from core.transaction.values import (
    StoredTransaction,
    TransactionEffects,
    TransactionMetadata,
    first_version,
)
from storage import schema
from storage.connection.binary import (
    bigint_array,
    boolean_array,
    columns,
    integer,
    integer_array,
    rows_of,
    smallint_array,
    text_array,
    uuid_array,
)
from storage.connection.client_text import key_of, read, written
from storage.connection.kept_session import KeptSession
from storage.connection.rows import Row
from storage.flush.groups import HOLD_LEASES, MAKE_GROUPS
from storage.flush.transactions import (
    GUARD_TRANSACTIONS,
    HOLD_GROUPS,
    JOIN_PARTITIONS,
    LOCK_AS_NEEDED,
    METADATA,
    PUT_TRANSACTIONS,
    READ_TRANSACTIONS,
    Statement,
    guards,
    participant_key,
    transactions,
    txn_key,
)

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

    from core.ports.leases import Lease
    from storage.connection.pool import Database

CUMULATIVE = -1
"""start_offset of a pending acknowledgement of all below its end."""

# For this transaction only: its rows are visible at once, and the disk may wait.
ASYNCHRONOUSLY = "SELECT set_config('synchronous_commit', 'off', true)"

# An asynchronous opening moves the version by a random number up to this. A crash of the database
# may lose the opening though brokers know of it: if another producer's next opening got the same
# version, their memory would pass the guard. 2**24: a thousand a second for 30 years.
ASYNCHRONOUS_STEP = 2**10, 2**24

# Guarded by the transaction's row, which is held.
JOIN_PARTICIPANTS = """
INSERT INTO penstock.transaction_participant (txn_key, participant_key, kind, name)
SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::smallint[], $4::text[]) ON CONFLICT DO NOTHING
"""

# A sequence of the database's numbers the commits.
_PENDING = Row.of(schema.pending_offset, omit=["commit_order"])
# Guarded by the lease and the rows of transaction and group, all of them held.
PUT_PENDING = f"""
INSERT INTO penstock.pending_offset ({_PENDING.names}, commit_order)
SELECT e.*, (SELECT nextval('penstock.offset_commit_seq')) FROM {_PENDING.unnest()} AS e
ON CONFLICT (group_key, producer_id, partition_id) DO UPDATE
SET {_PENDING.without("group_key", "producer_id", "partition_id").excluded},
    commit_order = excluded.commit_order
"""
PENDING_PARTITIONS = """
SELECT DISTINCT p.group_key, p.partition_id FROM penstock.pending_offset p
WHERE p.group_key = ANY ($1::uuid[])
"""

# A subscription stays as it is, but for its cursor, until this is committed.
HOLD_SUBSCRIPTIONS = """
SELECT subscription_id FROM penstock.subscription WHERE subscription_id = ANY ($1::bigint[])
ORDER BY subscription_id FOR KEY SHARE
"""
# Guarded by the lease and the transaction's row; the subscriptions are held.
PUT_PENDING_ACKS = """
WITH put AS (
    INSERT INTO penstock.pending_ack AS a
        (subscription_id, producer_id, open_version, start_offset, end_offset, is_cumulative)
    SELECT e.*
    FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::boolean[])
        AS e (subscription_id, producer_id, open_version, start_offset, end_offset, is_cumulative)
    JOIN penstock.subscription s USING (subscription_id)
    ON CONFLICT (subscription_id, producer_id, open_version, start_offset) DO UPDATE
    SET end_offset = greatest(a.end_offset, excluded.end_offset)
    RETURNING 1
)
SELECT CASE WHEN (SELECT count(*) FROM put) <> cardinality($1::bigint[])
            THEN penstock.version_mismatch() END
"""

OVERDUE = """
SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint, t.kind, t.transactional_id
FROM penstock.transaction_state t
WHERE t.started_at >= 0
  AND t.started_at + t.timeout_ms <= (extract(epoch FROM clock_timestamp()) * 1000)::bigint
ORDER BY t.started_at LIMIT $1::bigint
"""
COUNT_OPEN = f"""
SELECT count(*),
       coalesce((extract(epoch FROM clock_timestamp()) * 1000)::bigint - min(t.started_at), 0),
       count(*) FILTER (WHERE t.kind = {TransactionKind.TXN_ID:d})
FROM penstock.transaction_state t WHERE t.started_at >= 0
"""
IDLE = f"""
SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint, t.kind, t.transactional_id
FROM penstock.transaction_state t
WHERE t.started_at = -1 AND t.kind <> {TransactionKind.TXN_ID:d}
  AND t.updated_at + $2::bigint <= (extract(epoch FROM clock_timestamp()) * 1000)::bigint
ORDER BY t.updated_at LIMIT $1::bigint
"""
# Nothing is left of such a transaction but its row: how it ended, for those who ask again.
FORGET_ENDED = f"""
DELETE FROM penstock.transaction_state t WHERE t.txn_key IN (
    SELECT o.txn_key FROM penstock.transaction_state o
    WHERE o.kind = {TransactionKind.TXN_ID:d} AND o.started_at = -1
      AND o.updated_at + $2::bigint <= (extract(epoch FROM clock_timestamp()) * 1000)::bigint
    LIMIT $1::bigint FOR UPDATE SKIP LOCKED
)
"""
LIST_ALL = f"""
SELECT {METADATA.of_table("t")}, '{{}}'::bigint[], '{{}}'::integer[], '{{}}'::text[]
FROM penstock.transaction_state t
WHERE t.kind <> {TransactionKind.TXN_ID:d} OR t.started_at >= 0
ORDER BY t.transactional_id
"""
NEWEST = "SELECT coalesce(max(producer_id), -1) FROM penstock.transaction_state"
SUBSCRIPTIONS_OF = f"""
SELECT t.producer_id, s.partition_id, s.name, a.end_offset
FROM penstock.transaction_state t JOIN penstock.transaction_participant j USING (txn_key)
JOIN penstock.subscription s
  ON s.subscription_id = CASE j.kind WHEN {ParticipantKind.SUBSCRIPTION:d} THEN j.name::bigint END
LEFT JOIN penstock.pending_ack a ON a.subscription_id = s.subscription_id
  AND a.producer_id = t.producer_id AND a.open_version = t.version
  AND a.start_offset = {CUMULATIVE}
WHERE t.producer_id = ANY ($1::bigint[])
ORDER BY s.partition_id, s.name, t.producer_id
"""
NOW = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"

JOINS = {
    b"asynchronously": ASYNCHRONOUSLY,
    b"guard_transactions": GUARD_TRANSACTIONS,
    b"lock_as_needed": LOCK_AS_NEEDED,
    b"put_transactions": PUT_TRANSACTIONS,
    b"join_partitions": JOIN_PARTITIONS,
    b"join_participants": JOIN_PARTICIPANTS,
}
PENDING = {
    b"hold_leases": HOLD_LEASES,
    b"make_groups": MAKE_GROUPS,
    b"hold_groups": HOLD_GROUPS,
    b"guard_transactions": GUARD_TRANSACTIONS,
    b"lock_as_needed": LOCK_AS_NEEDED,
    b"put_transactions": PUT_TRANSACTIONS,
    b"join_participants": JOIN_PARTICIPANTS,
    b"put_pending": PUT_PENDING,
    b"hold_subscriptions": HOLD_SUBSCRIPTIONS,
    b"put_pending_acks": PUT_PENDING_ACKS,
}
READS = {
    b"pending_partitions": PENDING_PARTITIONS,
    b"read_transactions": READ_TRANSACTIONS,
    b"overdue": OVERDUE,
    b"count_open": COUNT_OPEN,
    b"idle": IDLE,
    b"forget_ended": FORGET_ENDED,
    b"list_all": LIST_ALL,
    b"newest": NEWEST,
    b"subscriptions_of": SUBSCRIPTIONS_OF,
    b"now": NOW,
}


class PostgresTransactionStore:
    """`core.ports.transactions.TransactionStore` on PostgreSQL."""

    def __init__(self, database: Database) -> None:
        self._joins = KeptSession(database, JOINS)
        self._pending = KeptSession(database, PENDING)
        self._reads = KeptSession(database, READS)

    async def load(self, keys: Sequence[TransactionKey]) -> dict[TransactionKey, StoredTransaction]:
        """See TransactionStore."""
        wanted = uuid_array([txn_key(each) for each in keys])
        statement = (b"read_transactions", (wanted, bigint_array(())))
        (result, *_) = await self._reads.run_or_fail("load_transactions", [statement])
        return {each.metadata.key: each for _, each in transactions(result)}

    async def join(self, joins: Sequence[TransactionJoin]) -> list[int]:
        """See TransactionStore: one round trip, committed without waiting for the disk."""
        is_opening = any(each.put is not None for each in joins)
        step = randrange(*ASYNCHRONOUS_STEP) if is_opening else 1
        statements: list[Statement] = [(b"asynchronously", ()), *guards(_held(joins), step)]
        partitions = sorted({(txn_key(each.key), i) for each in joins for i in each.partitions})
        if partitions:
            keys = uuid_array([key for key, _ in partitions])
            ids = bigint_array([partition_id for _, partition_id in partitions])
            statements.append((b"join_partitions", (keys, ids)))
        participants = [(each.key, of) for each in joins for of in each.participants]
        if participants:
            statements.append((b"join_participants", _participant_columns(participants)))
        await self._joins.run_or_fail("join_transactions", statements)
        opened = {(each.key, each.expected_version): each.put for each in joins if each.put}
        return [
            _joined(each, opened.get((each.key, each.expected_version)), step) for each in joins
        ]

    async def put_pending(self, pending: Sequence[PendingOffsets]) -> list[None]:
        """See TransactionStore."""
        statements = [_hold_leases(each.lease for each in pending)]
        statements += guards(_held([each.join for each in pending]))
        groups = sorted({(key_of(each.group_id), each.group_id) for each in pending})
        keys = uuid_array([key for key, _ in groups])
        shards = {each.group_id: each.lease.shard for each in pending}
        # New rows before existing ones, as in all that touches groups. One that goes in between is
        # made by the transaction's end.
        statements.append(
            (
                b"make_groups",
                (
                    keys,
                    text_array([written(name) for _, name in groups]),
                    integer_array([shards[name] for _, name in groups]),
                ),
            )
        )
        statements.append((b"hold_groups", (keys,)))
        joins = [(each.join.key, Participant.of_group(each.group_id)) for each in pending]
        statements.append((b"join_participants", _participant_columns(joins)))
        statements.append((b"put_pending", _pending_columns(pending)))
        await self._pending.run_or_fail("put_pending_offsets", statements)
        return [None] * len(pending)

    async def put_pending_acks(self, pending: Sequence[PendingAcks]) -> list[None]:
        """See TransactionStore."""
        statements = [_hold_leases(each.lease for each in pending)]
        statements += guards(_held([each.join for each in pending]))
        ids = sorted({each.subscription_id for each in pending})
        statements.append((b"hold_subscriptions", (bigint_array(ids),)))
        joins = [(each.join.key, of) for each in pending for of in each.join.participants]
        statements.append((b"join_participants", _participant_columns(joins)))
        statements.append((b"put_pending_acks", _ack_columns(pending)))
        await self._pending.run_or_fail("put_pending_acks", statements)
        return [None] * len(pending)

    async def pending_partitions(self, group_ids: Sequence[str]) -> list[frozenset[int]]:
        """See TransactionStore."""
        keys = [key_of(each) for each in group_ids]
        statement = (b"pending_partitions", (uuid_array(keys),))
        (result, *_) = await self._reads.run_or_fail("pending_partitions", [statement])
        found: dict[bytes, set[int]] = {}
        for key, partition_id in rows_of(result):
            found.setdefault(key or b"", set()).add(integer(partition_id))
        return [frozenset(found.get(key, ())) for key in keys]

    async def overdue(self, limit: int) -> OpenTransactions:
        """See TransactionStore."""
        statements: list[Statement] = [(b"overdue", (bigint(limit),)), (b"count_open", ())]
        result, counted, *_ = await self._reads.run_or_fail("overdue_transactions", statements)
        count, oldest, single = (integer(counted.get_value(0, column)) for column in range(3))
        return replace(_found(result), open_count=count, oldest_ms=oldest, single_use_count=single)

    async def idle(self, expiration_ms: int, limit: int) -> OpenTransactions:
        """See TransactionStore."""
        statement = (b"idle", (bigint(limit), bigint(expiration_ms)))
        (result, *_) = await self._reads.run_or_fail("idle_transactions", [statement])
        return _found(result)

    async def forget_ended(self, retention_ms: int, limit: int) -> None:
        """See TransactionStore."""
        statement = (b"forget_ended", (bigint(limit), bigint(retention_ms)))
        await self._reads.run_or_fail("forget_ended_transactions", [statement])

    async def list_all(self) -> tuple[int, list[TransactionMetadata]]:
        """See TransactionStore."""
        statements: list[Statement] = [(b"now", ()), (b"list_all", ())]
        now, listed, *_ = await self._reads.run_or_fail("list_transactions", statements)
        found = [each.metadata for _, each in transactions(listed)]
        return integer(now.get_value(0, 0)), found

    async def newest_producer_id(self) -> int:
        """See TransactionStore."""
        (result, *_) = await self._reads.run_or_fail("newest_producer_id", [(b"newest", ())])
        return integer(result.get_value(0, 0))

    async def subscriptions_of(self, producer_ids: Sequence[int]) -> list[AckingSubscription]:
        """See TransactionStore."""
        statement = (b"subscriptions_of", (bigint_array(producer_ids),))
        (result, *_) = await self._reads.run_or_fail("subscriptions_of_transactions", [statement])
        return [
            AckingSubscription(
                integer(producer_id),
                integer(partition_id),
                (name or b"").decode(),
                None if end is None else integer(end),
            )
            for producer_id, partition_id, name, end in rows_of(result)
        ]


def _joined(join: TransactionJoin, put: TransactionMetadata | None, step: int) -> int:
    """The row's version after a join; put: the new row, if any join has moved it."""
    if put is None:
        return join.expected_version
    return join.expected_version + step if join.expected_version else first_version(put.producer_id)


def _held(joins: Iterable[TransactionJoin]) -> list[TransactionEffects]:
    """Each transaction once per version decided on: moved if any of the joins opens it. A lock that
    is shared first and raised later would deadlock with another that does the same."""
    effects: dict[tuple[TransactionKey, int], TransactionEffects] = {}
    for join in joins:
        place = join.key, join.expected_version
        if join.put is not None or place not in effects:
            effects[place] = TransactionEffects(*place, join.put)
    return list(effects.values())


def _hold_leases(leases: Iterable[Lease]) -> Statement:
    held = sorted({(each.shard, each.generation) for each in leases})
    return (
        b"hold_leases",
        (
            integer_array([shard for shard, _ in held]),
            bigint_array([generation for _, generation in held]),
        ),
    )


def _participant_columns(joins: Iterable[tuple[TransactionKey, Participant]]) -> list[bytes]:
    """Parameters of JOIN_PARTICIPANTS."""
    rows = sorted({(txn_key(key), participant_key(of), of) for key, of in joins})
    return [
        uuid_array([key for key, _, _ in rows]),
        uuid_array([of_key for _, of_key, _ in rows]),
        smallint_array([of.kind for _, _, of in rows]),
        text_array([written(of.name) for _, _, of in rows]),
    ]


def _found(result: PGresult) -> OpenTransactions:
    rows = rows_of(result)
    now = integer(rows[0][0]) if rows else -1
    keys = [
        TransactionKey(TransactionKind(integer(kind)), read((name or b"").decode()))
        for _, kind, name in rows
    ]
    return OpenTransactions(now, keys)


def _pending_columns(pending: Sequence[PendingOffsets]) -> list[bytes]:
    # If a flush has two for one partition, the later one counts.
    last = {
        (key_of(each.group_id), each.producer_id, offset.partition_id): offset
        for each in pending
        for offset in each.offsets
    }
    return _PENDING.encode(
        [
            (
                *place,
                each.offset,
                each.leader_epoch,
                written(each.metadata),
                each.commit_timestamp,
            )
            for place, each in sorted(last.items(), key=itemgetter(0))
        ]
    )


def _ack_columns(pending: Sequence[PendingAcks]) -> list[bytes]:
    """Parameters of PUT_PENDING_ACKS: each place once, with the greatest end."""
    ends: dict[tuple[int, int, int, int], int] = {}
    for each in pending:
        ranges = list(each.ranges)
        if each.cumulative_end is not None:
            ranges.append((CUMULATIVE, each.cumulative_end))
        for start, end in ranges:
            place = each.subscription_id, *each.transaction, start
            ends[place] = max(end, ends.get(place, end))
    rows = sorted(ends.items())
    return [
        *columns("qqqqq", [(*place, end) for place, end in rows]),
        boolean_array([start == CUMULATIVE for (*_, start), _ in rows]),
    ]


def bigint(value: int) -> bytes:
    """One `bigint` parameter."""
    return value.to_bytes(8, "big", signed=True)
