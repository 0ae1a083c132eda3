"""Transactions outside the flush: reads, and joins that cost no fsync. Implements TransactionStore.

A flush of the log (`flush/log.py`) ends transactions. SQL compares versions here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import itemgetter
from random import randrange
from typing import TYPE_CHECKING

from core.ports.transactions import OpenTransactions, PendingOffsets, TransactionJoin
from core.transaction.key import TransactionKey
from core.transaction.values import StoredTransaction, TransactionEffects, TransactionMetadata
from storage import schema
from storage.connection.binary import (
    bigint_array,
    integer,
    integer_array,
    rows_of,
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
    transactions,
    txn_key,
)

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

    from storage.connection.pool import Database

# For this transaction only: its rows are visible at once, and the disk may wait.
ASYNCHRONOUSLY = "SELECT set_config('synchronous_commit', 'off', true)"

# An asynchronous opening moves the version by a random number up to this. A crash of the database
# may lose the opening though brokers know of it: if another producer's next opening got the same
# version, their memory would pass the guard. 2**24: a thousand a second for 30 years.
ASYNCHRONOUS_STEP = 2**10, 2**24

# Guarded by the transaction's row, which is held.
JOIN_GROUPS = """
INSERT INTO transaction_group (txn_key, group_key, group_id)
SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::text[]) ON CONFLICT DO NOTHING
"""

# A sequence of the database's numbers the commits.
_PENDING = Row.of(schema.pending_offset, omit=["commit_order"])
# Guarded by the lease and the rows of transaction and group, all of them held.
PUT_PENDING = f"""
INSERT INTO pending_offset ({_PENDING.names}, commit_order)
SELECT e.*, (SELECT nextval('offset_commit_seq')) FROM {_PENDING.unnest()} AS e
ON CONFLICT (group_key, producer_id, partition_id) DO UPDATE
SET {_PENDING.without("group_key", "producer_id", "partition_id").excluded},
    commit_order = excluded.commit_order
"""
PENDING_PARTITIONS = """
SELECT DISTINCT p.group_key, p.partition_id FROM pending_offset p
WHERE p.group_key = ANY ($1::uuid[])
"""

OVERDUE = """
SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint, t.transactional_id
FROM transaction_state t
WHERE t.started_at >= 0
  AND t.started_at + t.timeout_ms <= (extract(epoch FROM clock_timestamp()) * 1000)::bigint
ORDER BY t.started_at LIMIT $1::bigint
"""
COUNT_OPEN = """
SELECT count(*),
       coalesce((extract(epoch FROM clock_timestamp()) * 1000)::bigint - min(t.started_at), 0)
FROM transaction_state t WHERE t.started_at >= 0
"""
IDLE = """
SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint, t.transactional_id
FROM transaction_state t
WHERE t.started_at = -1
  AND t.updated_at + $2::bigint <= (extract(epoch FROM clock_timestamp()) * 1000)::bigint
