"""DescribeLogDirs: one directory, the sizes in it, and no partition counted twice."""

import pytest
from sqlalchemy import text

from core.topic.rules import NewTopic
from gateway.kafka.codec import DescribeLogDirsRequest, DescribeLogDirsResponse
from tests.gateway.kafka.handlers.conftest import Broker, MakeBroker
from tests.kafka_codes import Code

VERSIONS = range(1, 6)


async def ask(
    broker: Broker, topics: dict[str, list[int]] | None = None, version: int = 5
) -> DescribeLogDirsResponse:
    kind = DescribeLogDirsRequest.DescribableLogDirTopic
    wanted = None
    if topics is not None:
        wanted = [kind(topic=name, partitions=numbers) for name, numbers in topics.items()]
    return await broker.ask(DescribeLogDirsRequest(topics=wanted), version)


def sizes(answer: DescribeLogDirsResponse) -> dict[tuple[str, int], int]:
    (directory,) = answer.results
    return {
        (topic.name, partition.partition_index): partition.partition_size
        for topic in directory.topics
        for partition in topic.partitions
    }


@pytest.mark.parametrize("version", VERSIONS)
async def test_sizes_are_reported(broker: Broker, version: int) -> None:
    await broker.topics.create([NewTopic("t", 2), NewTopic("u")])
    async with broker.database.begin("test") as connection:
        await connection.execute(
            text("UPDATE penstock.topic_partition SET size_bytes = 10 + partition")
        )
    answer = await ask(broker, version=version)
    (directory,) = answer.results
    assert (directory.error_code, directory.log_dir) == (0, "postgresql")
    assert sizes(answer) == {("t", 0): 10, ("t", 1): 11, ("u", 0): 10}
    partition = directory.topics[0].partitions[0]
    assert (partition.offset_lag, partition.is_future_key) == (0, False)
    if version >= 4:
        assert (directory.total_bytes, directory.usable_bytes) == (-1, -1)


async def test_only_what_was_asked_for(broker: Broker) -> None:
    await broker.topics.create([NewTopic("t", 2), NewTopic("u")])
    assert sizes(await ask(broker, {"t": [1, 5], "none": [0]})) == {("t", 1): 0}
    assert sizes(await ask(broker, {})) == {}


async def test_every_partition_is_reported_by_one_broker(make_broker: MakeBroker) -> None:
    one, other = await make_broker(), await make_broker()
    await one.cluster.heartbeat()
    await one.topics.create([NewTopic("t", 32)])
    halves = [set(sizes(await ask(broker))) for broker in (one, other)]
    assert halves[0] | halves[1] == {("t", number) for number in range(32)}
    assert not halves[0] & halves[1]
    assert all(halves)


async def test_without_a_database_the_directory_is_offline(cut_off: Broker) -> None:
    (directory,) = (await ask(cut_off)).results
    assert (directory.error_code, directory.log_dir) == (Code.KAFKA_STORAGE_ERROR, "postgresql")
