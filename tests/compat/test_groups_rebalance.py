"""What members of a group do to each other: join, leave, vanish, come back. Kafka 4.1's own.

librdkafka through confluent-kafka, in both protocols.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.compat import confluent
from tests.compat.conftest import create
from tests.compat.groups import (
    CONSUMER,
    COOPERATIVE,
    FENCED,
    WAIT,
    Group,
    MakeGroup,
    eventually,
    set_group_config,
)

both_protocols = pytest.mark.parametrize(
    "way", [COOPERATIVE, CONSUMER], ids=["classic", "consumer"]
)

# --- who comes and goes ---


@both_protocols
def test_no_partition_has_two_owners_while_members_come_and_go(
    make_group: MakeGroup, way: dict[str, Any]
) -> None:
    """Each member commits what it read before it gives a partition up: nothing is read twice."""
    group = make_group(partitions=8)
    producer = confluent.producer(group.bootstrap)
    sent: list[bytes] = []

    def more() -> None:
        values = [b"%d" % number for number in range(len(sent), len(sent) + 80)]
        sent.extend(values)
        confluent.send_all(
            producer,
            ({"topic": group.topic, "value": v, "partition": int(v) % 8} for v in values),
        )

    committing = {**way, "enable.auto.commit": True, "auto.commit.interval.ms": 3_600_000}
    for _ in range(3):
        group.join(committing)
        more()
    group.wait_stable()
    more()
    group.leave(group.members[0])
    more()
    group.wait_stable()
    eventually(lambda: group.read().keys() == set(sent))
    assert group.read_twice() == {}


@both_protocols
def test_more_members_than_partitions(make_group: MakeGroup, way: dict[str, Any]) -> None:
    group = make_group(partitions=3)
    for _ in range(6):
        group.join(way)
    group.wait_stable()
    busy = [member for member in group.members if member.owned]
    assert [len(member.owned) for member in busy] == [1, 1, 1]
    group.leave(busy[0])
    group.wait_stable()


# --- static members (KIP-345) ---


def test_of_two_static_members_with_one_name_the_older_is_fenced(make_group: MakeGroup) -> None:
    group = make_group(partitions=2)
    named = {**COOPERATIVE, "group.instance.id": "instance"}
    older = group.join(named)
    group.wait_stable()
    newer = group.join(named)
    eventually(lambda: older.errors)
    assert older.errors[0].code() == KafkaError._FATAL
    assert "fenced" in older.errors[0].str()
    group.wait_stable(among=[newer])


def test_of_two_static_consumers_with_one_name_the_newer_is_refused(make_group: MakeGroup) -> None:
    group = make_group(partitions=2)
    named = {**CONSUMER, "group.instance.id": "instance"}
    older = group.join(named)
    group.wait_stable()
    newer = group.join(named)
    eventually(lambda: newer.errors)
    assert newer.errors[0].code() == KafkaError._FATAL
    assert "still used by another member" in newer.errors[0].str()
    group.wait_stable(among=[older])


# --- members that are thrown out ---


@contextmanager
def member_process(
    group: Group, settings: dict[str, Any], directory: Path
) -> Iterator[subprocess.Popen[str]]:
    """A member in a process of its own, which can be stopped or killed; it has partitions.

    It commits what a line on its input says (JSON: partition → offset) and answers with the code;
    with _ASSIGNMENT_LOST where it was told before that it has lost its partitions: by then it may
    have joined anew, and Kafka would take the commit.
    """
    program = directory / "member.py"
    program.write_text(_MEMBER)
    arguments = json.dumps(
        {
            "topic": group.topic,
            "settings": {
                "bootstrap.servers": group.bootstrap,
                "group.id": group.name,
                "enable.auto.commit": False,
                **settings,
            },
        }
    )
    with subprocess.Popen(
        [sys.executable, program, arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "assigned\n"
            yield process
        finally:
            process.kill()


_MEMBER = """
import json, select, sys
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
arguments = json.loads(sys.argv[1])
consumer = Consumer(arguments["settings"])
lost = []
consumer.subscribe([arguments["topic"]], on_lost=lambda _, partitions: lost.append(partitions))
told = False
while True:
    consumer.poll(0.05)
    if not told and consumer.assignment():
        told = True
        print("assigned", flush=True)
    if select.select([sys.stdin], [], [], 0)[0]:
        wanted = json.loads(sys.stdin.readline() or sys.exit())
        offsets = [TopicPartition(arguments["topic"], int(n), o) for n, o in wanted.items()]
        if lost:
            print(KafkaError._ASSIGNMENT_LOST, flush=True)
            continue
        try:
            consumer.commit(offsets=offsets, asynchronous=False)
            print(0, flush=True)
        except KafkaException as refused:
            print(refused.args[0].code(), flush=True)
"""


@both_protocols
def test_a_member_that_stops_is_replaced_and_fenced_when_it_goes_on(
    make_group: MakeGroup,
    tmp_path: Path,
    way: dict[str, Any],
) -> None:
    group = make_group(partitions=2)
    settings = {**way, **short_session(group, way)}
    with member_process(group, settings, tmp_path) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        os.kill(process.pid, signal.SIGSTOP)
        other = group.join(way)
        group.wait_stable()
        if way is CONSUMER:  # the group's limit is for `other`, too, which is not to be late
            set_group_config(group, "consumer.session.timeout.ms", "10000")
        other.commit([TopicPartition(group.topic, n, 3) for n in range(2)])
        # The commit is the first thing it sees when it goes on.
        process.stdin.write('{"0": 1, "1": 1}\n')
        process.stdin.flush()
        os.kill(process.pid, signal.SIGCONT)
        assert int(process.stdout.readline()) in FENCED
        assert other.committed(2) == [3, 3]


@both_protocols
def test_a_member_that_is_killed_is_replaced(
    make_group: MakeGroup, tmp_path: Path, way: dict[str, Any]
) -> None:
    group = make_group(partitions=2)
    settings = {**way, **short_session(group, way)}
    with member_process(group, settings, tmp_path) as process:
        other = group.join(way)
        eventually(lambda: len(other.owned) == 1)
        process.kill()
        process.wait(WAIT)
        group.wait_stable()


def short_session(group: Group, way: dict[str, Any]) -> dict[str, Any]:
    """Settings (or, for KIP-848, the group's own) that notice a dead member soon."""
    if way is not CONSUMER:
        return {"session.timeout.ms": 1500}
    set_group_config(group, "consumer.session.timeout.ms", "1500")
    return {}


# --- topics that come and grow ---


@both_protocols
def test_a_topic_may_be_subscribed_before_it_exists(
    make_group: MakeGroup, session_admin: AdminClient, topic_name: str, way: dict[str, Any]
) -> None:
    group = make_group(partitions=1)
    member = group.join(way, [topic_name])
    create(session_admin, topic_name, 2)
    confluent.send_all(
        confluent.producer(group.bootstrap), [{"topic": topic_name, "value": b"first"}]
    )
    eventually(lambda: group.read() == {b"first": 1})
    assert len(member.owned) == 2
    session_admin.delete_topics([topic_name])[topic_name].result(WAIT)
    eventually(lambda: not member.owned)


def test_a_pattern_that_re2_does_not_know_is_refused(make_group: MakeGroup) -> None:
    """librdkafka itself would take a back reference; in KIP-848 the broker decides."""
    member = make_group(partitions=1).join(CONSUMER, ["^(a)\\1"])
    eventually(lambda: member.errors)
    assert member.errors[0].code() in (KafkaError._FATAL, KafkaError.INVALID_REGULAR_EXPRESSION)
    assert "regular expression" in member.errors[0].str().lower()
