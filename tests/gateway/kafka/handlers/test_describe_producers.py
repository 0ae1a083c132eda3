"""DescribeProducers: what partitions remember of producers."""

from sqlalchemy import insert

from core.topic.rules import NewTopic
from gateway.kafka.codec import DescribeProducersRequest, DescribeProducersResponse
from storage.schema import producer_state
from tests.batches import kafka_batch
from tests.gateway.kafka.handlers.conftest import Broker
from tests.gateway.kafka.handlers.producing import create, produce
from tests.gateway.kafka.handlers.transacting import producer_of
from tests.kafka_codes import Code


async def ask(broker: Broker, topics: dict[str, list[int]]) -> DescribeProducersResponse:
    kind = DescribeProducersRequest.TopicRequest
    wanted = [kind(name=name, partition_indexes=numbers) for name, numbers in topics.items()]
    return await broker.ask(DescribeProducersRequest(topics=wanted), 0)


async def remember(broker: Broker, partition_id: int, producer_id: int, sequence: int) -> None:
    row = {
        "partition_id": partition_id,
        "producer_id": producer_id,
        "producer_epoch": 3,
        "last_timestamp": 1_700_000_000_000,
        "last_sequences": [sequence - 1, sequence],
        "last_offsets": [10, 11],
        "offset_deltas": [0, 0],
        "timestamps": [1, 2],
    }
    async with broker.database.begin("test") as connection:
        await connection.execute(insert(producer_state).values(**row))


async def test_producers_of_each_partition(broker: Broker) -> None:
    await broker.topics.create([NewTopic("t", 2)])
    topic = await broker.topics.get("t")
    assert topic is not None
    await remember(broker, topic.partition_ids[1], 1001, 7)
    await remember(broker, topic.partition_ids[1], 1000, 2**31 - 1)
    (described,) = (await ask(broker, {"t": [0, 1]})).topics
    empty, two = described.partitions
    assert (empty.partition_index, empty.error_code, empty.active_producers) == (0, 0, [])
    assert [
        (each.producer_id, each.producer_epoch, each.last_sequence, each.last_timestamp)
        for each in two.active_producers
    ] == [(1000, 3, 2**31 - 1, 1_700_000_000_000), (1001, 3, 7, 1_700_000_000_000)]
    one = two.active_producers[0]
    assert (one.coordinator_epoch, one.current_txn_start_offset) == (-1, -1)


async def test_open_transaction_is_shown_until_it_ends(log_broker: Broker) -> None:
    await create(log_broker)
    await produce(log_broker, kafka_batch([b"before"] * 5))
    producer = await (await producer_of(log_broker)).begin()

    async def told() -> list[tuple[int, ...]]:
        (topic,) = (await ask(log_broker, {"t": [0]})).topics
        return [
            (
                each.producer_epoch,
                each.last_sequence,
                each.coordinator_epoch,
                each.current_txn_start_offset,
            )
            for each in topic.partitions[0].active_producers
        ]

    assert await told() == []
    await producer.write(values=[b"v"] * 3)
    await producer.write(3)
    assert await told() == [(0, 3, -1, 5)]
    await producer.end()  # V1 keeps the epoch, and so the sequence
    assert await told() == [(0, 3, 0, -1)]
    await producer.write(4, version=12)
    assert await told() == [(0, 4, 0, 10)]
    await producer.end(version=5)
    assert await told() == [(1, -1, 0, -1)]


async def test_unknown_topics_and_partitions(broker: Broker) -> None:
    await broker.topics.create([NewTopic("t", 1)])
    answer = await ask(broker, {"t": [0, 1, -1], "none": [0], "a/b": [0], "nul\0": [0]})
    told = {topic.name: [p.error_code for p in topic.partitions] for topic in answer.topics}
    assert told == {
        "t": [0, Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_OR_PARTITION],
        "none": [Code.UNKNOWN_TOPIC_OR_PARTITION],
        "a/b": [Code.INVALID_TOPIC_EXCEPTION],
        "nul\0": [Code.INVALID_TOPIC_EXCEPTION],
    }


async def test_without_a_database_clients_look_for_the_leader_again(cut_off: Broker) -> None:
    (topic,) = (await ask(cut_off, {"t": [0]})).topics
    assert topic.partitions[0].error_code == Code.NOT_LEADER_OR_FOLLOWER
