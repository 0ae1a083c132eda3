"""`penstock subscriptions`, over subscriptions of a stock client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing

import pulsar
import pytest

from tests.cli.test_main import penstock, refused
from tests.conftest import StartGateway, free_port


@pytest.fixture
def client(start_gateway: StartGateway, database_url: str) -> Iterator[pulsar.Client]:
    """Of a broker with `orders` (3 messages; `audit` has acknowledged two, the first and the last)
    and `other`, whose subscription `audit` is another one."""
    address = f"127.0.0.1:{free_port()}"
    start_gateway("--pulsar-listen", address, database_url=database_url)
    log = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    with closing(pulsar.Client(f"pulsar://{address}", logger=log)) as client:
        audit = client.subscribe(
            "orders",
            "audit",
            pulsar.ConsumerType.Shared,
            initial_position=pulsar.InitialPosition.Earliest,
        )
        client.subscribe("orders", "billing")
        client.subscribe("other", "audit")
        producer = client.create_producer("orders", batching_enabled=False)
        for number in range(3):
            producer.send(str(number).encode())
        messages = [audit.receive(20_000) for _ in range(3)]
        audit.acknowledge(messages[0])
        audit.acknowledge(messages[2])
        audit.close()  # what it has acknowledged is stored by then
        yield client


@pytest.mark.usefixtures("client")
def test_list_and_describe(database_url: str) -> None:
    here = ("--database-url", database_url)
    listed = penstock("subscriptions", "list", *here).stdout.splitlines()
    assert [line.split() for line in listed] == [
        ["Topic", "Subscription", "Type", "Partitions", "Backlog"],
        ["orders", "audit", "Shared", "1", "1"],
        ["orders", "billing", "Exclusive", "1", "3"],
        ["other", "audit", "Exclusive", "1", "0"],
    ]
    of_topic = penstock("subscriptions", "list", "--topic", "other", "--json", *here)
    assert json.loads(of_topic.stdout) == [
        {
            "topic": "other",
            "subscription": "audit",
            "type": "Exclusive",
            "partitions": 1,
            "backlog": 0,
        }
    ]
    described = penstock("subscriptions", "describe", "audit", *here).stdout.splitlines()
    assert [line.split()[:7] for line in described[1:]] == [
        ["orders", "0", "Shared", "1", "1", "3", "1"],
        ["other", "0", "Exclusive", "0", "0", "0", "0"],
    ]
    (row,) = json.loads(penstock("subscriptions", "describe", "billing", "--json", *here).stdout)
    assert (row["mark_delete"], row["backlog"], row["high_watermark"]) == (0, 3, 3)
    assert row["owner"].startswith("127.0.0.1:")


@pytest.mark.usefixtures("client")
def test_what_is_not_there_is_said(database_url: str) -> None:
    here = ("--database-url", database_url)
    done = penstock("subscriptions", "describe", "bilings", *here)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "There is no subscription bilings. Did you mean billing?\n"
    done = penstock("subscriptions", "describe", "billing", "--topic", "other", *here)
    assert done.stderr == "There is no subscription billing of other.\n"
    done = penstock("subscriptions", "list", "--topic", "nothing", *here)
    assert (done.returncode, done.stdout) == (0, "nothing has no subscriptions.\n")


def test_a_database_that_is_away_is_said() -> None:
    url = f"postgresql://postgres@127.0.0.1:{free_port()}/penstock"
    said = refused("subscriptions", "list", "--database-url", url)
    assert said.startswith("The database cannot be used (")
    assert said.endswith("check --data and --database-url.")
