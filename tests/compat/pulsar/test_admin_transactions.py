"""`PulsarAdmin.transactions()` of Java, over transactions of Java's client; and Kafka's tools over
the same transactions."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from compat.java import tools
from compat.pulsar.drivers import Call, Refused
from tests.cli.test_transactions import Shell
from tests.compat.pulsar.administering import Admin
from tests.compat.pulsar.conftest import Both
from tests.compat.pulsar.test_admin import DEFAULT, NOT_FOUND, eventually, refusal
from tests.compat.test_transactions_tool_java import TRANSACTIONS, rows

pytestmark = pytest.mark.java

TxnId = dict[str, int]


@dataclass
class Client:
    """A client with transactions, a producer and a consumer of one topic. What the admin classes
    give does not show fields without a value."""

    call: Call
    number: int
    producer: int
    consumer: int

    def begin(self, timeout_s: int = 60) -> tuple[int, TxnId]:
        """A transaction's number at the driver, and its id."""
        found = self.call("begin", client=self.number, timeout_s=timeout_s)
        return found.pop("txn"), found

    def send(self, txn: int | None = None) -> str:
        """A message's id, as ledger:entry."""
        within = {} if txn is None else {"txn": txn}
        sent: str = self.call("send", producer=self.producer, value="hello", **within)
        return sent.rpartition(":")[0]

    def acknowledge_next(self, txn: int) -> str:
        message = self.call("receive", of=self.consumer, txn=txn)
        assert message is not None
        found: str = message["id"]
        return found.rpartition(":")[0]

    def commit(self, txn: int) -> None:
        self.call("commit", txn=txn)


@pytest.fixture
def topic() -> str:
    return f"txn-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def client(java: Call, both: Both, topic: str) -> Iterator[Client]:
    number = java("client", url=both.service_url, transactions=True)
    producer = java("producer", client=number, topic=topic, timeout_s=0)
    consumer = java("consumer", client=number, topic=topic, subscription="s")
    yield Client(java, number, producer, consumer)
    java("close", what=number)


def name_of(txn: TxnId) -> str:
    return f"({txn['most']},{txn['least']})"


def test_what_there_is(
    admin: Admin,
    both: Both,
    client: Client,
    topic: str,
) -> None:
    ask = admin.transactions
    plain = client.send()
    ledger, _, entry = plain.partition(":")
    txn, its_id = client.begin()
    first = client.send(txn)
    assert client.acknowledge_next(txn) == plain

    found = ask("listTransactionCoordinators")
    assert found == [{"id": n, "brokerServiceUrl": both.service_url} for n in range(16)]
    stats = ask("getCoordinatorStats")
    assert stats[str(its_id["most"])]["ongoingTxnSize"] >= 1
    assert ask("getCoordinatorStatsById", its_id["most"])["state"] == "Ready"
    assert refusal(ask, "getCoordinatorStatsById", 16) == NOT_FOUND

    found = ask("getTransactionMetadata", its_id)
    assert (found["txnId"], found["status"]) == (name_of(its_id), "OPEN")
    assert found["timeoutAt"] == 60_000
    of_topic = found["producedPartitions"][DEFAULT + topic]
    assert (of_topic["startPosition"], of_topic["aborted"]) == (first, False)
    assert found["ackedPartitions"] == {DEFAULT + topic: {"s": {}}}
    for slow in (
        ask("getSlowTransactions", 30, "SECONDS"),
        ask("getSlowTransactionsByCoordinatorId", its_id["most"], 30, "SECONDS"),
    ):
        assert slow[name_of(its_id)] == found
    assert name_of(its_id) not in ask("getSlowTransactions", 2, "MINUTES")

    assert ask("getTransactionInBufferStats", its_id, topic)["startPosition"] == first
    buffer = ask("getTransactionBufferStats", topic, True, True)
    assert (buffer["ongoingTxnSize"], buffer["maxReadPosition"]) == (1, plain)
    assert ask("getTransactionInPendingAckStats", its_id, topic, "s") == {}
    assert ask("getPendingAckStats", topic, "s", False)["ongoingTxnSize"] == 1
    position = "getPositionStatsInPendingAck", topic, "s", int(ledger)
    assert ask(*position, int(entry), None) == {"state": "PendingAck"}
    assert ask(*position, int(entry) + 1, 0) == {"state": "NotInPendingAck"}
    client.commit(txn)
    eventually(lambda: ask(*position, int(entry), None), {"state": "MarkDelete"})
    assert ask("getTransactionMetadata", its_id)["status"] == "COMMITTED"


