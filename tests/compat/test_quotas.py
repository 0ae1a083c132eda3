"""Client quotas by Kafka's own tool: what it says is held against what it says of Apache Kafka."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compat.java import tools
from gateway.kafka import codec
from tests.captures import record
from tests.captures.every_version import ask, framed
from tests.captures.logins import started_kafka
from tests.conftest import free_port
from tests.databases import Copies
from tests.entrance import Entrance, own_entrance

CONFIGS = "kafka.admin.ConfigCommand"
pytestmark = pytest.mark.java


def of(*entity: str, add: str = "", delete: str = "") -> tuple[str, ...]:
    """The tool's words. entity: its options, as "users", "carol"; "" is the default."""
    words: list[str] = []
    for kind, name in zip(entity[::2], entity[1::2], strict=True):
        words += ["--entity-type", kind]
        words += ["--entity-name", name] if name else ["--entity-default"]
    added = ["--add-config", add] if add else []
    deleted = ["--delete-config", delete] if delete else []
    return ("--alter", *words, *added, *deleted)


def shown(*kinds_and_names: str) -> tuple[str, ...]:
    return ("--describe", *of(*kinds_and_names)[1:])


SCRIPT = [
    of("users", "carol", add="producer_byte_rate=1024,request_percentage=12.5"),
    of("users", "carol", "clients", "app", add="consumer_byte_rate=2048"),
    of("users", "carol", "clients", "", add="consumer_byte_rate=4096"),
    of("users", "", add="controller_mutation_rate=1.5"),
    of("clients", "app", add="producer_byte_rate=1"),
    of("clients", "", add="producer_byte_rate=2"),
    of("ips", "10.0.0.1", add="connection_creation_rate=10"),
    of("ips", "", add="connection_creation_rate=20000"),
    of("users", "carol", add="producer_byte_rate=0.5"),
    of("users", "carol", add="fly=1"),
    of("users", "carol", add="connection_creation_rate=1"),
    of("ips", "no.such.host.invalid", add="connection_creation_rate=1"),
    of("users", "carol", "ips", "10.0.0.1", add="producer_byte_rate=1"),
    ("--describe", "--entity-type", "users"),
    ("--describe", "--entity-type", "clients"),
    ("--describe", "--entity-type", "ips"),
    ("--describe", "--entity-type", "users", "--entity-type", "clients"),
    shown("users", "carol"),
    shown("users", "carol", "clients", "app"),
    shown("users", ""),
    shown("ips", "10.0.0.1"),
    of("users", "carol", delete="request_percentage"),
    of("users", "carol", delete="consumer_byte_rate"),
    of("ips", "10.0.0.1", delete="connection_creation_rate"),
    of("users", "carol", "clients", "app", delete="consumer_byte_rate"),
    of("users", "carol", delete="producer_byte_rate"),
    of("users", "carol", "clients", "", delete="consumer_byte_rate"),
    of("users", "", delete="controller_mutation_rate"),
    of("clients", "app", delete="producer_byte_rate"),
    ("--describe", "--entity-type", "users"),
    ("--describe", "--entity-type", "ips"),
    ("--describe", "--entity-type", "clients"),
    of("clients", "", delete="producer_byte_rate"),
    of("ips", "", delete="connection_creation_rate"),
]

TOPICS = "org.apache.kafka.tools.TopicCommand"
# Eleven seconds' worth of changes may be made at once; what goes beyond is owed, and the next is
# refused: the tool does not try again.
MUTATIONS = [
    (CONFIGS, of("users", "", add="controller_mutation_rate=1")),
    (TOPICS, ("--create", "--topic", "quota-a", "--partitions", "100")),
    (TOPICS, ("--create", "--topic", "quota-b", "--partitions", "1")),
    (CONFIGS, of("users", "", delete="controller_mutation_rate")),
]

Entry = codec.AlterClientQuotasRequest.EntryData


