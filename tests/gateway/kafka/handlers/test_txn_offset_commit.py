"""TxnOffsetCommit: whose offsets wait for whose transaction, and when readers see them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from core.transaction import coordinator
from gateway.kafka.codec import OffsetFetchRequest
from tests.gateway.kafka.handlers.conftest import Broker
from tests.gateway.kafka.handlers.grouping import (
    Member,
    commit,
    committed,
    consumer,
    stable,
    topic_of,
)
from tests.gateway.kafka.handlers.transacting import Producer, producer_of, state_of
from tests.kafka_codes import Code

VERSIONS = range(6)
WITH_MEMBERS = VERSIONS[3:]
V2 = 5


async def ready(broker: Broker, version: int, group: str = "g") -> Producer:
    """A producer, not the first of its name, for which the group takes part where it has to."""
    await producer_of(broker)
    producer = await producer_of(broker)
    if version < V2:
        assert await producer.add_offsets(group) == Code.NONE
    return producer


@pytest.mark.parametrize("version", VERSIONS)
async def test_offsets_count_once_the_transaction_is_committed(
    txn_broker: Broker, version: int
) -> None:
    await topic_of(txn_broker)
    await commit(txn_broker, {"t": {1: 3}})
    producer = await ready(txn_broker, version)
    assert await producer.commit_offsets({"t": {0: 5, 1: 6}}, version=version) == {"t": [0, 0]}
    assert await committed(txn_broker) == {"t": {1: 3}}
    assert (await producer.end()).error_code == Code.NONE
    assert await committed(txn_broker) == {"t": {0: 5, 1: 6}}


@pytest.mark.parametrize("version", VERSIONS)
async def test_aborted_offsets_vanish(txn_broker: Broker, version: int) -> None:
    await topic_of(txn_broker)
    await commit(txn_broker, {"t": {1: 3}})
    producer = await ready(txn_broker, version)
    assert await producer.commit_offsets({"t": {0: 5, 1: 6}}, version=version) == {"t": [0, 0]}
    assert (await producer.end(False)).error_code == Code.NONE
    assert await committed(txn_broker) == {"t": {1: 3}}
    assert await unstable(txn_broker) == {0: (-1, Code.NONE), 1: (3, Code.NONE)}


async def unstable(broker: Broker, version: int = 8) -> dict[int, tuple[int, int]]:
    """OffsetFetch of a reader that waits for open transactions: offsets and errors."""
    kind = OffsetFetchRequest
    group = kind.OffsetFetchRequestGroup
    topics = [group.OffsetFetchRequestTopics(name="t", partition_indexes=[0, 1])]
    request = kind(
        group_id="g",
        topics=[kind.OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1])],
        groups=[group(group_id="g", member_id=None, member_epoch=-1, topics=topics)],
        require_stable=True,
    )
    answer = await broker.ask(request, version)
    [found] = answer.groups if version >= 8 else [answer]
    [topic] = found.topics
    return {
        each.partition_index: (each.committed_offset, each.error_code) for each in topic.partitions
    }


@pytest.mark.parametrize("version", [7, 8, 9])
async def test_readers_may_wait_for_the_end(txn_broker: Broker, version: int) -> None:
    await topic_of(txn_broker)
    await commit(txn_broker, {"t": {1: 3}})
    producer = await ready(txn_broker, 3)
    assert await producer.commit_offsets({"t": {0: 5}}) == {"t": [0]}
    found = await unstable(txn_broker, version)
    assert found == {0: (-1, Code.UNSTABLE_OFFSET_COMMIT), 1: (3, Code.NONE)}
    await producer.end()
    assert await unstable(txn_broker, version) == {0: (5, Code.NONE), 1: (3, Code.NONE)}


async def test_readers_that_cannot_wait_get_the_stable_offset(txn_broker: Broker) -> None:
    await topic_of(txn_broker)
    await commit(txn_broker, {"t": {1: 3}})
    producer = await ready(txn_broker, 3)
    await producer.commit_offsets({"t": {1: 5}})
    assert await unstable(txn_broker, 6) == {0: (-1, Code.NONE), 1: (3, Code.NONE)}


@pytest.mark.parametrize("version", VERSIONS[:5])
async def test_v1_has_to_join_first(txn_broker: Broker, version: int) -> None:
    """A late one must not open a transaction that nobody ends."""
    await topic_of(txn_broker)
    producer = await producer_of(txn_broker)
    error = Code.TRANSACTION_ABORTABLE if version >= 4 else Code.INVALID_TXN_STATE
    assert await producer.commit_offsets({"t": {0: 5}}, version=version) == {"t": [error]}
    assert await producer.add_offsets() == Code.NONE
    assert await producer.commit_offsets({"t": {0: 5}}, version=version) == {"t": [Code.NONE]}
    await producer.end()
    assert await producer.commit_offsets({"t": {0: 6}}, version=version) == {"t": [error]}
    assert await committed(txn_broker) == {"t": {0: 5}}


@pytest.mark.parametrize("version", VERSIONS)
async def test_empty_transactional_id_is_refused(txn_broker: Broker, version: int) -> None:
    await topic_of(txn_broker)
    nameless = replace(await producer_of(txn_broker), name="")
    found = await nameless.commit_offsets({"t": {0: 5, 9: 5}}, version=version)
    assert found == {"t": [Code.INVALID_REQUEST, Code.UNKNOWN_TOPIC_OR_PARTITION]}
    found = await nameless.commit_offsets({"t": {0: 5}}, "", version)
    assert found == {"t": [Code.INVALID_GROUP_ID]}


async def test_v2_joins_by_committing(txn_broker: Broker) -> None:
    await topic_of(txn_broker)
    producer = await producer_of(txn_broker)
    assert await producer.commit_offsets({"t": {0: 5}}, version=V2) == {"t": [Code.NONE]}
    assert await state_of(txn_broker) == "Ongoing"


async def test_v2_joins_as_long_as_there_is_room(
    txn_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "MAX_GROUPS", 1)
    await topic_of(txn_broker)
    producer = await ready(txn_broker, V2)
    for group, error in (("a", Code.NONE), ("b", Code.TRANSACTION_ABORTABLE), ("a", Code.NONE)):
        offsets = {"t": {0: 5}}
        told = await producer.commit_offsets(offsets, group=group, version=V2)
        assert told == {"t": [error]}


@pytest.mark.parametrize("version", VERSIONS)
async def test_stale_or_foreign_producer_is_refused(txn_broker: Broker, version: int) -> None:
    await topic_of(txn_broker)
    producer = await ready(txn_broker, version)
    epoch, producer_id = producer.producer_epoch, producer.producer_id
    for other, error in (
        (replace(producer, producer_epoch=epoch - 1), Code.INVALID_PRODUCER_EPOCH),
        (replace(producer, producer_epoch=epoch + 1), Code.INVALID_PRODUCER_EPOCH),
        (replace(producer, producer_id=producer_id + 1), Code.INVALID_PRODUCER_ID_MAPPING),
        (replace(producer, name="nobody"), Code.INVALID_PRODUCER_ID_MAPPING),
    ):
        assert await other.commit_offsets({"t": {0: 5}}, version=version) == {"t": [error]}
    await producer.end(False)
    assert await committed(txn_broker) == {}


@pytest.mark.parametrize("version", WITH_MEMBERS)
async def test_stale_or_unknown_member_is_refused_by_its_group(
    txn_broker: Broker, version: int
) -> None:
    """KIP-447: a member that is left behind commits nothing."""
    await topic_of(txn_broker)
    for group, member in (
        ("classic", await stable(txn_broker, "classic")),
        ("consumer", await consumer(txn_broker, "consumer")),
    ):
        producer = await ready(txn_broker, version, group)

        async def error_of(group: str = group, producer: Producer = producer, **who: Any) -> int:
            found = await producer.commit_offsets({"t": {0: 5}}, group, version, **who)
            return found["t"][0]

        assert await error_of(**said_by(member)) == Code.NONE
        old = replace(member, generation=member.generation - 1)
        assert await error_of(**said_by(old)) == Code.ILLEGAL_GENERATION
        other = replace(member, member_id="other")
        assert await error_of(**said_by(other)) == Code.UNKNOWN_MEMBER_ID
        # Clients from before KIP-447 name nobody: their producer's epoch fences them.
        assert await error_of() == Code.NONE


def said_by(member: Member) -> dict[str, Any]:
    return {"member_id": member.member_id, "generation_id": member.generation}


@pytest.mark.parametrize("version", VERSIONS)
async def test_each_partition_has_its_own_error(txn_broker: Broker, version: int) -> None:
    await topic_of(txn_broker)
    producer = await ready(txn_broker, version)
    unknown = Code.UNKNOWN_TOPIC_OR_PARTITION
    found = await producer.commit_offsets({"t": {0: 5, 9: 5}, "none": {0: 5}}, version=version)
    assert found == {"t": [Code.NONE, unknown], "none": [unknown]}
    assert await producer.commit_offsets({"none": {0: 5}}, version=version) == {"none": [unknown]}
    found = await producer.commit_offsets({"t": {0: 6}}, version=version, metadata="m" * 5_000)
    assert found == {"t": [Code.OFFSET_METADATA_TOO_LARGE]}
    found = await producer.commit_offsets({"t": {1: 7}}, version=version, metadata=None)
    assert found == {"t": [Code.NONE]}
    found = await producer.commit_offsets({"t": {0: 5}}, "", version)
    assert found == {"t": [Code.INVALID_GROUP_ID]}
    await producer.end()
    assert await committed(txn_broker) == {"t": {0: 5, 1: 7}}


@pytest.mark.parametrize("version", VERSIONS)
async def test_without_a_database(cut_off: Broker, version: int) -> None:
    await cut_off.with_log().with_groups(alive=False)
    found = await Producer(cut_off, 1, 0).commit_offsets({"t": {0: 5}}, version=version)
    assert found == {"t": [Code.COORDINATOR_NOT_AVAILABLE]}
    await cut_off.groups.close()
    await cut_off.close_log()