def test_people_abort(admin: Admin, client: Client, topic: str) -> None:
    plain = client.send()
    txn, its_id = client.begin()
    client.send(txn)
    client.acknowledge_next(txn)
    admin.transactions("abortTransaction", its_id)
    other, _ = client.begin()
    assert client.acknowledge_next(other) == plain  # again, unasked
    assert admin.transactions("getTransactionInBufferStats", its_id, topic)["aborted"] is True
    with pytest.raises(Refused):
        client.commit(txn)
    client.commit(other)
    unknown = {"most": 3, "least": 2**40}
    assert refusal(admin.transactions, "abortTransaction", unknown) == NOT_FOUND


def test_there_are_no_ledgers(admin: Admin, client: Client, topic: str) -> None:
    for ask in (
        ("getCoordinatorInternalStats", 1, False),
        ("getPendingAckInternalStats", topic, "s", False),
        ("getTransactionBufferInternalStats", topic, False),
    ):
        with pytest.raises(Refused, match="keeps transactions as rows") as raised:
            admin.transactions(*ask)
        assert raised.value.status == 501


def test_kafkas_tools_show_and_end_it(
    both: Both,
    client: Client,
    topic: str,
    shell: tools.RunTool,
) -> None:
    at = "--bootstrap-server", both.gateway.bootstrap

    def run(*words: str) -> Any:
        return shell(TRANSACTIONS, *at, *words, check=False)

    txn, its_id = client.begin()
    first = client.send(txn).partition(":")[2]
    name = f"pulsar:{name_of(its_id)}"
    pattern = name.replace("(", "\\(").replace(")", "\\)")
    [row] = rows(run("list", "--transactional-id-pattern", pattern).stdout)
    assert (row["TransactionalId"], row["TransactionState"]) == (name, "Ongoing")
    assert row["ProducerId"] == str(its_id["least"])
    [row] = rows(run("describe", "--transactional-id", name).stdout)
    assert (row["TransactionState"], row["TopicPartitions"]) == ("Ongoing", f"{topic}-0")
    place = "--topic", topic, "--partition", "0"
    assert rows(run("find-hanging", *place, "--max-transaction-timeout", "0").stdout) == []
    [row] = rows(run("describe-producers", *place).stdout)
    assert (row["ProducerId"], row["CurrentTransactionStartOffset"]) == (
        str(its_id["least"]),
        first,
    )
    done = run("abort", *place, "--start-offset", first)
    assert (done.returncode, done.stdout.strip()) == (0, "")
    [row] = rows(run("describe", "--transactional-id", name).stdout)
    assert row["TransactionState"] == "CompleteAbort"
    assert rows(run("describe-producers", *place).stdout) == []
    with pytest.raises(Refused):
        client.commit(txn)


def test_penstock_txn(both: Both, client: Client, topic: str) -> None:
    txn = Shell(both.gateway.bootstrap)
    client.send()
    only_acks, its_id = client.begin()
    client.acknowledge_next(only_acks)
    writing, of_writing = client.begin()
    first = int(client.send(writing).partition(":")[2])
    names = [f"pulsar:{name_of(each)}" for each in (its_id, of_writing)]

    listed = {each["transactional_id"]: each for each in txn.json("list")}
    assert [listed[name]["state"] for name in names] == ["Ongoing"] * 2
    found = txn.json("describe", *names)
    assert [each["partitions"] for each in found] == [{}, {topic: [0]}]
    assert found[0]["age_ms"] + found[0]["timeout_left_ms"] == 60_000
    [row] = [each for each in txn.json("blocking") if each["topic"] == topic]
    assert (row["transactional_id"], row["first_offset"]) == (names[1], first)

    code, printed, complained = txn("abort", *names, "pulsar:(3,99999999)")
    assert (code, printed) == (1, f"Aborted {names[0]}\nAborted {names[1]}\n")
    assert complained == "pulsar:(3,99999999): there is no such transactional id.\n"
    assert txn("abort", names[0]) == (0, f"Nothing is open under {names[0]}\n", "")
    assert [each["state"] for each in txn.json("describe", *names)] == ["CompleteAbort"] * 2
    for each in (only_acks, writing):
        with pytest.raises(Refused):
            client.commit(each)
    again, _ = client.begin()
    client.acknowledge_next(again)
    client.commit(again)
