"""Kafka's own Java clients and groups: kafka-consumer-groups in all its forms, and its consumers.

Expectations are Apache Kafka 4.1's own; the tools are the same release (compat/java/pom.xml). The
short commands share one JVM.
"""

from __future__ import annotations

import json
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from compat.java import tools
from tests.compat import confluent
from tests.compat.groups import CONSUMER, COOPERATIVE, Group, MakeGroup, eventually

pytestmark = pytest.mark.java

GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
CONSOLE = "org.apache.kafka.tools.consumer.ConsoleConsumer"
VERIFIABLE = "org.apache.kafka.tools.VerifiableConsumer"

both_protocols = pytest.mark.parametrize(
    "way", [COOPERATIVE, CONSUMER], ids=["classic", "consumer"]
)

Rows = list[dict[str, str]]


class Command:
    """kafka-consumer-groups for one group."""

    def __init__(self, shell: tools.RunTool, group: Group) -> None:
        self._shell = shell
        self._group = group

    def __call__(self, *arguments: str | Path | int) -> str:
        """What it prints."""
        return self._shell(GROUPS, "--bootstrap-server", self._group.bootstrap, *arguments).stdout

    def on_group(self, *arguments: str | Path | int) -> str:
        return self(*arguments, "--group", self._group.name)

    def described(self, *arguments: str) -> Rows:
        return rows(self.on_group("--describe", *arguments))

    def reset(self, *how: str | Path | int, topic: str | None = None) -> dict[int, int]:
        """New offsets by partition, as it prints them."""
        scope = ("--topic", topic or self._group.topic)
        shown = rows(self.on_group("--reset-offsets", *scope, *how))
        return {int(row["PARTITION"]): int(row["NEW-OFFSET"]) for row in shown}

    def current(self) -> dict[int, int]:
        shown = self.described("--offsets")
        return {int(row["PARTITION"]): int(row["CURRENT-OFFSET"]) for row in shown}


