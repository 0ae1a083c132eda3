"""The hot path: payload in, then lock, compare versions, insert index rows, move versions, COMMIT.

A flush is one round trip: the payload of each segment as one parameter, the guard, the producers;
outside a transaction block the pipeline is one transaction, committed at its end. If another broker
writes to the same partitions, a round trip before it locks and reads the rows.
SQL compares versions here and nothing more; `core` decides what they mean.
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from core.inbox.values import InboxMove
from core.log.effects import AppendedRow, LogEffects, OpenTransaction
from core.log.named_sequences import NamedSequence
from core.log.partition_log import PartitionState
from core.log.producer_state import AppendedBatch, ProducerState
from core.ports.inbox import InboxOvertaken
from core.ports.log import Locked, SegmentGone, StoreUnavailable, ToLock, VersionMismatch
from core.staging.values import PublicationEffects
from core.transaction.values import TransactionEffects
from storage import schema
from storage.connection.binary import (
    bigint_array,
    columns,
    integer,
    integer_array,
    integers,
    rows_of,
    text_array,
    tid_array,
    tids,
    uuid_array,
)
from storage.connection.client_text import key_of, read, written
from storage.connection.rows import Row
from storage.connection.session import HotSession, Statement
from storage.flush import inbox as inbox_rows
from storage.flush import staging as staging_rows
from storage.flush import transactions as transaction_rows
from storage.flush.payload import FlushPayload, PayloadWriter, WritingSession
from storage.flush.row_places import RowPlaces

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

    from storage.connection.pool import Database
    from storage.flush.segments import Segments

_BATCH = Row.of(schema.record_batch)
# Guards every append: locks the partitions in order of id, moves each if its next_offset is still
# the one decided on, and it was neither terminated since nor was anybody admitted alone; writes
# index rows, and raises PS001 unless all were moved. If a row changed while the UPDATE waited for
# its lock, the UPDATE sees the new version and finds no match. Gives the rows' places.
_APPEND_BATCHES = f"""
WITH locked AS MATERIALIZED (
    <locked>
), moved AS (
    UPDATE penstock.topic_partition p
    SET next_offset = e.next_offset, max_timestamp = e.max_timestamp,
        size_bytes = p.size_bytes + e.added_bytes, batch_count = p.batch_count + e.added_batches
    FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[],
                $7::bigint[], $8::bigint[], $9::tid[])
        AS e (partition_id, expected_offset, next_offset, max_timestamp, added_bytes, added_batches,
              terminated_offset, topic_epoch, place)
    WHERE <of e> AND p.next_offset = e.expected_offset
      AND p.terminated_offset = e.terminated_offset AND p.topic_epoch = e.topic_epoch
      AND (SELECT count(*) FROM locked) > 0
    RETURNING p.partition_id, p.ctid AS place
), inserted AS (
    INSERT INTO penstock.record_batch ({_BATCH.names}) SELECT * FROM {_BATCH.unnest(10)}
)
SELECT CASE WHEN count(*) <> cardinality($1::bigint[]) THEN penstock.version_mismatch() END,
       array_agg(place ORDER BY partition_id)
FROM moved
"""
APPEND_BATCHES = _APPEND_BATCHES.replace(
    "<locked>",
    """SELECT partition_id FROM penstock.topic_partition
    WHERE partition_id = ANY ($1::bigint[]) ORDER BY partition_id FOR NO KEY UPDATE""",
).replace("<of e>", "p.partition_id = e.partition_id")
# Without the index: as long as a snapshot is held, it leads through all dead versions of a row.
# One by one, in order: the planner would rather go through the index to have them sorted.
APPEND_BATCHES_AT = _APPEND_BATCHES.replace(
    "<locked>",
    """SELECT p.partition_id
    FROM unnest($1::bigint[], $9::tid[]) AS w (partition_id, place), LATERAL (
        SELECT partition_id FROM penstock.topic_partition
        WHERE ctid = w.place AND partition_id + 0 = w.partition_id FOR NO KEY UPDATE) AS p""",
).replace("<of e>", "p.ctid = e.place AND p.partition_id + 0 = e.partition_id")

_PRODUCER = Row.of(schema.producer_state, omit=["updated_at"])
# All before txn_first_offset: outside of the table it is -1 for null.
_BEFORE = _PRODUCER.without("txn_first_offset", "coordinator_epoch")
# Guarded by the lock that APPEND_BATCHES has taken on the partition.
PUT_PRODUCERS = f"""
INSERT INTO penstock.producer_state AS s ({_PRODUCER.names})
SELECT {_BEFORE.unnested("e.")}, nullif(e.txn_first_offset, -1), e.coordinator_epoch
FROM {_PRODUCER.unnest()} AS e ({_PRODUCER.names})
ON CONFLICT (partition_id, producer_id) DO UPDATE
SET {_PRODUCER.without("partition_id", "producer_id").excluded},
    updated_at = clock_timestamp()
