"""Kafka's own Java clients through its command-line tools. The short ones share a JVM.

Expectations are Apache Kafka 4.1's own; the tools are the same release (compat/java/pom.xml).
"""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from compat.java import tools
from tests.compat import confluent
from tests.compat.conftest import MakeTopic

pytestmark = [pytest.mark.java, pytest.mark.usefixtures("shell")]

At = tuple[str, str]


def run(main: str, *arguments: str, **how: Any) -> subprocess.CompletedProcess[str]:
    """Run a tool in a JVM of its own; it fails the test if it ends with an error."""
    return tools.java_tool(main, *arguments, jvm=tools.SHORT_LIVED, log_level="error", **how)


@pytest.fixture
def at(bootstrap: str) -> tuple[str, str]:
    return "--bootstrap-server", bootstrap


def test_kafka_topics(shell: tools.RunTool, at: At, topic_name: str) -> None:
    command = "org.apache.kafka.tools.TopicCommand"
    shell(
        command,
        *at,
        "--create",
        "--topic",
        topic_name,
        "--partitions",
        "2",
        "--config",
        "retention.ms=1000",
    )
    again = shell(command, *at, "--create", "--topic", topic_name, check=False)
    assert again.returncode == 1
    assert "already exists" in again.stdout + again.stderr
    assert topic_name in shell(command, *at, "--list").stdout.split()
    shell(command, *at, "--alter", "--topic", topic_name, "--partitions", "3")
    described = shell(command, *at, "--describe", "--topic", topic_name).stdout
    assert "PartitionCount: 3" in described
    assert "retention.ms=1000" in described
    assert re.search(r"TopicId: [\w-]{22}\b", described)
    assert len(re.findall(r"Partition: \d+\tLeader: \d+", described)) == 3
    shell(command, *at, "--delete", "--topic", topic_name)
    assert topic_name not in shell(command, *at, "--list").stdout.split()


def test_kafka_configs(
    shell: tools.RunTool, at: At, session_admin: AdminClient, topic: str
) -> None:
    command = "kafka.admin.ConfigCommand"
    entity = ("--entity-type", "topics", "--entity-name", topic)
    shell(
        command,
        *at,
        *entity,
        "--alter",
        "--add-config",
        "retention.ms=5000,cleanup.policy=[compact,delete]",
    )
    shell(command, *at, *entity, "--alter", "--delete-config", "retention.ms")
    described = shell(command, *at, *entity, "--describe").stdout
    assert "cleanup.policy=compact,delete" in described
    assert "retention.ms" not in described
    refused = shell(
        command, *at, *entity, "--alter", "--add-config", "retention.ms=soon", check=False
    )
    assert refused.returncode == 1
    assert "InvalidConfigurationException" in refused.stdout + refused.stderr
    broker = next(iter(session_admin.list_topics(timeout=20).brokers))
    described = shell(
        command,
        *at,
        "--entity-type",
        "brokers",
        "--entity-name",
        str(broker),
        "--describe",
        "--all",
    ).stdout
    assert "message.max.bytes=" in described


def test_console_producer_and_consumer(at: At, bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=2)
    run(
        "org.apache.kafka.tools.ConsoleProducer",
        *at,
        *("--topic", topic, "--compression-codec", "zstd"),
        *("--property", "parse.key=true", "--property", "parse.headers=true"),
        stdin="".join(f"h:{i}\tkey-{i}\tvalue-{i}\n" for i in range(20)),
    )
    read = console_lines(at, bootstrap, topic)
    assert sorted(read) == sorted(f"h:{i}\tkey-{i}\tvalue-{i}" for i in range(20))


