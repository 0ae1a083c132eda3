"""confluent-kafka in groups: reading by subscription, and offsets. Expectations: Kafka 4.1's own.

Most of it in both protocols. What members do to each other is in test_groups_rebalance.py; what
every client does in a group, in test_groups_every_client.py.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_INVALID,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from tests.compat import confluent
from tests.compat.conftest import MakeTopic
from tests.compat.groups import (
    CONSUMER,
    COOPERATIVE,
    RANGE,
    WAIT,
    Group,
    MakeGroup,
    Member,
    eventually,
)

both_protocols = pytest.mark.parametrize(
    "way", [COOPERATIVE, CONSUMER], ids=["classic", "consumer"]
)


def fill(group: Group, count: int, start: int = 0) -> set[bytes]:
    """Numbered records over all partitions of the group's topic; gives their values."""
    values = [b"%d" % number for number in range(start, start + count)]
    confluent.send_all(
        confluent.producer(group.bootstrap, linger_ms=5),
        (
            {"topic": group.topic, "value": value, "partition": number % group.partitions}
            for number, value in enumerate(values)
        ),
    )
    return set(values)


@both_protocols
def test_what_was_not_committed_is_read_again(make_group: MakeGroup, way: dict[str, Any]) -> None:
    group = make_group(partitions=1)
    sent = fill(group, 10)
    member = group.join(way)
    eventually(lambda: group.read().keys() == sent)
    member.commit([TopicPartition(group.topic, 0, 4)])
    group.leave(member)
    later = group.join(way)
    eventually(lambda: len(later.records) == 6)
    assert [record.offset for record in later.records] == [4, 5, 6, 7, 8, 9]


