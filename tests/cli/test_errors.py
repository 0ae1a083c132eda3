"""What commands say while a broker cannot work: in words, whatever kafka-python calls it."""

import re
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, errors
from typer.testing import CliRunner

import cli.client
import cli.consume
import cli.produce
from cli.errors import sentence_of, suggestion
from cli.interrupts import Interrupts
from cli.main import app
from storage.server.embedded import EmbeddedPostgres
from tests.cli.test_main import penstock, refused, wait_for
from tests.conftest import SMALL_POSTGRES, Gateway, StartGateway, gateways, open_directory

# Names of classes, of requests and of responses, numbers of errors: of use to nobody who types.
_JARGON = re.compile(r"Error|Request|Response|\[|\(\w+\(|Traceback|socket")


def complained(bootstrap: str, *arguments: str) -> str:
    """What is said of a failure: one line, exit code 1."""
    done = CliRunner().invoke(
        app,
        [*arguments, "--bootstrap-server", bootstrap],
        env={"COLUMNS": "200", "NO_COLOR": "1"},
        catch_exceptions=False,
    )
    assert done.exit_code == 1, done.output
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return str(line)


@pytest.fixture(scope="module")
def without_database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway whose database has been stopped; it had a topic and a group."""
    with (
        open_directory() as path,
        gateways(tmp_path_factory.mktemp("gateway")) as start,
    ):
        server = EmbeddedPostgres(path / "data", settings=SMALL_POSTGRES)
        gateway = start(database_url=server.start())
        try:
            words = ["topics", "create", "t", "--bootstrap-server", gateway.bootstrap]
            assert CliRunner().invoke(app, words).exit_code == 0
        finally:
            server.stop()
        wait_for("heartbeat_failed", gateway)
        yield gateway


@pytest.mark.parametrize(
    "command",
    [
        "topics list",
        "topics create u",
        "topics delete t",
        "topics describe t",
        "topics describe t --records",
        "topics alter t --config retention.ms=60000",
        "topics alter t --partitions 3",
        "produce t x",
        "produce t x --transactional-id x",
        "consume t",
        "consume t --group g",
        "groups list",
        "groups describe g",
        "groups why g",
        "groups lag",
        "groups delete g",
        "groups reset-offsets g --topic t --to-latest",
        "txn list",
        "txn describe x",
        "txn abort x",
        "txn blocking",
    ],
)
def test_while_the_database_is_away(
    command: str, without_database: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli.client, "PATIENCE_S", 0.5)
    said = complained(without_database.bootstrap, *command.split())
    assert said.startswith(f"The broker at {without_database.bootstrap} ")
    assert "its database is away" in said
    assert said.endswith("try again, or see the broker's log.")
    assert not _JARGON.search(said)


def test_psql_says_so_in_postgresqls_words(without_database: Gateway) -> None:
    url = without_database.database_url
    assert url is not None
    done = penstock("psql", "--database-url", url, "-c", "SELECT 1")
    assert done.returncode == 2
    assert "psql: error: connection to server" in done.stderr
    assert "Is the server running locally and accepting connections on that socket?" in done.stderr
    data = url.rpartition("host=")[2].replace("%2F", "/").removesuffix("/run")
    said = refused("psql", "--data", data)
    assert said.startswith(f"No embedded PostgreSQL runs in {data}: it runs while 'penstock serve'")


@dataclass
class Away:
    """A broker whose database goes away while a command runs."""

    server: EmbeddedPostgres
    bootstrap: str

    def said(self, *command: str) -> list[str]:
        done = CliRunner().invoke(
            app,
            [*command, "--bootstrap-server", self.bootstrap],
            env={"COLUMNS": "200", "NO_COLOR": "1"},
            catch_exceptions=False,
        )
        assert done.exit_code == 1, done.output
        assert not _JARGON.search(done.stderr)
        return list(done.stderr.splitlines())


@pytest.fixture
def with_database(migrated_dir: Path, start_gateway: StartGateway) -> Iterator[Away]:
    """A gateway with topic `t`, whose database will be stopped."""
    with EmbeddedPostgres(migrated_dir, settings=SMALL_POSTGRES) as server:
        gateway = start_gateway(database_url=server.url)
        words = ["topics", "create", "t", "--bootstrap-server", gateway.bootstrap]
        assert CliRunner().invoke(app, words).exit_code == 0
        yield Away(server, gateway.bootstrap)


@pytest.mark.parametrize("transactional", [False, True])
def test_the_database_goes_away_while_records_are_sent(
    transactional: bool, with_database: Away, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An abort is not waited for for ever."""
    monkeypatch.setattr(cli.produce, "_DELIVERY_TIMEOUT_MS", 10_000)
    monkeypatch.setattr(cli.produce, "_END_WITHIN_S", 1.0)
    acknowledged = threading.Event()
    monkeypatch.setattr(cli.produce.Progress, "at", lambda _, count: count and acknowledged.set())

    def lines(self: Interrupts, stream: object) -> Iterator[bytes]:
        while not acknowledged.is_set():
            yield b"one"
            time.sleep(0.05)
        with_database.server.stop()
        yield b"two"

    monkeypatch.setattr(Interrupts, "lines_of", lines)
    said = with_database.said("produce", "t", *(["--transactional-id", "x"] * transactional))
    # Which of its sentences depends on whether the client was refused last, or waited.
    assert "its database is away" in said[-1]
    assert "; try again" in said[-1]
    if transactional:
        assert said[0].startswith("The transaction stays open until its timeout: the broker does")
        assert said[1] == "Aborted: nothing is in t."
    else:
        assert said[0].startswith("Sent ")
        # All that were on their way then: more than one where this process has stood still.
        assert re.search(r"; [1-9]\d* records? failed\.$", said[0])