"""

# Guarded likewise, and by the claim: a later one leaves next_offset as it is. A name that was
# forgotten meanwhile is there again.
PUT_NAMES = """
WITH put AS (
    INSERT INTO penstock.named_producer AS n (partition_id, name_key, name, claim,
        highest_sequence_id, chunked_sequence_id, chunk_id)
    SELECT e.partition_id, e.name_key, e.name, e.claim, e.highest_sequence_id::numeric,
        e.chunked_sequence_id::numeric, e.chunk_id
    FROM unnest($1::bigint[], $2::uuid[], $3::text[], $4::bigint[], $5::text[], $6::text[],
        $7::integer[])
        AS e (partition_id, name_key, name, claim, highest_sequence_id, chunked_sequence_id,
              chunk_id)
    ON CONFLICT (partition_id, name_key) DO UPDATE SET
        highest_sequence_id = excluded.highest_sequence_id,
        chunked_sequence_id = excluded.chunked_sequence_id, chunk_id = excluded.chunk_id,
        updated_at = clock_timestamp()
    WHERE n.claim = excluded.claim
    RETURNING n.partition_id
)
SELECT CASE WHEN (SELECT count(*) FROM put) <> cardinality($1::bigint[])
            THEN penstock.version_mismatch() END
"""

# Guarded likewise.
FORGET_PRODUCERS = """
DELETE FROM penstock.producer_state s
USING unnest($1::bigint[], $2::bigint[]) AS e (partition_id, producer_id)
WHERE s.partition_id = e.partition_id AND s.producer_id = e.producer_id
"""

# Guarded likewise.
PUT_ABORTED = """
INSERT INTO penstock.aborted_transaction (partition_id, last_offset, producer_id, first_offset)
SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[])
"""

# The only statement of a commit that changes nothing. Without it no log would be written, and such
# a commit waits neither for the disk nor for a standby, even if it has a transaction id (tried).
MARK_LOG = "SELECT pg_logical_emit_message(true, 'penstock', '')"

# The slow path's lock. A later statement reads what depends on the rows (READ COMMITTED: a
# statement that waits for a lock returns joined rows as they were before the wait). The partitions
# of a transaction or a token are known only once its row is locked, hence by this statement.
_PARTITIONS_TO_LOCK = """(
    SELECT unnest($1::bigint[]) AS partition_id UNION
    SELECT j.partition_id FROM penstock.transaction_partition j
        WHERE j.txn_key = ANY ($2::uuid[]) UNION
    SELECT b.partition_id FROM penstock.staged_batch b WHERE b.token = ANY ($3::uuid[]))"""
LOCK_PARTITIONS = f"""
SELECT p.partition_id FROM penstock.topic_partition p
JOIN {_PARTITIONS_TO_LOCK} AS w USING (partition_id)
ORDER BY p.partition_id FOR NO KEY UPDATE OF p
"""
LOCK_FREE_PARTITIONS = LOCK_PARTITIONS.rstrip() + " SKIP LOCKED"

PARTITION_COLUMNS = """p.partition_id, p.next_offset, p.log_start_offset, p.leader_epoch,
       p.max_timestamp, p.terminated_offset, p.topic_epoch,
       ARRAY(SELECT s.producer_id FROM penstock.producer_state s
             WHERE s.partition_id = p.partition_id AND s.txn_first_offset IS NOT NULL
             ORDER BY s.txn_first_offset),
       ARRAY(SELECT s.txn_first_offset FROM penstock.producer_state s
             WHERE s.partition_id = p.partition_id AND s.txn_first_offset IS NOT NULL
             ORDER BY s.txn_first_offset)"""

READ_PARTITIONS = f"""
SELECT {PARTITION_COLUMNS}
FROM penstock.topic_partition p
JOIN {_PARTITIONS_TO_LOCK} AS w USING (partition_id)
"""

READ_PRODUCERS = f"""
SELECT {_BEFORE.of_table("s")}, coalesce(s.txn_first_offset, -1), s.coordinator_epoch
FROM (SELECT * FROM unnest($1::bigint[], $2::bigint[]) UNION
      SELECT j.partition_id, t.producer_id FROM penstock.transaction_state t
      JOIN penstock.transaction_partition j USING (txn_key) WHERE t.txn_key = ANY ($3::uuid[]))
    AS w (partition_id, producer_id)
