"""Statements of the flush on transactions, and their parameters. SQL compares versions here and
moves what it is told to move; `core` decides what a state or an epoch means.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from core.shard import shard_of
from core.transaction.key import Participant, TransactionKey
from core.transaction.values import (
    StoredTransaction,
    TransactionEffects,
    TransactionMetadata,
    TransactionState,
    TransactionVersion,
    first_version,
)
from storage.connection.binary import (
    bigint_array,
    boolean_array,
    integer_array,
    smallint_array,
    text_array,
    uuid_array,
)
from storage.connection.client_text import key_of, read, written

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

# An append holds its transaction still: an end waits, or has moved the version already.
GUARD_TRANSACTIONS = """
WITH held AS MATERIALIZED (
    SELECT txn_key, version FROM transaction_state
    WHERE txn_key = ANY ($1::uuid[]) ORDER BY txn_key FOR SHARE
)
SELECT CASE WHEN count(*) <> cardinality($1::uuid[]) THEN version_mismatch() END
FROM held JOIN unnest($1::uuid[], $2::bigint[]) AS e (txn_key, version) USING (txn_key, version)
"""

# For a flush that holds some rows still and moves others. It locks all of them in one order, by
# key, each as strongly as it will need, so that two such flushes cannot deadlock. They could if a
# lock were shared first and raised later.
LOCK_AS_NEEDED = """
SELECT CASE WHEN count(*) FILTER (WHERE h.version = e.version)
                 <> count(*) FILTER (WHERE NOT e.is_moved) THEN version_mismatch() END, count(m.*)
FROM (SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::boolean[])
          AS e (txn_key, version, is_moved) ORDER BY txn_key) AS e
LEFT JOIN LATERAL (
    SELECT t.version FROM transaction_state t
    WHERE t.txn_key = e.txn_key AND NOT e.is_moved FOR SHARE
) AS h ON true
LEFT JOIN LATERAL (
    SELECT t.version FROM transaction_state t
    WHERE t.txn_key = e.txn_key AND e.is_moved FOR NO KEY UPDATE
) AS m ON true
"""

# Moves each row if its version is still the one decided on (0: there is none yet), and raises PS001
# unless all were moved. The database's clock says when a transaction starts; one that ended and
# began again in this flush starts now. A row moves by `step` versions (see `transactions.py`), or
# begins with that one.
PUT_TRANSACTIONS = """
WITH e AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::text[], $3::bigint[], $4::smallint[], $5::bigint[],
        $6::smallint[], $7::text[], $8::smallint[], $9::integer[], $10::boolean[], $11::integer[],
        $12::text[], $13::text[], $14::bigint[], $15::boolean[], $16::bigint[])
    AS e (txn_key, transactional_id, producer_id, producer_epoch, previous_producer_id,
          last_producer_epoch, state, transaction_version, timeout_ms, is_open, coordinator_epoch,
          client_id, client_host, version, has_ended, step)
), locked AS MATERIALIZED (
    SELECT txn_key FROM transaction_state
    WHERE txn_key = ANY ($1::uuid[]) ORDER BY txn_key FOR NO KEY UPDATE
), clock AS MATERIALIZED (
    SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now, count(*) FROM locked
), moved AS (
    UPDATE transaction_state t
    SET producer_id = e.producer_id, producer_epoch = e.producer_epoch,
        previous_producer_id = e.previous_producer_id,
        last_producer_epoch = e.last_producer_epoch, state = e.state,
        transaction_version = e.transaction_version, timeout_ms = e.timeout_ms,
        started_at = CASE WHEN NOT e.is_open THEN -1
                          WHEN t.started_at >= 0 AND NOT e.has_ended THEN t.started_at
                          ELSE clock.now END,
        updated_at = clock.now, coordinator_epoch = e.coordinator_epoch,
        client_id = e.client_id, client_host = e.client_host, version = t.version + e.step
    FROM e, clock
    WHERE t.txn_key = e.txn_key AND t.version = e.version AND e.version > 0
    RETURNING 1
), made AS (
    INSERT INTO transaction_state (txn_key, transactional_id, producer_id, producer_epoch,
        previous_producer_id, last_producer_epoch, state, transaction_version, timeout_ms,
        started_at, updated_at, coordinator_epoch, client_id, client_host, version)
    SELECT e.txn_key, e.transactional_id, e.producer_id, e.producer_epoch,
        e.previous_producer_id, e.last_producer_epoch, e.state, e.transaction_version,
        e.timeout_ms, CASE WHEN e.is_open THEN clock.now ELSE -1 END, clock.now,
        e.coordinator_epoch, e.client_id, e.client_host, e.step
    FROM e, clock WHERE e.version = 0
    ON CONFLICT (txn_key) DO NOTHING RETURNING 1
)
SELECT CASE WHEN (SELECT count(*) FROM moved) + (SELECT count(*) FROM made)
                 <> cardinality($1::uuid[])
            THEN version_mismatch() END
