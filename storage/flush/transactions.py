"""Statements of the flush on transactions, and their parameters. SQL compares versions here and
moves what it is told to move; `core` decides what a state or an epoch means.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from core.shard import shard_of
from core.transaction.key import Participant, ParticipantKind, TransactionKey, TransactionKind
from core.transaction.values import (
    Marker,
    StoredTransaction,
    TransactionEffects,
    TransactionMetadata,
    TransactionState,
    TransactionVersion,
    first_version,
)
from storage import schema
from storage.connection.binary import (
    bigint_array,
    boolean_array,
    columns,
    integer_array,
    text_array,
    uuid_array,
)
from storage.connection.client_text import key_of, key_of_kind, read, written
from storage.connection.rows import (
    BIGINT,
    BIGINTS,
    BOOLEAN,
    INTEGER,
    INTEGERS,
    SMALLINT,
    TEXT,
    TEXTS,
    UUID,
    Row,
)
from storage.groups.rows import OFFSET

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

# An append holds its transaction still: an end waits, or has moved the version already.
GUARD_TRANSACTIONS = """
WITH held AS MATERIALIZED (
    SELECT txn_key, version FROM penstock.transaction_state
    WHERE txn_key = ANY ($1::uuid[]) ORDER BY txn_key FOR SHARE
)
SELECT CASE WHEN count(*) <> cardinality($1::uuid[]) THEN penstock.version_mismatch() END
FROM held JOIN unnest($1::uuid[], $2::bigint[]) AS e (txn_key, version) USING (txn_key, version)
"""

# For a flush that holds some rows still and moves others. It locks all of them in one order, by
# key, each as strongly as it will need, so that two such flushes cannot deadlock. They could if a
# lock were shared first and raised later.
LOCK_AS_NEEDED = """
SELECT CASE WHEN count(*) FILTER (WHERE h.version = e.version)
                 <> count(*) FILTER (WHERE NOT e.is_moved)
            THEN penstock.version_mismatch() END, count(m.*)
FROM (SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::boolean[])
          AS e (txn_key, version, is_moved) ORDER BY txn_key) AS e
LEFT JOIN LATERAL (
    SELECT t.version FROM penstock.transaction_state t
    WHERE t.txn_key = e.txn_key AND NOT e.is_moved FOR SHARE
) AS h ON true
LEFT JOIN LATERAL (
    SELECT t.version FROM penstock.transaction_state t
    WHERE t.txn_key = e.txn_key AND e.is_moved FOR NO KEY UPDATE
) AS m ON true
"""

_TRANSACTION = Row.of(schema.transaction_state)
# What PUT_TRANSACTIONS is told of a row.
_CHANGE = Row(
    txn_key=UUID,
    kind=SMALLINT,
    transactional_id=TEXT,
    producer_id=BIGINT,
    producer_epoch=SMALLINT,
    previous_producer_id=BIGINT,
    last_producer_epoch=SMALLINT,
    state=TEXT,
    transaction_version=SMALLINT,
    timeout_ms=INTEGER,
    is_open=BOOLEAN,
    coordinator_epoch=INTEGER,
    client_id=TEXT,
    client_host=TEXT,
    owner=TEXT,
    version=BIGINT,
    has_ended=BOOLEAN,
    step=BIGINT,
)
# Moves each row if its version is still the one decided on (0: there is none yet), and raises PS001
# unless all were moved. The database's clock says when a transaction starts; one that ended and
# began again in this flush starts now. A row moves by `step` versions (see `transactions.py`), or
# begins with that one.
PUT_TRANSACTIONS = f"""
WITH e AS MATERIALIZED (
    SELECT * FROM {_CHANGE.unnest()} AS e ({_CHANGE.names})
), locked AS MATERIALIZED (
    SELECT txn_key FROM penstock.transaction_state
    WHERE txn_key = ANY ($1::uuid[]) ORDER BY txn_key FOR NO KEY UPDATE
), clock AS MATERIALIZED (
    SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now, count(*) FROM locked
), moved AS (
    UPDATE penstock.transaction_state t
    SET producer_id = e.producer_id, producer_epoch = e.producer_epoch,
        previous_producer_id = e.previous_producer_id,
        last_producer_epoch = e.last_producer_epoch, state = e.state,
        transaction_version = e.transaction_version, timeout_ms = e.timeout_ms,
        started_at = CASE WHEN NOT e.is_open THEN -1
                          WHEN t.started_at >= 0 AND NOT e.has_ended THEN t.started_at
                          ELSE clock.now END,
        updated_at = clock.now, coordinator_epoch = e.coordinator_epoch,
        client_id = e.client_id, client_host = e.client_host, owner = e.owner,
        version = t.version + e.step
    FROM e, clock
    WHERE t.txn_key = e.txn_key AND t.version = e.version AND e.version > 0
    RETURNING 1
), made AS (
    INSERT INTO penstock.transaction_state ({_TRANSACTION.names})
    SELECT e.txn_key, e.kind, e.transactional_id, e.producer_id, e.producer_epoch,
        e.previous_producer_id, e.last_producer_epoch, e.state, e.transaction_version,
        e.timeout_ms, CASE WHEN e.is_open THEN clock.now ELSE -1 END, clock.now,
        e.coordinator_epoch, e.client_id, e.client_host, e.owner, e.step
    FROM e, clock WHERE e.version = 0
    ON CONFLICT (txn_key) DO NOTHING RETURNING 1
)
SELECT CASE WHEN (SELECT count(*) FROM moved) + (SELECT count(*) FROM made)
                 <> cardinality($1::uuid[])
            THEN penstock.version_mismatch() END
