"""Kafka's own `kafka-transactions` and `kafka-features`: every command, against a running gateway.

The tools are the same release as the Apache Kafka they were tried on (compat/java/pom.xml).
"""

from __future__ import annotations

import subprocess

import psycopg
import pytest
from confluent_kafka import KafkaException, Producer

from compat.java import tools
from tests.conftest import Gateway, StartGateway

pytestmark = pytest.mark.java

TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
FEATURES = "org.apache.kafka.tools.FeatureCommand"
TIMEOUT_S = 20.0
HOUR_MS = 3_600_000


@pytest.fixture
def broker(start_gateway: StartGateway, database_url: str) -> Gateway:
    return start_gateway(database_url=database_url)


def opened(broker: Gateway, name: str = "till") -> Producer:
    """A producer with an open transaction in partition 0 of topic `pay`."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce("pay", b"value", partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    return producer


def rows(printed: str) -> list[dict[str, str]]:
    """A printed table, row by row, by the heads of its columns."""
    heads, *lines = [line.split("\t") for line in printed.splitlines() if "\t" in line]
    return [
        {
            head.strip(): cell.strip()
            for head, cell in zip(heads, line, strict=False)
            if head.strip()
        }
        for line in lines
    ]


def test_each_command_of_kafka_transactions_works(
    broker: Gateway, database_url: str, shell: tools.RunTool
) -> None:
    at = "--bootstrap-server", broker.bootstrap

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return shell(TRANSACTIONS, *at, *words, check=False)

    first = opened(broker)
    first.commit_transaction(TIMEOUT_S)
    producer = opened(broker)

    [row] = rows(run("list").stdout)
    assert (row["TransactionalId"], row["TransactionState"]) == ("till", "Ongoing")
    producer_id = row["ProducerId"]
    assert rows(run("list", "--transactional-id-pattern", "t.*").stdout) == [row]
    assert rows(run("list", "--transactional-id-pattern", "t").stdout) == []
    assert rows(run("list", "--duration-filter", str(HOUR_MS)).stdout) == []

    [row] = rows(run("describe", "--transactional-id", "till").stdout)
    assert (row["TransactionState"], row["TopicPartitions"]) == ("Ongoing", "pay-0")
    assert (row["ProducerId"], row["TransactionTimeoutMs"]) == (producer_id, "60000")
    missing = run("describe", "--transactional-id", "nobody")
    assert missing.returncode == 1
    assert "the ID could not be found" in missing.stdout

    place = "--topic", "pay", "--partition", "0"
    [row] = rows(run("describe-producers", *place).stdout)
    assert row["ProducerId"] == producer_id
    start = row["CurrentTransactionStartOffset"]
    assert start == "2"  # behind the first one's record and marker

    # Nothing hangs, however long it is open: each open transaction has its row.
    assert rows(run("find-hanging", "--topic", "pay").stdout) == []
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "UPDATE transaction_state SET started_at = started_at - %s, timeout_ms = 2 * %s"
            " WHERE started_at >= 0",
            [HOUR_MS, HOUR_MS],
        )
    assert rows(run("list", "--duration-filter", str(HOUR_MS)).stdout) != []
    broker_id = ("--broker-id", "1", "--max-transaction-timeout", "1")
    assert rows(run("find-hanging", *broker_id).stdout) == []

    wrong = run("abort", *place, "--start-offset", "0")
    assert wrong.returncode == 1
    assert "Could not find any open transactions" in wrong.stdout
    done = run("abort", *place, "--start-offset", start)
    assert (done.returncode, done.stdout.strip()) == (0, "")
    [row] = rows(run("describe", "--transactional-id", "till").stdout)
    assert row["TransactionState"] == "CompleteAbort"
    [row] = rows(run("describe-producers", *place).stdout)
    assert row["CurrentTransactionStartOffset"] == "None"
    with pytest.raises(KafkaException):
        producer.commit_transaction(TIMEOUT_S)


def test_features(broker: Gateway, shell: tools.RunTool) -> None:
    at = "--bootstrap-server", broker.bootstrap
    described = shell(FEATURES, *at, "describe").stdout
    assert "Feature: transaction.version" in described
    assert "SupportedMaxVersion: 2\tFinalizedVersionLevel: 2" in described
    assert "Feature: group.version" in described
    same = shell(FEATURES, *at, "upgrade", "--feature", "transaction.version=2")
    assert same.returncode == 0
    other = shell(FEATURES, *at, "downgrade", "--feature", "transaction.version=1", check=False)
    assert other.returncode == 1
    assert "Penstock always works at version 2." in other.stdout
