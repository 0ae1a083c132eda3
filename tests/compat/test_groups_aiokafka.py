"""aiokafka in groups, and what it can ask of them. Expectations are Apache Kafka 4.1's own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import (
    AIOKafkaConsumer,
    AIOKafkaProducer,
    ConsumerRebalanceListener,
    OffsetAndMetadata,
    TopicPartition,
)
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import CommitFailedError

from tests.compat.conftest import MakeTopic
from tests.compat.groups import WAIT

ASSIGNORS = [RangePartitionAssignor, RoundRobinPartitionAssignor, StickyPartitionAssignor]


class Member(ConsumerRebalanceListener):
    """A subscribed consumer with a task that reads; it remembers what it got and was told."""

    def __init__(self, consumer: AIOKafkaConsumer) -> None:
        self.consumer = consumer
        self.records: list[Any] = []
        self.events: list[tuple[str, set[TopicPartition]]] = []

    def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        self.events.append(("revoked", revoked))

    def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        self.events.append(("assigned", assigned))

    async def read(self) -> None:
        while True:
            for records in (await self.consumer.getmany(timeout_ms=50)).values():
                self.records += records

    @property
    def owned(self) -> set[TopicPartition]:
        return set(self.consumer.assignment())


@asynccontextmanager
async def joined(
    bootstrap: str, group: str, *topics: str, pattern: str | None = None, **settings: Any
) -> AsyncIterator[Member]:
    """A member of a group, reading until the block ends."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        **{
            "enable_auto_commit": False,
            "auto_offset_reset": "earliest",
            "heartbeat_interval_ms": 300,
            "fetch_max_wait_ms": 100,
            "metadata_max_age_ms": 500,
            **settings,
        },
    )
    member = Member(consumer)
    consumer.subscribe(topics, pattern=pattern, listener=member)
    async with consumer:
        reading = asyncio.create_task(member.read())
        try:
            yield member
        finally:
            reading.cancel()
            await asyncio.wait([reading])


async def eventually(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT):
        while not condition():
            await asyncio.sleep(0.02)


async def settle(members: Sequence[Member], partitions: int) -> None:
    """Waits until each partition has one owner and all have about as many."""

    def settled() -> bool:
        sizes = [len(member.owned) for member in members]
        shared = set().union(*[member.owned for member in members])
        return len(shared) == sum(sizes) == partitions and max(sizes) - min(sizes) <= 1

    await eventually(settled)


async def fill(bootstrap: str, topic: str, partitions: int, count: int, **record: Any) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for number in range(count):
            await producer.send(topic, b"%d" % number, partition=number % partitions, **record)
        await producer.flush()


@asynccontextmanager
async def administering(bootstrap: str) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()


async def until_empty(bootstrap: str, group: str) -> None:
    """Waits until the group has no members."""
    async with administering(bootstrap) as admin, asyncio.timeout(WAIT):
        while True:
            [answer] = await admin.describe_consumer_groups([group])
            if answer.groups[0][2] == "Empty":
                return
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("assignor", ASSIGNORS, ids=lambda assignor: assignor.name)
async def test_members_share_read_commit_and_go_on(
    bootstrap: str, make_topic: MakeTopic, group_id: str, assignor: Any
) -> None:
    topic = make_topic(4)
    how = {"partition_assignment_strategy": [assignor]}
    async with joined(bootstrap, group_id, topic, **how) as stays:
        async with joined(bootstrap, group_id, topic, **how) as goes:
            await settle([stays, goes], 4)
            await fill(bootstrap, topic, 4, 40)
            await eventually(lambda: [len(m.records) for m in (stays, goes)] == [20, 20])
            await stays.consumer.commit()
            await goes.consumer.commit()
        await settle([stays], 4)
        await fill(bootstrap, topic, 4, 40)
        later = stays.records
        await eventually(lambda: len([record for record in later if record.offset >= 10]) == 40)
        committed = [await stays.consumer.committed(TopicPartition(topic, n)) for n in range(4)]
    assert committed == [10] * 4


async def test_everything_is_given_up_and_shared_anew_when_one_joins(
    bootstrap: str, make_topic: MakeTopic, group_id: str
) -> None:
    topic = make_topic(4)
    async with joined(bootstrap, group_id, topic) as first:
        await settle([first], 4)
        async with joined(bootstrap, group_id, topic) as second:
            await settle([first, second], 4)
            revoked = [partitions for kind, partitions in first.events if kind == "revoked"]
            assert revoked[-1] == {TopicPartition(topic, number) for number in range(4)}