"""

# Guarded by the transaction's row, which is held.
JOIN_PARTITIONS = """
INSERT INTO penstock.transaction_partition (txn_key, partition_id)
SELECT * FROM unnest($1::uuid[], $2::bigint[]) ON CONFLICT DO NOTHING
"""
# They must be those that the end was decided on: a decision on memory may have missed one.
FORGET_JOINS = """
WITH partitions AS (
    DELETE FROM penstock.transaction_partition WHERE txn_key = ANY ($1::uuid[])
    RETURNING txn_key, partition_id
), participants AS (
    DELETE FROM penstock.transaction_participant WHERE txn_key = ANY ($1::uuid[])
    RETURNING txn_key, participant_key
)
SELECT CASE WHEN (SELECT count(*) FROM partitions) <> cardinality($2::uuid[])
              OR (SELECT count(*) FROM participants) <> cardinality($4::uuid[])
              OR EXISTS (SELECT * FROM partitions
                         EXCEPT SELECT * FROM unnest($2::uuid[], $3::bigint[]))
              OR EXISTS (SELECT * FROM participants
                         EXCEPT SELECT * FROM unnest($4::uuid[], $5::uuid[]))
            THEN penstock.version_mismatch() END
"""
DELETE_TRANSACTIONS = """
WITH gone AS (
    DELETE FROM penstock.transaction_state t
    USING unnest($1::uuid[], $2::bigint[]) AS e (txn_key, version)
    WHERE t.txn_key = e.txn_key AND t.version = e.version RETURNING 1
)
SELECT CASE WHEN (SELECT count(*) FROM gone) <> cardinality($1::uuid[])
            THEN penstock.version_mismatch() END
"""

# Blocks a concurrent deletion of the group or its offsets, pending ones included (`groups.py`).
# The group's own changes do not wait for this, nor do other transactions with its offsets.
HOLD_GROUPS = """
SELECT group_key FROM penstock.consumer_group WHERE group_key = ANY ($1::uuid[])
ORDER BY group_key FOR KEY SHARE
"""
_ENDED_OFFSETS = """e AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::integer[])
        AS e (group_key, producer_id, group_id, shard)
)"""
# OFFSET 0: one step in the index for each group, whatever the tables' statistics say.
_MAKE_GROUPS = """INSERT INTO penstock.consumer_group (group_key, group_id, shard, protocol,
        protocol_type, generation_id, assignment_epoch, state, state_timestamp, waiting_for,
        metadata_hash)
    SELECT DISTINCT ON (group_key) group_key, group_id, shard, 'classic', '', 0, -1, 'Empty', -1,
        '{}'::text[], 0
    FROM e
    WHERE NOT EXISTS (SELECT FROM penstock.consumer_group g
                      WHERE g.group_key = e.group_key OFFSET 0)
      AND <has offsets>
    ORDER BY group_key
    ON CONFLICT (group_key) DO NOTHING"""
_HAS_PENDING = """EXISTS (SELECT FROM penstock.pending_offset o
                  WHERE o.group_key = e.group_key AND o.producer_id = e.producer_id OFFSET 0)"""
_HAS_MOVED = "group_key IN (SELECT group_key FROM moved)"
# Groups that went while offsets were put are made before others are held, as in all that touches
# groups: who holds one and then makes another deadlocks with flushes of groups.
MAKE_GROUPS = f"""
WITH {_ENDED_OFFSETS}
{_MAKE_GROUPS.replace("<has offsets>", _HAS_PENDING)}
"""
# Commits a transaction's offsets, in order of keys, as all writers do. The latest commit of an
# offset counts, whichever transaction ends last. A group that has gone even now is made here; if it
# was deleted, nothing is pending.
COMMIT_OFFSETS = f"""
WITH {_ENDED_OFFSETS}, moved AS (
    DELETE FROM penstock.pending_offset o USING e
    WHERE o.group_key = e.group_key AND o.producer_id = e.producer_id RETURNING o.*
), made AS (
    {_MAKE_GROUPS.replace("<has offsets>", _HAS_MOVED)} RETURNING 1
)
INSERT INTO penstock.committed_offset AS o ({OFFSET.names}, commit_order)
SELECT DISTINCT ON (group_key, partition_id) group_key, partition_id, committed_offset,
    leader_epoch, metadata, commit_timestamp, -1, commit_order
