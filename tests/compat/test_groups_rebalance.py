"""What members of a group do to each other: join, leave, vanish, come back. Kafka 4.1's own.

librdkafka through confluent-kafka, in both protocols.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from tests.compat import confluent
from tests.compat.conftest import create
from tests.compat.groups import (
    CONSUMER,
    COOPERATIVE,
    RANGE,
    WAIT,
    Group,
    MakeGroup,
    eventually,
)

both_protocols = pytest.mark.parametrize(
    "way", [COOPERATIVE, CONSUMER], ids=["classic", "consumer"]
)

# Whoever is no longer a member may not commit: the code depends on what the client still hopes.
FENCED = {
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.STALE_MEMBER_EPOCH,
    KafkaError._STATE,
    KafkaError._NO_OFFSET,
    KafkaError._ASSIGNMENT_LOST,
}


def commit_refused(group: Group, commit: Any) -> int:
    with pytest.raises(KafkaException) as raised:
        commit()
    return int(raised.value.args[0].code())


# --- who comes and goes ---


def test_eager_members_give_up_everything_when_one_joins(make_group: MakeGroup) -> None:
    group = make_group(partitions=6)
    first = group.join(RANGE)
    group.settle()
    second = group.join(RANGE)
    group.settle()
    assert first.told("revoked") == [frozenset((group.topic, n) for n in range(6))]
    assert len(second.owned) == 3
    group.leave(second)
    group.settle()
    assert len(first.owned) == 6


@both_protocols
def test_nobody_loses_a_partition_it_keeps(make_group: MakeGroup, way: dict[str, Any]) -> None:
    """Cooperative rebalancing (KIP-429) and KIP-848: only what moves is revoked."""
    group = make_group(partitions=6)
    first = group.join(way)
    group.settle()
    kept = first.owned
    second = group.join(way)
    group.settle()
    given = frozenset().union(*first.told("revoked"))
    assert given == kept - first.owned == second.owned
    assert len(given) == 3
    third = group.join(way)
    group.settle()
    for member in (first, second):
        assert not member.owned & frozenset().union(*member.told("revoked"))
    before = {member: (member.owned, len(member.told("revoked"))) for member in (first, second)}
    group.leave(third)
    group.settle()
    for member, (owned, revoked) in before.items():
        assert member.owned >= owned
        assert len(member.told("revoked")) == revoked


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
    group.settle()
    more()
    group.leave(group.members[0])
    more()
    group.settle()
    eventually(lambda: group.read().keys() == set(sent))
    assert group.read_twice() == {}


@both_protocols
def test_more_members_than_partitions(make_group: MakeGroup, way: dict[str, Any]) -> None:
    group = make_group(partitions=3)
    for _ in range(6):
        group.join(way)
    group.settle()
    busy = [member for member in group.members if member.owned]
    assert [len(member.owned) for member in busy] == [1, 1, 1]
    group.leave(busy[0])
    group.settle()


# --- static members (KIP-345) ---


@both_protocols
def test_a_static_member_restarts_without_a_rebalance(
    make_group: MakeGroup, way: dict[str, Any]
) -> None:
    group = make_group(partitions=4)
    named = [{**way, "group.instance.id": f"instance-{number}"} for number in range(2)]
    stays, goes = (group.join(settings) for settings in named)
    group.settle()
    had = goes.owned
    told = len(stays.events)
    group.leave(goes)  # it does not leave: a static member is expected back
    back = group.join(named[1])
    group.settle()
    assert back.owned == had
    assert len(stays.events) == told


def test_of_two_static_members_with_one_name_the_older_is_fenced(make_group: MakeGroup) -> None:
    group = make_group(partitions=2)
    named = {**COOPERATIVE, "group.instance.id": "instance"}
    older = group.join(named)
    group.settle()
    newer = group.join(named)
    eventually(lambda: older.errors)
    assert older.errors[0].code() == KafkaError._FATAL
    assert "fenced" in older.errors[0].str()
    group.settle(among=[newer])


def test_of_two_static_consumers_with_one_name_the_newer_is_refused(make_group: MakeGroup) -> None:
    group = make_group(partitions=2)
    named = {**CONSUMER, "group.instance.id": "instance"}
    older = group.join(named)
    group.settle()
    newer = group.join(named)
    eventually(lambda: newer.errors)
    assert newer.errors[0].code() == KafkaError._FATAL
    assert "still used by another member" in newer.errors[0].str()
    group.settle(among=[older])


# --- members that are thrown out ---


@pytest.mark.parametrize(
    "way", [RANGE, COOPERATIVE, CONSUMER], ids=["range", "cooperative", "consumer"]
)
def test_a_member_that_does_not_poll_is_out_and_may_not_commit(
    make_group: MakeGroup, way: dict[str, Any]
) -> None:
    group = make_group(partitions=2)
    impatient = {"max.poll.interval.ms": 1500}
    if way is not CONSUMER:
        impatient["session.timeout.ms"] = 1500  # may not be longer
    slow = group.join({**way, **impatient})
    group.settle()
    confluent.send_all(
        confluent.producer(group.bootstrap), [{"topic": group.topic, "value": b""}] * 10
    )
    eventually(lambda: len(slow.records) == 10)
    slow.stop_polling()
    other = group.join(way)
    eventually(lambda: len(other.owned) == 2)
    refused = commit_refused(
        group, lambda: slow.commit([TopicPartition(group.topic, n, 1) for n in range(2)])
    )
    assert refused in FENCED
    other.commit([TopicPartition(group.topic, n, 3) for n in range(2)])
    slow.go_on_polling()
    group.settle()
    # Its own clock, which it looks at every half second, threw it out, or the coordinator's did:
    too_late = any(error.code() == KafkaError._MAX_POLL_EXCEEDED for error in slow.errors)
    assert too_late or slow.told("lost")
    assert slow.committed(group.topic, 2) == [3, 3]


@contextmanager
def member_process(
    group: Group, settings: dict[str, Any], directory: Path
) -> Iterator[subprocess.Popen[str]]:
    """A member in a process of its own, which can be stopped or killed; it has partitions.

    It commits what a line on its input says (JSON: partition → offset) and answers with the code.
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
from confluent_kafka import Consumer, KafkaException, TopicPartition
arguments = json.loads(sys.argv[1])
consumer = Consumer(arguments["settings"])
consumer.subscribe([arguments["topic"]])
told = False
while True:
    consumer.poll(0.05)
    if not told and consumer.assignment():
        told = True
        print("assigned", flush=True)
    if select.select([sys.stdin], [], [], 0)[0]:
        wanted = json.loads(sys.stdin.readline() or sys.exit())
        offsets = [TopicPartition(arguments["topic"], int(n), o) for n, o in wanted.items()]
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
        group.settle()
        other.commit([TopicPartition(group.topic, n, 3) for n in range(2)])
        # The commit is the first thing it sees when it goes on.
        process.stdin.write('{"0": 1, "1": 1}\n')
        process.stdin.flush()
        os.kill(process.pid, signal.SIGCONT)
        assert int(process.stdout.readline()) in FENCED
        assert other.committed(group.topic, 2) == [3, 3]


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
        group.settle()