"""

# Guarded by the transaction's row, which is held.
JOIN_PARTITIONS = """
INSERT INTO transaction_partition (txn_key, partition_id)
SELECT * FROM unnest($1::uuid[], $2::bigint[]) ON CONFLICT DO NOTHING
"""
# They must be those that the end was decided on: a decision on memory may have missed one.
FORGET_JOINS = """
WITH partitions AS (
    DELETE FROM transaction_partition WHERE txn_key = ANY ($1::uuid[])
    RETURNING txn_key, partition_id
), groups AS (
    DELETE FROM transaction_group WHERE txn_key = ANY ($1::uuid[]) RETURNING txn_key, group_key
)
SELECT CASE WHEN (SELECT count(*) FROM partitions) <> cardinality($2::uuid[])
              OR (SELECT count(*) FROM groups) <> cardinality($4::uuid[])
              OR EXISTS (SELECT * FROM partitions
                         EXCEPT SELECT * FROM unnest($2::uuid[], $3::bigint[]))
              OR EXISTS (SELECT * FROM groups EXCEPT SELECT * FROM unnest($4::uuid[], $5::uuid[]))
            THEN version_mismatch() END
"""
DELETE_TRANSACTIONS = """
WITH gone AS (
    DELETE FROM transaction_state t USING unnest($1::uuid[], $2::bigint[]) AS e (txn_key, version)
    WHERE t.txn_key = e.txn_key AND t.version = e.version RETURNING 1
)
SELECT CASE WHEN (SELECT count(*) FROM gone) <> cardinality($1::uuid[])
            THEN version_mismatch() END
"""

# Blocks a concurrent deletion of the group or its offsets, pending ones included (`groups.py`).
# The group's own changes do not wait for this, nor do other transactions with its offsets.
HOLD_GROUPS = """
SELECT group_key FROM consumer_group WHERE group_key = ANY ($1::uuid[])
ORDER BY group_key FOR KEY SHARE
"""
# Commits a transaction's offsets, in order of keys, as all writers do. The latest commit of an
# offset counts, whichever transaction ends last. The group's row may be gone by now (MAKE_GROUPS);
# if the group was deleted, nothing is pending.
COMMIT_OFFSETS = """
WITH e AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::integer[])
        AS e (group_key, producer_id, group_id, shard)
), moved AS (
    DELETE FROM pending_offset o USING e
    WHERE o.group_key = e.group_key AND o.producer_id = e.producer_id RETURNING o.*
), made AS (
    INSERT INTO consumer_group (group_key, group_id, shard, protocol, protocol_type, generation_id,
        assignment_epoch, state, state_timestamp, waiting_for, metadata_hash)
    SELECT DISTINCT ON (group_key) group_key, group_id, shard, 'classic', '', 0, -1, 'Empty', -1,
        '{}'::text[], 0
    FROM e WHERE group_key IN (SELECT group_key FROM moved)
      AND NOT EXISTS (SELECT FROM consumer_group g WHERE g.group_key = e.group_key)
    ORDER BY group_key
    ON CONFLICT (group_key) DO NOTHING RETURNING 1
)
INSERT INTO committed_offset AS o (group_key, partition_id, committed_offset, leader_epoch,
    metadata, commit_timestamp, expire_timestamp, commit_order)
SELECT DISTINCT ON (group_key, partition_id) group_key, partition_id, committed_offset,
    leader_epoch, metadata, commit_timestamp, -1, commit_order
FROM moved WHERE (SELECT count(*) FROM made) >= 0
ORDER BY group_key, partition_id, commit_order DESC
ON CONFLICT (group_key, partition_id) DO UPDATE SET
    committed_offset = excluded.committed_offset, leader_epoch = excluded.leader_epoch,
    metadata = excluded.metadata, commit_timestamp = excluded.commit_timestamp,
    expire_timestamp = excluded.expire_timestamp, commit_order = excluded.commit_order
