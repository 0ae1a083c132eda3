"""`penstock subscriptions`, over subscriptions of a stock client."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import closing

import pulsar
import pytest

from tests.cli.test_main import penstock, refused
from tests.conftest import StartGateway, free_port


@pytest.fixture
def http_port() -> int:
    """Of the broker, for HTTP."""
    return free_port()


@pytest.fixture
def client(
    start_gateway: StartGateway, database_url: str, http_port: int
) -> Iterator[pulsar.Client]:
    """Of a broker with `orders` (3 messages; `audit` has acknowledged two, the first and the last)
    and `other`, whose subscription `audit` is another one."""
    address = f"127.0.0.1:{free_port()}"
    start_gateway(
        *("--pulsar-listen", address, "--http-listen", f"127.0.0.1:{http_port}"),
        database_url=database_url,
    )
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


@pytest.mark.usefixtures("client")
def test_reset_skip_and_delete(http_port: int) -> None:
    url = f"http://127.0.0.1:{http_port}"
    here = ("--topic", "orders", "--admin-url", url)

    def backlog(name: str) -> int:
        with urllib.request.urlopen(f"{url}/admin/v2/persistent/public/default/orders/stats") as a:
            return int(json.load(a)["subscriptions"][name]["msgBacklog"])

    # Shown only.
    done = penstock("subscriptions", "reset", "audit", "--to", "earliest", *here)
    assert done.returncode == 0, done.stderr
    assert "add --execute" in done.stdout
    assert "persistent://public/default/orders" in done.stdout
    assert backlog("audit") == 1
    # Done, by each way of saying where to.
    reset = ("subscriptions", "reset", "audit", "--execute", "--json", *here)
    first = json.loads(penstock(*reset, "--to", "earliest").stdout)
    assert first["executed"] is True
    assert backlog("audit") == 3
    ledger, _, entry = first["partitions"][0]["new_position"].partition(":")
    assert entry == "0"
    for to, left in (
        ("latest", 0),
        (f"{ledger}:1", 2),
        ("2001-01-01T00:00:00", 3),
        ("2999-01-01", 0),
        ("P1D", 3),
    ):
        assert penstock(*reset, "--to", to).returncode == 0
        assert backlog("audit") == left, to
    assert penstock("subscriptions", "skip", "audit", "--messages", "2", *here).returncode == 0
    assert backlog("audit") == 3
    done = penstock("subscriptions", "skip", "audit", "--messages", "2", "--execute", *here)
    assert "2 later" in done.stdout
    assert backlog("audit") == 1
    assert penstock("subscriptions", "skip", "audit", "--all", "--execute", *here).returncode == 0
    assert backlog("audit") == 0

    done = penstock("subscriptions", "delete", "billing", *here)  # its consumer is there
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "Subscription billing has active connected consumers.\n"
    done = penstock("subscriptions", "delete", "audit", *here)
    assert done.stdout == "Deleted audit of persistent://public/default/orders\n"
    done = penstock("subscriptions", "delete", "audit", *here)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(
        "There is no subscription audit of persistent://public/default/orders."
    )


@pytest.mark.usefixtures("client")
def test_moves_of_a_partitioned_topic(http_port: int) -> None:
    url = f"http://127.0.0.1:{http_port}"
    for path, body in (
        ("tenants/acme", b'{"adminRoles": [], "allowedClusters": ["standalone"]}'),
        ("namespaces/acme/app", b""),
        ("persistent/acme/app/many/partitions", b"2"),
        ("persistent/acme/app/many/subscription/a%2520b", b'"latest"'),
    ):
        request = urllib.request.Request(f"{url}/admin/v2/{path}", body, method="PUT")
        urllib.request.urlopen(request).close()
    for name in ("persistent://acme/app/many", "acme/app/many", "pulsar.acme.app.many"):
        here = ("--topic", name, "--admin-url", url)
        done = penstock("subscriptions", "reset", "a b", "--to", "earliest", "--json", *here)
        rows = json.loads(done.stdout)["partitions"]
        assert [each["topic"][-12:] for each in rows] == ["-partition-0", "-partition-1"]
    ledger = rows[1]["new_position"].partition(":")[0]
    said = refused("subscriptions", "reset", "a b", "--to", f"{ledger}:0", *here)
    assert "LEDGER:ENTRY:PARTITION" in said
    done = penstock("subscriptions", "reset", "a b", "--to", f"{ledger}:0:1", "--execute", *here)
    assert done.returncode == 0, done.stderr
    assert "-partition-1" in done.stdout
    assert "-partition-0" in refused("subscriptions", "skip", "a b", "--messages", "1", *here)
    assert penstock("subscriptions", "delete", "a b", "--force", *here).returncode == 0


def test_moves_without_http_are_said() -> None:
    port = free_port()
    here = ("--topic", "t", "--admin-url", f"http://127.0.0.1:{port}")
    said = refused("subscriptions", "delete", "s", *here)
    assert said.startswith(f"Nobody answers by HTTP at http://127.0.0.1:{port} (")
    assert "--http-listen" in said
    assert "'ftp://x'" in refused(
        "subscriptions", "delete", "s", "--topic", "t", "--admin-url", "ftp://x"
    )
    assert "cannot be read" in refused("subscriptions", "reset", "s", "--to", "soon", *here)
    assert "--messages, --all" in refused("subscriptions", "skip", "s", *here)
    assert "--topic" in refused("subscriptions", "skip", "s", "--all", "--topic", "a/b", *here[2:])
