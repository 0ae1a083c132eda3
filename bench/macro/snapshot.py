"""Produce while another session holds a snapshot open: hot rows bloat, and how much that costs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import psycopg

from bench.brokers import Broker
from bench.case import Case, Figures, Skipped
from bench.clients import run_workers

PARTITIONS = 4
LOAD_RECORDS = 100_000


@contextlib.contextmanager
def held_snapshot(database_url: str) -> Iterator[None]:
    """A transaction that has looked once and stays open, as a forgotten psql does."""
    with psycopg.connect(database_url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT count(*) FROM pg_class")
        yield
        connection.rollback()


def produce_under_snapshot(seconds: float, broker: Broker) -> Figures:
    """Single records over four partitions for `seconds`, then a burst; before it, a burst without.

    The first and the last tenth of the acknowledgements tell the bloat.
    """
    if broker.database_url is None:
        raise Skipped("no database whose snapshot could be held")
    with broker.topic(PARTITIONS) as topic:
        common: dict[str, Any] = {"bootstrap": broker.bootstrap, "topic": topic, "size": 1_000}
        burst: dict[str, Any] = {"work": "produce_confluent", "records": LOAD_RECORDS, **common}
        free = LOAD_RECORDS / run_workers(**burst)["seconds"]
        with held_snapshot(broker.database_url):
            single = run_workers(
                "ack_confluent",
                timeout_s=seconds + 120,
                seconds=seconds,
                partitions=PARTITIONS,
                **common,
            )
            held = LOAD_RECORDS / run_workers(**burst)["seconds"]
    figures = {key: value for key, value in single.items() if key.endswith("_ms")}
    return figures | {
        "commits_per_s": single["records"] / seconds,
        "free_records_per_s": free,
        "held_records_per_s": held,
        "held_to_free_ratio": held / free,
    }


def cases(share: float) -> list[Case]:
    """Twenty seconds (`share` scales them); ten minutes with --long."""
    short = partial(produce_under_snapshot, 20 * share)
    long = partial(produce_under_snapshot, 600)
    return [
        Case("snapshot-held/20s", "last_tenth_p50_ms", short, rounds=1),
        Case("snapshot-held/10min", "last_tenth_p50_ms", long, rounds=1, long=True),
    ]
