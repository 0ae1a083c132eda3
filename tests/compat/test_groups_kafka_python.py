"""What kafka-python alone shows of groups, and its administration. Kafka 4.1's own answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import TopicPartition as Place
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import MemberToRemove, OffsetTimestamp
from kafka.errors import (
    FencedInstanceIdError,
    GroupSubscribedToTopicError,
    NoError,
    UnknownMemberIdError,
)
from kafka.protocol.consumer import OffsetSpec
from kafka.structs import OffsetAndMetadata, TopicPartition

from tests.compat.groups import MakeGroup, eventually

AT_ONE = OffsetAndMetadata(1, "", -1)


@pytest.fixture
def admin(bootstrap: str) -> Iterator[KafkaAdminClient]:
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as client:
        yield client


def fill(bootstrap: str, topic: str, partitions: int, count: int, **record: Any) -> None:
    with closing(KafkaProducer(bootstrap_servers=bootstrap)) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, partition=number % partitions, **record)


# --- members ---


def test_fenced_static_member_may_not_commit(make_group: MakeGroup) -> None:
    group = make_group(partitions=2, client="kafka-python")
    fenced = group.join({"group.instance.id": "stays", "session.timeout.ms": 120_000})
    group.wait_stable()
    usurper = group.join({"group.instance.id": "stays"})
    group.wait_stable(among=[usurper])
    with pytest.raises(FencedInstanceIdError):
        fenced.commit([Place(group.topic, 0, 1)])


def test_metadata_with_nul_comes_back(make_group: MakeGroup) -> None:
    group = make_group(partitions=1, client="kafka-python")
    member = group.join({})
    group.wait_stable()
    partition, noted = TopicPartition(group.topic, 0), OffsetAndMetadata(1, "a note: ünï\x00", 0)
    member.ask(lambda consumer: consumer.commit({partition: noted}))
    assert member.ask(lambda consumer: consumer.committed(partition, metadata=True)) == noted


def test_commit_in_the_background_calls_back(
    make_group: MakeGroup, admin: KafkaAdminClient
) -> None:
    group = make_group(partitions=1, client="kafka-python")
    fill(group.bootstrap, group.topic, 1, 10)
    member = group.join({"enable.auto.commit": True, "auto.commit.interval.ms": 3_600_000})
    eventually(lambda: len(member.records) == 10)
    answers: list[Any] = []
    offsets = {TopicPartition(group.topic, 0): AT_ONE}
    member.ask(lambda c: c.commit_async(offsets, lambda _, answer: answers.append(answer)))
    eventually(lambda: answers)
    assert answers == [None]  # no exception
    assert admin.list_group_offsets(group.name)[group.name] == offsets
    group.leave(member)  # and commits where it is
    [found] = admin.list_group_offsets(group.name)[group.name].values()
    assert found.offset == 10


# --- administration ---


def test_admin_lists_describes_and_deletes_groups(
    make_group: MakeGroup, admin: KafkaAdminClient
) -> None:
    group = make_group(partitions=2, client="kafka-python")
    topic, group_id = group.topic, group.name
    assert admin.describe_groups([group_id])[group_id]["group_state"] == "Dead"
    member = group.join({"client.id": "a-client"})
    group.wait_stable()
    listed = {group["group_id"]: group for group in admin.list_groups()}[group_id]
    assert (listed["protocol_type"], listed["group_state"]) == ("consumer", "Stable")
    assert listed["group_type"] == "classic"
    described = admin.describe_groups([group_id])[group_id]
    assert (described["group_state"], described["protocol_data"]) == ("Stable", "range")
    [shown] = described["members"]
    assert shown["client_id"] == "a-client"
    assert shown["client_host"].startswith("/")
    assert shown["member_id"].startswith("a-client-")
    assert admin.delete_groups([group_id]) == {group_id: "NonEmptyGroupError"}
    member.commit([Place(topic, 0, 0)])
    group.leave(member)
    assert admin.describe_groups([group_id])[group_id]["group_state"] == "Empty"
    assert group_id not in {
        group["group_id"] for group in admin.list_groups(states_filter=["Stable"])
    }
    assert group_id in {group["group_id"] for group in admin.list_groups(states_filter=["Empty"])}
    assert group_id not in {
        group["group_id"] for group in admin.list_groups(types_filter=["consumer"])
    }
    assert group_id in {group["group_id"] for group in admin.list_groups(types_filter=["classic"])}
    assert admin.delete_groups([group_id]) == {group_id: "OK"}
    assert admin.delete_groups([group_id]) == {group_id: "GroupIdNotFoundError"}
    assert group_id not in {group["group_id"] for group in admin.list_groups()}


def test_admin_alters_lists_resets_and_deletes_offsets(
    make_group: MakeGroup, admin: KafkaAdminClient
) -> None:
    group = make_group(partitions=3, client="kafka-python")
    topic, group_id = group.topic, group.name
    zero, one, two = (TopicPartition(topic, number) for number in range(3))
    for stamp in (1000, 2000, 3000, 4000):
        fill(group.bootstrap, topic, 3, 3, timestamp_ms=stamp)
    wanted = {zero: OffsetAndMetadata(1, "first", -1), one: OffsetAndMetadata(2, "", -1)}
    assert set(admin.alter_group_offsets(group_id, wanted).values()) == {NoError}
    other = f"{group_id}-other"
    admin.alter_group_offsets(other, {two: OffsetAndMetadata(4, "", -1)})
    found = admin.list_group_offsets([group_id, other])
    assert found[group_id] == wanted
    assert {partition: at.offset for partition, at in found[other].items()} == {two: 4}
    [unknown] = admin.list_group_offsets({group_id: [two]})[group_id].values()
    assert unknown.offset == -1
    reset = admin.reset_group_offsets(
        group_id, {zero: OffsetSpec.LATEST, one: OffsetTimestamp(3500), two: 2}
    )
    assert {partition: at["offset"] for partition, at in reset.items()} == {zero: 4, one: 3, two: 2}
    member = group.join({})
    group.wait_stable()
    refused = admin.delete_group_offsets(group_id, [zero])
    assert refused == {zero: GroupSubscribedToTopicError}
    refused = admin.alter_group_offsets(group_id, {zero: OffsetAndMetadata(0, "", -1)})
    assert refused == {zero: UnknownMemberIdError}
    group.leave(member)
    assert admin.delete_group_offsets(group_id, [zero, one]) == {zero: NoError, one: NoError}
    assert set(admin.list_group_offsets(group_id)[group_id]) == {two}


def test_admin_removes_members(make_group: MakeGroup, admin: KafkaAdminClient) -> None:
    group = make_group(partitions=2, client="kafka-python")
    _, goes = (group.join({"group.instance.id": name}) for name in ("stays", "goes"))
    group.wait_stable()
    group.leave(goes)
    answer = admin.remove_group_members(
        group.name,
        [
            MemberToRemove(group_instance_id="goes", reason="moved away"),
            MemberToRemove(group_instance_id="nobody"),
        ],
    )
    assert sorted(error.__name__ for error in answer.values()) == [
        "NoError",
        "UnknownMemberIdError",
    ]
    group.wait_stable()
