"""The flights in SQL, with fewer flights: all is exact, and what is not exact is noticed."""

from __future__ import annotations

import argparse
import io
import uuid
from multiprocessing import Pipe
from typing import Any

import psycopg
import pytest
from rich.console import Console

from demo import sql

LIMIT, BATCH, LATE = 3_000, 20, 60


def run(*arguments: str) -> tuple[int, str]:
    output = io.StringIO()
    code = sql.main(arguments, console=Console(file=output, width=160))
    return code, output.getvalue()


def wrong(worker: sql.Worker) -> set[str]:
    """What is not as it should be."""
    sql.wait_until_published(worker)
    return {each.what for each in sql.check(worker) if each.problem}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_all_is_exact_though_workers_are_killed_and_paused(gateway: Any) -> None:
    topic = f"flights-{uuid.uuid4().hex[:8]}"
    at = ("--bootstrap-server", gateway.bootstrap, "--database-url", gateway.database_url)
    size = ("--limit", str(LIMIT), "--batch", str(BATCH), "--late", str(LATE))
    code, shown = run(*at, *size, "--topic", topic, "--kills", "1", "--pauses", "1")
    assert code == 0, shown
    assert shown.count("started again") == 1
    assert "late COMMIT refused, PS20" in shown

    again, said = run(*at, "--topic", topic, "--limit", "10")
    assert again == 1
    assert "--recreate" in said

    ours, theirs = Pipe()
    with ours, theirs:
        worker = sql.Worker(
            *(gateway.bootstrap, gateway.database_url, f"demo-{topic}", topic, f"{topic}-delays"),
            *(f"{topic}-workers", BATCH, LATE, theirs),
        )
        assert wrong(worker) == set()
        with psycopg.connect(gateway.database_url, autocommit=True) as connection:
            connection.execute(f'SET search_path TO "demo-{topic}"'.encode())
            plant_and_check(connection, worker)


def plant_and_check(connection: psycopg.Connection[Any], worker: sql.Worker) -> None:
    """Each difference by itself, then all that were not taken back."""
    twice = "INSERT INTO flight_leg SELECT * FROM flight_leg WHERE minutes > 0 LIMIT 1"
    connection.execute(twice)
    rows = {"flights in flight_leg", "their minutes of delay"}
    assert wrong(worker) == {*rows, "flights twice or wrong"}
    connection.execute("DELETE FROM flight_leg WHERE partition = 0")
    assert wrong(worker) >= {*rows, "flights missing"}

    connection.execute("UPDATE carrier_total SET minutes = minutes + 1 WHERE carrier = 'UA'")
    assert "carriers with a wrong total" in wrong(worker)
    connection.execute("DELETE FROM carrier_total WHERE carrier = 'UA'")
    assert wrong(worker) >= {"carriers with a wrong total", "flights in carrier_total"}

    before = wrong(worker)
    connection.execute(
        "SELECT penstock.produce(%s, 'UA', jsonb_build_object('partition', 0, 'offset', 0))",
        [worker.target],
    )
    assert wrong(worker) - before == {"records of late flights", "records twice or wrong"}
    assert "late flights untold" not in before

    connection.execute(
        "SELECT penstock.produce(%s, NULL, %s)", [worker.source, '{"dep_delay": 90}']
    )
    assert wrong(worker) >= {
        *("offsets committed", "partitions not at their end", "late flights untold"),
    }


def test_what_is_wrong_is_told_in_a_sentence() -> None:
    arguments = argparse.Namespace(kills=1, pauses=1)
    right = [sql.Check("flights", 2, 2)]
    done = sql.Done(kills=1, pauses=1, late=1)
    assert list(sql.problems(done, right, arguments)) == []
    assert list(sql.problems(done, [sql.Check("flights", 2_000, 3)], arguments)) == [
        "flights: 3 instead of 2,000"
    ]
    unshown = list(sql.problems(sql.Done(), right, arguments))
    assert [each.partition(":")[0] for each in unshown] == [
        "the flights were done before all that should befall the workers",
        "no late COMMIT was refused",
    ]