JOIN penstock.producer_state s USING (partition_id, producer_id)
"""

NAME_COLUMNS = """n.partition_id, n.name, n.highest_sequence_id::text, n.chunked_sequence_id::text,
       n.chunk_id, n.claim"""

READ_NAMES = f"""
SELECT {NAME_COLUMNS}
FROM unnest($1::bigint[], $2::uuid[]) AS w (partition_id, name_key)
JOIN penstock.named_producer n USING (partition_id, name_key)
"""

STATEMENTS: Mapping[bytes, str] = {
    b"begin": "BEGIN",
    b"commit": "COMMIT",
    b"append_batches": APPEND_BATCHES,
    b"append_batches_at": APPEND_BATCHES_AT,
    b"put_producers": PUT_PRODUCERS,
    b"forget_producers": FORGET_PRODUCERS,
    b"put_names": PUT_NAMES,
    b"put_aborted": PUT_ABORTED,
    b"mark_log": MARK_LOG,
    b"lock_partitions": LOCK_PARTITIONS,
    b"lock_free_partitions": LOCK_FREE_PARTITIONS,
    b"read_partitions": READ_PARTITIONS,
    b"read_producers": READ_PRODUCERS,
    b"read_names": READ_NAMES,
    **transaction_rows.STATEMENTS,
    **staging_rows.FLUSH_STATEMENTS,
    **inbox_rows.STATEMENTS,
}


class FlushSession:
    """One flush at a time on one connection: `prepare`, perhaps `lock`, then `commit`.

    Raises what `core.ports.log` names. After any exception nothing of the flush has taken effect
    (except CommitUnknown), and the session is ready for the next one, or broken.
    """

    def __init__(self, database: Database, segments: Segments, places: RowPlaces) -> None:
        """places: of the partitions' rows; shared by all who flush in this process."""
        self._database = database
        self._segments = segments
        self._places = places
        self._writing = WritingSession(database, STATEMENTS)
        self._in_transaction = False

    async def prepare(self, retention_classes: Iterable[str]) -> None:
        """See `core.ports.log.Flush`."""
        await self._segments.prepare(retention_classes)

    async def lock(self, wanted: ToLock, *, skip_locked: bool = False) -> Locked:
        """See `core.ports.log.Flush`. Raises RowLocked, StoreUnavailable."""
        session, _ = await self._open()
        statements: list[Statement] = [] if self._in_transaction else [(b"begin", ())]
        statements += _lock_statements(wanted, skip_locked=skip_locked)
        try:
            results = await session.run(statements, commits=False)
        except BaseException:
            await self._abandon(in_transaction=True)
            raise
        self._in_transaction = True
        # The last one is the pipeline's end.
        names = [name.replace(b"_free", b"") for name, _ in statements]
        return _locked(wanted, dict(zip(names, results, strict=False)))

    async def commit(
        self,
        effects: Sequence[LogEffects],
        transactions: Sequence[TransactionEffects] = (),
        publications: PublicationEffects | None = None,
        inbox: Sequence[InboxMove] = (),
    ) -> None:
        """Applies the effects and commits, if every row still has the version decided on.

        PostgreSQL's log is in one order: when this returns, all earlier commits have reached the
        disk and the required standbys, too.
        Raises VersionMismatch, InboxOvertaken, RowLocked, SegmentGone, EffectRefused,
        StoreUnavailable, CommitUnknown.
        """
        session, writer = await self._open()
        if any(move.looked_at < session.opened_at for move in inbox):
            await self._abandon(in_transaction=self._in_transaction)
            raise InboxOvertaken("it was looked before this connection was opened")
        ordered = sorted(effects, key=lambda effect: effect.partition_id)
        # Batches that will be read together are side by side.
        batches = (row.incoming for effect in ordered for row in effect.rows)
        try:
            payload = await FlushPayload.of(batches, self._segments)
            await writer.prepare(payload)
        except BaseException as error:
            await self._give_up(error)
            raise
        statements = transaction_rows.guards(transactions)
        if publications:
            statements += staging_rows.put_guards(publications)
        statements += writer.statements(payload)
        partition_ids = [effect.partition_id for effect in ordered]
        places = [] if self._in_transaction else self._places.take(partition_ids)
        append = len(statements)
        if effects:
            name = b"append_batches_at" if places else b"append_batches"
            statements.append((name, _append_parameters(ordered, payload, places)))
        if any(effect.producers for effect in effects):
            statements.append((b"put_producers", _producer_parameters(effects)))
        if any(effect.forgotten for effect in effects):
            statements.append((b"forget_producers", _forgotten_parameters(ordered)))
        if any(effect.names for effect in effects):
            statements.append((b"put_names", _name_parameters(ordered)))
        if any(effect.aborted for effect in effects):
            statements.append((b"put_aborted", _aborted_parameters(effects)))
        # Behind the partitions: who stalls while it sends payload holds up no other publisher.
        statements += inbox_rows.put_moves(inbox)
        statements += transaction_rows.consequences(transactions)
        if publications:
            statements += staging_rows.drop_tokens(publications.gone)
        if not statements:
            statements.append((b"mark_log", ()))
        if self._in_transaction:
            statements.append((b"commit", ()))
        started = time.perf_counter()
        try:
            with writer.blaming_the_file():
                results = await _run(session, statements, append if places else None)
        except BaseException as error:
            await self._give_up(error)
            raise
        finally:
            self._database.observe("flush", time.perf_counter() - started)
        self._in_transaction = False
        if effects:
            self._places.put(partition_ids, tids(results[append].get_value(0, 1)))

    async def rollback(self) -> None:
        """Releases all locks."""
        await self._abandon(in_transaction=self._in_transaction)

    async def close(self) -> None:
        """Closes the connection."""
        await self._writing.close()

    async def _open(self) -> tuple[HotSession, PayloadWriter]:
        """The session; a new one if it was lost, unless the lost one had locked rows."""
        if self._in_transaction and self._writing.session is None:
            await self._abandon(in_transaction=False)
            raise StoreUnavailable("the connection was lost while rows were locked")
        return await self._writing.open()

    async def _give_up(self, error: BaseException) -> None:
        if isinstance(error, SegmentGone):
            self._segments.forget()
        await self._abandon(in_transaction=self._in_transaction)

    async def _abandon(self, *, in_transaction: bool) -> None:
        self._in_transaction = False
        session = self._writing.session
        if in_transaction and session is not None:
            # If it gets lost, the next flush opens another.
            with contextlib.suppress(StoreUnavailable):
                await session.execute(b"ROLLBACK")


