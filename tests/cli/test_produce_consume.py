"""`penstock produce` and `penstock consume` as a person types them."""

import base64
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from cli.main import app
from tests.cli.test_main import ENVIRONMENT
from tests.conftest import Gateway


@dataclass
class Shell:
    """`penstock …` against one broker, in this process."""

    bootstrap: str

    def run(self, *arguments: str | int, stdin: bytes = b"") -> tuple[int, bytes, str]:
        """Exit code, what is printed, what is complained about."""
        words = [*map(str, arguments), "--bootstrap-server", self.bootstrap]
        env = {"COLUMNS": "200", "NO_COLOR": "1"}
        done = CliRunner().invoke(app, words, input=stdin, env=env, catch_exceptions=False)
        return done.exit_code, done.stdout_bytes, done.stderr

    def produce(self, *arguments: str | int, stdin: bytes = b"") -> str:
        code, printed, said = self.run("produce", *arguments, stdin=stdin)
        assert (code, printed) == (0, b""), said
        return said

    def consume(self, *arguments: str | int) -> list[bytes]:
        code, printed, said = self.run("consume", *arguments)
        assert code == 0, said
        return printed.splitlines()

    def json(self, *arguments: str | int) -> list[Any]:
        return [json.loads(line) for line in self.consume(*arguments, "--json")]


@pytest.fixture
def shell(gateway: Gateway) -> Shell:
    return Shell(gateway.bootstrap)


@pytest.fixture
def topic(shell: Shell) -> str:
    """Of one partition: what is sent first is read first."""
    return made(shell, 1)


def made(shell: Shell, partitions: int, *options: str) -> str:
    name = f"lines-{uuid.uuid4().hex[:8]}"
    assert shell.run("topics", "create", name, "--partitions", partitions, *options)[0] == 0
    return name


def process(shell: Shell, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "penstock", *arguments, "--bootstrap-server", shell.bootstrap],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
    )


def test_lines_come_back_byte_for_byte(shell: Shell, topic: str) -> None:
    lines = b"one\n\n\xff\x00 two\r\nlast"
    assert shell.produce(topic, stdin=lines) == f"Sent 4 records to {topic}.\n"
    assert shell.produce(topic, "an argument") == f"Sent 1 record to {topic}.\n"
    code, printed, said = shell.run("consume", topic)
    assert (code, printed) == (0, b"one\n\n\xff\x00 two\nlast\nan argument\n")
    assert said == f"Read 5 records of {topic}.\n"


def test_keys_headers_timestamps_and_places(shell: Shell, topic: str) -> None:
    shell.produce(topic, "--key-separator", ":", "--header", "h=x", stdin=b"k:v\n:w")
    shell.produce(topic, "--key", "given", "--partition", 0, "u")
    options = ("--keys", "--headers", "--offsets", "--separator", "|")
    assert shell.consume(topic, *options) == [b"0:0|h=x|k|v", b"0:1|h=x||w", b"0:2||given|u"]
    (stamp,) = shell.consume(topic, "--timestamps", "--offset", 2)
    assert abs(int(stamp.split(b"\t")[0]) / 1000 - time.time()) < 60


def test_json_goes_from_topic_to_topic(shell: Shell) -> None:
    kept = ("--config", "retention.ms=-1")  # also the one of long ago
    first, second = made(shell, 3, *kept), made(shell, 3, *kept)
    raw = base64.b64encode(b"\x80\x81").decode()
    sent = [
        {"key": "a", "value": "ü", "headers": [{"key": "h", "value": "1"}], "partition": 2},
        {"key_base64": raw, "value": None, "partition": 1, "timestamp": 1_700_000_000_000},
        {"value_base64": raw, "partition": 0, "headers": {"h": "2"}},
    ]
    shell.produce(first, "--json", stdin="\n".join(map(json.dumps, sent)).encode())
    code, printed, _ = shell.run("consume", first, "--json")
    assert code == 0
    shell.produce(second, "--json", stdin=printed)

    def without_topic(name: str) -> list[Any]:
        rows = sorted(shell.json(name), key=lambda row: int(row["partition"]))
        return [{key: row[key] for key in row if key != "topic"} for row in rows]

    copied = without_topic(second)
    assert copied == without_topic(first)
    assert [row.get("value_base64") for row in copied] == [raw, None, None]
    assert copied[1]["timestamp"] == 1_700_000_000_000
    assert copied[2]["headers"] == [{"key": "h", "value": "1"}]


def test_a_wrong_line_ends_it_and_says_what_was_sent(shell: Shell, topic: str) -> None:
    code, _, said = shell.run("produce", topic, "--json", stdin=b'{"value": "a"}\nb\n')
    assert code == 2
    assert said.splitlines()[0] == f"Sent 1 record to {topic}."
    assert said.splitlines()[1].startswith("Line 2 is no record: it is not JSON (")
    assert shell.consume(topic) == [b"a"]


