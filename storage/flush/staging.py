"""Statements on tokens, their batches and guards, and the parameters. SQL compares numbers here and
moves what it is told to move; `core/staging` decides what they mean.

Whatever adds to a token, publishes it or drops it locks the token's row. So its batches, read in a
statement after the lock, are complete, and none is ever left without its token.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from core.log.effects import IncomingBatch
from core.staging.values import Guard, PublicationEffects, TokenBatch, TokenEffects
from core.types import BatchFormat, RecordBatch
from storage import schema
from storage.connection.binary import (
    bigint_array,
    boolean_array,
    integer,
    integer_array,
    integers,
    rows_of,
    text_array,
    uuid_array,
)
from storage.connection.client_text import key_of, written
from storage.connection.rows import Row
from storage.connection.session import Statement
from storage.flush.payload import FlushPayload
from storage.flush.segments import Position

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

_BATCH = Row.of(schema.staged_batch)
# Guards every staging: adds to each token if its number of batches is still the one decided on (0:
# there is none yet), and raises PS001 unless all had it.
STAGE = f"""
WITH e AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::integer[], $3::integer[], $4::bigint[], $5::bigint[])
        AS e (token, expected, batches, added_records, added_bytes)
), locked AS MATERIALIZED (
    SELECT token FROM penstock.staged_token WHERE token = ANY ($1::uuid[])
    ORDER BY token FOR NO KEY UPDATE
), clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now, make_interval(secs => $6::double precision) AS keep,
           count(*)
    FROM locked
), moved AS (
    UPDATE penstock.staged_token t
    SET batches = e.batches, records = t.records + e.added_records,
        bytes = t.bytes + e.added_bytes, staged_at = clock.now,
        expires_at = clock.now + clock.keep
    FROM e, clock
    WHERE t.token = e.token AND t.batches = e.expected AND e.expected > 0 RETURNING 1
), made AS (
    INSERT INTO penstock.staged_token (token, batches, records, bytes, created_at, staged_at,
        expires_at)
    SELECT e.token, e.batches, e.added_records, e.added_bytes, clock.now, clock.now,
        clock.now + clock.keep
    FROM e, clock WHERE e.expected = 0
    ON CONFLICT (token) DO NOTHING RETURNING 1
), inserted AS (
    INSERT INTO penstock.staged_batch ({_BATCH.names}) SELECT * FROM {_BATCH.unnest(7)}
)
SELECT CASE WHEN (SELECT count(*) FROM moved) + (SELECT count(*) FROM made)
                 <> cardinality($1::uuid[])
            THEN penstock.version_mismatch() END
"""

LOAD_TOKENS = "SELECT token, batches FROM penstock.staged_token WHERE token = ANY ($1::uuid[])"
TOKEN_TOPICS = "SELECT DISTINCT topic FROM penstock.staged_batch WHERE token = ANY ($1::uuid[])"
STAGED_BYTES = "SELECT coalesce(sum(bytes), 0)::bigint FROM penstock.staged_token"

LOCK_GUARDS = """
SELECT guard_key FROM penstock.published_batch WHERE guard_key = ANY ($1::uuid[])
ORDER BY guard_key FOR NO KEY UPDATE
"""
LOCK_TOKENS = """
SELECT token FROM penstock.staged_token WHERE token = ANY ($1::uuid[]) ORDER BY token FOR UPDATE
"""
LOCK_FREE_GUARDS = LOCK_GUARDS.rstrip() + " SKIP LOCKED"
LOCK_FREE_TOKENS = LOCK_TOKENS.rstrip() + " SKIP LOCKED"
READ_GUARDS = """
SELECT guard_key, batch_id FROM penstock.published_batch WHERE guard_key = ANY ($1::uuid[])
"""
# One row per token, in arrays: there may be tens of thousands of batches, and their partitions are
# locked during the read. PostgreSQL feeds an aggregate in the order of its subquery.
READ_TOKENS = """
SELECT token, array_agg(partition_id), array_agg(payload_id), array_agg(position),
       array_agg(segment_id), array_agg(size), array_agg(record_count), array_agg(max_timestamp),
       array_agg(format)
FROM (SELECT * FROM penstock.staged_batch WHERE token = ANY ($1::uuid[])
      ORDER BY token, number) AS b
GROUP BY token
"""
READ_PLACES = """
SELECT DISTINCT partition_id, partition, topic FROM penstock.staged_batch
WHERE token = ANY ($1::uuid[])
"""

# Moves each guard that is still as decided on (has_row: whether there was one), and raises PS001
# unless all were.
PUT_GUARDS = """
WITH e AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::boolean[], $5::bigint[],
        $6::bigint[]) AS e (guard_key, query_id, sink, has_row, expected, batch_id)
), moved AS (
    UPDATE penstock.published_batch p SET batch_id = e.batch_id, published_at = clock_timestamp()
    FROM e WHERE p.guard_key = e.guard_key AND e.has_row AND p.batch_id = e.expected RETURNING 1
), made AS (
    INSERT INTO penstock.published_batch (guard_key, query_id, sink, batch_id, published_at)
    SELECT guard_key, query_id, sink, batch_id, clock_timestamp() FROM e WHERE NOT has_row
    ORDER BY guard_key
    ON CONFLICT (guard_key) DO NOTHING RETURNING 1
)
SELECT CASE WHEN (SELECT count(*) FROM moved) + (SELECT count(*) FROM made)
                 <> cardinality($1::uuid[])
            THEN penstock.version_mismatch() END