def entry(ops: dict[str, float], *parts: tuple[str, str | None]) -> Any:
    return Entry(
        entity=[Entry.EntityData(entity_type=kind, entity_name=name) for kind, name in parts],
        ops=[Entry.OpData(key=key, value=value, remove=False) for key, value in ops.items()],
    )


RATE = {"producer_byte_rate": 5.0}
# What the tool does not let through.
REQUESTS = [
    [entry(RATE)],
    [entry(RATE, ("user", ""))],
    [entry(RATE, ("dog", "a"))],
    [entry(RATE, ("user", "a"), ("user", "b"))],
    [entry(RATE, ("user", "d")), entry({"consumer_byte_rate": 5.0}, ("user", "d"))],
    [entry(RATE, ("client-id", "e"), ("ip", "1.2.3.4"))],
    [entry({"fly": 1.0, **RATE}, ("user", "f"))],
    [entry({"producer_byte_rate": 0.0}, ("user", "f"))],
    [entry({"producer_byte_rate": 1e30}, ("user", "f"))],
    [entry({"connection_creation_rate": 2.0**31}, ("ip", None))],
    [entry({"connection_creation_rate": 1.5}, ("ip", None))],
    [entry(RATE, ("ip", "1.2.3.4"))],
    [entry({}, ("user", "g"))],
]


def answered(bootstrap: str, *, remove: bool = False) -> list[Any]:
    """What a broker says to each of the requests; or to their opposite."""
    with socket.create_connection(record.address(bootstrap), timeout=20) as connection:
        answers = []
        for number, entries in enumerate(REQUESTS):
            for each in entries:
                for op in each.ops:
                    op.remove = remove
            request = codec.AlterClientQuotasRequest(entries=entries, validate_only=False)
            answer = ask(connection, framed(request, 1, number))
            answers.append(record.describe_response(49, 1, answer))
    return answers


@pytest.fixture(scope="module")
def run() -> Iterator[tools.RunTool]:
    with tools.tool_shell(jvm=tools.SHORT_LIVED) as found:
        yield found


@pytest.fixture(scope="module")
def at(
    copies: Copies,
    template_database: str,
    certificate: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Entrance]:
    directory = tmp_path_factory.mktemp("gateway")
    with own_entrance(copies, template_database, certificate, directory) as found:
        yield found


def test_kafka_configs_says_the_same_as_with_apache_kafka(at: Entrance, run: tools.RunTool) -> None:
    """Line by line; the tool prints entities in the order of a hash, and stack traces."""

    def said(bootstrap: str, words: tuple[str, ...], tool: str = CONFIGS) -> tuple[int, list[str]]:
        ran = run(tool, "--bootstrap-server", bootstrap, *words, check=False)
        lines = ran.stdout.replace(bootstrap, "…").splitlines()
        return ran.returncode, sorted({_in_order(line) for line in lines} - {""})

    plain, secure, proxied = (free_port() for _ in range(3))
    with started_kafka(plain, secure, proxied):
        for words in SCRIPT:
            here = said(at.open, words)
            there = said(f"127.0.0.1:{plain}", words)
            for _ in range(20):
                # Kafka's broker hears of what its controller has changed a moment later.
                if here == there or "--describe" not in words:
                    break
                there = said(f"127.0.0.1:{plain}", words)
            assert here == there, words
        for tool, words in MUTATIONS:
            assert said(at.open, words, tool) == said(f"127.0.0.1:{plain}", words, tool), words
        assert answered(at.open) == answered(f"127.0.0.1:{plain}")
    answered(at.open, remove=True)


def _in_order(line: str) -> str:
    """A line with its settings sorted, which are those of a hash, too; nothing of a trace, nor
    of the users of the one broker."""
    if line.startswith(("\tat ", "SCRAM credential configs ")):
        return ""
    line = re.sub(r"^[0-9:.]{12} ", "", line)  # the time of a line of its log
    head, are, settings = line.partition(" are ")
    return head + are + ", ".join(sorted(settings.split(", ")))