FROM moved WHERE (SELECT count(*) FROM made) >= 0
ORDER BY group_key, partition_id, commit_order DESC
ON CONFLICT (group_key, partition_id) DO UPDATE
SET {OFFSET.without("group_key", "partition_id").excluded}, commit_order = excluded.commit_order
WHERE o.commit_order < excluded.commit_order
"""
DROP_OFFSETS = """
DELETE FROM penstock.pending_offset o
USING unnest($1::uuid[], $2::bigint[]) AS e (group_key, producer_id)
WHERE o.group_key = e.group_key AND o.producer_id = e.producer_id
"""

# Acknowledgements of a transaction's that commits count from here on; see schema.pending_ack.
COMMIT_ACKS = """
UPDATE penstock.pending_ack a SET is_committed = true
FROM unnest($1::bigint[], $2::bigint[]) AS e (subscription_id, producer_id)
WHERE a.subscription_id = e.subscription_id AND a.producer_id = e.producer_id
  AND NOT a.is_committed
"""
DROP_ACKS = """
DELETE FROM penstock.pending_ack a
USING unnest($1::bigint[], $2::bigint[]) AS e (subscription_id, producer_id)
WHERE a.subscription_id = e.subscription_id AND a.producer_id = e.producer_id
  AND NOT a.is_committed
"""

LOCK_TRANSACTIONS = """
SELECT txn_key FROM penstock.transaction_state
WHERE txn_key = ANY ($1::uuid[]) OR producer_id = ANY ($2::bigint[])
ORDER BY txn_key FOR NO KEY UPDATE
"""
LOCK_FREE_TRANSACTIONS = LOCK_TRANSACTIONS.rstrip() + " SKIP LOCKED"

METADATA = _TRANSACTION.only(
    *("txn_key", "kind", "transactional_id", "producer_id", "producer_epoch", "state"),
    *("transaction_version", "timeout_ms", "previous_producer_id", "last_producer_epoch"),
    *("started_at", "updated_at", "coordinator_epoch"),
    *("client_id", "client_host", "owner", "version"),
)
"""A transaction as `transactions` reads it: in the order of TransactionMetadata's fields."""
_STORED = Row(**METADATA.columns, partition_ids=BIGINTS, kinds=INTEGERS, names=TEXTS)

READ_TRANSACTIONS = f"""
SELECT {METADATA.of_table("t")},
       ARRAY(SELECT j.partition_id FROM penstock.transaction_partition j
             WHERE j.txn_key = t.txn_key),
       ARRAY(SELECT g.kind::integer FROM penstock.transaction_participant g
             WHERE g.txn_key = t.txn_key
             ORDER BY g.participant_key),
       ARRAY(SELECT g.name FROM penstock.transaction_participant g
             WHERE g.txn_key = t.txn_key
             ORDER BY g.participant_key)
FROM penstock.transaction_state t
WHERE t.txn_key = ANY ($1::uuid[]) OR t.producer_id = ANY ($2::bigint[])
"""

STATEMENTS: Mapping[bytes, str] = {
    b"guard_transactions": GUARD_TRANSACTIONS,
    b"lock_as_needed": LOCK_AS_NEEDED,
    b"put_transactions": PUT_TRANSACTIONS,
    b"join_partitions": JOIN_PARTITIONS,
    b"forget_joins": FORGET_JOINS,
    b"delete_transactions": DELETE_TRANSACTIONS,
    b"make_groups": MAKE_GROUPS,
    b"hold_groups": HOLD_GROUPS,
    b"commit_offsets": COMMIT_OFFSETS,
    b"drop_offsets": DROP_OFFSETS,
    b"commit_acks": COMMIT_ACKS,
    b"drop_acks": DROP_ACKS,
    b"lock_transactions": LOCK_TRANSACTIONS,
    b"lock_free_transactions": LOCK_FREE_TRANSACTIONS,
    b"read_transactions": READ_TRANSACTIONS,
}

_LONGEST_KEPT = 255  # characters of a name whose key is kept; it may have 32,767

Statement = tuple[bytes, Sequence[bytes | None]]


def txn_key(key: TransactionKey) -> bytes:
    """A transaction's key in the tables: a hash of its kind and its name."""
    return _key(key) if len(key.name) <= _LONGEST_KEPT else key_of_kind(*key)


