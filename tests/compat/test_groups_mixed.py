"""A group changes its protocol while it works (KIP-848): upgrade, downgrade, member by member.

librdkafka through confluent-kafka, which speaks both. Expectations are Apache Kafka 4.1's own.
"""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupType, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.compat import confluent
from tests.compat.groups import CONSUMER, COOPERATIVE, RANGE, WAIT, Group, MakeGroup, eventually

CLASSIC_WAYS = pytest.mark.parametrize(
    "classic", [RANGE, COOPERATIVE], ids=["range", "cooperative"]
)


def group_type(admin: AdminClient, group: Group) -> ConsumerGroupType:
    """What ListGroups says of it."""
    listed = admin.list_consumer_groups(request_timeout=WAIT).result(WAIT).valid
    [found] = [listing.type for listing in listed if listing.group_id == group.name]
    return ConsumerGroupType(found)


def send(group: Group, start: int, count: int = 40) -> set[bytes]:
    values = [b"%d" % number for number in range(start, start + count)]
    confluent.send_all(
        confluent.producer(group.bootstrap),
        (
            {"topic": group.topic, "value": value, "partition": int(value) % group.partitions}
            for value in values
        ),
    )
    return set(values)


def settle(admin: AdminClient, group: Group) -> None:
    """Until everybody owns what he is to own, and nobody is about to join again: the commit of one
    that leaves then may be refused, as one of the generation before."""
    group.wait_stable()

    def state() -> ConsumerGroupState:
        [described] = admin.describe_consumer_groups([group.name]).values()
        return ConsumerGroupState(described.result(WAIT).state)

    eventually(lambda: state() is ConsumerGroupState.STABLE)


def swap_one_by_one(admin: AdminClient, group: Group, new: dict[str, Any]) -> None:
    """Each member leaves and another takes its place; all read meanwhile, nothing twice."""
    settle(admin, group)
    sent = send(group, 0)
    for number, old in enumerate(list(group.members), start=1):
        eventually(lambda: group.read().keys() == sent)
        group.leave(old)  # and commits what it has
        group.join(new)
        settle(admin, group)
        sent.update(send(group, number * 40))
    eventually(lambda: group.read().keys() == sent)
    assert group.read_twice() == {}


def committing(way: dict[str, Any]) -> dict[str, Any]:
    return {**way, "enable.auto.commit": True, "auto.commit.interval.ms": 3_600_000}


@CLASSIC_WAYS
@pytest.mark.parametrize("together", [True, False], ids=["joined-at-once", "joined-in-turn"])
def test_a_classic_group_is_upgraded_member_by_member(
    make_group: MakeGroup, session_admin: AdminClient, classic: dict[str, Any], together: bool
) -> None:
    """In turn: a librdkafka leader's assignments have user data then. (Kafka 4.1 refuses those.)"""
    group = make_group(partitions=4)
    old, new = committing(classic), committing(CONSUMER)
    for _ in range(2):
        group.join(old)
        if not together:
            group.wait_stable()
    group.wait_stable()
    assert group_type(session_admin, group) is ConsumerGroupType.CLASSIC
    swap_one_by_one(session_admin, group, new)
    assert group_type(session_admin, group) is ConsumerGroupType.CONSUMER


@CLASSIC_WAYS
def test_a_consumer_group_is_downgraded_member_by_member(
    make_group: MakeGroup, session_admin: AdminClient, classic: dict[str, Any]
) -> None:
    group = make_group(partitions=4)
    old, new = committing(CONSUMER), committing(classic)
    for _ in range(2):
        group.join(old)
    group.wait_stable()
    assert group_type(session_admin, group) is ConsumerGroupType.CONSUMER
    swap_one_by_one(session_admin, group, new)
    assert group_type(session_admin, group) is ConsumerGroupType.CLASSIC


def test_both_kinds_of_members_share_a_group(
    make_group: MakeGroup, session_admin: AdminClient
) -> None:
    group = make_group(partitions=6)
    group.join(COOPERATIVE)
    group.wait_stable()
    group.join(CONSUMER)
    group.wait_stable()
    group.join(COOPERATIVE)
    group.wait_stable()
    assert [len(member.owned) for member in group.members] == [2, 2, 2]
    [described] = session_admin.describe_consumer_groups([group.name]).values()
    assert len(described.result(WAIT).members) == 3
    for member in group.members:
        member.commit([TopicPartition(*partition, 7) for partition in member.owned])
    assert group.members[0].committed(6) == [7] * 6


@pytest.mark.parametrize(
    ("before", "after"), [(COOPERATIVE, CONSUMER), (CONSUMER, COOPERATIVE)], ids=["up", "down"]
)
def test_an_empty_group_takes_the_next_members_protocol_and_keeps_its_offsets(
    make_group: MakeGroup,
    session_admin: AdminClient,
    before: dict[str, Any],
    after: dict[str, Any],
) -> None:
    group = make_group(partitions=2)
    member = group.join(before)
    group.wait_stable()
    member.commit([TopicPartition(group.topic, n, 5) for n in range(2)])
    was = group_type(session_admin, group)
    group.leave(member)
    member = group.join(after)
    group.wait_stable()
    assert group_type(session_admin, group) is not was
    assert member.committed(2) == [5, 5]