"""
# Guarded by the tokens' locks. A token that is not locked may get batches meanwhile that the
# statement does not see: they would stay behind without their token.
DROP_TOKENS = """
WITH batches AS (DELETE FROM penstock.staged_batch WHERE token = ANY ($1::uuid[]))
DELETE FROM penstock.staged_token WHERE token = ANY ($1::uuid[])
"""
# Both in one pipeline: what the first locks the second drops, and no token that was made since.
LOCK_TO_DROP = """
SELECT set_config('penstock.locked_tokens', coalesce(array_agg(token), '{}')::text, true)
FROM (SELECT token FROM penstock.staged_token WHERE token = ANY ($1::uuid[])
      ORDER BY token FOR UPDATE) AS locked
"""
DROP_LOCKED = DROP_TOKENS.replace("$1", "current_setting('penstock.locked_tokens')")

# Skips tokens that are being published, or added to, at this moment.
LOCK_EXPIRED = """
SELECT token FROM penstock.staged_token WHERE expires_at < clock_timestamp()
ORDER BY token LIMIT %(limit)s FOR UPDATE SKIP LOCKED
"""
FORGET_GUARDS = """
WITH doomed AS MATERIALIZED (
    SELECT guard_key FROM penstock.published_batch
    WHERE published_at < clock_timestamp() - make_interval(secs => %(idle_s)s)
    ORDER BY guard_key FOR UPDATE SKIP LOCKED
)
DELETE FROM penstock.published_batch p USING doomed d WHERE p.guard_key = d.guard_key
"""

FLUSH_STATEMENTS: Mapping[bytes, str] = {
    b"lock_guards": LOCK_GUARDS,
    b"lock_free_guards": LOCK_FREE_GUARDS,
    b"lock_tokens": LOCK_TOKENS,
    b"lock_free_tokens": LOCK_FREE_TOKENS,
    b"read_guards": READ_GUARDS,
    b"read_tokens": READ_TOKENS,
    b"read_places": READ_PLACES,
    b"put_guards": PUT_GUARDS,
    b"drop_tokens": DROP_TOKENS,
}


def guard_key(guard: Guard) -> bytes:
    """A hash of a guard, 16 bytes."""
    return key_of(f"{len(guard.query_id)} {guard.query_id}{guard.sink}")


def put_guards(effects: PublicationEffects) -> list[Statement]:
    """The first statements of a flush: guards that move."""
    if not effects.moves:
        return []
    moves = effects.moves
    parameters = (
        uuid_array([guard_key(each.guard) for each in moves]),
        text_array([written(each.guard.query_id) for each in moves]),
        text_array([written(each.guard.sink) for each in moves]),
        boolean_array([each.expected is not None for each in moves]),
        bigint_array([each.expected or 0 for each in moves]),
        bigint_array([each.batch_id for each in moves]),
    )
    return [(b"put_guards", parameters)]


def drop_tokens(tokens: Sequence[UUID]) -> list[Statement]:
    """The statements after the log's own rows: tokens that are published, or dropped."""
    return [(b"drop_tokens", (token_array(tokens),))] if tokens else []


def token_array(tokens: Sequence[UUID]) -> bytes:
    """`uuid[]`."""
    return uuid_array([token.bytes for token in tokens])


def stage_parameters(
    effects: Sequence[TokenEffects], payload: FlushPayload, expiration_s: float
) -> list[bytes]:
    """The parameters of STAGE."""
    rows = [
        _row(each, number, batch, payload)
        for each in effects
        for number, batch in enumerate(each.added, each.expected_batches)
    ]
    return [
        token_array([each.token for each in effects]),
        integer_array([each.expected_batches for each in effects]),
        integer_array([each.expected_batches + len(each.added) for each in effects]),
        bigint_array([sum(b.incoming.batch.record_count for b in each.added) for each in effects]),
        bigint_array([sum(b.incoming.batch.size for b in each.added) for each in effects]),
        struct.pack(">d", expiration_s),
        *_BATCH.encode(rows),
    ]


def _row(
    token: TokenEffects, number: int, staged: TokenBatch, payload: FlushPayload
) -> tuple[bytes | int | str, ...]:
    """_BATCH."""
    batch, position = staged.incoming.batch, payload.position_of(staged.incoming)
    return (
        token.token.bytes,
        number,
        written(staged.topic),
        staged.partition,
        staged.partition_id,
        position.payload_id,
        position.position,
        position.segment_id,
        batch.size,
        batch.record_count,
        batch.max_timestamp,
        batch.format.value,
    )


_FORMATS = {each.value: each for each in BatchFormat}


def token_batches(tokens: PGresult, places: PGresult) -> dict[UUID, list[TokenBatch]]:
    """Rows of READ_TOKENS and READ_PLACES: the batches of each token, in order.

    Omits a token that is not locked and was published between the two reads.
    """
    names = {
        integer(partition_id): ((topic or b"").decode(), integer(partition))
        for partition_id, partition, topic in rows_of(places)
    }
    found: dict[UUID, list[TokenBatch]] = {}
    for token, *columns in rows_of(tokens):
        numbers = [integers(column, code) for column, code in zip(columns, "qqiiiiqh", strict=True)]
        if not names.keys() >= set(numbers[0]):
            found[UUID(bytes=token)] = []
            continue
        found[UUID(bytes=token)] = [
            TokenBatch(
                *names[partition_id],
                partition_id,
                IncomingBatch(
                    RecordBatch(count, timestamp, size, _FORMATS[form]),
                    Position(segment_id, payload_id, position),
                ),
            )
            for partition_id, payload_id, position, segment_id, size, count, timestamp, form in zip(
                *numbers, strict=True
            )
        ]
    return found