def participant_key(participant: Participant) -> bytes:
    """The same of a participant."""
    return (
        _key(participant) if len(participant.name) <= _LONGEST_KEPT else key_of_kind(*participant)
    )


# A transaction's key is asked for some ten times, in each of its steps.
@functools.lru_cache(maxsize=4_096)
def _key(named: TransactionKey | Participant) -> bytes:
    return key_of_kind(*named)


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
    places = [
        (each.marker, of) for each in effects if each.marker is not None for of in each.participants
    ]
    groups = [(marker, of.name) for marker, of in places if of.kind is ParticipantKind.GROUP]
    if groups:
        keys = sorted({key_of(name) for _, name in groups})
        committed = _offsets_of(groups, is_commit=True)
        statements += [(b"make_groups", columns) for _, columns in committed]
        statements.append((b"hold_groups", (uuid_array(keys),)))
        statements += committed + _offsets_of(groups, is_commit=False)
    acks = [(m, int(of.name)) for m, of in places if of.kind is ParticipantKind.SUBSCRIPTION]
    for is_commit in (True, False) if acks else ():
        statements += _acks_of(acks, is_commit=is_commit)
    if ended:
        statements.append((b"forget_joins", _joins_of(ended)))
    if joins:
        txn_keys, partitions = zip(*joins, strict=True)
        statements.append((b"join_partitions", (uuid_array(txn_keys), bigint_array(partitions))))
    return statements


def _joins_of(ended: Sequence[TransactionEffects]) -> list[bytes]:
    keys = [(txn_key(each.key), each) for each in ended]
    partitions = [(key, i) for key, each in keys for i in each.partitions]
    participants = [(key, participant_key(of)) for key, each in keys for of in each.participants]
    return [
        uuid_array([key for key, _ in keys]),
        uuid_array([key for key, _ in partitions]),
        bigint_array([partition_id for _, partition_id in partitions]),
        uuid_array([key for key, _ in participants]),
        uuid_array([of for _, of in participants]),
    ]


def _offsets_of(groups: Sequence[tuple[Marker, str]], *, is_commit: bool) -> list[Statement]:
    """Statements for the pending offsets of transactions that end in the same way."""
    places = sorted(
        (key_of(name), marker.producer_id, name)
        for marker, name in groups
        if marker.is_commit is is_commit
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


def _acks_of(acks: Sequence[tuple[Marker, int]], *, is_commit: bool) -> list[Statement]:
    """The same for pending acknowledgements."""
    places = sorted((i, marker.producer_id) for marker, i in acks if marker.is_commit is is_commit)
    if not places:
        return []
    return [(b"commit_acks" if is_commit else b"drop_acks", columns("qq", places))]


def _versions(effects: Sequence[TransactionEffects]) -> list[bytes]:
    return [
        uuid_array([txn_key(each.key) for each in effects]),
        bigint_array([each.expected_version for each in effects]),
    ]


def _put_parameters(effects: Sequence[TransactionEffects], step: int) -> list[bytes]:
    return _CHANGE.encode(
        [
            (
                txn_key(row.key),
                row.key.kind,
                written(row.key.name),
                row.producer_id,
                row.producer_epoch,
                row.previous_producer_id,
                row.last_producer_epoch,
                row.state.value,
                row.transaction_version.value,
                row.timeout_ms,
                row.started_at >= 0,
                row.coordinator_epoch,
                written(row.client_id),
                written(row.client_host),
                written(row.owner),
                each.expected_version,
                each.marker is not None,
                step if each.expected_version else first_version(row.producer_id),
            )
            for each in effects
            if (row := each.put) is not None
        ]
    )


def transactions(result: PGresult) -> list[tuple[bytes, StoredTransaction]]:
    """Rows of READ_TRANSACTIONS, in binary."""
    found = []
    for key, kind, name, producer_id, epoch, state, version_of, *rest in _STORED.decode(result):
        timeout_ms, previous_id, last_epoch, started_at, updated_at, coordinator_epoch, *rest = rest
        client_id, client_host, owner, version, partition_ids, kinds, names = rest
        metadata = TransactionMetadata(
            TransactionKey(TransactionKind(kind), read(name)),
            producer_id,
            epoch,
            TransactionState(state),
            TransactionVersion(version_of),
            timeout_ms,
            previous_id,
            last_epoch,
            started_at,
            updated_at,
            coordinator_epoch,
            read(client_id),
            read(client_host),
            read(owner),
            version,
        )
        participants = frozenset(
            Participant(ParticipantKind(kind), name)
            for kind, name in zip(kinds, names, strict=True)
        )
        found.append((key, StoredTransaction(metadata, frozenset(partition_ids), participants)))
    return found
