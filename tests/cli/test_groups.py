"""`penstock groups` as a person types it, over groups of stock clients."""

import json
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Place
from kafka import KafkaAdminClient, TopicPartition
from kafka.structs import OffsetAndMetadata
from typer.testing import CliRunner

from cli.main import app
from tests.cli.test_main import penstock
from tests.conftest import Gateway, StartGateway, free_port, gateways
from tests.databases import Copies

MINUTE_MS = 60_000
RECORDS = 10  # in each partition, a minute apart


@dataclass
class Shell:
    """`penstock groups …` against one broker."""

    bootstrap: str

    def __call__(self, *arguments: str | int) -> tuple[int, str, str]:
        """Exit code, what is printed, what is complained about."""
        words = [*map(str, arguments), "--bootstrap-server", self.bootstrap]
        done = CliRunner().invoke(
            app, ["groups", *words], env={"COLUMNS": "200", "NO_COLOR": "1"}, catch_exceptions=False
        )
        return done.exit_code, done.stdout, done.stderr

    def json(self, *arguments: str | int, code: int = 0) -> Any:
        exit_code, printed, complained = self(*arguments, "--json")
        assert exit_code == code, complained
        return json.loads(printed)


@pytest.fixture(scope="module")
def broker(
    copies: Copies, template_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    """A gateway whose groups do not wait for more members."""
    with (
        copies.taken(template_database) as url,
        gateways(tmp_path_factory.mktemp("gateway")) as start,
    ):
        yield start("--override", "group.initial.rebalance.delay.ms=0", database_url=url)


@pytest.fixture
def shell(broker: Gateway) -> Shell:
    return Shell(broker.bootstrap)


@pytest.fixture(scope="module")
def admin(broker: Gateway) -> Iterator[KafkaAdminClient]:
    with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap)) as client:
        yield client


@pytest.fixture(scope="module")
def started_ms() -> int:
    """When the first record of each partition says it was written: an hour ago."""
    return int(time.time() * 1000) - 60 * MINUTE_MS


@pytest.fixture(scope="module")
def topic(broker: Gateway, admin: KafkaAdminClient, started_ms: int) -> str:
    """A topic of two partitions with ten records each."""
    return filled(broker, admin, f"filled-{uuid.uuid4().hex[:8]}", started_ms)


def filled(broker: Gateway, admin: KafkaAdminClient, name: str, started_ms: int = -1) -> str:
    admin.create_topics({name: {"num_partitions": 2}})
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for partition in range(2):
        for n in range(RECORDS):
            stamp = started_ms + n * MINUTE_MS if started_ms >= 0 else 0
            producer.produce(name, b"x", partition=partition, timestamp=stamp)
    assert producer.flush(30) == 0
    return name


@pytest.fixture
def name() -> str:
    return f"group-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def idle(admin: KafkaAdminClient, topic: str, name: str) -> str:
    """A group without members that has read 4 records of partition 0."""
    commit(admin, name, topic, {0: 4})
    return name


def commit(admin: KafkaAdminClient, name: str, topic: str, offsets: dict[int, int]) -> None:
    wanted = {
        TopicPartition(topic, number): OffsetAndMetadata(offset, "", None)
        for number, offset in offsets.items()
    }
    answered = admin.alter_group_offsets(name, wanted)
    assert {error.errno for error in answered.values()} == {0}


@contextmanager
def _member(broker: Gateway, topic: str, name: str, protocol: str) -> Iterator[Consumer]:
    """A member that has everything and has committed 10 and 3."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": name,
            "group.protocol": protocol,
            "client.id": "reader",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    deadline = time.monotonic() + 120
    while len(consumer.assignment()) < 2:
        assert time.monotonic() < deadline
        consumer.poll(0.1)
    consumer.commit(offsets=[Place(topic, 0, 10), Place(topic, 1, 3)], asynchronous=False)
    yield consumer
    with suppress(RuntimeError):  # the test may have closed it
        consumer.close()


@pytest.fixture
def classic_member(broker: Gateway, topic: str, name: str) -> Iterator[Consumer]:
    """A member of a classic group."""
    with _member(broker, topic, name, "classic") as member:
        yield member


@pytest.fixture
def consumer_member(broker: Gateway, topic: str, name: str) -> Iterator[Consumer]:
    """A member that speaks KIP-848's protocol."""
    with _member(broker, topic, name, "consumer") as member:
        yield member


# --- list ---


def test_groups_are_listed_with_type_and_state(
    shell: Shell, idle: str, consumer_member: Consumer, name: str
) -> None:
    assert idle == name  # the member has joined the group that had only offsets
    row = {"group_id": name, "type": "consumer", "state": "Stable", "protocol_type": "consumer"}
    assert row in shell.json("list")
    code, printed, _ = shell("list")
    assert code == 0
    assert [line.split() for line in printed.splitlines() if name in line] == [
        [name, "consumer", "Stable", "consumer"]
    ]


