"""Raw COPY and the micro steps do what they are timed for."""

from __future__ import annotations

import psycopg
import pytest

pytest.importorskip("confluent_kafka")

from bench import copy_yardstick
from bench.micro import pulsar, steps
from bench.micro.steps import Step


@pytest.mark.parametrize("size", [1, 8_000, 8_001, 16_384])
def test_copied_rows_hold_the_batch(empty_database_url: str, size: int) -> None:
    payload = bytes(range(256)) * (size // 256 + 1)
    stream = copy_yardstick._HEADER + copy_yardstick._rows(7, payload[:size]) + b"\xff\xff"
    with psycopg.connect(empty_database_url) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE copied (batch_id bigint, seq integer, data bytea)")
        with cursor.copy("COPY copied FROM STDIN (FORMAT binary)") as copy:
            copy.write(stream)
        rows = cursor.execute("SELECT batch_id, seq, data FROM copied ORDER BY seq").fetchall()
    assert b"".join(row[2] for row in rows) == payload[:size]
    assert [row[:2] for row in rows] == [(7, seq) for seq in range(len(rows))]
    assert max(len(row[2]) for row in rows) <= copy_yardstick.CHUNK_BYTES


def test_the_yardstick_leaves_no_table_behind(empty_database_url: str) -> None:
    assert copy_yardstick.copy_mb_per_s(empty_database_url, 1_000_000) > 0
    with psycopg.connect(empty_database_url) as connection:
        left = connection.execute("SELECT to_regclass('bench_copy')").fetchone()
    assert left == (None,)


@pytest.mark.parametrize("step", [*steps.steps(), *pulsar.steps()], ids=lambda step: step.name)
def test_a_step_runs_twice(step: Step) -> None:
    step.run()
    step.run()
