"""What every stock client does in a group, in each protocol. Expectations: Apache Kafka 4.1's own.

What only some clients can do, or show, is in the test_groups_* of each.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_INVALID,
    ConsumerGroupState,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewPartitions

from tests.compat import confluent
from tests.compat.conftest import MakeTopic, create
from tests.compat.groups import (
    AIOKAFKA,
    CONSUMER,
    EVERY_WAY,
    FENCED,
    KAFKA_PYTHON,
    LIBRDKAFKA,
    WAIT,
    Group,
    MakeGroup,
    Way,
    eventually,
    set_group_config,
)
from tests.variants import variants

EAGER, COOPERATIVE, BROKERS = LIBRDKAFKA


def ways(*chosen: Way) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("way", chosen, ids=str)


every_client = ways(COOPERATIVE, BROKERS, AIOKAFKA, KAFKA_PYTHON)


def fill(group: Group, count: int, start: int = 0, **record: Any) -> set[bytes | None]:
    """Numbered records over all partitions of the group's topic; gives their values."""
    values = [b"%d" % number for number in range(start, start + count)]
    confluent.send_all(
        confluent.producer(group.bootstrap, linger_ms=5),
        (
            {"topic": group.topic, "value": value, "partition": int(value) % group.partitions}
            | record
            for value in values
        ),
    )
    return set(values)


# --- reading ---


@pytest.mark.parametrize("way", [*EVERY_WAY[:-3], *variants(*EVERY_WAY[-3:])], ids=str)
def test_members_share_read_commit_and_go_on(make_group: MakeGroup, way: Way) -> None:
    group = make_group(partitions=6, client=way.client)
    sent = fill(group, 60)
    for _ in range(3):
        group.join(way.settings)
    group.wait_stable()
    sent |= fill(group, 60, start=60)
    eventually(lambda: group.read().keys() >= sent)
    for member in group.members:
        member.commit()
    assert [len(member.owned) for member in group.members] == [2, 2, 2]
    stays, *go = group.members
    assert stays.committed(6) == [20] * 6
    assert not any(member.errors for member in group.members)
    for member in go:
        group.leave(member)
    group.wait_stable()
    before = len(stays.records)
    after = fill(group, 60, start=120)
    eventually(lambda: {record.value for record in stays.records[before:]} >= after)
    assert {record.value for record in stays.records[before:]} == after
    stays.commit()
    group.leave(stays)
    last = fill(group, 30, start=180)
    later = group.join(way.settings)
    eventually(lambda: len(later.records) >= len(last))
    assert {record.value for record in later.records} == last
    offsets = [record.offset for record in later.records if record.partition == 0]
    assert offsets == list(range(30, 35))


@every_client
def test_seek_position_times_and_committed(make_group: MakeGroup, way: Way) -> None:
    group = make_group(partitions=1, client=way.client)
    for number in range(10):
        fill(group, 1, start=number, timestamp=1000 * (number + 1))
    member = group.join(way.settings)
    eventually(lambda: len(member.records) == 10)
    assert member.committed(1) == [OFFSET_INVALID]
    assert member.ask_reader(lambda reader: reader.position(0)) == 10
    assert member.ask_reader(lambda reader: reader.offset_at(6500)) == 6
    member.commit()
    member.ask_reader(lambda reader: reader.seek(0, 6))
    eventually(lambda: len(member.records) == 14)
    assert [record.offset for record in member.records[10:]] == [6, 7, 8, 9]
    member.commit([TopicPartition(group.topic, 0, 2)])  # committed offsets may go back
    assert member.committed(1) == [2]


@every_client
def test_metadata_comes_back_with_the_offset(make_group: MakeGroup, way: Way) -> None:
    group = make_group(partitions=2, client=way.client)
    member = group.join(way.settings)
    group.wait_stable()
    words = "state of the application: ünï\x01"
    noted = TopicPartition(group.topic, 0, 5, metadata=words, leader_epoch=0)
    member.commit([noted, TopicPartition(group.topic, 1, 0)])
    assert member.ask_reader(lambda reader: reader.noted()) == (
        5,
        words,
        None if way is AIOKAFKA else 0,
    )
    assert member.committed(2) == [5, 0]


@every_client
@pytest.mark.parametrize("interval_ms", [100, 3_600_000], ids=["by interval", "by closing"])
def test_auto_commit(make_group: MakeGroup, way: Way, interval_ms: int) -> None:
    group = make_group(partitions=2, client=way.client)
    sent = fill(group, 20)
    automatic = {"enable.auto.commit": True, "auto.commit.interval.ms": interval_ms}
    member = group.join({**way.settings, **automatic})
    eventually(lambda: group.read().keys() == sent)
    if interval_ms == 100:
        eventually(lambda: member.committed(2) == [10, 10])
    group.leave(member)
    with confluent.consumer(group.bootstrap, group_id=group.name) as asking:
        found = asking.committed([TopicPartition(group.topic, n) for n in range(2)], timeout=WAIT)
    assert [partition.offset for partition in found] == [10, 10]


# --- members that come and go ---


@ways(EAGER, AIOKAFKA)
def test_eager_members_give_up_everything_when_one_joins(make_group: MakeGroup, way: Way) -> None:
    group = make_group(partitions=6, client=way.client)
    first = group.join(way.settings)
    group.wait_stable()
    second = group.join(way.settings)
    group.wait_stable()
    assert first.told("revoked") == [frozenset((group.topic, n) for n in range(6))]
    assert len(second.owned) == 3
    group.leave(second)
    group.wait_stable()
    assert len(first.owned) == 6