def short_session(group: Group, way: dict[str, Any]) -> dict[str, Any]:
    """Settings (or, for KIP-848, the group's own) that notice a dead member soon."""
    if way is not CONSUMER:
        return {"session.timeout.ms": 1500}
    set_group_config(group, "consumer.session.timeout.ms", "1500")
    return {}


def set_group_config(group: Group, name: str, value: str) -> None:
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, group.name, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": group.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(WAIT)


# --- topics that come and grow ---


@both_protocols
def test_a_topic_that_grows_is_shared_anew(
    make_group: MakeGroup, session_admin: AdminClient, way: dict[str, Any]
) -> None:
    group = make_group(partitions=2)
    for _ in range(2):
        group.join(way)
    group.settle()
    session_admin.create_partitions([NewPartitions(group.topic, 6)])[group.topic].result(WAIT)
    group.settle(partitions=6)
    confluent.send_all(
        confluent.producer(group.bootstrap),
        ({"topic": group.topic, "value": b"%d" % n, "partition": n} for n in range(6)),
    )
    eventually(lambda: len(group.read()) == 6)


@both_protocols
def test_a_pattern_finds_topics_also_new_ones(
    make_group: MakeGroup, session_admin: AdminClient, way: dict[str, Any]
) -> None:
    """Evaluated by the client in the classic protocol, by the broker in KIP-848's."""
    group = make_group(partitions=2)
    word = f"pattern-{uuid.uuid4().hex[:8]}"
    names = [f"{word}-{letter}" for letter in "abc"]
    for name in (*names[:2], f"not-{word}"):
        create(session_admin, name, 2)
    members = [group.join(way, [f"^{word}-.*"]) for _ in range(2)]

    def found() -> set[str]:
        return {topic for member in members for topic, _ in member.owned}

    eventually(lambda: found() == set(names[:2]))
    create(session_admin, names[2], 2)
    eventually(lambda: found() == set(names))
    eventually(lambda: [len(member.owned) for member in members] == [3, 3])
    group.close()
    for deleted in session_admin.delete_topics([*names, f"not-{word}"]).values():
        deleted.result(WAIT)


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
