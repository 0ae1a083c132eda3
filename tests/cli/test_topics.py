"""`penstock topics alter` and `describe --records` as a person types them."""

import json
from typing import Any

import pytest

from tests.cli.test_produce_consume import Shell, made
from tests.conftest import Gateway


@pytest.fixture
def shell(gateway: Gateway) -> Shell:
    return Shell(gateway.bootstrap)


def described(shell: Shell, topic: str, *options: str) -> Any:
    (found,) = json.loads(shell.run("topics", "describe", topic, "--json", *options)[1])
    return found


def test_properties_are_set_and_put_back(shell: Shell) -> None:
    topic = made(shell, 1)
    options = ("--config", "retention.ms=60000", "--config", "max.message.bytes=5000")
    code, printed, said = shell.run("topics", "alter", topic, *options)
    assert (code, printed) == (0, f"Altered {topic}\n".encode()), said
    assert described(shell, topic)["configs"] == {
        "max.message.bytes": "5000",
        "retention.ms": "60000",
    }
    assert shell.run("topics", "alter", topic, "--delete-config", "retention.ms")[0] == 0
    assert described(shell, topic)["configs"] == {"max.message.bytes": "5000"}


def test_a_topic_grows_and_does_not_shrink(shell: Shell) -> None:
    topic = made(shell, 2)
    assert shell.run("topics", "alter", topic, "--partitions", 3)[0] == 0
    assert len(described(shell, topic)["partitions"]) == 3
    assert shell.run("topics", "alter", topic, "--partitions", 3)[0] == 0  # nothing to do
    code, _, said = shell.run("topics", "alter", topic, "--partitions", 1)
    assert code == 1
    assert said.startswith(f"{topic}: INVALID_PARTITIONS: ")


def test_what_cannot_be_altered_says_why(shell: Shell) -> None:
    topic = made(shell, 1)
    code, _, said = shell.run("topics", "alter", topic, "--config", "retention.ms=soon")
    assert (code, said.split(": ")[:2]) == (1, [topic, "INVALID_CONFIG"])
    assert shell.run("topics", "alter", topic)[0] == 2
    code, _, said = shell.run("topics", "alter", topic[:-1] + "_", "--partitions", 9)
    assert code == 1
    assert topic in said.partition("Did you mean ")[2]


@pytest.mark.parametrize("command", ["describe", "delete"])
def test_a_near_topic_is_suggested(shell: Shell, command: str) -> None:
    topic = made(shell, 1)
    code, _, said = shell.run("topics", command, topic[:-1] + "_")
    assert code == 1
    assert topic in said.partition(" Did you mean ")[2]


def test_the_newest_records_are_shown(shell: Shell) -> None:
    topic = made(shell, 2)
    assert described(shell, topic, "--records")["records"] == []
    shell.produce(topic, "--partition", 0, "--key", "k", stdin=b"1\n2\n3\n4\n5")
    shell.produce(topic, "--partition", 1, stdin=b"\xff" + b"x" * 200)
    found = described(shell, topic, "--records")["records"]
    assert [(each["partition"], each["offset"]) for each in found] == [
        *((0, 2), (0, 3), (0, 4)),
        (1, 0),
    ]
    assert found[0]["value"] == "3"
    printed = shell.run("topics", "describe", topic, "--records")[1].decode()
    assert "/3h4eHh4" in printed
    assert "…" in printed
