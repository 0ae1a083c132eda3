"""What only Kafka's own clients show: V2's epochs, and Kafka's tools for transactions.

Expectations: Apache Kafka 4.1's own; the tools are the same release (compat/java/pom.xml).
"""

from __future__ import annotations

import json
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import AbortTransactionSpec

from compat.java import tools
from tests.compat import confluent
from tests.compat.clients import (
    Confluent,
    Java,
    Producer,
    read_to_end,
    read_until,
    refusal,
    values,
)
from tests.compat.conftest import MakeTopic
from tests.compat.groups import eventually

pytestmark = pytest.mark.java

TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"


class Command:
    """kafka-transactions."""

    def __init__(self, shell: tools.RunTool, bootstrap: str) -> None:
        self._shell = shell
        self._at = ("--bootstrap-server", bootstrap)

    def run(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        return self._shell(TRANSACTIONS, *self._at, *arguments, check=False)

    def rows(self, *arguments: object) -> list[dict[str, str]]:
        """The table that it prints, by its headings."""
        done = self.run(*arguments)
        assert done.returncode == 0, done.stdout
        heading, *rows = [line.split("\t") for line in done.stdout.splitlines() if line.strip()]
        names = [name.strip() for name in heading]
        return [dict(zip(names, (value.strip() for value in row), strict=False)) for row in rows]

    def described(self, transactional_id: str) -> dict[str, str]:
        [row] = self.rows("describe", "--transactional-id", transactional_id)
        return row

    def listed(self, transactional_id: str, *filters: object) -> list[dict[str, str]]:
        every = self.rows("list", *filters)
        return [row for row in every if row["TransactionalId"] == transactional_id]

    def producers(self, topic: str, partition: int) -> list[dict[str, str]]:
        return self.rows("describe-producers", "--topic", topic, "--partition", partition)


@pytest.fixture
def command(shell: tools.RunTool, bootstrap: str) -> Command:
    return Command(shell, bootstrap)


def send_and_wait(producer: Producer, topic: str, *values: str, partition: int = 0) -> None:
    producer.send(topic, *values, partition=partition)
    producer.flush()


# --- V2 ---


def test_every_end_of_a_transaction_raises_the_epoch(
    java_client: Java, command: Command, topic: str, transactional_id: str
) -> None:
    """So that no late request of one transaction can reach the next (KIP-890)."""
    producer = java_client.producer(transactional_id)
    first = command.described(transactional_id)
    for number in range(40):
        producer.begin()
        producer.send(topic, str(number))
        if number % 4 == 3:
            producer.flush()
            producer.abort()
        else:
            producer.commit()
    last = command.described(transactional_id)
    producer.close()
    assert last["ProducerId"] == first["ProducerId"]
    assert int(last["ProducerEpoch"]) - int(first["ProducerEpoch"]) == 40
    assert last["TransactionState"] == "CompleteAbort"
    committed = [str(number) for number in range(40) if number % 4 != 3]
    assert values(read_to_end(java_client, topic)) == committed


def test_a_producer_goes_on_after_it_has_aborted_what_took_too_long(
    java_client: Java, topic: str, transactional_id: str
) -> None:
    producer = java_client.producer(transactional_id, timeout_ms=1000)
    producer.begin()
    send_and_wait(producer, topic, "too late")
    with closing(java_client.reader(topic)) as reader:
        read_until(reader, lambda _: reader.end(0) == 2)
    producer.abort()
    producer.begin()
    producer.send(topic, "in time")
    producer.commit()
    producer.close()
    assert values(read_to_end(java_client, topic)) == ["in time"]


def test_a_refused_record_can_only_be_aborted(
    java_client: Java, make_topic: MakeTopic, transactional_id: str
) -> None:
    topic = make_topic(config={"max.message.bytes": "1000"})
    producer = java_client.producer(transactional_id)
    producer.begin()
    send_and_wait(producer, topic, "fits")
    told = refusal(java_client, lambda: send_and_wait(producer, topic, "x" * 5000))
    assert told == "RecordTooLargeException"
    assert refusal(java_client, producer.commit) == "RecordTooLargeException"
    producer.abort()
    producer.begin()
    producer.send(topic, "goes on")
    producer.commit()
    producer.close()
    assert values(read_to_end(java_client, topic)) == ["goes on"]


# --- tools ---


def test_kafka_transactions(
    command: Command,
    bootstrap: str,
    confluent_client: Confluent,
    make_topic: MakeTopic,
    transactional_id: str,
) -> None:
    topic = make_topic(2)
    producer = confluent_client.producer(transactional_id)
    producer.begin()
    for partition in range(2):
        send_and_wait(producer, topic, "a", "b", partition=partition)
    confluent.send_all(confluent.producer(bootstrap), [{"topic": topic, "partition": 0}])

    [listed] = command.listed(transactional_id)
    assert listed["TransactionState"] == "Ongoing"
    assert command.listed(transactional_id, "--duration-filter", 0) == [listed]
    assert command.listed(transactional_id, "--duration-filter", 600_000) == []
    described = command.described(transactional_id)
    assert described["CoordinatorId"] == listed["Coordinator"]
    assert described["ProducerId"] == listed["ProducerId"]
    assert described["ProducerEpoch"] == "0"
    assert described["TransactionState"] == "Ongoing"
    assert described["TransactionTimeoutMs"] == "60000"
    assert 0 <= int(described["TransactionDurationMs"]) < 60_000
    assert set(described["TopicPartitions"].split(",")) == {f"{topic}-0", f"{topic}-1"}
    [active] = command.producers(topic, 1)
    assert active["ProducerId"] == listed["ProducerId"]
    assert active["ProducerEpoch"] == "0"
    assert active["LastSequence"] == "1"
    assert active["CurrentTransactionStartOffset"] == "0"
    # It is open and old enough, but its coordinator will end it.
    assert command.rows("find-hanging", "--topic", topic, "--max-transaction-timeout", 0) == []

    producer.commit()
    eventually(lambda: command.described(transactional_id)["TransactionState"] == "CompleteCommit")
    described = command.described(transactional_id)
    assert described["TopicPartitions"] == ""
    [active] = command.producers(topic, 1)
    assert active["CurrentTransactionStartOffset"] == "None"
    missing = command.run("describe", "--transactional-id", f"{transactional_id}-unknown")
    assert missing.returncode == 1
    assert "the ID could not be found" in missing.stdout
    producer.close()


def test_kafka_transactions_aborts_by_start_offset(
    command: Command,
    bootstrap: str,
    confluent_client: Confluent,
    topic: str,
    transactional_id: str,
) -> None:
    producer = confluent_client.producer(transactional_id)
    producer.begin()
    send_and_wait(producer, topic, "held", "held")
    confluent.send_all(confluent.producer(bootstrap), [{"topic": topic, "value": "behind it"}])
    place = ("--topic", topic, "--partition", 0, "--start-offset")
    wrong = command.run("abort", *place, 1)
    assert wrong.returncode == 1
    assert "Could not find any open transactions starting at offset 1" in wrong.stdout
    assert command.run("abort", *place, 0).returncode == 0
    with closing(confluent_client.reader(topic)) as reader:
        found = read_until(reader, lambda found: len(found) == 1)
    assert values(found) == ["behind it"]
    [active] = command.producers(topic, 0)
    assert active["CurrentTransactionStartOffset"] == "None"
    producer.abandon()


def test_kafka_python_administers_transactions(
    bootstrap: str, confluent_client: Confluent, topic: str, transactional_id: str
) -> None:
    """The same requests from kafka-python's KafkaAdminClient (KIP-664), with every filter."""
    producer = confluent_client.producer(transactional_id)
    producer.begin()
    send_and_wait(producer, topic, "held")
    place = TopicPartition(topic, 0)
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as admin:
        described = admin.describe_transactions([transactional_id])[transactional_id]
        assert (described.state, described.topic_partitions) == ("Ongoing", {place})

        def listed(**filters: Any) -> bool:
            found = admin.list_transactions(**filters)
            return any(
                each.transactional_id == transactional_id
                for each in (found.values() if isinstance(found, dict) else [found])
                for each in each
            )

        assert listed()
        assert listed(state_filters=["Ongoing"], producer_id_filters=[described.producer_id])
        assert not listed(state_filters=["CompleteCommit", "Empty"])
        assert not listed(producer_id_filters=[described.producer_id + 1_000_000])
        assert listed(duration_filter_ms=0)
        assert not listed(duration_filter_ms=600_000)
        assert listed(transactional_id_pattern=f"{transactional_id[:20]}.*")
        assert not listed(transactional_id_pattern=transactional_id[:20])

        def producing() -> Any:
            [state] = admin.describe_producers([place])[place].active_producers
            return state

        state = producing()
        assert state.current_transaction_start_offset == 0
        assert (state.producer_id, state.producer_epoch) == (
            described.producer_id,
            described.producer_epoch,
        )
        admin.abort_transaction(
            AbortTransactionSpec(place, state.producer_id, state.producer_epoch, 0)
        )
        eventually(lambda: producing().current_transaction_start_offset == -1)
    producer.abandon()


def run(main: str, *arguments: object, **how: Any) -> str:
    done = tools.java_tool(main, *arguments, jvm=tools.SHORT_LIVED, log_level="error", **how)
    return done.stdout


def test_kafkas_performance_tool_in_transactions(
    bootstrap: str, confluent_client: Confluent, make_topic: MakeTopic, transactional_id: str
) -> None:
    topic = make_topic(4)
    printed = run(
        PERFORMANCE,
        *("--topic", topic, "--num-records", 20_000, "--record-size", 100, "--throughput", -1),
        *("--transactional-id", transactional_id, "--transaction-duration-ms", 20),
        *("--producer-props", f"bootstrap.servers={bootstrap}"),
    )
    assert "20000 records sent" in printed
    assert len(read_to_end(confluent_client, topic, 4)) == 20_000


def test_kafkas_verifiable_consumer_of_committed_records(
    bootstrap: str, java_client: Java, topic: str, group_id: str, tmp_path: Path
) -> None:
    settings = tmp_path / "consumer.properties"
    settings.write_text("isolation.level=read_committed\n")
    producer = java_client.producer(group_id)
    producer.begin()
    send_and_wait(producer, topic, *("aborted",) * 5)
    producer.abort()
    producer.begin()
    producer.send(topic, *map(str, range(20)))
    producer.commit()
    producer.close()
    printed = run(
        "org.apache.kafka.tools.VerifiableConsumer",
        *("--bootstrap-server", bootstrap, "--topic", topic, "--group-id", group_id),
        *("--max-messages", 20, "--reset-policy", "earliest", "--consumer.config", settings),
    )
    events = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    consumed = [event for event in events if event["name"] == "records_consumed"]
    assert sum(event["count"] for event in consumed) == 20
    [first, *_] = consumed[0]["partitions"]
    assert first["minOffset"] == 6  # after five records and their marker
