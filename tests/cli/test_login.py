"""The commands that ask a broker, at a listener that asks who they are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_main import penstock, refused
from tests.conftest import StartGateway, free_port
from tests.entrance import MECHANISMS, Entrance, entrance, java_properties


@pytest.fixture
def at(database_url: str, certificate: Path, start_gateway: StartGateway) -> Iterator[Entrance]:
    with entrance(start_gateway, certificate, database_url) as found:
        yield found


def written(path: Path, properties: dict[str, str]) -> Path:
    file = path / "client.properties"
    file.write_text("".join(f"{name} = {value}\n" for name, value in properties.items()))
    return file


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_every_command_logs_in(at: Entrance, tmp_path: Path, mechanism: str, tls: bool) -> None:
    file = written(tmp_path, java_properties(at, mechanism, tls=tls))
    address = at.secure if tls else at.plain
    options = ("--bootstrap-server", address, "--command-config", file)
    assert penstock("topics", "create", "t", *options).stdout == "Created t\n"
    done = penstock("produce", "t", "one", "two", *options)
    assert done.returncode == 0, done.stderr
    done = penstock("consume", "t", *options)
    assert done.stdout.split() == ["one", "two"]
    listed = json.loads(penstock("topics", "list", "--json", *options).stdout)
    assert listed == [{"name": "t", "partitions": 1}]
    for command in (
        *(("groups", "list"), ("txn", "list"), ("txn", "blocking"), ("topics", "describe", "t")),
        ("groups", "reset-offsets", "nobody", "--topic", "t", "--to-latest"),
        ("check", "--ready"),
    ):
        done = penstock(*command, *options)
        assert (done.returncode, done.stderr) == (0, ""), command


COMMANDS = [("topics", "list"), ("groups", "list"), ("check",), ("consume", "t"), ("produce", "t")]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_refused_login_is_told_at_once(
    at: Entrance, tmp_path: Path, command: tuple[str, ...]
) -> None:
    file = written(tmp_path, java_properties(at, MECHANISMS[2], "wrong"))
    done = penstock(*command, "--bootstrap-server", at.plain, "--command-config", file)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"{at.plain} does not let 'alice' in: SASL_AUTHENTICATION_FAILED")
    assert "wrong" not in done.stderr


@pytest.mark.parametrize("command", COMMANDS[:2], ids=" ".join)
def test_that_a_login_is_wanted_is_told(at: Entrance, command: tuple[str, ...]) -> None:
    done = penstock(*command, "--bootstrap-server", at.plain)
    assert done.returncode == 1
    assert done.stderr == (
        f"The broker at {at.plain} asks for a login: name one by --command-config.\n"
    )
    done = penstock(*command, "--bootstrap-server", at.secure)
    assert done.stderr == (
        f"The broker at {at.secure} speaks TLS, and asks for a login: name both by "
        "--command-config.\n"
    )


def test_a_health_check_needs_no_login(at: Entrance) -> None:
    done = penstock("check", "--bootstrap-server", at.plain)
    assert done.stdout == f"A broker answers at {at.plain}, and asks for a login.\n"
    assert (done.returncode, done.stderr) == (0, "")
    assert penstock("check", "--tls", "--bootstrap-server", at.secure).returncode == 0
    done = penstock("check", "--ready", "--bootstrap-server", at.plain)
    assert done.returncode == 1
    assert "name one by --command-config" in done.stderr


def test_a_mechanism_that_is_not_offered(
    database_url: str, certificate: Path, start_gateway: StartGateway, tmp_path: Path
) -> None:
    settings = "sasl.enabled.mechanisms=SCRAM-SHA-512"
    with entrance(start_gateway, certificate, database_url, settings) as at:
        file = written(tmp_path, java_properties(at, "PLAIN"))
        done = penstock("topics", "list", "--bootstrap-server", at.plain, "--command-config", file)
    assert (done.returncode, done.stderr) == (
        1,
        f"{at.plain} does not let 'alice' in: UNSUPPORTED_SASL_MECHANISM: it offers "
        "SCRAM-SHA-512.\n",
    )


def test_what_is_wrong_with_the_file_is_said(tmp_path: Path) -> None:
    missing = tmp_path / "none"
    sentence = refused("topics", "list", "--command-config", missing)
    assert sentence == f"{missing} cannot be read: No such file or directory."
    file = written(tmp_path, {"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"})
    sentence = refused("groups", "list", "--command-config", file)
    assert sentence == (
        "sasl.mechanism is PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER, not 'GSSAPI'."
    )
    sentence = refused("check", "--tls", "--command-config", file)
    assert sentence.startswith("Leave out --tls and --tls-ca")


def test_a_broker_that_is_not_there(at: Entrance, tmp_path: Path) -> None:
    file = written(tmp_path, java_properties(at, MECHANISMS[1]))
    bootstrap = f"127.0.0.1:{free_port()}"
    done = penstock("topics", "list", "--bootstrap-server", bootstrap, "--command-config", file)
    assert done.returncode == 1
    assert done.stderr.startswith(f"No broker answers at {bootstrap}")
