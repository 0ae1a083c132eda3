"""What commands say while a broker cannot work: in words, whatever kafka-python calls it."""

import re
import socket
from collections.abc import Iterator

import pytest
from kafka import errors
from typer.testing import CliRunner

import cli.client
from cli.errors import sentence_of, suggestion
from cli.main import app
from storage.server.embedded import EmbeddedPostgres
from tests.cli.test_main import wait_for
from tests.conftest import SMALL_POSTGRES, Gateway, gateways, open_directory

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
        "groups list",
        "groups describe g",
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