@ways(COOPERATIVE, BROKERS, EVERY_WAY[-1])
def test_only_moving_partitions_are_revoked(make_group: MakeGroup, way: Way) -> None:
    """Cooperative rebalancing (KIP-429) and KIP-848: only what moves is revoked."""
    group = make_group(partitions=6, client=way.client)
    first = group.join(way.settings)
    group.wait_stable()
    kept = first.owned
    second = group.join(way.settings)
    group.wait_stable()
    given = frozenset().union(*first.told("revoked"))
    assert given == kept - first.owned == second.owned
    assert len(given) == 3
    third = group.join(way.settings)
    group.wait_stable()
    for member in (first, second):
        assert not member.owned & frozenset().union(*member.told("revoked"))
    before = {member: (member.owned, len(member.told("revoked"))) for member in (first, second)}
    group.leave(third)
    group.wait_stable()
    for member, (owned, revoked) in before.items():
        assert member.owned >= owned
        assert len(member.told("revoked")) == revoked


@every_client
def test_static_member_restarts_without_a_rebalance(make_group: MakeGroup, way: Way) -> None:
    """KIP-345."""
    group = make_group(partitions=4, client=way.client)
    # On a busy machine it may be away for 10 s.
    away = {"session.timeout.ms": 120_000}
    if way.settings == CONSUMER:
        away = {}
        set_group_config(group, "consumer.session.timeout.ms", "60000")
    named = [{**way.settings, **away, "group.instance.id": f"instance-{n}"} for n in range(2)]
    stays, goes = (group.join(settings) for settings in named)
    group.wait_stable()
    told = -1
    while told != len(stays.events):  # a rebalance may go on with nothing new for anybody
        told = len(stays.events)
        time.sleep(1)
    had = goes.owned
    group.leave(goes)  # it does not leave: a static member is expected back
    back = group.join(named[1])
    group.wait_stable()
    assert back.owned == had
    assert len(stays.events) == told


@ways(EAGER, COOPERATIVE, BROKERS, AIOKAFKA, KAFKA_PYTHON)
def test_member_that_does_not_poll_is_out_and_may_not_commit(
    make_group: MakeGroup, session_admin: AdminClient, way: Way
) -> None:
    group = make_group(partitions=2, client=way.client)
    fill(group, 10)
    impatient = {"max.poll.interval.ms": 1500}
    if way.settings != CONSUMER:
        impatient["session.timeout.ms"] = 1500  # may not be longer
    slow = group.join({**way.settings, **impatient})
    eventually(lambda: len(slow.records) >= 10)  # it may have been out already, and come back
    slow.stop_polling()
    if way is AIOKAFKA:  # it rejoins by itself: another's coming would bring it back
        eventually(lambda: is_empty(session_admin, group))
    other = group.join(way.settings)
    eventually(lambda: len(other.owned) == 2)
    with pytest.raises(Exception) as refused:
        slow.commit([TopicPartition(group.topic, n, 1) for n in range(2)])
    if isinstance(refused.value, KafkaException):
        assert refused.value.args[0].code() in FENCED
    else:
        assert type(refused.value).__name__ == "CommitFailedError"
    assert other.committed(2) == [OFFSET_INVALID] * 2
    other.commit([TopicPartition(group.topic, n, 3) for n in range(2)])
    assert other.committed(2) == [3, 3]
    if way.client == "confluent":
        slow.go_on_polling()
        group.wait_stable()
        # Its own clock, looked at every half second, threw it out, or the coordinator's did:
        too_late = any(error.code() == KafkaError._MAX_POLL_EXCEEDED for error in slow.errors)
        assert too_late or slow.told("lost")
        assert slow.committed(2) == [3, 3]


def is_empty(admin: AdminClient, group: Group) -> bool:
    [described] = admin.describe_consumer_groups([group.name]).values()
    return bool(described.result(WAIT).state == ConsumerGroupState.EMPTY)


# --- topics that come and grow ---


@ways(COOPERATIVE, BROKERS)
def test_topic_that_grows_is_shared_anew(
    make_group: MakeGroup, session_admin: AdminClient, way: Way
) -> None:
    group = make_group(partitions=2, client=way.client)
    for _ in range(2):
        group.join(way.settings)
    group.wait_stable()
    session_admin.create_partitions([NewPartitions(group.topic, 6)])[group.topic].result(WAIT)
    group.wait_stable(partitions=6)
    group.partitions = 6
    sent = fill(group, 6)
    eventually(lambda: group.read().keys() == sent)


@ways(COOPERATIVE, BROKERS, AIOKAFKA, KAFKA_PYTHON)
def test_pattern_finds_new_topics_and_partitions(
    make_group: MakeGroup,
    make_topic: MakeTopic,
    session_admin: AdminClient,
    topic_name: str,
    way: Way,
) -> None:
    """Evaluated by the client in the classic protocol, by the broker in KIP-848's."""
    first, second = make_topic(2), make_topic(2)
    group = make_group(partitions=2, topic=first, client=way.client)
    other = f"not-{topic_name}"
    create(session_admin, other, 2)
    members = [group.join(way.settings, [f"^{topic_name}-.*"]) for _ in range(2)]

    def found() -> set[tuple[str, int]]:
        return {place for member in members for place in member.owned}

    wanted = {(topic, number) for topic in (first, second) for number in range(2)}
    eventually(lambda: found() == wanted)
    third = make_topic(2)
    wanted |= {(third, 0), (third, 1)}
    eventually(lambda: found() == wanted)
    eventually(lambda: [len(member.owned) for member in members] == [3, 3])
    session_admin.create_partitions([NewPartitions(first, 4)])[first].result(WAIT)
    wanted |= {(first, 2), (first, 3)}
    eventually(lambda: found() == wanted)
    group.close()
    session_admin.delete_topics([other])[other].result(WAIT)