async def _run(
    session: HotSession, statements: list[Statement], by_places: int | None
) -> list[PGresult]:
    """Commits. by_places: which of them finds rows by their places, if one does. Where it finds
    another version it asks the index: what is no append, as retention, moves rows as well."""
    try:
        return await session.run(statements, commits=True)
    except VersionMismatch:
        if by_places is None:
            raise
        statements[by_places] = (b"append_batches", statements[by_places][1])
        return await session.run(statements, commits=True)


def _lock_statements(wanted: ToLock, *, skip_locked: bool) -> list[Statement]:
    """Locks in the common order, then reads."""
    free = b"_free" if skip_locked else b""
    keys = uuid_array([transaction_rows.txn_key(each) for each in wanted.transactions])
    transactions = (keys, bigint_array(wanted.producer_ids))
    guards = (uuid_array([staging_rows.guard_key(each) for each in wanted.guards]),)
    tokens = (staging_rows.token_array(wanted.tokens),)
    partitions = (bigint_array(sorted(wanted.partition_ids)), keys, *tokens)
    locks: list[Statement] = []
    reads: list[Statement] = [
        (b"read_partitions", partitions),
        (b"read_producers", (*_pairs(wanted.producers), keys)),
    ]
    if wanted.names:
        names = (
            bigint_array([partition_id for partition_id, _ in wanted.names]),
            uuid_array([key_of(name) for _, name in wanted.names]),
        )
        reads.append((b"read_names", names))
    if wanted.transactions or wanted.producer_ids:
        locks.append((b"lock%b_transactions" % free, transactions))
        reads.append((b"read_transactions", transactions))
    if wanted.guards:
        locks.append((b"lock%b_guards" % free, guards))
        locks.append((b"lock%b_tokens" % free, tokens))
        reads.append((b"read_guards", guards))
        reads += [(b"read_tokens", tokens), (b"read_places", tokens)]
    locks.append((b"lock%b_partitions" % free, partitions))
    return [*locks, *reads]


