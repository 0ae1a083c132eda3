"""`penstock txn` as a person types it, over transactions of stock clients."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from kafka import KafkaAdminClient
from typer.testing import CliRunner

from cli.main import app
from tests.conftest import Gateway, free_port

TIMEOUT_S = 20.0


@dataclass
class Shell:
    """`penstock txn …` against one broker."""

    bootstrap: str

    def __call__(self, *arguments: str | int) -> tuple[int, str, str]:
        """Exit code, what is printed, what is complained about."""
        words = [*map(str, arguments), "--bootstrap-server", self.bootstrap]
        done = CliRunner().invoke(
            app, ["txn", *words], env={"COLUMNS": "200", "NO_COLOR": "1"}, catch_exceptions=False
        )
        return done.exit_code, done.stdout, done.stderr

    def json(self, *arguments: str | int, code: int = 0) -> Any:
        exit_code, printed, complained = self(*arguments, "--json")
        assert exit_code == code, complained
        return json.loads(printed)


@pytest.fixture
def txn(gateway: Gateway) -> Shell:
    return Shell(gateway.bootstrap)


@pytest.fixture
def topic(gateway: Gateway) -> Iterator[str]:
    """A topic of the test's own with two partitions."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    with closing(KafkaAdminClient(bootstrap_servers=gateway.bootstrap)) as admin:
        admin.create_topics({name: {"num_partitions": 2}}, wait_for_metadata=True)
        yield name
        admin.delete_topics([name])


@pytest.fixture
def opened(gateway: Gateway, topic: str) -> Producer:
    """A producer named as the topic, one record of whose transaction lies in partition 1, with a
    plain record behind it."""
    producer = Producer({"bootstrap.servers": gateway.bootstrap, "transactional.id": topic})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    plain = Producer({"bootstrap.servers": gateway.bootstrap})
    for each in (plain, producer, plain):
        each.produce(topic, b"value", partition=1)
        assert each.flush(TIMEOUT_S) == 0
    return producer


def test_list(txn: Shell, opened: Producer, topic: str) -> None:
    [row] = txn.json("list", "--pattern", topic)
    assert (row["transactional_id"], row["state"]) == (topic, "Ongoing")
    assert [each["transactional_id"] for each in txn.json("list")].count(topic) == 1
    assert txn.json("list", "--pattern", topic, "--state", "ongoing") == [row]
    assert txn.json("list", "--pattern", topic, "--state", "Empty") == []
    assert txn.json("list", "--pattern", topic, "--longer-than", 0) == [row]
    assert txn.json("list", "--pattern", topic, "--longer-than", 3600) == []
    code, printed, _ = txn("list", "--pattern", topic)
    assert code == 0
    assert [topic, "Ongoing", str(row["producer_id"])] == printed.splitlines()[1].split()[:3]
    code, printed, _ = txn("list", "--pattern", "no-such-id")
    assert (code, printed) == (0, "There are no such transactional ids.\n")
    opened.abort_transaction(TIMEOUT_S)
    assert txn.json("list", "--pattern", topic)[0]["state"] == "CompleteAbort"


def test_wrong_arguments(txn: Shell) -> None:
    code, _, complained = txn("list", "--state", "sleepy")
    assert code == 2
    assert "'sleepy' is none of Empty, Ongoing" in complained
    code, _, complained = txn("list", "--pattern", "(")
    assert code == 2
    assert complained == "--pattern: '(' is no regular expression in RE2's syntax.\n"


def test_describe(txn: Shell, opened: Producer, topic: str) -> None:
    [row] = txn.json("describe", topic)
    assert row["state"] == "Ongoing"
    assert row["partitions"] == {topic: [1]}
    assert (row["has_offsets"], row["timeout_ms"]) == (False, 60_000)
    assert row["age_ms"] + row["timeout_left_ms"] == 60_000
    code, printed, complained = txn("describe", topic, "no-such-id")
    assert code == 1
    assert f"{topic}:1" in printed
    assert complained == "no-such-id: there is no such transactional id.\n"
    opened.commit_transaction(TIMEOUT_S)
    [row] = txn.json("describe", topic)
    assert (row["state"], row["age_ms"], row["partitions"]) == ("CompleteCommit", None, {})


def test_blocking(txn: Shell, opened: Producer, topic: str) -> None:
    [row] = [each for each in txn.json("blocking") if each["topic"] == topic]
    assert (row["partition"], row["transactional_id"]) == (1, topic)
    assert (row["first_offset"], row["waiting"]) == (1, 2)
    code, printed, _ = txn("blocking")
    assert code == 0
    assert [topic, "1", topic] in [line.split()[:3] for line in printed.splitlines()]
    opened.commit_transaction(TIMEOUT_S)
    assert topic not in {each["topic"] for each in txn.json("blocking")}


def test_abort(txn: Shell, opened: Producer, topic: str) -> None:
    code, printed, complained = txn("abort", topic, "no-such-id")
    assert (code, printed) == (1, f"Aborted {topic}\n")
    assert complained == "no-such-id: there is no such transactional id.\n"
    assert txn("abort", topic) == (0, f"Nothing is open under {topic}\n", "")
    assert txn.json("abort", topic) == [
        {"transactional_id": topic, "aborted": False, "error": None}
    ]
    with pytest.raises(KafkaException):
        opened.commit_transaction(TIMEOUT_S)
    assert topic not in {each["topic"] for each in txn.json("blocking")}


def test_closed_port_is_reported() -> None:
    """In a process of its own, which takes kafka-python's open sockets with it."""
    bootstrap = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "penstock", "txn", "list", "--bootstrap-server", bootstrap]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"No broker answers at {bootstrap}")
