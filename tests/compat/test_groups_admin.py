"""confluent-kafka's AdminClient and groups: list, describe, delete, offsets. Kafka 4.1's own."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConsumerGroupDescription,
    ConsumerGroupListing,
    ResourceType,
)

from tests.compat.groups import CONSUMER, COOPERATIVE, WAIT, Group, MakeGroup, eventually

both_protocols = pytest.mark.parametrize(
    "way", [COOPERATIVE, CONSUMER], ids=["classic", "consumer"]
)


def listed(admin: AdminClient, **filters: Any) -> dict[str, ConsumerGroupListing]:
    found = admin.list_consumer_groups(request_timeout=WAIT, **filters).result(WAIT)
    assert not found.errors
    return {listing.group_id: listing for listing in found.valid}


def described(admin: AdminClient, group: Group) -> ConsumerGroupDescription:
    asked = admin.describe_consumer_groups([group.name], request_timeout=WAIT)
    return asked[group.name].result(WAIT)


def offsets_of(
    admin: AdminClient, group: Group, partitions: list[int] | None = None
) -> dict[int, int]:
    """Committed offsets by partition; of all that have one, or those asked for."""
    wanted = None
    if partitions is not None:
        wanted = [TopicPartition(group.topic, number) for number in partitions]
    question = ConsumerGroupTopicPartitions(group.name, wanted)
    [answer] = admin.list_consumer_group_offsets([question], request_timeout=WAIT).values()
    return {found.partition: found.offset for found in answer.result(WAIT).topic_partitions}


def alter(admin: AdminClient, group: Group, offsets: dict[int, int]) -> None:
    wanted = [TopicPartition(group.topic, number, at) for number, at in offsets.items()]
    change = ConsumerGroupTopicPartitions(group.name, wanted)
    [answer] = admin.alter_consumer_group_offsets([change], request_timeout=WAIT).values()
    for found in answer.result(WAIT).topic_partitions:
        if found.error is not None:
            raise KafkaException(found.error)


def code(error: pytest.ExceptionInfo[KafkaException]) -> int:
    return int(error.value.args[0].code())


@both_protocols
def test_groups_are_listed_by_state_and_type(
    make_group: MakeGroup, session_admin: AdminClient, way: dict[str, Any]
) -> None:
    group = make_group(partitions=2)
    member = group.join(way)
    group.wait_stable()
    kind = ConsumerGroupType.CONSUMER if way is CONSUMER else ConsumerGroupType.CLASSIC
    other = ConsumerGroupType.CLASSIC if way is CONSUMER else ConsumerGroupType.CONSUMER
    eventually(lambda: listed(session_admin)[group.name].state is ConsumerGroupState.STABLE)
    found = listed(session_admin)[group.name]
    assert (found.type, found.is_simple_consumer_group) == (kind, False)
    assert group.name in listed(session_admin, states={ConsumerGroupState.STABLE})
    assert group.name not in listed(session_admin, states={ConsumerGroupState.EMPTY})
    assert group.name in listed(session_admin, types={kind})
    assert group.name not in listed(session_admin, types={other})
    member.commit([TopicPartition(group.topic, 0, 0)])
    group.leave(member)
    assert group.name in listed(session_admin, states={ConsumerGroupState.EMPTY})
    assert group.name not in listed(session_admin, states={ConsumerGroupState.STABLE})


@both_protocols
def test_members_are_described_with_their_assignment(
    make_group: MakeGroup, session_admin: AdminClient, way: dict[str, Any]
) -> None:
    group = make_group(partitions=4)
    group.join({**way, "client.id": "one", "group.instance.id": "static"})
    group.join({**way, "client.id": "two"})
    group.wait_stable()
    eventually(lambda: described(session_admin, group).state is ConsumerGroupState.STABLE)
    found = described(session_admin, group)
    assert found.type is (
        ConsumerGroupType.CONSUMER if way is CONSUMER else ConsumerGroupType.CLASSIC
    )
    assert found.partition_assignor == ("uniform" if way is CONSUMER else "cooperative-sticky")
    assert found.coordinator.id in session_admin.list_topics(timeout=WAIT).brokers
    by_client = {member.client_id: member for member in found.members}
    assert by_client.keys() == {"one", "two"}
    for member, joined in zip((by_client["one"], by_client["two"]), group.members, strict=True):
        assigned = {(p.topic, p.partition) for p in member.assignment.topic_partitions}
        assert assigned == joined.owned
        assert member.member_id == joined.ask(lambda consumer: consumer.memberid())
        assert member.host.startswith("/")
        if way is CONSUMER:
            target = {(p.topic, p.partition) for p in member.target_assignment.topic_partitions}
            assert target == joined.owned
    assert by_client["one"].group_instance_id == "static"
    assert by_client["two"].group_instance_id is None


@both_protocols
def test_a_group_with_members_is_not_deleted_and_an_empty_one_is(
    make_group: MakeGroup, session_admin: AdminClient, way: dict[str, Any]
) -> None:
    group = make_group(partitions=2)

    def delete() -> None:
        session_admin.delete_consumer_groups([group.name])[group.name].result(WAIT)

    with pytest.raises(KafkaException) as refused:
        delete()
    assert code(refused) == KafkaError.GROUP_ID_NOT_FOUND
    member = group.join(way)
    group.wait_stable()
    member.commit([TopicPartition(group.topic, 0, 1)])
    with pytest.raises(KafkaException) as refused:
        delete()
    assert code(refused) == KafkaError.NON_EMPTY_GROUP
    group.leave(member)
    delete()
    assert group.name not in listed(session_admin)
    assert offsets_of(session_admin, group) == {}
    assert described(session_admin, group).state is ConsumerGroupState.DEAD
    again = group.join(way)  # a new group of the same name
    group.wait_stable()
    assert again.committed(2) == [-1001, -1001]


@both_protocols
def test_offsets_are_altered_only_while_there_are_no_members(
    make_group: MakeGroup, session_admin: AdminClient, way: dict[str, Any]
) -> None:
    group = make_group(partitions=3)
    alter(session_admin, group, {0: 5, 1: 7})  # makes the group
    assert listed(session_admin)[group.name].state is ConsumerGroupState.EMPTY
    assert offsets_of(session_admin, group) == {0: 5, 1: 7}
    assert offsets_of(session_admin, group, [1, 2]) == {1: 7, 2: -1001}
    member = group.join(way)
    group.wait_stable()
    assert member.committed(3) == [5, 7, -1001]
    with pytest.raises(KafkaException) as refused:
        alter(session_admin, group, {0: 0})
    assert code(refused) == KafkaError.UNKNOWN_MEMBER_ID
    group.leave(member)
    alter(session_admin, group, {0: 2, 2: 9})
    assert offsets_of(session_admin, group) == {0: 2, 1: 7, 2: 9}


def test_a_group_that_only_has_offsets_is_simple(
    make_group: MakeGroup, session_admin: AdminClient
) -> None:
    group = make_group(partitions=1)
    alter(session_admin, group, {0: 5})
    found = listed(session_admin)[group.name]
    assert (found.is_simple_consumer_group, found.state, found.type) == (
        True,
        ConsumerGroupState.EMPTY,
        ConsumerGroupType.CLASSIC,
    )


def test_many_groups_are_described_and_deleted_at_once(
    make_group: MakeGroup, session_admin: AdminClient
) -> None:
    groups = [make_group(partitions=1) for _ in range(3)]
    for group in groups:
        alter(session_admin, group, {0: 1})
    names = [group.name for group in groups]
    states = {
        name: found.result(WAIT).state
        for name, found in session_admin.describe_consumer_groups(names).items()
    }
    assert states == dict.fromkeys(names, ConsumerGroupState.EMPTY)
    for deleted in session_admin.delete_consumer_groups(names).values():
        deleted.result(WAIT)
    assert not set(names) & listed(session_admin).keys()


def test_offsets_go_with_their_topic(make_group: MakeGroup, session_admin: AdminClient) -> None:
    group = make_group(partitions=2)
    alter(session_admin, group, {0: 5, 1: 7})
    session_admin.delete_topics([group.topic], operation_timeout=10)[group.topic].result(WAIT)
    eventually(lambda: offsets_of(session_admin, group) == {})


def test_a_groups_own_settings(make_group: MakeGroup, session_admin: AdminClient) -> None:
    """They shape how its members' sessions go (KIP-848); a value out of bounds is refused."""
    group = make_group(partitions=1)
    resource = ConfigResource(ResourceType.GROUP, group.name)

    def change(value: str | None) -> None:
        kind = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
        entry = ConfigEntry("consumer.session.timeout.ms", value, incremental_operation=kind)
        wanted = ConfigResource(ResourceType.GROUP, group.name, incremental_configs=[entry])
        session_admin.incremental_alter_configs([wanted])[wanted].result(WAIT)

    def current() -> str:
        found = session_admin.describe_configs([resource])[resource].result(WAIT)
        return str(found["consumer.session.timeout.ms"].value)

    before = current()
    change("7000")
    eventually(lambda: current() == "7000")
    with pytest.raises(KafkaException) as refused:
        change("1")
    assert code(refused) == KafkaError.INVALID_CONFIG
    change(None)
    eventually(lambda: current() == before)
