"""OffsetFetch: what each version asks and hears."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from gateway.kafka.codec import OffsetFetchRequest
from tests.gateway.kafka.handlers.conftest import Broker
from tests.gateway.kafka.handlers.grouping import commit, consumer, stable, topic_of
from tests.kafka_codes import Code

ONE_GROUP, GROUPS = range(1, 8), range(8, 11)
Group = OffsetFetchRequest.OffsetFetchRequestGroup


def of_one(topics: dict[str, list[int]] | None, group: str = "g") -> Any:
    """OffsetFetch before v8."""
    kind = OffsetFetchRequest.OffsetFetchRequestTopic
    asked = topics and [kind(name=name, partition_indexes=n) for name, n in topics.items()]
    return OffsetFetchRequest(
        group_id=group, topics=[] if topics == {} else asked, require_stable=True
    )


def of_group(topics: dict[Any, list[int]] | None, group: str = "g", **who: Any) -> Any:
    """What OffsetFetch asks of one of its groups, from v8 on."""
    asked = topics and [
        Group.OffsetFetchRequestTopics(
            **({"name": key} if isinstance(key, str) else {"name": "", "topic_id": key}),
            partition_indexes=numbers,
        )
        for key, numbers in topics.items()
    ]
    said = {"member_id": None, "member_epoch": -1, **who}
    return Group(group_id=group, topics=[] if topics == {} else asked, **said)


def found(answer: Any) -> dict[Any, dict[int, tuple[int, int]]]:
    """Offset and error by topic and partition."""
    return {
        topic.name or topic.topic_id: {
            p.partition_index: (p.committed_offset, p.error_code) for p in topic.partitions
        }
        for topic in answer.topics
    }


@pytest.mark.parametrize("version", ONE_GROUP)
async def test_offsets_of_one_group_are_fetched(group_broker: Broker, version: int) -> None:
    await topic_of(group_broker)
    await commit(group_broker, {"t": {0: 6}}, metadata="noted")
    answer = await group_broker.ask(of_one({"t": [0, 1, 7], "no": [0]}), version)
    assert answer.error_code == Code.NONE
    assert found(answer) == {"t": {0: (6, 0), 1: (-1, 0), 7: (-1, 0)}, "no": {0: (-1, 0)}}
    partitions = answer.topics[0].partitions
    assert [p.metadata for p in partitions] == ["noted", "", ""]
    assert {p.committed_leader_epoch for p in partitions} == {-1}
    nothing = await group_broker.ask(of_one({"t": [0]}, "none"), version)
    assert (nothing.error_code, found(nothing)) == (Code.NONE, {"t": {0: (-1, 0)}})


@pytest.mark.parametrize("version", ONE_GROUP[1:])
async def test_all_offsets_of_one_group_are_fetched(group_broker: Broker, version: int) -> None:
    await topic_of(group_broker)
    await commit(group_broker, {"t": {1: 6}})
    assert found(await group_broker.ask(of_one(None), version)) == {"t": {1: (6, 0)}}
    assert found(await group_broker.ask(of_one({}), version)) == {}
    assert found(await group_broker.ask(of_one(None, "none"), version)) == {}


@pytest.mark.parametrize("version", GROUPS)
async def test_several_groups(group_broker: Broker, version: int) -> None:
    topic = await topic_of(group_broker)
    key: Any = topic.topic_id if version >= 10 else "t"
    await commit(group_broker, {"t": {0: 6}}, group="a")
    await commit(group_broker, {"t": {1: 7}}, group="b")
    asked = [
        of_group({key: [0, 1, 9]}, "a"),
        of_group(None, "b"),
        of_group({key: [0]}, "none"),
        of_group(None, "none"),
        of_group({}, "a"),
    ]
    answer = await group_broker.ask(OffsetFetchRequest(groups=asked, require_stable=True), version)
    assert [group.group_id for group in answer.groups] == ["a", "b", "none", "none", "a"]
    assert {group.error_code for group in answer.groups} == {Code.NONE}
    assert [found(group) for group in answer.groups] == [
        {key: {0: (6, 0), 1: (-1, 0), 9: (-1, 0)}},
        {key: {1: (7, 0)}},
        {key: {0: (-1, 0)}},
        {},
        {},
    ]
    assert (await group_broker.ask(OffsetFetchRequest(groups=[]), version)).groups == []


async def test_an_unknown_id_is_an_error_of_its_topic(group_broker: Broker) -> None:
    topic = await topic_of(group_broker)
    await commit(group_broker, {"t": {0: 6}})
    asked = of_group({topic.topic_id: [0, 9], UUID(int=7): [0], UUID(int=0): [1]})
    [group] = (await group_broker.ask(OffsetFetchRequest(groups=[asked]), 10)).groups
    assert found(group) == {
        topic.topic_id: {0: (6, 0), 9: (-1, 0)},
        UUID(int=7): {0: (-1, Code.UNKNOWN_TOPIC_ID)},
        None: {1: (-1, Code.UNKNOWN_TOPIC_ID)},
    }


@pytest.mark.parametrize("group", ["", "g" * 32_000, "ü\n'\\"])
async def test_any_group_id_is_fetched(group_broker: Broker, group: str) -> None:
    await topic_of(group_broker)
    await commit(group_broker, {"t": {0: 6}}, group=group)
    assert found(await group_broker.ask(of_one({"t": [0]}, group), 5)) == {"t": {0: (6, 0)}}


async def test_members_of_a_consumer_group_are_fenced(group_broker: Broker) -> None:
    await topic_of(group_broker)
    member = await consumer(group_broker)
    await commit(group_broker, {"t": {0: 6}}, member=member)
    asked = [
        of_group({"t": [0]}, member_id="m", member_epoch=member.generation),
        of_group({"t": [0]}),
        of_group({"t": [0]}, member_id="m", member_epoch=99),
        of_group({"t": [0]}, member_id="x", member_epoch=member.generation),
        of_group(None, member_id="x", member_epoch=3),
    ]
    answer = await group_broker.ask(OffsetFetchRequest(groups=asked), 9)
    assert [(group.error_code, found(group)) for group in answer.groups] == [
        (Code.NONE, {"t": {0: (6, 0)}}),
        (Code.NONE, {"t": {0: (6, 0)}}),
        (Code.STALE_MEMBER_EPOCH, {}),
        (Code.UNKNOWN_MEMBER_ID, {}),
        (Code.UNKNOWN_MEMBER_ID, {}),
    ]


async def test_members_of_a_classic_group_are_not(group_broker: Broker) -> None:
    await topic_of(group_broker)
    member = await stable(group_broker)
    await commit(group_broker, {"t": {0: 6}}, member=member)
    asked = [of_group({"t": [0]}, member_id="x", member_epoch=99)]
    [group] = (await group_broker.ask(OffsetFetchRequest(groups=asked), 9)).groups
    assert found(group) == {"t": {0: (6, 0)}}


async def test_other_broker_answers_not_coordinator_in_every_version(
    two_group_brokers: tuple[Broker, Broker],
) -> None:
    coordinator, other = two_group_brokers
    topic = await topic_of(coordinator)
    await stable(coordinator)
    for version in ONE_GROUP:
        answer = await other.ask(of_one({"t": [0]}), version)
        if version == 1:
            assert found(answer) == {"t": {0: (-1, Code.NOT_COORDINATOR)}}
        else:
            assert (answer.error_code, answer.topics) == (Code.NOT_COORDINATOR, [])
    for version in GROUPS:
        key: Any = topic.topic_id if version >= 10 else "t"
        request = OffsetFetchRequest(groups=[of_group({key: [0]}), of_group(None)])
        for group in (await other.ask(request, version)).groups:
            assert (group.error_code, group.topics) == (Code.NOT_COORDINATOR, [])