def console_lines(at: At, bootstrap: str, topic: str) -> list[str]:
    """What the console consumer prints of both partitions; it assigns, no group takes part."""
    lines: list[str] = []
    for partition in ("0", "1"):
        with confluent.consumer(bootstrap) as asked:
            _, end = asked.get_watermark_offsets(TopicPartition(topic, int(partition)), timeout=30)
        if end == 0:
            continue
        printed = run(
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            *at,
            *("--topic", topic, "--partition", partition, "--offset", "earliest"),
            *("--max-messages", str(end), "--timeout-ms", "60000"),
            *("--property", "print.key=true"),
            *("--property", "print.headers=true"),
        ).stdout
        lines += printed.splitlines()
    return lines


def test_offsets_and_delete_records(
    shell: tools.RunTool,
    at: At,
    bootstrap: str,
    make_topic: MakeTopic,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    # Records of 1970: a round of retention would delete them.
    topic = make_topic(partitions=2, config={"retention.ms": "-1"})
    records = [
        {"topic": topic, "partition": 1, "value": b"", "timestamp": 1000 + i} for i in range(9)
    ]
    confluent.send_all(confluent.producer(bootstrap), records)
    wanted = tmp_path_factory.mktemp("offsets") / "delete.json"
    deletion = {"partitions": [{"topic": topic, "partition": 1, "offset": 4}], "version": 1}
    wanted.write_text(json.dumps(deletion))
    deleted = shell(
        "org.apache.kafka.tools.DeleteRecordsCommand", *at, "--offset-json-file", str(wanted)
    ).stdout
    assert f"partition: {topic}-1\tlow_watermark: 4" in deleted
    command = "org.apache.kafka.tools.GetOffsetShell"
    listed = {
        time: shell(command, *at, "--topic", topic, "--time", time).stdout.split()
        for time in ("latest", "earliest", "max-timestamp", "1005")
    }
    assert listed["latest"] == [f"{topic}:0:0", f"{topic}:1:9"]
    assert listed["earliest"] == [f"{topic}:0:0", f"{topic}:1:4"]
    assert f"{topic}:1:8" in listed["max-timestamp"]
    assert f"{topic}:1:5" in listed["1005"]


def test_log_dirs(shell: tools.RunTool, at: At, bootstrap: str, topic: str) -> None:
    confluent.send_all(confluent.producer(bootstrap), [{"topic": topic, "value": b"x" * 5000}])
    printed = shell(
        "org.apache.kafka.tools.LogDirsCommand", *at, "--describe", "--topic-list", topic
    ).stdout
    described = json.loads(printed.splitlines()[-1])
    [log_dir] = described["brokers"][0]["logDirs"]
    assert log_dir["error"] is None
    [partition] = log_dir["partitions"]
    assert partition["partition"] == f"{topic}-0"
    assert partition["size"] >= 5000


def test_broker_api_versions(shell: tools.RunTool, at: At) -> None:
    printed = shell("org.apache.kafka.tools.BrokerApiVersionsCommand", *at).stdout
    assert re.search(r"Produce\(0\): 0 to \d+ \[usable: 1[123]\]", printed)
    assert re.search(r"Fetch\(1\): 4 to \d+ \[usable: 1[78]\]", printed)


def test_cluster_id(shell: tools.RunTool, at: At, session_admin: AdminClient) -> None:
    printed = shell("org.apache.kafka.tools.ClusterTool", "cluster-id", *at)
    assert session_admin.list_topics(timeout=20).cluster_id in printed.stdout


def test_producer_perf_and_verifiable_producer(
    at: At, bootstrap: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(partitions=4)
    printed = run(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", topic, "--num-records", "20000", "--record-size", "100"),
        *("--throughput", "-1", "--producer-props", f"bootstrap.servers={bootstrap}"),
    ).stdout
    assert "20000 records sent" in printed
    printed = run(
        "org.apache.kafka.tools.VerifiableProducer",
        *at,
        *("--topic", topic, "--max-messages", "50", "--acks", "-1"),
    ).stdout
    summary = json.loads(printed.splitlines()[-1])
    assert (summary["sent"], summary["acked"]) == (50, 50)
    assert len(confluent.read_topic(bootstrap, topic, 4)) == 20_050