def test_a_list_can_be_of_one_state_or_type(shell: Shell, idle: str) -> None:
    def found(*options: str) -> bool:
        return idle in {row["group_id"] for row in shell.json("list", *options)}

    assert found("--state", "empty")
    assert found("--state", "stable", "--state", "Empty", "--type", "classic")
    assert not found("--state", "stable")
    assert not found("--type", "consumer")
    code, _, complained = shell("list", "--state", "sleepy")
    assert (code, complained.split(" is none of")[0]) == (2, "--state: 'sleepy'")


# --- describe, lag ---


def expected_progress(topic: str, member_id: str | None) -> list[dict[str, Any]]:
    common = {"topic": topic, "start_offset": 0, "end_offset": RECORDS, "member_id": member_id}
    return [
        {**common, "partition": 0, "committed_offset": 10, "lag": 0},
        {**common, "partition": 1, "committed_offset": 3, "lag": 7},
    ]


def without_client(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in row.items() if name not in {"client_id", "host"}}
        for row in rows
    ]


def test_a_classic_group_is_described(
    shell: Shell, classic_member: Consumer, topic: str, name: str
) -> None:
    (group,) = shell.json("describe", name)
    (member,) = group["members"]
    assert member["member_id"].startswith("reader-")
    assert (member["client_id"], member["host"]) == ("reader", "/127.0.0.1")
    assert (member["partitions"], member["epoch"]) == ({topic: [0, 1]}, None)
    told = {key: group[key] for key in ("type", "state", "assignor", "epoch", "lag", "error")}
    assert told == {
        "type": "classic",
        "state": "Stable",
        "assignor": "range",
        "epoch": None,
        "lag": 7,
        "error": None,
    }
    assert shell.bootstrap in group["coordinator"]
    assert without_client(group["partitions"]) == expected_progress(topic, member["member_id"])
    code, printed, _ = shell("describe", name)
    assert code == 0
    assert f"{name}  (classic group, Stable, assignor range, coordinator " in printed
    assert f"{topic}:0,1" in printed


def test_a_consumer_group_is_described(
    shell: Shell, consumer_member: Consumer, topic: str, name: str
) -> None:
    (group,) = shell.json("describe", name)
    (member,) = group["members"]
    assert member["partitions"] == member["target"] == {topic: [0, 1]}
    assert member["epoch"] == group["epoch"] > 0
    assert (group["type"], group["state"], group["assignor"]) == ("consumer", "Stable", "uniform")
    assert without_client(group["partitions"]) == expected_progress(topic, member["member_id"])


def test_several_groups_are_described_in_the_order_they_are_named(
    shell: Shell, admin: KafkaAdminClient, topic: str, name: str
) -> None:
    names = [f"{name}-{n}" for n in (2, 0, 1)]
    for each in names:
        commit(admin, each, topic, {0: 0})
    assert [each["group_id"] for each in shell.json("describe", *names, names[0])] == names


def test_unknown_group_is_reported_as_missing(shell: Shell, idle: str) -> None:
    code, printed, complained = shell("describe", idle, "nobody")
    assert (code, complained) == (1, "nobody: there is no such group.\n")
    assert idle in printed
    assert [each["state"] for each in shell.json("describe", idle, "nobody", code=1)] == [
        "Empty",
        "Dead",
    ]


def test_lag_is_told_partition_by_partition(shell: Shell, topic: str, idle: str) -> None:
    (group,) = shell.json("lag", idle)
    (row,) = group["partitions"]
    assert (group["lag"], row["lag"], row["committed_offset"]) == (6, 6, 4)
    assert group in shell.json("lag")
    code, printed, _ = shell("lag")
    assert code == 0
    lines = [line.split() for line in printed.splitlines() if idle in line]
    assert lines == [[idle, topic, "0", "4", "10", "6", "-"]]


def test_offsets_of_a_topic_that_is_gone_have_no_lag(
    shell: Shell, admin: KafkaAdminClient, broker: Gateway, name: str
) -> None:
    """Kafka drops them with the topic; until then nothing may fail on them."""
    topic = filled(broker, admin, f"{name}-gone")
    commit(admin, name, topic, {0: 4})
    admin.delete_topics([topic])
    (group,) = shell.json("lag", name)
    assert group["lag"] is None
    assert {row["end_offset"] for row in group["partitions"]} <= {None}


# --- reset-offsets ---


def offsets(admin: KafkaAdminClient, name: str) -> dict[int, int]:
    found = admin.list_group_offsets({name: None})[name]
    return {where.partition: each.offset for where, each in found.items()}


