"""Statements by which a flush publishes what waited in the inbox, and the parameters.

SQL compares one number here; `core/inbox` decides what is published.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from core.inbox.values import InboxMove
from storage.connection.binary import bigint_array, integer_array, text_array
from storage.connection.client_text import written
from storage.connection.session import Statement

# Guards a bite: the next version is there only once, and raises PS002 if it was already.
PUT_POSITION = """
WITH moved AS (
    INSERT INTO penstock.inbox_position (version, era, published, target, after_stamp)
    SELECT $1::bigint + 1, $2::integer, $3::text::pg_snapshot, $4::text::pg_snapshot, $5::bigint
    WHERE $1 = (SELECT max(version) FROM penstock.inbox_position)
    ON CONFLICT DO NOTHING RETURNING 1
)
SELECT CASE WHEN NOT EXISTS (SELECT FROM moved) THEN penstock.inbox_overtaken() END
"""
PUT_REFUSED = """
INSERT INTO penstock.inbox_refused (topic, partition, records, bytes, reason)
SELECT topic, nullif(partition, -1), records, bytes, reason
FROM unnest($1::text[], $2::integer[], $3::bigint[], $4::bigint[], $5::text[])
    AS e (topic, partition, records, bytes, reason)
"""

STATEMENTS: Mapping[bytes, str] = {b"put_position": PUT_POSITION, b"put_refused": PUT_REFUSED}

_BIGINT = struct.Struct(">q")
_INTEGER = struct.Struct(">i")


def put_moves(moves: Sequence[InboxMove]) -> list[Statement]:
    """The inbox's position, and what is left out."""
    statements: list[Statement] = []
    for move in moves:
        position = move.position
        parameters = (
            _BIGINT.pack(move.expected),
            _INTEGER.pack(position.era),
            position.published.encode(),
            None if position.target is None else position.target.encode(),
            _BIGINT.pack(position.after_stamp),
        )
        statements.append((b"put_position", parameters))
        if refused := move.refused:
            columns = (
                text_array([written(each.topic) for each in refused]),
                integer_array(
                    [-1 if each.partition is None else each.partition for each in refused]
                ),
                bigint_array([each.records for each in refused]),
                bigint_array([each.bytes for each in refused]),
                text_array([each.reason for each in refused]),
            )
            statements.append((b"put_refused", columns))
    return statements
