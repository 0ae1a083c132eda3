"""bench.waits: what sessions wait for is counted, and those of others are not."""

from __future__ import annotations

import threading
import time
from collections import Counter

import psycopg

from bench.waits import ON_A_CORE, sampled, table

WAITING = """
SELECT FROM pg_locks JOIN pg_database AS d ON d.oid = database
WHERE locktype = 'advisory' AND NOT granted AND datname = current_database()
"""


def wait_until_it_waits(url: str) -> None:
    deadline = time.monotonic() + 30
    with psycopg.connect(url, autocommit=True) as connection:
        while not connection.execute(WAITING).fetchall():
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_session_of_a_broker_that_waits_for_a_lock_is_seen(database_url: str) -> None:
    with (
        psycopg.connect(database_url) as holder,
        psycopg.connect(database_url, application_name="penstock") as waiter,
    ):
        holder.execute("SELECT pg_advisory_lock(1)")
        wait = threading.Thread(target=waiter.execute, args=["SELECT pg_advisory_lock(1)"])
        wait.start()
        wait_until_it_waits(database_url)
        found, samples = sampled(database_url, 0.5)
        holder.execute("SELECT pg_advisory_unlock(1)")
        wait.join()
    assert samples / 2 < found["Lock:advisory"] <= samples
    assert set(found) <= {"Lock:advisory", ON_A_CORE}


def test_a_session_of_somebody_else_is_not(database_url: str) -> None:
    with psycopg.connect(database_url) as stranger:
        sleep = threading.Thread(target=stranger.execute, args=["SELECT pg_sleep(0.6)"])
        sleep.start()
        found, _ = sampled(database_url, 0.3)
        sleep.join()
    assert found["Timeout:PgSleep"] == 0


def test_shares_are_of_the_sessions_that_were_active() -> None:
    text = table(Counter({"Lock:advisory": 30, ON_A_CORE: 10}), 20)
    assert text.splitlines() == [
        "2.00 sessions active on average, 20 samples",
        "  75.0 %  Lock:advisory",
        "  25.0 %  (a core)",
    ]