@pytest.fixture
def group(make_group: MakeGroup) -> Group:
    """A group whose topic has 3 partitions of 10 records each, stamped 1000 s, 2000 s … 10000 s."""
    made = make_group(partitions=3)
    confluent.send_all(
        confluent.producer(made.bootstrap),
        (
            {
                "topic": made.topic,
                "partition": number % 3,
                "value": b"%d" % number,
                "timestamp": 1_000_000 * (1 + number // 3),
            }
            for number in range(30)
        ),
    )
    return made


@pytest.fixture
def command(shell: tools.RunTool, group: Group) -> Command:
    return Command(shell, group)


def rows(printed: str) -> Rows:
    """The rows of the table that the tool prints, by its headings."""
    lines = [line for line in printed.splitlines() if line.strip()]
    for number, line in enumerate(lines):
        if line.startswith(("GROUP", "TOPIC")):
            return [
                dict(zip(line.split(), row.split(), strict=False)) for row in lines[number + 1 :]
            ]
    return []


def commit(group: Group, offsets: dict[int, int]) -> None:
    with confluent.consumer(group.bootstrap, group_id=group.name) as client:
        wanted = [TopicPartition(group.topic, number, at) for number, at in offsets.items()]
        client.commit(offsets=wanted, asynchronous=False)


# --- kafka-consumer-groups ---


@both_protocols
def test_list_and_describe_members_offsets_and_state(
    command: Command, group: Group, way: dict[str, Any]
) -> None:
    kind = "Consumer" if way is CONSUMER else "Classic"
    for name in ("one", "two"):
        group.join({**way, "client.id": name})
    group.wait_stable()
    for member in group.members:
        member.commit([TopicPartition(*partition, 4) for partition in member.owned])
    eventually(lambda: "Stable" in command.on_group("--describe", "--state"))

    assert group.name in command("--list").split()
    wanted = {"GROUP": group.name, "TYPE": kind, "STATE": "Stable"}
    assert wanted in rows(command("--list", "--type", "--state"))
    assert wanted in rows(command("--list", "--type", kind.lower(), "--state", "stable,empty"))
    assert group.name not in command("--list", "--state", "Empty").split()
    other = "classic" if way is CONSUMER else "consumer"
    assert group.name not in command("--list", "--type", other).split()

    ids = {member.ask(lambda c: c.memberid()): member for member in group.members}
    shown = command.described()
    assert shown == command.described("--offsets")
    assert {int(row["PARTITION"]) for row in shown} == {0, 1, 2}
    for row in shown:
        assert (row["CURRENT-OFFSET"], row["LOG-END-OFFSET"], row["LAG"]) == ("4", "10", "6")
        assert (group.topic, int(row["PARTITION"])) in ids[row["CONSUMER-ID"]].owned
        assert row["HOST"] == "/127.0.0.1"
    assert {row["CLIENT-ID"] for row in shown} == {"one", "two"}

    members = command.described("--members", "--verbose")
    assert {row["CONSUMER-ID"]: int(row["#PARTITIONS"]) for row in members} == {
        name: len(member.owned) for name, member in ids.items()
    }
    for row in members:
        numbers = sorted(number for _, number in ids[row["CONSUMER-ID"]].owned)
        assert row["CURRENT-ASSIGNMENT"] == f"{group.topic}:{','.join(map(str, numbers))}"
        if way is CONSUMER:
            assert row["TARGET-ASSIGNMENT"] == row["CURRENT-ASSIGNMENT"]
            assert row["TARGET-EPOCH"] == row["CURRENT-EPOCH"]
    state = command.on_group("--describe", "--state").split()
    assert state[-3:-1] == ["uniform" if way is CONSUMER else "cooperative-sticky", "Stable"]
    assert state[-1] == "2"
    assert group.bootstrap in state

    refused = command.on_group("--delete")
    assert "GroupNotEmptyException" in refused
    refused = command.on_group("--delete-offsets", "--topic", group.topic)
    assert refused.count("GroupSubscribedToTopicException") == 3
    refused = command.on_group(
        "--reset-offsets", "--topic", group.topic, "--to-earliest", "--execute"
    )
    assert "can only be reset if the group" in refused
    assert command.current() == {0: 4, 1: 4, 2: 4}


def test_reset_offsets_in_all_its_forms(command: Command, group: Group, data_dir: Path) -> None:
    def everywhere(offset: int) -> dict[int, int]:
        return dict.fromkeys(range(3), offset)

    commit(group, everywhere(4))
    assert command.reset("--to-earliest", "--dry-run") == everywhere(0)
    assert command.current() == everywhere(4)  # a dry run changes nothing
    stamp = datetime.fromtimestamp(5500, UTC).strftime("%Y-%m-%dT%H:%M:%S.000")
    elapsed = int(time.time() - 7500)
    for how, expected in (
        (("--to-earliest",), 0),
        (("--to-latest",), 10),
        (("--to-offset", "3"), 3),
        (("--to-offset", "99"), 10),  # no further than the log goes
        (("--shift-by", "-2"), 8),
        (("--shift-by", "-99"), 0),
        (("--shift-by", "5"), 5),
        (("--to-current",), 5),
        (("--to-datetime", stamp), 5),
        (("--by-duration", f"PT{elapsed}S"), 7),
        (("--by-duration", "PT1S"), 10),  # nothing is so young
    ):
        assert command.reset(*how, "--execute") == everywhere(expected), how
        assert command.current() == everywhere(expected), how
    assert command.reset("--to-offset", 1, "--execute", topic=f"{group.topic}:0,2") == {0: 1, 2: 1}
    assert command.current() == {0: 1, 1: 10, 2: 1}

    exported = command.on_group(
        "--reset-offsets", "--all-topics", "--to-current", "--export", "--dry-run"
    )
    plan = sorted(line.replace('"', "") for line in exported.splitlines() if line)
    assert plan == [f"{group.topic},0,1", f"{group.topic},1,10", f"{group.topic},2,1"]
    data_dir.write_text("\n".join(plan[1:]).replace(",1,10", ",1,6"))
    written = command.on_group("--reset-offsets", "--from-file", data_dir, "--execute")
    assert {row["PARTITION"]: row["NEW-OFFSET"] for row in rows(written)} == {"1": "6", "2": "1"}
    assert command.current() == {0: 1, 1: 6, 2: 1}


def test_delete_offsets_then_the_group(command: Command, group: Group) -> None:
    commit(group, {0: 1, 1: 2, 2: 3})
    shown = command.described()
    assert {row["CONSUMER-ID"] for row in shown} == {"-"}
    assert "has no active members" in command.on_group("--describe")
    deleted = rows(command.on_group("--delete-offsets", "--topic", f"{group.topic}:1"))
    assert [(row["PARTITION"], row["STATUS"]) for row in deleted] == [("1", "Successful")]
    assert command.current() == {0: 1, 2: 3}
    assert "was successful" in command.on_group("--delete")
    assert "GroupIdNotFoundException" in command.on_group("--delete")
    assert "GroupIdNotFoundException" in command.on_group("--describe")
    assert group.name not in command("--list").split()


def test_groups_configs_and_topics_know_the_group(
    shell: tools.RunTool, command: Command, group: Group
) -> None:
    at = ("--bootstrap-server", group.bootstrap)
    commit(group, {0: 1})
    listed = shell("org.apache.kafka.tools.GroupsCommand", *at, "--list").stdout
    [found] = [row for row in rows(listed) if row["GROUP"] == group.name]
    assert found["TYPE"] == "Classic"
    entity = ("--entity-type", "groups", "--entity-name", group.name)
    configs = "kafka.admin.ConfigCommand"
    changed = "consumer.session.timeout.ms=8000"
    assert shell(configs, *at, *entity, "--alter", "--add-config", changed).returncode == 0
    assert changed in shell(configs, *at, *entity, "--describe").stdout


# --- consumers ---


def run(main: str, *arguments: str, **how: Any) -> subprocess.CompletedProcess[str]:
    return tools.java_tool(main, *arguments, jvm=tools.SHORT_LIVED, log_level="error", **how)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_console_consumers_share_a_group_and_go_on(
    shell: tools.RunTool, group: Group, protocol: str
) -> None:
    """Two at once read everything between them; a third reads what came afterwards."""

    def console(*until: str) -> list[str]:
        return run(
            CONSOLE,
            *("--bootstrap-server", group.bootstrap, "--topic", group.topic),
            *("--group", group.name, "--from-beginning", *until),
            *("--consumer-property", f"group.protocol={protocol}"),
        ).stdout.split()

    with ThreadPoolExecutor(2) as pool:
        # Each ends ten seconds after its last record, and leaves: the first one comes much sooner.
        running = [pool.submit(console, "--timeout-ms", "10000") for _ in range(2)]
        lines = [line for consumer in running for line in consumer.result()]
    assert sorted(map(int, lines)) == list(range(30))
    confluent.send_all(
        confluent.producer(group.bootstrap),
        ({"topic": group.topic, "value": b"%d" % number} for number in range(30, 40)),
    )
    assert sorted(map(int, console("--max-messages", "10"))) == list(range(30, 40))


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_verifiable_consumer_commits_what_it_read(
    shell: tools.RunTool, command: Command, group: Group, protocol: str
) -> None:
    printed = run(
        VERIFIABLE,
        *("--bootstrap-server", group.bootstrap, "--topic", group.topic),
        *("--group-id", group.name, "--group-protocol", protocol),
        *("--max-messages", "30", "--reset-policy", "earliest"),
    ).stdout
    events = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    named = [event["name"] for event in events]
    assert named[0] == "startup_complete"
    assert "partitions_assigned" in named
    assert sum(event["count"] for event in events if event["name"] == "records_consumed") == 30
    assert all(event["success"] for event in events if event["name"] == "offsets_committed")
    assert command.current() == {0: 10, 1: 10, 2: 10}


def test_consumer_performance_measures_in_a_group(
    shell: tools.RunTool, command: Command, group: Group
) -> None:
    printed = run(
        "org.apache.kafka.tools.ConsumerPerformance",
        *("--bootstrap-server", group.bootstrap, "--topic", group.topic),
        *("--group", group.name, "--messages", "30"),
    ).stdout
    assert "data.consumed.in.MB" in printed
    assert printed.splitlines()[-1].split(", ")[4] == "30"
    assert command.current() == {0: 10, 1: 10, 2: 10}