@pytest.mark.parametrize(
    ("how", "new"),
    [
        (["--to-earliest"], {0: 0, 1: 0}),
        (["--to-latest"], {0: 10, 1: 10}),
        (["--to-current"], {0: 4, 1: 10}),
        (["--to-offset", 7], {0: 7, 1: 7}),
        (["--to-offset", 70], {0: 10, 1: 10}),
        (["--to-offset", -7], {0: 0, 1: 0}),
    ],
)
def test_offsets_are_put_where_they_are_wanted(
    shell: Shell,
    admin: KafkaAdminClient,
    topic: str,
    idle: str,
    how: list[Any],
    new: dict[int, int],
) -> None:
    planned = shell.json("reset-offsets", idle, "--topic", topic, *how)
    assert not planned["executed"]
    assert offsets(admin, idle) == {0: 4}
    done = shell.json("reset-offsets", idle, "--topic", topic, *how, "--execute")
    assert done == {**planned, "executed": True}
    assert {row["partition"]: row["new_offset"] for row in done["partitions"]} == new
    assert {row["partition"]: row["old_offset"] for row in done["partitions"]} == {0: 4, 1: None}
    assert offsets(admin, idle) == new


@pytest.mark.parametrize(("shift", "new"), [(3, 7), (-3, 1), (-5, 0), (100, 10)])
def test_offsets_are_shifted_within_what_there_is(
    shell: Shell, admin: KafkaAdminClient, idle: str, shift: int, new: int
) -> None:
    shell.json("reset-offsets", idle, "--all-topics", "--shift-by", shift, "--execute")
    assert offsets(admin, idle) == {0: new}


def test_what_is_not_committed_cannot_be_shifted(
    shell: Shell, admin: KafkaAdminClient, topic: str, idle: str
) -> None:
    code, _, complained = shell(
        *("reset-offsets", idle, "--topic", topic, "--shift-by", 1, "--execute")
    )
    assert code == 1
    assert complained == f"{topic}-1 cannot be shifted: nothing is committed.\n"
    assert offsets(admin, idle) == {0: 4}


@pytest.mark.parametrize(("after_ms", "new"), [(0, 0), (3 * MINUTE_MS - 1, 3), (10**9, 10)])
def test_offsets_are_found_by_time(
    shell: Shell, topic: str, idle: str, started_ms: int, after_ms: int, new: int
) -> None:
    moment = datetime.fromtimestamp((started_ms + after_ms) / 1000, UTC)
    for text in (moment.isoformat(), moment.replace(tzinfo=None).isoformat()):
        done = shell.json("reset-offsets", idle, "--topic", topic, "--to-datetime", text)
        assert {row["new_offset"] for row in done["partitions"]} == {new}


@pytest.mark.parametrize(("duration", "new"), [("P1D", 0), ("PT1S", 10), ("-PT1H", 10)])
def test_offsets_are_found_by_age(
    shell: Shell, topic: str, idle: str, duration: str, new: int
) -> None:
    done = shell.json("reset-offsets", idle, "--topic", topic, "--by-duration", duration)
    assert {row["new_offset"] for row in done["partitions"]} == {new}


def test_some_partitions_of_a_topic_can_be_named(
    shell: Shell, admin: KafkaAdminClient, topic: str, idle: str
) -> None:
    shell.json("reset-offsets", idle, "--topic", f"{topic}:1", "--to-offset", 5, "--execute")
    assert offsets(admin, idle) == {0: 4, 1: 5}


def test_unknown_group_gets_offsets(
    shell: Shell, admin: KafkaAdminClient, topic: str, name: str
) -> None:
    shell.json("reset-offsets", name, "--topic", topic, "--to-latest", "--execute")
    assert offsets(admin, name) == {0: 10, 1: 10}
    code, printed, _ = shell("reset-offsets", f"{name}-2", "--all-topics", "--to-latest")
    assert (code, printed) == (0, f"{name}-2 has committed nothing.\n")


def test_a_plan_says_that_it_is_one(shell: Shell, topic: str, idle: str) -> None:
    code, printed, _ = shell("reset-offsets", idle, "--topic", topic, "--to-offset", 70)
    assert code == 0
    assert "70 is after the end" in printed
    assert printed.endswith("Nothing was changed: add --execute to do it.\n")


def test_a_consumer_group_whose_members_have_left_is_reset(
    shell: Shell, admin: KafkaAdminClient, consumer_member: Consumer, name: str
) -> None:
    assert shell("reset-offsets", name, "--all-topics", "--to-earliest", "--execute")[0] == 1
    consumer_member.close()
    (group,) = shell.json("describe", name)
    assert (group["type"], group["state"], group["members"]) == ("consumer", "Empty", [])
    shell.json("reset-offsets", name, "--all-topics", "--to-earliest", "--execute")
    assert offsets(admin, name) == {0: 0, 1: 0}