def _locked(wanted: ToLock, results: Mapping[bytes, PGresult]) -> Locked:
    """What was read; another broker holds rows that exist and could not be locked."""
    states = partition_states(results[b"read_partitions"])
    ids = {integer(value) for (value,) in rows_of(results[b"lock_partitions"])}
    locked = Locked(
        {i: state for i, state in states.items() if i in ids},
        producer_states(results[b"read_producers"]),
    )
    held = states.keys() - ids
    if b"read_names" in results:
        locked = replace(locked, names=named_sequences(results[b"read_names"]))
    if b"lock_transactions" in results:
        keys = {key for (key,) in rows_of(results[b"lock_transactions"])}
        found = transaction_rows.transactions(results[b"read_transactions"])
        elsewhere = [each.metadata for key, each in found if key not in keys]
        locked = replace(
            locked,
            transactions=tuple(each for key, each in found if key in keys),
            held_elsewhere=frozenset(
                each.metadata.key
                for key, each in found
                if key not in keys or held & each.partitions
            ),
            held_producers=frozenset(each.producer_id for each in elsewhere),
        )
    if wanted.guards:
        locked = _with_publications(locked, wanted, results, held)
    return locked


def _with_publications(
    locked: Locked, wanted: ToLock, results: Mapping[bytes, PGresult], held: set[int]
) -> Locked:
    guards = {staging_rows.guard_key(each): each for each in wanted.guards}
    guard_keys = {key for (key,) in rows_of(results[b"lock_guards"])}
    published = {key or b"": integer(value) for key, value in rows_of(results[b"read_guards"])}
    token_keys = {key for (key,) in rows_of(results[b"lock_tokens"])}
    tokens = staging_rows.token_batches(results[b"read_tokens"], results[b"read_places"])
    return replace(
        locked,
        published={guards[key]: value for key, value in published.items() if key in guard_keys},
        held_guards=frozenset(guards[key] for key in published if key not in guard_keys),
        tokens=tokens,
        held_tokens=frozenset(
            token
            for token, batches in tokens.items()
            if token.bytes not in token_keys or any(b.partition_id in held for b in batches)
        ),
    )


def partition_states(result: PGresult) -> dict[int, PartitionState]:
    """Rows of READ_PARTITIONS, by partition id."""
    states = {}
    for row in rows_of(result):
        partition_id, next_offset, start, epoch, timestamp, *later = struct.unpack(
            ">qqqiqqq", b"".join(value or b"" for value in row[:7])
        )
        opened = map(OpenTransaction, integers(row[7], "q"), integers(row[8], "q"))
        states[partition_id] = PartitionState(
            partition_id, next_offset, start, epoch, timestamp, tuple(opened), *later
        )
    return states


def producer_states(result: PGresult) -> dict[tuple[int, int], ProducerState]:
    """Rows of READ_PRODUCERS, by (partition id, producer id)."""
    states = {}
    for partition_id, producer_id, *rest in _PRODUCER.decode(result):
        epoch, timestamp, *batches, first_offset, coordinator_epoch = rest
        states[partition_id, producer_id] = ProducerState(
            producer_id,
            epoch,
            timestamp,
            tuple(map(AppendedBatch, *batches)),
            None if first_offset == -1 else first_offset,
            coordinator_epoch,
        )
    return states


