"""DescribeTopicPartitions: pages, cursors, and topics that are not there."""

import pytest

from core.topic.rules import NewTopic
from gateway.kafka.codec import DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse
from tests.gateway.kafka.handlers.conftest import Broker, MakeBroker
from tests.kafka_codes import Code

Page = tuple[list[tuple[str, list[int]]], tuple[str, int] | None]


async def ask(
    broker: Broker,
    *names: str,
    limit: int = 2000,
    cursor: tuple[str, int] | None = None,
) -> DescribeTopicPartitionsResponse:
    kind = DescribeTopicPartitionsRequest
    request = kind(
        topics=[kind.TopicRequest(name=name) for name in names],
        response_partition_limit=limit,
        cursor=None
        if cursor is None
        else kind.Cursor(topic_name=cursor[0], partition_index=cursor[1]),
    )
    return await broker.ask(request, 0)


def page(answer: DescribeTopicPartitionsResponse) -> Page:
    topics = [
        (topic.name, [partition.partition_index for partition in topic.partitions])
        for topic in answer.topics
    ]
    cursor = answer.next_cursor
    return topics, None if cursor is None else (cursor.topic_name, cursor.partition_index)


@pytest.fixture
async def topics(broker: Broker) -> None:
    await broker.topics.create([NewTopic("c", 3), NewTopic("a", 2), NewTopic("b", 2)])


@pytest.mark.usefixtures("topics")
async def test_topics_come_in_order_with_leaders(broker: Broker) -> None:
    answer = await ask(broker, "c", "a")
    assert page(answer) == ([("a", [0, 1]), ("c", [0, 1, 2])], None)
    topic = await broker.topics.get("a")
    assert topic is not None
    described = answer.topics[0]
    assert (described.error_code, described.topic_id) == (0, topic.topic_id)
    assert described.topic_authorized_operations == 3576
    partition = described.partitions[1]
    own = broker.cluster.broker_id
    assert (partition.error_code, partition.leader_id, partition.leader_epoch) == (0, own, 0)
    assert list(partition.replica_nodes) == list(partition.isr_nodes) == [own]
    assert list(partition.eligible_leader_replicas) == list(partition.last_known_elr) == []


@pytest.mark.usefixtures("topics")
async def test_no_list_is_all_topics(broker: Broker) -> None:
    whole = ([("a", [0, 1]), ("b", [0, 1]), ("c", [0, 1, 2])], None)
    assert page(await ask(broker)) == whole


@pytest.mark.usefixtures("topics")
@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 7, 100])
@pytest.mark.parametrize("names", [(), ("c", "b", "a")])
async def test_pages_put_together_are_the_whole(
    broker: Broker, limit: int, names: tuple[str, ...]
) -> None:
    seen: list[tuple[str, int]] = []
    cursor = None
    for _ in range(10):
        topics, cursor = page(await ask(broker, *names, limit=limit, cursor=cursor))
        assert sum(len(partitions) for _, partitions in topics) <= limit
        seen += [(name, number) for name, partitions in topics for number in partitions]
        if cursor is None:
            break
    assert seen == [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("c", 0), ("c", 1), ("c", 2)]


@pytest.mark.usefixtures("topics")
async def test_cursor_points_into_a_topic_or_at_the_next(broker: Broker) -> None:
    assert page(await ask(broker, limit=3)) == ([("a", [0, 1]), ("b", [0])], ("b", 1))
    assert page(await ask(broker, limit=4)) == ([("a", [0, 1]), ("b", [0, 1])], ("c", 0))
    assert page(await ask(broker, limit=0)) == ([("a", [0])], ("a", 1))
    # A cursor may stand beyond a topic, or on one that was deleted.
    assert page(await ask(broker, cursor=("b", 9))) == ([("b", []), ("c", [0, 1, 2])], None)
    assert page(await ask(broker, cursor=("bb", 1))) == ([("c", [0, 1, 2])], None)


@pytest.mark.usefixtures("topics")
async def test_brokers_limit_counts_too(make_broker: MakeBroker) -> None:
    broker = await make_broker({"max.request.partition.size.limit": "1"})
    assert page(await ask(broker)) == ([("a", [0])], ("a", 1))


@pytest.mark.usefixtures("topics")
async def test_unknown_and_illegal_names(broker: Broker) -> None:
    answer = await ask(broker, "a", "none", "a/b", "nul\0")
    told = {topic.name: topic.error_code for topic in answer.topics}
    assert told == {
        "a": 0,
        "none": Code.UNKNOWN_TOPIC_OR_PARTITION,
        "a/b": Code.INVALID_TOPIC_EXCEPTION,
        "nul\0": Code.INVALID_TOPIC_EXCEPTION,
    }
    assert {topic.topic_authorized_operations for topic in answer.topics} == {3576}


@pytest.mark.usefixtures("topics")
async def test_bad_cursor_is_refused(broker: Broker) -> None:
    for cursor in [("a", 0), ("b", -1), ("", 0)]:
        answer = await ask(broker, "b", "c", cursor=cursor)
        assert {topic.error_code for topic in answer.topics} == {Code.INVALID_REQUEST}
    assert (await ask(broker, cursor=("b", -1))).topics == []


async def test_without_a_database_clients_are_told_to_try_again(cut_off: Broker) -> None:
    assert [each.error_code for each in (await ask(cut_off, "t")).topics] == [
        Code.REQUEST_TIMED_OUT
    ]