@pytest.mark.parametrize("options", ["", "--timeout 1", "--group g", "--group g --timeout 1"])
def test_the_database_goes_away_before_records_are_read(
    options: str, with_database: Away, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing read is not the same as nothing there."""
    monkeypatch.setattr(cli.client, "PATIENCE_S", 0.5)
    monkeypatch.setattr(cli.consume, "ANSWER_TIMEOUT_MS", 2_000)
    monkeypatch.setattr(cli.consume, "_JOINED_WITHIN_S", 1.0)
    found = cli.consume.existing_partitions

    def found_and_gone(admin: KafkaAdminClient, topic: str) -> int:
        count = found(admin, topic)
        with_database.server.stop()
        return count

    monkeypatch.setattr(cli.consume, "existing_partitions", found_and_gone)
    said = with_database.said("consume", "t", *options.split())
    assert any("its database is away" in line for line in said), said


def test_what_listens_and_says_nothing_is_no_broker_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli.client, "BOOTSTRAP_TIMEOUT_MS", 500)
    monkeypatch.setattr(cli.client, "PROBE_TIMEOUT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        said = complained(address, "topics", "list")
    assert said.startswith(f"Something listens at {address}, but does not answer as a broker")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            errors.KafkaConnectionError("socket disconnected"),
            "The broker at here closed the connection before it answered: it stops, or its "
            "database is away; try again, or see the broker's log.",
        ),
        (
            errors.CoordinatorNotAvailableError("ListGroupsRequest failed with response X(…)."),
            "The broker at here answers, but its database is away or it is just starting "
            "(COORDINATOR_NOT_AVAILABLE); try again, or see the broker's log.",
        ),
        (
            errors.InvalidTopicError("Request 'X' failed with response 'Y'."),
            "The broker at here refused: INVALID_TOPIC: ",
        ),
        (
            errors.PolicyViolationError("only on Mondays."),
            "The broker at here refused: POLICY_VIOLATION: only on Mondays.",
        ),
        (errors.NodeNotReadyError("controller"), "The broker at here answers, but its database"),
        (errors.KafkaTimeoutError(), "The broker at here did not answer in time"),
        (errors.IncompatibleBrokerVersion("no X"), "The broker at here is too old for this: no X."),
    ],
)
def test_an_error_is_a_sentence(error: Exception, said: str) -> None:
    assert sentence_of("here", error).startswith(said)


def test_a_near_name_is_suggested() -> None:
    assert suggestion("fligths", ["flights", "orders"]) == " Did you mean flights?"
    assert suggestion("Flights", ["flights"]) == " Did you mean flights?"
    assert suggestion("nothing-like-it", ["flights"]) == ""