def named_sequences(result: PGresult) -> dict[tuple[int, str], NamedSequence]:
    """Rows of READ_NAMES, by (partition id, name)."""
    return {
        (integer(row[0]), (named := named_sequence(row[1:])).name): named for row in rows_of(result)
    }


def named_sequence(row: Sequence[bytes | None]) -> NamedSequence:
    """NAME_COLUMNS without the partition."""
    name, highest, chunked, chunk_id, claim = (value or b"" for value in row)
    return NamedSequence(
        read(name.decode()), int(highest), int(chunked), integer(chunk_id), integer(claim)
    )


def _pairs(producers: Sequence[tuple[int, int]]) -> tuple[bytes, bytes]:
    return (
        bigint_array([partition_id for partition_id, _ in producers]),
        bigint_array([producer_id for _, producer_id in producers]),
    )


def _append_parameters(
    effects: Sequence[LogEffects], payload: FlushPayload, places: Sequence[bytes]
) -> list[bytes]:
    """Parameters of APPEND_BATCHES, from effects in order of their partitions."""
    partitions = [
        (
            effect.partition_id,
            effect.expected_offset,
            effect.next_offset,
            effect.max_timestamp,
            effect.added_bytes,
            len(effect.rows),
            effect.terminated_offset,
            effect.topic_epoch,
        )
        for effect in effects
    ]
    rows = [
        (effect.partition_id, *_index_row(row, payload))
        for effect in effects
        for row in effect.rows
    ]
    return [*columns("qqqqqqqq", partitions), tid_array(places), *_BATCH.encode(rows)]


def _index_row(row: AppendedRow, payload: FlushPayload) -> tuple[int, ...]:
    """_BATCH, from base_offset on."""
    batch, position = row.incoming.batch, payload.position_of(row.incoming)
    return (
        row.base_offset,
        row.last_offset,
        position.payload_id,
        position.position,
        position.segment_id,
        batch.size,
        batch.max_timestamp,
        row.running_max_timestamp,
        batch.producer_id,
        batch.base_sequence,
        batch.producer_epoch,
        batch.format.value,
        batch.is_transactional,
        batch.is_control,
    )


def _name_parameters(effects: Sequence[LogEffects]) -> list[bytes]:
    """Parameters of PUT_NAMES. Sequence ids are text: they are u64, or -1."""
    names = [(effect.partition_id, each) for effect in effects for each in effect.names]
    return [
        bigint_array([partition_id for partition_id, _ in names]),
        uuid_array([key_of(each.name) for _, each in names]),
        text_array([written(each.name) for _, each in names]),
        bigint_array([each.claim for _, each in names]),
        text_array([str(each.highest_sequence_id) for _, each in names]),
        text_array([str(each.chunked_sequence_id) for _, each in names]),
        integer_array([each.chunk_id for _, each in names]),
    ]


def _aborted_parameters(effects: Sequence[LogEffects]) -> list[bytes]:
    rows = [
        (effect.partition_id, each.last_offset, each.producer_id, each.first_offset)
        for effect in effects
        for each in effect.aborted
    ]
    return columns("qqqq", rows)


def _forgotten_parameters(effects: Sequence[LogEffects]) -> list[bytes]:
    rows = [(effect.partition_id, each) for effect in effects for each in effect.forgotten]
    return columns("qq", rows)


def _producer_parameters(effects: Sequence[LogEffects]) -> list[bytes]:
    return _PRODUCER.encode(
        [
            (
                effect.partition_id,
                state.producer_id,
                state.producer_epoch,
                state.last_timestamp,
                [batch.last_sequence for batch in state.batches],
                [batch.last_offset for batch in state.batches],
                [batch.offset_delta for batch in state.batches],
                [batch.timestamp for batch in state.batches],
                _or_minus_one(state.txn_first_offset),
                state.coordinator_epoch,
            )
            for effect in sorted(effects, key=lambda effect: effect.partition_id)
            for state in effect.producers
        ]
    )


def _or_minus_one(offset: int | None) -> int:
    return -1 if offset is None else offset
