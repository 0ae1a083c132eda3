"""Kafka's own tools around groups, leaders, replicas and the quorum: each ends with sense.

Expectations are Apache Kafka 4.1's own but for the quorum, which only Kafka has; the tools are the
same release (compat/java/pom.xml) and share one JVM.
"""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path

import pytest

from compat.java import tools
from tests.compat.conftest import MakeTopic
from tests.compat.groups import BROKER_SETTINGS

pytestmark = pytest.mark.java

CONFIGS = "kafka.admin.ConfigCommand"
ELECTION = "org.apache.kafka.tools.LeaderElectionCommand"
REASSIGNMENT = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"
SESSION = "consumer.session.timeout.ms"


@pytest.fixture(scope="module")
def shell(shell: tools.RunTool) -> tools.RunTool:
    return partial(shell, check=False)  # the tests look at the exit codes themselves


@pytest.fixture
def at(bootstrap: str) -> tuple[str, str]:
    return "--bootstrap-server", bootstrap


def test_a_groups_settings(shell: tools.RunTool, at: tuple[str, str], group_id: str) -> None:
    group = ("--entity-type", "groups", "--entity-name", group_id)
    described = shell(CONFIGS, *at, *group, "--describe", "--all").stdout
    default = BROKER_SETTINGS[f"group.{SESSION}"]
    assert (
        f"{SESSION}={default} sensitive=false synonyms={{DEFAULT_CONFIG:{SESSION}={default}}}"
        in (described)
    )
    altered = shell(CONFIGS, *at, *group, "--alter", "--add-config", f"{SESSION}=50000")
    assert f"Completed updating config for group {group_id}." in altered.stdout
    listed = shell(CONFIGS, *at, "--entity-type", "groups", "--describe").stdout
    assert f"Dynamic configs for group {group_id} are:" in listed
    assert f"synonyms={{DYNAMIC_GROUP_CONFIG:{SESSION}=50000}}" in listed
    refused = shell(CONFIGS, *at, *group, "--alter", "--add-config", f"{SESSION}=999")
    assert refused.returncode == 1
    assert f"{SESSION} must be greater than or equal to group.consumer.min.session" in (
        refused.stdout
    )
    shell(CONFIGS, *at, *group, "--alter", "--delete-config", SESSION)
    assert f"{SESSION}=50000" not in shell(CONFIGS, *at, *group, "--describe").stdout


def test_every_property_of_a_broker(shell: tools.RunTool, at: tuple[str, str]) -> None:
    brokers = ("--entity-type", "brokers", "--entity-name", "1", "--describe", "--all")
    described = shell(CONFIGS, *at, *brokers).stdout
    names = {line.split("=")[0].strip() for line in described.splitlines() if "=" in line}
    kafka = json.loads(
        (Path(__file__).parents[1] / "core" / "config" / "kafka_configs.json").read_text()
    )
    assert names >= kafka["broker"].keys()


def test_no_election_is_needed(
    shell: tools.RunTool, at: tuple[str, str], make_topic: MakeTopic
) -> None:
    topic = make_topic(partitions=2)
    for kind in ("preferred", "unclean"):
        which = ("--election-type", kind, "--topic", topic, "--partition", "1")
        done = shell(ELECTION, *at, *which)
        assert done.returncode == 0
        assert f"Valid replica already elected for partitions {topic}-1" in done.stdout
    everything = shell(ELECTION, *at, "--election-type", "preferred", "--all-topic-partitions")
    assert everything.returncode == 0
    unknown = ("--election-type", "preferred", "--topic", topic, "--partition", "2")
    done = shell(ELECTION, *at, *unknown)
    assert done.returncode == 1
    assert f"No such partition as {topic}-2" in done.stdout


def test_what_is_so_already_can_be_reassigned(
    shell: tools.RunTool, at: tuple[str, str], make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = make_topic()
    plan = tmp_path / "plan.json"

    def reassign(replicas: list[int], action: str) -> str:
        partition = {"topic": topic, "partition": 0, "replicas": replicas}
        plan.write_text(json.dumps({"version": 1, "partitions": [partition]}))
        return shell(REASSIGNMENT, *at, "--reassignment-json-file", plan, action).stdout

    assert f"Successfully started partition reassignment for {topic}-0" in reassign(
        [1], "--execute"
    )
    assert f"Reassignment of partition {topic}-0 is completed." in reassign([1], "--verify")
    assert "Unknown broker id 99" in reassign([99], "--execute")
    assert "None of the specified partition reassignments are active." in reassign([1], "--cancel")
    assert "No partition reassignments found." in shell(REASSIGNMENT, *at, "--list").stdout


@pytest.mark.skipif("PENSTOCK_TEST_BOOTSTRAP" in os.environ, reason="Kafka has a quorum")
@pytest.mark.parametrize("what", ["--status", "--replication"])
def test_quorum_is_refused_as_missing(shell: tools.RunTool, at: tuple[str, str], what: str) -> None:
    done = shell(QUORUM, *at, "describe", what)
    assert done.returncode == 1
    assert "UnsupportedVersionException: There is no quorum of controllers here" in done.stdout
