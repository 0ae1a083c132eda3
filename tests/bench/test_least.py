"""The peer that does the least: it must do that, or its figures bound nothing."""

from pathlib import Path

import psycopg
import pytest

from bench.brokers import Broker
from bench.clients import run_workers
from bench.peer.least import started_least


def test_it_serves_producers(data_dir: Path) -> None:
    """librdkafka's, with and without transactions, and no others."""
    with started_least(data_dir, "answering") as broker:
        assert _produced(broker) == 100
        assert _transactions(broker) > 0
        assert broker.can_run("transactions/confluent/8x/100p")
        assert not broker.can_run("transactions/confluent/1x/4p/offsets")


@pytest.mark.parametrize("kind", ["storing", "two-storing"])
def test_it_stores_what_they_send(data_dir: Path, kind: str) -> None:
    """Payload, an index row for each batch, joins, a marker in each partition."""
    with started_least(data_dir, kind) as broker:
        assert broker.database_url is not None
        with psycopg.connect(broker.database_url, autocommit=True) as connection:
            assert _produced(broker) == 100
            assert _sum(connection, "SELECT sum(length(data)) FROM record_chunk_1") > 100 * 1_000
            before = _sum(connection, "SELECT count(*) FROM batch")
            ended = _transactions(broker)
            assert ended > 0
            stored = _sum(connection, "SELECT sum(version) FROM txn")
            assert stored >= ended  # some do not count
            assert _sum(connection, "SELECT count(*) FROM member") == 4 * stored
            assert _sum(connection, "SELECT count(*) FROM batch") - before == 8 * stored
            by_process = "SELECT count(DISTINCT log_id >> 40) FROM batch"
            assert _sum(connection, by_process) == (2 if kind == "two-storing" else 1)


def _produced(broker: Broker) -> float:
    with broker.topic(4) as topic:
        parameters = {"bootstrap": broker.bootstrap, "topic": topic, "records": 100, "size": 1_000}
        return run_workers("produce_confluent", **parameters)["records"]


def _transactions(broker: Broker) -> float:
    with broker.topic(4) as topic:
        return run_workers(
            "transactions_confluent",
            bootstrap=broker.bootstrap,
            topic=topic,
            partitions=4,
            records=4,
            seconds=0.5,
        )["records"]


def _sum(connection: psycopg.Connection, query: str) -> int:
    row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return int(row[0])