async def test_a_static_member_comes_back_to_its_partitions(
    bootstrap: str, make_topic: MakeTopic, group_id: str
) -> None:
    topic = make_topic(4)
    async with joined(bootstrap, group_id, topic, group_instance_id="stays") as stays:
        async with joined(bootstrap, group_id, topic, group_instance_id="goes") as goes:
            await settle([stays, goes], 4)
            await eventually(lambda: stays.events[-1] == ("assigned", stays.owned))
            had, told = goes.owned, len(stays.events)
        async with joined(bootstrap, group_id, topic, group_instance_id="goes") as back:
            await settle([stays, back], 4)
            assert back.owned == had
            assert len(stays.events) == told


async def test_auto_commit_when_it_stops(
    bootstrap: str, make_topic: MakeTopic, group_id: str
) -> None:
    topic = make_topic(1)
    await fill(bootstrap, topic, 1, 10)
    automatic = {"enable_auto_commit": True, "auto_commit_interval_ms": 3_600_000}
    async with joined(bootstrap, group_id, topic, **automatic) as member:
        await eventually(lambda: len(member.records) == 10)
    async with joined(bootstrap, group_id, topic) as member:
        assert await member.consumer.committed(TopicPartition(topic, 0)) == 10


async def test_a_member_that_does_not_poll_may_not_commit(
    bootstrap: str, make_topic: MakeTopic, group_id: str
) -> None:
    topic = make_topic(2)
    partition = TopicPartition(topic, 0)
    await fill(bootstrap, topic, 2, 2)
    # This client leaves by itself only if nobody has asked for records for so long.
    impatient = {"max_poll_interval_ms": 1000, "session_timeout_ms": 1500}
    async with AIOKafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group_id,
        enable_auto_commit=False,
        heartbeat_interval_ms=300,
        auto_offset_reset="earliest",
        **impatient,
    ) as slow:
        async with asyncio.timeout(60):
            await slow.getone()  # and then never again
        await until_empty(bootstrap, group_id)
        async with joined(bootstrap, group_id, topic) as other:
            await eventually(lambda: len(other.owned) == 2)
            with pytest.raises(CommitFailedError):
                await slow.commit({partition: 1})
            await other.consumer.commit({partition: 2})
            assert await other.consumer.committed(partition) == 2


async def test_seek_position_times_and_metadata(
    bootstrap: str, make_topic: MakeTopic, group_id: str
) -> None:
    topic = make_topic(1)
    partition = TopicPartition(topic, 0)
    for stamp in (1000, 2000, 3000):
        await fill(bootstrap, topic, 1, 1, timestamp_ms=stamp)
    async with joined(bootstrap, group_id, topic) as member:
        await eventually(lambda: len(member.records) == 3)
        assert await member.consumer.committed(partition) is None
        assert await member.consumer.position(partition) == 3
        found = (await member.consumer.offsets_for_times({partition: 1500}))[partition]
        member.consumer.seek(partition, found.offset)
        await eventually(lambda: len(member.records) == 5)
        assert [record.offset for record in member.records[3:]] == [1, 2]
        await member.consumer.commit({partition: (2, "a note: ünï")})
    async with administering(bootstrap) as admin:
        offsets = await admin.list_consumer_group_offsets(group_id)
    assert offsets == {partition: OffsetAndMetadata(2, "a note: ünï")}


async def test_a_pattern_and_a_topic_that_grows(
    bootstrap: str, make_topic: MakeTopic, topic_name: str, group_id: str
) -> None:
    first = make_topic(2)
    async with joined(bootstrap, group_id, pattern=f"^{topic_name}-.*") as member:
        await settle([member], 2)
        make_topic(1)
        async with administering(bootstrap) as admin:
            await admin.create_partitions({first: NewPartitions(3)})
        await settle([member], 4)


async def test_admin_lists_and_describes_groups(
    bootstrap: str, make_topic: MakeTopic, group_id: str
) -> None:
    topic = make_topic(2)
    async with administering(bootstrap) as admin:
        async with joined(bootstrap, group_id, topic, client_id="a-client") as member:
            await settle([member], 2)
            assert (group_id, "consumer") in await admin.list_consumer_groups()
            [answer] = await admin.describe_consumer_groups([group_id])
            [described] = answer.groups
            error, name, state, protocol_type, protocol, members = described[:6]
            assert (error, name, state) == (0, group_id, "Stable")
            assert (protocol_type, protocol) == ("consumer", "roundrobin")
            [shown] = members
            assert "a-client" in shown
            await member.consumer.commit({TopicPartition(topic, 1): 0})
        [answer] = await admin.describe_consumer_groups([group_id])
        assert answer.groups[0][2] == "Empty"
        offsets = await admin.list_consumer_group_offsets(group_id)
        assert {partition: at.offset for partition, at in offsets.items()} == {
            TopicPartition(topic, 1): 0
        }
        [answer] = await admin.describe_consumer_groups([f"{group_id}-unknown"])
        assert answer.groups[0][2] == "Dead"
