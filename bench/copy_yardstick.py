"""The yardstick: what the same PostgreSQL takes by raw binary COPY into a like table.

Rows of at most 8,000 bytes, STORAGE PLAIN, 16 batches a commit, one connection: the upper bound
of a write path that stores record batches there. Must not know the server's own tables.
"""

from __future__ import annotations

import os
import struct
import time

import psycopg

CHUNK_BYTES = 8_000
BATCHES_A_COMMIT = 16
BATCH_BYTES = 16_384  # the Java producer's default batch.size

_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER = b"\xff\xff"


def _rows(batch_id: int, payload: bytes) -> bytes:
    """One batch as COPY tuples (batch_id bigint, seq integer, data bytea)."""
    stream = bytearray()
    for seq, start in enumerate(range(0, len(payload), CHUNK_BYTES)):
        chunk = payload[start : start + CHUNK_BYTES]
        stream += struct.pack(">hiqiii", 3, 8, batch_id, 4, seq, len(chunk))
        stream += chunk
    return bytes(stream)


def copy_mb_per_s(database_url: str, total_bytes: int, batch_bytes: int = BATCH_BYTES) -> float:
    """Write `total_bytes` of random payload in batches of `batch_bytes`; MB/s, commits included."""
    payload = os.urandom(batch_bytes)
    flushes = max(1, total_bytes // (batch_bytes * BATCHES_A_COMMIT))
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = on")
        connection.execute("DROP TABLE IF EXISTS bench_copy")
        connection.execute(
            "CREATE TABLE bench_copy (batch_id bigint NOT NULL, seq integer NOT NULL, "
            "data bytea STORAGE PLAIN NOT NULL, PRIMARY KEY (batch_id, seq))"
        )
        try:
            begun = time.monotonic()
            for flush in range(flushes):
                first = flush * BATCHES_A_COMMIT
                rows = [_rows(first + number, payload) for number in range(BATCHES_A_COMMIT)]
                with (
                    connection.cursor() as cursor,
                    cursor.copy("COPY bench_copy FROM STDIN (FORMAT binary)") as copy,
                ):
                    copy.write(b"".join([_HEADER, *rows, _TRAILER]))
            seconds = time.monotonic() - begun
        finally:
            connection.execute("DROP TABLE bench_copy")
    return flushes * BATCHES_A_COMMIT * batch_bytes / 1e6 / seconds
