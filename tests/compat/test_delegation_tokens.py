"""Delegation tokens by Kafka's own tool, and Java clients that log in by one.

What the tool says is held against what it says of an Apache Kafka 4.1.1.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Final

import pytest
from confluent_kafka.admin import NewTopic

from compat.java import tools
from tests.captures import logins
from tests.compat.clients import JavaShell
from tests.compat.groups import BROKER_SETTINGS
from tests.conftest import free_port
from tests.databases import Copies
from tests.entrance import MECHANISMS, USER, Entrance, java_properties, own_entrance

TOOL: Final = "org.apache.kafka.tools.DelegationTokenCommand"
PASSWORD: Final = logins.PASSWORD  # files of properties are Latin-1
KEY: Final = "delegation.token.secret.key=a key for tests"
pytestmark = pytest.mark.java


@pytest.fixture(scope="module")
def at(
    copies: Copies,
    template_database: str,
    certificate: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Entrance]:
    settings = [f"{name}={value}" for name, value in BROKER_SETTINGS.items()]
    directory = tmp_path_factory.mktemp("gateway")
    with own_entrance(copies, template_database, certificate, directory, KEY, *settings) as found:
        for mechanism in MECHANISMS[1:]:
            found.put(USER, PASSWORD, mechanism)
        yield found


@pytest.fixture(scope="module")
def run() -> Iterator[tools.RunTool]:
    with tools.tool_shell(jvm=tools.SHORT_LIVED) as found:
        yield found


Say = Callable[..., CompletedProcess[str]]


def speaker(run: tools.RunTool, bootstrap: str, properties: dict[str, object], file: Path) -> Say:
    """Runs the tool, logged in with these properties."""
    file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    common = ("--bootstrap-server", bootstrap, "--command-config", str(file))
    return lambda *words: run(TOOL, *common, *words, check=False)


def secret_in(output: str) -> tuple[str, str]:
    """The first token's id and HMAC, in a table that the tool has printed."""
    found = re.search(r"(\S{22})\s+(\S{86}==)", output)
    assert found is not None, output
    return found[1], found[2]


def plain_words(output: str, *secrets: str) -> list[str]:
    """Without what differs from token to token, and without Java's stack."""
    for each in secrets:
        output = output.replace(each, "…")
    output = re.sub(r"20\d\d-\d\d-\d\dT\d\d:\d\d", "<time>", output)
    output = re.sub(r"\b[A-Z][a-z]{2} [A-Z][a-z]{2} \d\d [\d:]{8} \w+ 20\d\d", "<time>", output)
    lines = (" ".join(line.split()) for line in output.splitlines())
    return [each for each in lines if not each.startswith(("at ", "... "))]


def script(say: Say) -> list[tuple[int, list[str]]]:
    """A token is made, shown, renewed and ended; each time how the tool ends and what it prints."""
    for_ever = ("--max-life-time-period", "-1")
    made = say("--create", *for_ever, "--renewer-principal", "User:bob")
    token_id, secret = secret_in(made.stdout)
    # Kafka's brokers hear of it from their controller.
    deadline = time.monotonic() + 20
    while secret not in (shown := say("--describe", "--owner-principal", f"User:{USER}")).stdout:
        assert time.monotonic() < deadline
    end = ("--expire", "--expiry-time-period", "-1", "--hmac", secret)
    ran = [
        made,
        shown,
        say("--describe", "--owner-principal", "User:nobody"),
        say("--renew", "--renew-time-period", "60000", "--hmac", secret),
        say("--renew", "--renew-time-period", "-1", "--hmac", "AAAA"),
        say(*end),
        say(*end),
        say("--create", *for_ever, "--renewer-principal", "Group:x"),
    ]
    return [(each.returncode, plain_words(each.stdout, token_id, secret)) for each in ran]


def test_the_tool_says_the_same_as_with_apache_kafka(
    at: Entrance, run: tools.RunTool, tmp_path: Path
) -> None:
    """Line by line."""
    plain, secure = free_port(), free_port()
    with logins.started_kafka(plain, secure, secure):
        logins.make_user(f"127.0.0.1:{plain}")
        said = [
            script(speaker(run, bootstrap, java_properties(at, MECHANISMS[1], PASSWORD), file))
            for bootstrap, file in (
                (at.plain, tmp_path / "ours.properties"),
                (f"127.0.0.1:{secure}", tmp_path / "theirs.properties"),
            )
        ]
    for ours, theirs in zip(*said, strict=True):
        assert ours == theirs


def test_java_clients_log_in_by_a_token(
    at: Entrance, run: tools.RunTool, java_clients: JavaShell, topic_name: str, tmp_path: Path
) -> None:
    """And are its owner; when it is ended they are out, and say so."""
    at.admin.create_topics([NewTopic(topic_name, 1)])[topic_name].result(20)
    as_alice = java_properties(at, MECHANISMS[2], PASSWORD)
    say = speaker(run, at.plain, as_alice, tmp_path / "alice.properties")
    made = say("--create", "--max-life-time-period", "-1")
    token_id, secret = secret_in(made.stdout)
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    by_token = as_alice | {
        "sasl.jaas.config": f'{module} required username="{token_id}" password="{secret}" '
        'tokenauth="true";'
    }
    name = java_clients.new_name()
    settings = {"bootstrap.servers": at.plain, "transactional.id": topic_name, **by_token}
    java_clients.call("producer", name, *(f"{key}={value}" for key, value in settings.items()))
    java_clients.call("init", name)
    java_clients.call("abandon", name)
    refused = speaker(run, at.plain, by_token, tmp_path / "token.properties")(
        "--create", "--max-life-time-period", "-1"
    )
    assert "Delegation Token requests are not allowed" in refused.stdout
    assert say("--expire", "--expiry-time-period", "-1", "--hmac", secret).returncode == 0
    out = speaker(run, at.plain, by_token, tmp_path / "token.properties")("--describe")
    assert "SaslAuthenticationException" in out.stdout
    log = at.gateway.log()
    assert "delegation_token_changed" in log
    assert secret not in log