@both_protocols
def test_commits_in_the_background_call_back(make_group: MakeGroup, way: dict[str, Any]) -> None:
    called = threading.Event()
    answers: list[tuple[KafkaError | None, list[TopicPartition]]] = []

    def on_commit(error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        answers.append((error, partitions))
        called.set()

    group = make_group(partitions=2)
    sent = fill(group, 10)
    member = group.join({**way, "on_commit": on_commit})
    eventually(lambda: group.read().keys() == sent)
    member.ask(lambda consumer: consumer.commit(asynchronous=True))
    assert called.wait(WAIT)
    [(error, partitions)] = answers
    assert error is None
    assert sorted((found.partition, found.offset) for found in partitions) == [(0, 5), (1, 5)]
    assert member.committed(2) == [5, 5]


@both_protocols
def test_offsets_are_stored_by_hand_and_committed_together(
    make_group: MakeGroup, way: dict[str, Any]
) -> None:
    group = make_group(partitions=1)
    sent = fill(group, 10)
    member = group.join({**way, "enable.auto.offset.store": False})
    eventually(lambda: group.read().keys() == sent)
    stored = [TopicPartition(group.topic, 0, 3)]
    member.ask(lambda consumer: consumer.store_offsets(offsets=stored))
    member.commit()
    assert member.committed(1) == [3]


@both_protocols
def test_metadata_above_its_limit_is_refused(make_group: MakeGroup, way: dict[str, Any]) -> None:
    group = make_group(partitions=2)
    member = group.join(way)
    group.wait_stable()
    # offset.metadata.max.bytes is 4096, and this client sends a NUL after the text.
    fits, long = "x" * 4095, "x" * 4096
    with pytest.raises(KafkaException) as refused:
        member.commit(
            [
                TopicPartition(group.topic, 0, 1, metadata=fits),
                TopicPartition(group.topic, 1, 1, metadata=long),
            ]
        )
    assert refused.value.args[0].code() == KafkaError.OFFSET_METADATA_TOO_LARGE
    assert member.committed(2) == [1, OFFSET_INVALID]


def test_an_assigned_consumer_commits_without_being_a_member(
    bootstrap: str, topic: str, group_id: str
) -> None:
    confluent.send_all(confluent.producer(bootstrap), [{"topic": topic, "value": b""}] * 5)
    with confluent.consumer(bootstrap, group_id=group_id) as reader:
        reader.assign([TopicPartition(topic, 0, 0)])
        assert len(confluent.read_to_end(reader)) == 5
        [committed] = reader.commit(asynchronous=False)
        assert (committed.error, committed.offset) == (None, 5)
    with confluent.consumer(bootstrap, group_id=group_id) as reader:
        reader.assign([TopicPartition(topic, 0)])  # from what is committed
        confluent.send_all(confluent.producer(bootstrap), [{"topic": topic, "value": b"next"}])
        message = confluent.read_message(reader)
    assert (message.offset(), message.value()) == (5, b"next")


def test_a_commit_for_an_unknown_partition_is_refused(
    bootstrap: str, topic: str, topic_name: str, group_id: str
) -> None:
    known, unknown = TopicPartition(topic, 0, 1), TopicPartition(f"{topic_name}-unknown", 0, 1)
    with confluent.consumer(bootstrap, group_id=group_id) as client:
        for refused in ([known, TopicPartition(topic, 7, 1)], [unknown]):
            with pytest.raises(KafkaException) as raised:
                client.commit(offsets=refused, asynchronous=False)
            assert raised.value.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
        [committed] = client.committed([TopicPartition(topic, 0)], timeout=WAIT)
        assert committed.offset == 1  # beside the one that was refused


@both_protocols
def test_outsider_may_not_commit_while_there_are_members(
    make_group: MakeGroup, way: dict[str, Any]
) -> None:
    group = make_group(partitions=2)
    member = group.join(way)
    group.wait_stable()
    with (
        confluent.consumer(group.bootstrap, group_id=group.name) as outsider,
        pytest.raises(KafkaException) as raised,
    ):
        outsider.commit(offsets=[TopicPartition(group.topic, 0, 1)], asynchronous=False)
    assert raised.value.args[0].code() == KafkaError.UNKNOWN_MEMBER_ID
    assert member.committed(2) == [OFFSET_INVALID] * 2


@both_protocols
def test_a_member_joins_at_the_offsets_of_a_time(
    make_group: MakeGroup, way: dict[str, Any]
) -> None:
    group = make_group(partitions=2)
    for stamp in (1000, 2000, 3000, 4000):
        for number in range(2):
            record = {"topic": group.topic, "partition": number, "timestamp": stamp}
            confluent.send_all(confluent.producer(group.bootstrap), [{**record, "value": b""}])
    with confluent.consumer(group.bootstrap, group_id=group.name) as client:
        wanted = [TopicPartition(group.topic, 0, 2500), TopicPartition(group.topic, 1, 4000)]
        found = client.offsets_for_times(wanted, timeout=WAIT)
        client.commit(offsets=found, asynchronous=False)
    member = group.join(way)
    eventually(lambda: len(member.records) == 3)
    assert sorted((record.partition, record.offset) for record in member.records) == [
        (0, 2),
        (0, 3),
        (1, 3),
    ]


@both_protocols
def test_groups_do_not_know_of_each_other(make_group: MakeGroup, way: dict[str, Any]) -> None:
    one = make_group(partitions=2)
    other = make_group(partitions=2, topic=one.topic)
    sent = fill(one, 10)
    one.join(way)
    eventually(lambda: one.read().keys() == sent)
    one.members[0].commit()
    member = other.join(way)
    eventually(lambda: other.read().keys() == sent)
    assert member.committed(2) == [OFFSET_INVALID] * 2


@both_protocols
def test_without_a_commit_auto_offset_reset_decides(
    make_group: MakeGroup, way: dict[str, Any]
) -> None:
    group = make_group(partitions=1)
    fill(group, 10)
    member = group.join({**way, "auto.offset.reset": "latest"})
    group.wait_stable()
    # Where the log ends is looked up after the assignment: records from now on may be before that.
    eventually(lambda: _position(member, group.topic) == 10)
    later = fill(group, 5, start=10)
    eventually(lambda: len(member.records) == 5)
    assert set(group.read()) == later
    strict = make_group(partitions=1, topic=group.topic).join({**way, "auto.offset.reset": "error"})
    eventually(lambda: strict.errors)
    assert strict.errors[0].code() == KafkaError._AUTO_OFFSET_RESET


def _position(member: Member, topic: str) -> int:
    """Where the member's fetching has got to: librdkafka tells nothing until a record came."""
    partition = TopicPartition(topic, 0)
    _, high = member.ask(lambda consumer: consumer.get_watermark_offsets(partition, cached=True))
    return int(high)


@both_protocols
def test_a_member_changes_its_subscription(
    make_group: MakeGroup, make_topic: MakeTopic, way: dict[str, Any]
) -> None:
    group = make_group(partitions=2)
    other = make_topic(3)
    member = group.join(way)
    group.wait_stable()
    member.subscribe([other])
    eventually(lambda: {topic for topic, _ in member.owned} == {other})
    assert len(member.owned) == 3
    member.subscribe([group.topic, other])
    eventually(lambda: len(member.owned) == 5)
    member.ask(lambda consumer: consumer.unsubscribe())
    eventually(lambda: not member.owned)


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_the_assignor_is_the_brokers(
    make_group: MakeGroup, make_topic: MakeTopic, assignor: str
) -> None:
    """range: the same partitions of both topics at one member (co-partitioning)."""
    group = make_group(partitions=4)
    other = make_topic(4)
    topics = [group.topic, other]
    for _ in range(2):
        group.join({**CONSUMER, "group.remote.assignor": assignor}, topics)
    eventually(lambda: [len(member.owned) for member in group.members] == [4, 4])
    if assignor == "range":
        for member in group.members:
            numbers = [{n for topic, n in member.owned if topic == wanted} for wanted in topics]
            assert numbers[0] == numbers[1]


def test_an_unknown_assignor_is_refused(make_group: MakeGroup) -> None:
    member = make_group(partitions=1).join({**CONSUMER, "group.remote.assignor": "sticky"})
    eventually(lambda: member.errors)
    assert member.errors[0].code() == KafkaError._FATAL
    assert "The assignor or its version range is not supported" in member.errors[0].str()


def test_members_that_agree_on_no_assignor_are_refused(make_group: MakeGroup) -> None:
    group = make_group(partitions=2)
    group.join(RANGE)
    group.wait_stable()
    stranger = group.join({**RANGE, "partition.assignment.strategy": "roundrobin"})
    eventually(lambda: stranger.errors)
    assert stranger.errors[0].code() == KafkaError.INCONSISTENT_GROUP_PROTOCOL