def test_a_group_with_members_keeps_its_offsets(
    shell: Shell, admin: KafkaAdminClient, classic_member: Consumer, topic: str, name: str
) -> None:
    for execute in ([], ["--execute"]):
        code, printed, complained = shell(
            *("reset-offsets", name, "--all-topics", "--to-earliest", *execute)
        )
        assert (code, printed) == (1, "")
        assert complained == (
            "Offsets can only be reset while a group has no members; "
            f"{name} is Stable with 1: stop them first.\n"
        )
    assert offsets(admin, name) == {0: 10, 1: 3}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--to-latest"], "Name topics with --topic, or all of them with --all-topics."),
        (["--all-topics", "--topic", "t", "--to-latest"], "Name topics with --topic, or all of"),
        (["--all-topics"], "Say where to, with just one of --to-earliest, "),
        (["--all-topics", "--to-latest", "--shift-by", 0], "Say where to, with just one of "),
        (["--topic", "t:x", "--to-latest"], "--topic: 't:x' is not TOPIC or TOPIC:0,1."),
        (["--topic", "t:", "--to-latest"], "--topic: 't:' is not TOPIC or TOPIC:0,1."),
        (["--topic", "t", "--to-datetime", "noon"], "--to-datetime: 'noon' cannot be read; "),
        (["--topic", "t", "--by-duration", "1D"], "--by-duration: '1D' cannot be read; "),
        (["--topic", "t", "--by-duration", "P"], "--by-duration: 'P' cannot be read; "),
        (["--topic", "t", "--by-duration", "P99999999999D"], "--by-duration: 'P99999999999D'"),
    ],
)
def test_a_wrong_argument_is_one_sentence(
    shell: Shell, idle: str, arguments: list[Any], sentence: str
) -> None:
    code, printed, complained = shell("reset-offsets", idle, *arguments)
    assert (code, printed) == (2, "")
    assert complained.startswith(sentence)
    assert complained.count("\n") == 1


def test_topics_and_partitions_must_exist(shell: Shell, topic: str, idle: str) -> None:
    where = f"{topic}:2"
    assert shell("reset-offsets", idle, "--topic", "none", "--to-latest") == (
        1,
        "",
        "There is no topic none.\n",
    )
    code, _, complained = shell("reset-offsets", idle, "--topic", f"{topic[:-1]}_", "--to-latest")
    assert (code, complained) == (1, f"There is no topic {topic[:-1]}_. Did you mean {topic}?\n")
    assert shell("reset-offsets", idle, "--topic", where, "--to-latest") == (
        1,
        "",
        f"There is no partition 2 of {topic}: it has 2.\n",
    )


# --- delete ---


def test_an_empty_group_is_deleted_and_a_full_one_is_not(
    shell: Shell, admin: KafkaAdminClient, classic_member: Consumer, topic: str, name: str
) -> None:
    other = f"{name}-idle"
    commit(admin, other, topic, {0: 4})
    code, printed, complained = shell("delete", name, other, "nobody")
    assert (code, printed) == (1, f"Deleted {other}\n")
    assert complained == (
        f"{name}: NON_EMPTY_GROUP: The group is not empty.\n"
        "nobody: GROUP_ID_NOT_FOUND: The group id does not exist.\n"
    )
    left = {row["group_id"] for row in shell.json("list")}
    assert name in left
    assert other not in left
    commit(admin, other, topic, {0: 4})
    assert shell.json("delete", other) == [{"group_id": other, "error": None}]


def test_without_a_broker_it_is_said_so() -> None:
    bootstrap = f"127.0.0.1:{free_port()}"
    done = penstock("groups", "list", "--bootstrap-server", bootstrap)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"No broker answers at {bootstrap}: start one with 'penstock ")


def test_the_next_coordinator_is_waited_for(database_url: str, start_gateway: StartGateway) -> None:
    """The one that has the group is killed; until its lease has run out nobody can say anything."""
    brokers = [start_gateway(database_url=database_url) for _ in range(2)]
    with closing(KafkaAdminClient(bootstrap_servers=brokers[0].bootstrap)) as admin:
        topic = filled(brokers[0], admin, "t")
        commit(admin, "g", topic, {0: 4})
    (group,) = Shell(brokers[0].bootstrap).json("describe", "g")
    (coordinator,) = (each for each in brokers if each.bootstrap in group["coordinator"])
    (other,) = (each for each in brokers if each is not coordinator)
    coordinator.kill()
    done = penstock("groups", "describe", "g", "--json", "--bootstrap-server", other.bootstrap)
    assert done.returncode == 0, done.stderr
    (group,) = json.loads(done.stdout)
    assert other.bootstrap in group["coordinator"]
    assert group["lag"] == 6