WHERE o.commit_order < excluded.commit_order
"""
DROP_OFFSETS = """
DELETE FROM pending_offset o
USING unnest($1::uuid[], $2::bigint[]) AS e (group_key, producer_id)
WHERE o.group_key = e.group_key AND o.producer_id = e.producer_id
"""

LOCK_TRANSACTIONS = """
SELECT txn_key FROM transaction_state
WHERE txn_key = ANY ($1::uuid[]) OR producer_id = ANY ($2::bigint[])
ORDER BY txn_key FOR NO KEY UPDATE
"""
LOCK_FREE_TRANSACTIONS = LOCK_TRANSACTIONS.rstrip() + " SKIP LOCKED"

TRANSACTION_COLUMNS = """t.txn_key, t.transactional_id, t.producer_id, t.producer_epoch, t.state,
       t.transaction_version, t.timeout_ms, t.previous_producer_id, t.last_producer_epoch,
       t.started_at, t.updated_at, t.coordinator_epoch, t.client_id, t.client_host, t.version,
       ARRAY(SELECT j.partition_id FROM transaction_partition j WHERE j.txn_key = t.txn_key),
       ARRAY(SELECT g.group_id FROM transaction_group g WHERE g.txn_key = t.txn_key)"""

READ_TRANSACTIONS = f"""
SELECT {TRANSACTION_COLUMNS}
FROM transaction_state t
WHERE t.txn_key = ANY ($1::uuid[]) OR t.producer_id = ANY ($2::bigint[])
"""

STATEMENTS: Mapping[bytes, str] = {
    b"guard_transactions": GUARD_TRANSACTIONS,
    b"lock_as_needed": LOCK_AS_NEEDED,
    b"put_transactions": PUT_TRANSACTIONS,
    b"join_partitions": JOIN_PARTITIONS,
    b"forget_joins": FORGET_JOINS,
    b"delete_transactions": DELETE_TRANSACTIONS,
    b"hold_groups": HOLD_GROUPS,
    b"commit_offsets": COMMIT_OFFSETS,
    b"drop_offsets": DROP_OFFSETS,
    b"lock_transactions": LOCK_TRANSACTIONS,
    b"lock_free_transactions": LOCK_FREE_TRANSACTIONS,
    b"read_transactions": READ_TRANSACTIONS,
}

Statement = tuple[bytes, Sequence[bytes | None]]


def txn_key(key: TransactionKey) -> bytes:
    """A transaction's key in the tables: a hash of its name alone. There is only one kind so far;
    the kind will be a column (see TransactionKind)."""
    return key_of(key.name)


def guards(effects: Sequence[TransactionEffects], step: int = 1) -> list[Statement]:
    """The first statements of a flush: rows held still, moved by `step`, or deleted."""
    statements: list[Statement] = []
    held = [each for each in effects if each.put is None and not each.is_deleted]
    moved = [each for each in effects if each.put is not None]
    gone = [each for each in effects if each.is_deleted]
    if held and moved:
        is_moved = boolean_array([False] * len(held) + [True] * len(moved))
        statements.append((b"lock_as_needed", [*_versions([*held, *moved]), is_moved]))
    elif held:
        statements.append((b"guard_transactions", _versions(held)))
    if moved:
        statements.append((b"put_transactions", _put_parameters(moved, step)))
    if gone:
        statements.append((b"delete_transactions", _versions(gone)))
    return statements


def consequences(effects: Sequence[TransactionEffects]) -> list[Statement]:
    """The statements after the log's own rows: offsets, joins forgotten, joins after an end."""
    statements: list[Statement] = []
    joins = sorted((txn_key(each.key), p) for each in effects for p in each.joined)
    ended = [each for each in effects if each.marker is not None]
    if groups := sorted({key_of(of.name) for each in ended for of in each.participants}):
        statements.append((b"hold_groups", (uuid_array(groups),)))
    for is_commit in (True, False):
        statements += _offsets_of(ended, is_commit=is_commit)
    if ended:
        statements.append((b"forget_joins", _joins_of(ended)))
    if joins:
        keys, partitions = zip(*joins, strict=True)
        statements.append((b"join_partitions", (uuid_array(keys), bigint_array(partitions))))
    return statements


