"""The benchmark of the SQL doors: small turns of its cases, and what it says of failures."""

from __future__ import annotations

import pytest

pytest.importorskip("confluent_kafka")

import psycopg

from bench.brokers import Broker
from bench.case import Skipped
from bench.macro import sql
from bench.processes import ProcessGroup
from tests.conftest import StartGateway


@pytest.fixture
def broker(database_url: str, start_gateway: StartGateway) -> Broker:
    running = start_gateway(database_url=database_url)
    gateway = ProcessGroup(running.process.pid)
    return Broker("own", running.bootstrap, {"gateway": gateway}, database_url=database_url)


def test_turns_leave_nothing_behind(broker: Broker) -> None:
    produced = sql.produce(2, 1.0, "", broker)
    assert produced["produce_transactions_per_s"] > 0
    assert produced["to_outbox_ratio"] == pytest.approx(
        produced["produce_transactions_per_s"] / produced["outbox_transactions_per_s"]
    )
    assert sql.idle_latency(0.01, broker)["p50_ms"] > 0
    figures = sql.backlog(5_000, broker)
    assert figures["mb_per_s"] == pytest.approx(figures["records_per_s"] * sql.SIZE / 1e6)
    assert broker.database_url is not None
    with psycopg.connect(broker.database_url) as connection:
        assert connection.execute("SELECT to_regclass('bench_sql.app')").fetchone() == (None,)
        assert connection.execute("SELECT * FROM penstock.v_inbox").fetchall() == []


def test_a_statement_that_fails_is_told(database_url: str) -> None:
    broker = Broker("own", "127.0.0.1:9", database_url=database_url)
    with sql.application(broker), pytest.raises(RuntimeError, match="no_such_table"):
        sql.rate_of(database_url, "SELECT * FROM no_such_table;", 1, 1)


def test_who_has_no_doors_is_skipped(empty_database_url: str) -> None:
    with pytest.raises(Skipped):
        sql.database_of(Broker("kafka", "127.0.0.1:9"))
    with pytest.raises(Skipped):
        sql.database_of(Broker("older", "127.0.0.1:9", database_url=empty_database_url))
