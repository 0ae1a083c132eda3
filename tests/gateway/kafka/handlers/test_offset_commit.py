"""OffsetCommit: who may commit, what of it, and what old clients are told."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import psycopg
import pytest

from gateway.kafka.codec import OffsetFetchRequest
from tests.gateway.kafka.handlers.conftest import Broker
from tests.gateway.kafka.handlers.grouping import (
    Member,
    commit,
    commit_request,
    committed,
    consumer,
    errors_of,
    stable,
    topic_of,
)
from tests.kafka_codes import Code

BY_NAME = range(2, 10)
VERSIONS = range(2, 11)


@pytest.mark.parametrize("version", VERSIONS)
async def test_member_commits_forwards_and_backwards(group_broker: Broker, version: int) -> None:
    topic = await topic_of(group_broker)
    member = await stable(group_broker)
    key = topic.topic_id if version >= 10 else "t"
    done = await commit(group_broker, {key: {0: 7, 1: 8}}, version, member=member)
    assert done == {key: {0: Code.NONE, 1: Code.NONE}}
    assert await committed(group_broker) == {"t": {0: 7, 1: 8}}
    await commit(group_broker, {key: {1: 3}}, version, member=member)  # backwards, if it will
    assert await committed(group_broker) == {"t": {0: 7, 1: 3}}


@pytest.mark.parametrize("version", BY_NAME)
async def test_what_does_not_exist_is_refused_and_the_rest_committed(
    group_broker: Broker, version: int
) -> None:
    await topic_of(group_broker)
    done = await commit(group_broker, {"t": {0: 5, 9: 1, -1: 1}, "no": {0: 1}}, version)
    unknown = Code.UNKNOWN_TOPIC_OR_PARTITION
    assert done == {"t": {0: Code.NONE, 9: unknown, -1: unknown}, "no": {0: unknown}}
    assert await committed(group_broker) == {"t": {0: 5}}


async def test_an_unknown_id_has_an_error_of_its_own(group_broker: Broker) -> None:
    topic = await topic_of(group_broker)
    other = UUID(int=7)
    request = commit_request({topic.topic_id: {0: 5, 9: 1}, other: {0: 1}})
    request.topics.append(type(request.topics[0])(name="", partitions=request.topics[0].partitions))
    done = errors_of(await group_broker.ask(request, 10))
    assert done == {
        topic.topic_id: {0: Code.NONE, 9: Code.UNKNOWN_TOPIC_OR_PARTITION},
        other: {0: Code.UNKNOWN_TOPIC_ID},
        None: {0: Code.UNKNOWN_TOPIC_ID, 9: Code.UNKNOWN_TOPIC_ID},
    }


@pytest.mark.parametrize("group", ["simple", "", "g" * 32_000, "ü\n'\\"])
async def test_a_consumer_without_a_group_commits(group_broker: Broker, group: str) -> None:
    await topic_of(group_broker)
    for member in (None, Member("whoever", -1)):
        done = await commit(group_broker, {"t": {0: 5}}, group=group, member=member)
        assert done == {"t": {0: Code.NONE}}
    assert await committed(group_broker, group) == {"t": {0: 5}}


async def test_group_id_with_nul_is_refused(group_broker: Broker) -> None:
    await topic_of(group_broker)
    done = await commit(group_broker, {"t": {0: 5}}, group="a\0b")
    assert done == {"t": {0: Code.INVALID_GROUP_ID}}


@pytest.mark.parametrize("version", BY_NAME)
async def test_generation_in_an_unknown_group_is_refused(
    group_broker: Broker, version: int
) -> None:
    await topic_of(group_broker)
    done = await commit(group_broker, {"t": {0: 5}}, version, member=Member("m", 5))
    expected = Code.GROUP_ID_NOT_FOUND if version >= 9 else Code.ILLEGAL_GENERATION
    assert done == {"t": {0: expected}}


async def test_members_are_fenced(group_broker: Broker) -> None:
    await topic_of(group_broker)
    member = await stable(group_broker, group_instance_id="i")
    for who, code in (
        ({"member": None}, Code.UNKNOWN_MEMBER_ID),
        ({"member": Member("x", member.generation)}, Code.UNKNOWN_MEMBER_ID),
        ({"member": Member(member.member_id, 99)}, Code.ILLEGAL_GENERATION),
        (
            {"member": Member("x", member.generation), "group_instance_id": "i"},
            Code.FENCED_INSTANCE_ID,
        ),
        ({"member": member, "group_instance_id": "i"}, Code.NONE),
    ):
        assert await commit(group_broker, {"t": {0: 5}}, **who) == {"t": {0: code}}


async def test_member_epochs(group_broker: Broker) -> None:
    await topic_of(group_broker)
    member = await consumer(group_broker)
    stale = Member("m", 0)
    for version, who, code in (
        (9, member, Code.NONE),
        (9, Member("x", 1), Code.UNKNOWN_MEMBER_ID),
        (9, None, Code.UNKNOWN_MEMBER_ID),
        (9, stale, Code.STALE_MEMBER_EPOCH),
        (8, stale, Code.UNSUPPORTED_VERSION),
    ):
        done = await commit(group_broker, {"t": {0: 5}}, version, member=who)
        assert done == {"t": {0: code}}


@pytest.mark.parametrize("version", BY_NAME[:-1])
async def test_versions_without_member_epochs(group_broker: Broker, version: int) -> None:
    await topic_of(group_broker)
    member = await consumer(group_broker)
    for who, code in (
        (member, Code.UNSUPPORTED_VERSION),
        (Member("m", 0), Code.UNSUPPORTED_VERSION),
        (Member("m", -1), Code.UNSUPPORTED_VERSION),
        (Member("x", 1), Code.UNKNOWN_MEMBER_ID),
        (None, Code.UNKNOWN_MEMBER_ID),
    ):
        done = await commit(group_broker, {"t": {0: 5}}, version, member=who)
        assert done == {"t": {0: code}}
    assert await committed(group_broker) == {}


async def test_the_group_is_not_asked_about_nothing(group_broker: Broker) -> None:
    await topic_of(group_broker)
    nobody = Member("m", 5)
    assert await commit(group_broker, {}, member=nobody) == {}
    assert await commit(group_broker, {"no": {0: 1}}, member=nobody) == {
        "no": {0: Code.UNKNOWN_TOPIC_OR_PARTITION}
    }


@pytest.mark.parametrize("letter", ["x", "ü", "\U0001f600"])
async def test_metadata_as_long_as_java_counts(group_broker: Broker, letter: str) -> None:
    await topic_of(group_broker)
    fits = 4096 // len(letter.encode("utf-16-le")) * 2
    for count, code in ((fits, Code.NONE), (fits + 1, Code.OFFSET_METADATA_TOO_LARGE)):
        done = await commit(group_broker, {"t": {0: 5}}, metadata=letter * count)
        assert done == {"t": {0: code}}


async def test_metadata_comes_after_the_group(group_broker: Broker) -> None:
    await topic_of(group_broker)
    long = "x" * 4097
    done = await commit(group_broker, {"t": {0: 5}}, member=Member("m", 5), metadata=long)
    assert done == {"t": {0: Code.GROUP_ID_NOT_FOUND}}
    done = await commit(group_broker, {"t": {0: 5}, "no": {0: 5}}, metadata=long)
    assert done == {
        "t": {0: Code.OFFSET_METADATA_TOO_LARGE},
        "no": {0: Code.UNKNOWN_TOPIC_OR_PARTITION},
    }
    assert await committed(group_broker) == {}


@pytest.mark.parametrize("metadata", [None, "", "a\0b", "␀", "\U0001f600 " * 9])
async def test_metadata_comes_back(group_broker: Broker, metadata: str | None) -> None:
    await topic_of(group_broker)
    request = commit_request({"t": {0: 5}}, metadata=metadata)
    request.topics[0].partitions[0].committed_leader_epoch = 3
    await group_broker.ask(request, 9)
    topics = [OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
    answer = await group_broker.ask(OffsetFetchRequest(group_id="g", topics=topics), 5)
    [found] = answer.topics[0].partitions
    assert (found.committed_offset, found.metadata) == (5, metadata or "")
    assert found.committed_leader_epoch == 3


async def test_of_several_for_one_partition_the_last_counts(group_broker: Broker) -> None:
    await topic_of(group_broker)
    request = commit_request({"t": {0: 5, 1: 5}})
    request.topics += commit_request({"t": {0: 9}}).topics
    answer = await group_broker.ask(request, 9)
    codes = [[p.error_code for p in topic.partitions] for topic in answer.topics]
    assert codes == [[Code.NONE, Code.NONE], [Code.NONE]]
    assert await committed(group_broker) == {"t": {0: 9, 1: 5}}


@pytest.mark.parametrize(
    ("version", "keep_ms", "kept_ms"),
    [(2, 60_000, 60_000), (4, 0, 0), (4, -1, None), (5, 60_000, None), (4, 2**63 - 1, None)],
)
async def test_retention_time_sets_when_an_offset_expires(
    group_broker: Broker, database_url: str, version: int, keep_ms: int, kept_ms: int | None
) -> None:
    await topic_of(group_broker)
    await commit(group_broker, {"t": {0: 5}}, version, retention_time_ms=keep_ms)
    query = "SELECT commit_timestamp, expire_timestamp FROM committed_offset"
    with psycopg.connect(database_url) as connection:
        [(written, expires)] = connection.execute(query).fetchall()
    if kept_ms is not None:
        assert expires == written + kept_ms
    elif keep_ms > 60_000:
        assert expires == 2**63 - 1
    else:
        assert expires == -1


async def test_offsets_of_a_deleted_topic_are_not_those_of_the_next(group_broker: Broker) -> None:
    await topic_of(group_broker)
    await commit(group_broker, {"t": {0: 5}})
    await group_broker.topics.delete(["t"], [])
    await topic_of(group_broker)
    assert await committed(group_broker) == {}


async def test_any_offset_is_committed(group_broker: Broker) -> None:
    await topic_of(group_broker)
    for offset in (-5, 2**63 - 1, 0):  # Kafka looks at none of them
        done: Any = await commit(group_broker, {"t": {0: offset}})
        assert done == {"t": {0: Code.NONE}}
        assert await committed(group_broker) == {"t": {0: offset}}