def _joins_of(ended: Sequence[TransactionEffects]) -> list[bytes]:
    keys = [(txn_key(each.key), each) for each in ended]
    partitions = [(key, i) for key, each in keys for i in each.partitions]
    groups = [(key, key_of(group.name)) for key, each in keys for group in each.participants]
    return [
        uuid_array([key for key, _ in keys]),
        uuid_array([key for key, _ in partitions]),
        bigint_array([partition_id for _, partition_id in partitions]),
        uuid_array([key for key, _ in groups]),
        uuid_array([group_key for _, group_key in groups]),
    ]


def _offsets_of(ended: Sequence[TransactionEffects], *, is_commit: bool) -> list[Statement]:
    """Statements for the pending offsets of transactions that end in the same way."""
    places = sorted(
        (key_of(group.name), each.marker.producer_id, group.name)
        for each in ended
        if each.marker is not None and each.marker.is_commit is is_commit
        for group in each.participants
    )
    if not places:
        return []
    keys = uuid_array([key for key, _, _ in places])
    producer_ids = bigint_array([producer_id for _, producer_id, _ in places])
    if not is_commit:
        return [(b"drop_offsets", (keys, producer_ids))]
    names = text_array([written(name) for _, _, name in places])
    shards = integer_array([shard_of(name) for _, _, name in places])
    return [(b"commit_offsets", (keys, producer_ids, names, shards))]


def _versions(effects: Sequence[TransactionEffects]) -> list[bytes]:
    return [
        uuid_array([txn_key(each.key) for each in effects]),
        bigint_array([each.expected_version for each in effects]),
    ]


def _put_parameters(effects: Sequence[TransactionEffects], step: int) -> list[bytes]:
    rows = [each.put for each in effects if each.put is not None]
    return [
        uuid_array([txn_key(row.key) for row in rows]),
        text_array([written(row.key.name) for row in rows]),
        bigint_array([row.producer_id for row in rows]),
        smallint_array([row.producer_epoch for row in rows]),
        bigint_array([row.previous_producer_id for row in rows]),
        smallint_array([row.last_producer_epoch for row in rows]),
        text_array([row.state.value for row in rows]),
        smallint_array([row.transaction_version.value for row in rows]),
        integer_array([row.timeout_ms for row in rows]),
        boolean_array([row.started_at >= 0 for row in rows]),
        integer_array([row.coordinator_epoch for row in rows]),
        text_array([written(row.client_id) for row in rows]),
        text_array([written(row.client_host) for row in rows]),
        bigint_array([each.expected_version for each in effects]),
        boolean_array([each.marker is not None for each in effects]),
        bigint_array(
            [
                step if each.expected_version else first_version(row.producer_id)
                for each, row in zip(effects, rows, strict=True)
            ]
        ),
    ]


_NUMBERS = struct.Struct(">qh")
_MIDDLE = struct.Struct(">hiqhqqi")


def transactions(result: PGresult) -> list[tuple[bytes, StoredTransaction]]:
    """Rows of READ_TRANSACTIONS, in binary."""
    found = []
    for number in range(result.ntuples):
        row = [result.get_value(number, column) or b"" for column in range(result.nfields)]
        producer_id, epoch = _NUMBERS.unpack(row[2] + row[3])
        version, timeout_ms, previous_id, last_epoch, started_at, updated_at, coordinator_epoch = (
            _MIDDLE.unpack(b"".join(row[5:12]))
        )
        metadata = TransactionMetadata(
            TransactionKey.of_kafka(read(row[1].decode())),
            producer_id,
            epoch,
            TransactionState(row[4].decode()),
            TransactionVersion(version),
            timeout_ms,
            previous_id,
            last_epoch,
            started_at,
            updated_at,
            coordinator_epoch,
            read(row[12].decode()),
            read(row[13].decode()),
            int.from_bytes(row[14], "big"),
        )
        partitions = frozenset(int.from_bytes(each, "big") for each in _elements(row[15]))
        groups = (Participant.of_group(read(each.decode())) for each in _elements(row[16]))
        found.append((row[0], StoredTransaction(metadata, partitions, frozenset(groups))))
    return found


def _elements(array: bytes) -> list[bytes]:
    """The elements of a binary array without nulls."""
    dimensions, _, _ = struct.unpack_from(">iII", array)
    if not dimensions:
        return []
    (count,) = struct.unpack_from(">i", array, 12)
    elements, position = [], 20
    for _ in range(count):
        (size,) = struct.unpack_from(">i", array, position)
        elements.append(array[position + 4 : position + 4 + size])
        position += 4 + size
    return elements