ORDER BY t.updated_at LIMIT $1::bigint
"""
LIST_ALL = f"""
SELECT {METADATA.of_table("t")}, '{{}}'::bigint[], '{{}}'::text[]
FROM transaction_state t ORDER BY t.transactional_id
"""
NOW = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"

JOINS = {
    b"asynchronously": ASYNCHRONOUSLY,
    b"guard_transactions": GUARD_TRANSACTIONS,
    b"put_transactions": PUT_TRANSACTIONS,
    b"join_partitions": JOIN_PARTITIONS,
    b"join_groups": JOIN_GROUPS,
}
PENDING = {
    b"hold_leases": HOLD_LEASES,
    b"make_groups": MAKE_GROUPS,
    b"hold_groups": HOLD_GROUPS,
    b"guard_transactions": GUARD_TRANSACTIONS,
    b"lock_as_needed": LOCK_AS_NEEDED,
    b"put_transactions": PUT_TRANSACTIONS,
    b"join_groups": JOIN_GROUPS,
    b"put_pending": PUT_PENDING,
}
READS = {
    b"pending_partitions": PENDING_PARTITIONS,
    b"read_transactions": READ_TRANSACTIONS,
    b"overdue": OVERDUE,
    b"count_open": COUNT_OPEN,
    b"idle": IDLE,
    b"list_all": LIST_ALL,
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

    async def join(self, join: TransactionJoin) -> int:
        """See TransactionStore: one round trip, committed without waiting for the disk."""
        effects = TransactionEffects(join.key, join.expected_version, join.put)
        step = randrange(*ASYNCHRONOUS_STEP) if join.put is not None else 1
        statements: list[Statement] = [(b"asynchronously", ()), *guards([effects], step)]
        if join.partitions:
            keys = uuid_array([txn_key(join.key)] * len(join.partitions))
            partitions = bigint_array(sorted(join.partitions))
            statements.append((b"join_partitions", (keys, partitions)))
        if join.participants:
            joins = [(join.key, each.name) for each in join.participants]
            statements.append((b"join_groups", _group_columns(joins)))
        await self._joins.run_or_fail("join_transaction", statements)
        return join.expected_version + (step if join.put is not None else 0)

    async def put_pending(self, pending: Sequence[PendingOffsets]) -> None:
        """See TransactionStore."""
        leases = sorted({(each.lease.shard, each.lease.generation) for each in pending})
        statements: list[Statement] = [
            (
                b"hold_leases",
                (
                    integer_array([shard for shard, _ in leases]),
                    bigint_array([generation for _, generation in leases]),
                ),
            )
        ]
        statements += guards(_held([each.join for each in pending]))
        groups = sorted({(key_of(each.group_id), each.group_id) for each in pending})
        keys = uuid_array([key for key, _ in groups])
        shards = {each.group_id: each.lease.shard for each in pending}
        # Existing rows before new ones, as in every flush that touches groups.
        statements.append((b"hold_groups", (keys,)))
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
        joins = [(each.join.key, each.group_id) for each in pending]
        statements.append((b"join_groups", _group_columns(joins)))
        statements.append((b"put_pending", _pending_columns(pending)))
        await self._pending.run_or_fail("put_pending_offsets", statements)

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
        count, oldest_ms = (integer(counted.get_value(0, column)) for column in range(2))
        return replace(_found(result), open_count=count, oldest_ms=oldest_ms)

    async def idle(self, expiration_ms: int, limit: int) -> OpenTransactions:
        """See TransactionStore."""
        statement = (b"idle", (bigint(limit), bigint(expiration_ms)))
        (result, *_) = await self._reads.run_or_fail("idle_transactions", [statement])
        return _found(result)

    async def list_all(self) -> tuple[int, list[TransactionMetadata]]:
        """See TransactionStore."""
        statements: list[Statement] = [(b"now", ()), (b"list_all", ())]
        now, listed, *_ = await self._reads.run_or_fail("list_transactions", statements)
        found = [each.metadata for _, each in transactions(listed)]
        return integer(now.get_value(0, 0)), found


def _held(joins: Iterable[TransactionJoin]) -> list[TransactionEffects]:
    """Each transaction once per version decided on: moved if any of the joins opens it. A lock that
    is shared first and raised later would deadlock with another that does the same."""
    effects: dict[tuple[TransactionKey, int], TransactionEffects] = {}
    for join in joins:
        place = join.key, join.expected_version
        if join.put is not None or place not in effects:
            effects[place] = TransactionEffects(*place, join.put)
    return list(effects.values())


def _group_columns(joins: Iterable[tuple[TransactionKey, str]]) -> list[bytes]:
    """Parameters of JOIN_GROUPS, from transactions and ids of groups."""
    rows = sorted({(txn_key(key), key_of(group_id), group_id) for key, group_id in joins})
    return [
        uuid_array([key for key, _, _ in rows]),
        uuid_array([group_key for _, group_key, _ in rows]),
        text_array([written(group_id) for _, _, group_id in rows]),
    ]


def _found(result: PGresult) -> OpenTransactions:
    rows = rows_of(result)
    now = integer(rows[0][0]) if rows else -1
    names = [read((name or b"").decode()) for _, name in rows]
    return OpenTransactions(now, [TransactionKey.of_kafka(name) for name in names])


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


def bigint(value: int) -> bytes:
    """One `bigint` parameter."""
    return value.to_bytes(8, "big", signed=True)