def test_a_transaction_is_all_or_nothing(shell: Shell, topic: str) -> None:
    options = ("--transactional-id", f"id-{topic}")
    wrong = b'{"value": "a"}\n{"value": "b", "partition": 9}'
    code, _, said = shell.run("produce", topic, *options, "--json", stdin=wrong)
    assert code == 2
    assert said.splitlines() == [
        f"Aborted: nothing is in {topic}.",
        f"There is no partition 9 in {topic}: it has 1, from 0 on.",
    ]
    shell.produce(topic, *options, stdin=b"c\nd")
    assert shell.consume(topic, "--isolation-level", "read_committed") == [b"c", b"d"]
    assert shell.consume(topic) == [b"a", b"c", b"d"]


def test_a_group_goes_on_where_it_was(shell: Shell, topic: str) -> None:
    shell.produce(topic, stdin=b"1\n2\n3\n4")
    group = ("--group", f"g-{topic}")
    assert shell.consume(topic, *group, "--max-messages", 3) == [b"1", b"2", b"3"]
    (found,) = json.loads(shell.run("groups", "lag", f"g-{topic}", "--json")[1])
    assert found["lag"] == 1
    assert shell.consume(topic, *group) == [b"4"]
    assert shell.consume(topic, *group) == []


@pytest.mark.parametrize("kind", ["gzip", "snappy", "lz4", "zstd"])
def test_every_codec_is_read_and_written(shell: Shell, topic: str, kind: str) -> None:
    producer = Producer({"bootstrap.servers": shell.bootstrap, "compression.type": kind})
    producer.produce(topic, b"librdkafka's" * 100)
    assert producer.flush(30) == 0
    shell.produce(topic, "--compression", kind, "ours" * 100)
    # Where kafka-python's own packages for codecs are not installed.
    hidden = "import sys; sys.modules |= dict.fromkeys(['snappy', 'lz4', 'lz4.frame', 'zstandard'])"
    run = f"{hidden}; from cli.main import main; main()"
    for command, stdin in (
        (["produce", topic, "--compression", kind], b"theirs"),
        (["consume", topic], b""),
    ):
        done = subprocess.run(
            [sys.executable, "-c", run, *command, "--bootstrap-server", shell.bootstrap],
            input=stdin,
            capture_output=True,
            check=False,
            env=ENVIRONMENT,
        )
        assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [b"librdkafka's" * 100, b"ours" * 100, b"theirs"]


def test_following_prints_what_comes_until_ctrl_c(shell: Shell, topic: str) -> None:
    shell.produce(topic, "before")
    with process(shell, "consume", topic, "--follow", "--from-beginning") as following:
        assert following.stdout and following.stderr
        assert following.stdout.readline() == b"before\n"
        shell.produce(topic, "after")
        assert following.stdout.readline() == b"after\n"
        following.send_signal(signal.SIGINT)
        assert following.wait(60) == 130
        assert following.stderr.read().decode() == f"Read 2 records of {topic}.\n"


def test_ctrl_c_of_a_producer_keeps_what_it_said(shell: Shell, topic: str) -> None:
    with process(shell, "produce", topic) as producer:
        assert producer.stdin and producer.stderr
        producer.stdin.write(b"one\ntwo\n")
        producer.stdin.flush()
        deadline = time.monotonic() + 30
        while shell.consume(topic) != [b"one", b"two"]:
            assert time.monotonic() < deadline
        producer.send_signal(signal.SIGINT)
        assert producer.wait(60) == 130
        assert producer.stderr.read().decode() == f"Sent 2 records to {topic}.\n"


def test_consume_ends_quietly_when_its_pipe_closes(shell: Shell, topic: str) -> None:
    shell.produce(topic, stdin=b"x" * 99 + b"\n" + b"y\n" * 100_000)
    reading, writing = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-m", "penstock", "consume", topic, "--bootstrap-server", shell.bootstrap],
        stdout=writing,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
    ) as consumer:
        os.close(writing)
        assert os.read(reading, 4) == b"xxxx"
        os.close(reading)
        assert consumer.wait(30) == 0
        assert consumer.stderr is not None
        assert consumer.stderr.read() == b""


def test_a_misspelt_topic_is_not_made(shell: Shell, topic: str) -> None:
    wrong = topic[:-1] + "?".replace("?", "_")
    for command in (("produce", wrong, "x"), ("consume", wrong)):
        code, printed, said = shell.run(*command)
        assert (code, printed) == (1, b"")
        # The nearest comes first; another test's name may be near by chance.
        assert said.startswith(f"There is no topic {wrong}. Did you mean {topic}")
    said = shell.run("consume", "nothing-of-the-kind-at-all")[2]
    assert said.endswith("Create it with 'penstock topics create nothing-of-the-kind-at-all'.\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("produce t --acks 2", "--acks: '2' is none of all, 1, 0."),
        ("produce t --compression lzma", "--compression: 'lzma' is none of none, gzip"),
        ("produce t --json --key-separator :", "--key-separator is for text"),
        ("produce t --header x", "--header: 'x' is not NAME=VALUE."),
        ("produce t --transactional-id x --acks 1", "--transactional-id needs --acks all."),
        ("consume t --group g --offset 3", "--group goes on where the group is"),
        ("consume t --isolation-level x", "--isolation-level: 'x' is none of"),
        ("consume t --offset 3 --from-beginning", "--offset and --from-beginning are two places"),
    ],
)
def test_wrong_arguments(arguments: str, said: str) -> None:
    done = CliRunner().invoke(app, arguments.split(), env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert done.exit_code == 2
    assert done.stderr.startswith(said)
