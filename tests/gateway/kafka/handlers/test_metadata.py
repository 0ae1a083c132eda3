"""Metadata: brokers, topics by name and by id, creation on demand, and what is refused."""

import asyncio
from uuid import UUID, uuid4

import pytest

from core.ports.log import StoreUnavailable
from core.topic.rules import NewTopic
from gateway.kafka.codec import MetadataRequest, MetadataResponse
from tests.gateway.kafka.handlers.conftest import Broker, MakeBroker
from tests.kafka_codes import Code

VERSIONS = range(14)
NOT_ASKED = 2**31  # the bits of Kafka's lowest int32


def asked(name: str | None, topic_id: UUID | None = None) -> object:
    return MetadataRequest.MetadataRequestTopic(name=name, topic_id=topic_id)


async def ask(
    broker: Broker, topics: list[object] | None, version: int = 13, **fields: object
) -> MetadataResponse:
    fields = {"allow_auto_topic_creation": False, **fields}
    return await broker.ask(MetadataRequest(topics=topics, **fields), version)


async def errors(broker: Broker, *topics: object, version: int = 13, **fields: object) -> list[int]:
    answer = await ask(broker, list(topics), version, **fields)
    return [topic.error_code for topic in answer.topics]


@pytest.mark.parametrize("version", VERSIONS)
async def test_topic_and_brokers_are_described(broker: Broker, version: int) -> None:
    await broker.topics.create([NewTopic("t", 2)])
    topic = await broker.topics.get("t")
    assert topic is not None
    answer = await ask(broker, [asked("t")], version)
    own = broker.cluster.broker_id
    (node,) = answer.brokers
    assert (node.node_id, node.host, node.port) == (own, "127.0.0.1", 9001)
    if version >= 1:
        assert answer.controller_id == own
    if version >= 2:
        assert answer.cluster_id == broker.cluster.cluster_id != ""
    (described,) = answer.topics
    assert (described.name, described.error_code) == ("t", 0)
    if version >= 10:
        assert described.topic_id == topic.topic_id
    for number, partition in enumerate(described.partitions):
        assert (partition.error_code, partition.partition_index) == (0, number)
        assert partition.leader_id == own
        assert list(partition.replica_nodes) == list(partition.isr_nodes) == [own]
        if version >= 7:
            assert partition.leader_epoch == 0
    assert len(described.partitions) == 2


async def test_all_topics_are_asked_with_an_empty_list_in_v0_and_null_later(
    broker: Broker,
) -> None:
    await broker.topics.create([NewTopic("b"), NewTopic("a")])
    for version, topics in [(0, []), (1, None), (13, None)]:
        answer = await ask(broker, topics, version)
        assert [topic.name for topic in answer.topics] == ["a", "b"]
    assert (await ask(broker, [], 1)).topics == []
    assert (await ask(broker, [], 13)).topics == []


async def test_all_topics_are_fresh_after_a_change_at_another_broker(
    make_broker: MakeBroker,
) -> None:
    one, other = await make_broker(), await make_broker()
    assert (await ask(one, None)).topics == []
    await other.topics.create([NewTopic("t")])
    assert [topic.name for topic in (await ask(one, None)).topics] == ["t"]
    await other.topics.delete(["t"])
    assert (await ask(one, None)).topics == []


async def test_topics_by_id(broker: Broker) -> None:
    await broker.topics.create([NewTopic("t")])
    topic = await broker.topics.get("t")
    assert topic is not None
    unknown = uuid4()
    answer = await ask(broker, [asked(None, topic.topic_id), asked(None, unknown), asked("t")], 12)
    assert [(each.name, each.topic_id, each.error_code) for each in answer.topics] == [
        ("t", topic.topic_id, 0),
        (None, unknown, Code.UNKNOWN_TOPIC_ID),
    ]


async def test_ids_and_null_names_before_v12_are_invalid(broker: Broker) -> None:
    assert await errors(broker, asked("t", uuid4()), version=11) == [Code.INVALID_REQUEST]
    assert await errors(broker, asked(None), version=10) == [Code.INVALID_REQUEST]
    assert await errors(broker, asked(None), version=12) == [Code.INVALID_REQUEST]
    topic_id = uuid4()
    (told,) = (await ask(broker, [asked("t", topic_id)], 11)).topics
    assert (told.name, told.topic_id) == ("t", topic_id)


async def test_unknown_and_illegal_names(broker: Broker) -> None:
    names = [asked(name) for name in ("nope", "a/b", "", "nul\0", "x" * 250)]
    assert await errors(broker, *names) == [
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        *[Code.INVALID_TOPIC_EXCEPTION] * 4,
    ]
    creating = await errors(broker, *names[1:], allow_auto_topic_creation=True)
    assert creating == [Code.INVALID_TOPIC_EXCEPTION] * 4


@pytest.mark.parametrize("version", [0, 3, 4, 13])
async def test_missing_topic_is_created_on_demand(make_broker: MakeBroker, version: int) -> None:
    broker = await make_broker({"num.partitions": "3"})
    answer = await ask(
        broker, [asked("new"), asked("new")], version, allow_auto_topic_creation=True
    )
    (topic,) = answer.topics
    assert (topic.name, topic.error_code, len(topic.partitions)) == ("new", 0, 3)


async def test_creation_on_demand_needs_the_clients_and_the_brokers_consent(
    make_broker: MakeBroker,
) -> None:
    willing = await make_broker()
    assert await errors(willing, asked("t"), allow_auto_topic_creation=False) == [
        Code.UNKNOWN_TOPIC_OR_PARTITION
    ]
    unwilling = await make_broker({"auto.create.topics.enable": "false"})
    assert await errors(unwilling, asked("t"), allow_auto_topic_creation=True) == [
        Code.UNKNOWN_TOPIC_OR_PARTITION
    ]
    assert await willing.topics.all() == ()


async def test_brokers_creating_one_topic_on_demand_describe_the_same(
    make_broker: MakeBroker,
) -> None:
    brokers = [await make_broker() for _ in range(3)]
    answers = await asyncio.gather(
        *(ask(broker, [asked("t")], allow_auto_topic_creation=True) for broker in brokers)
    )
    assert [answer.topics[0].error_code for answer in answers] == [0, 0, 0]
    assert len({answer.topics[0].topic_id for answer in answers}) == 1


async def test_creation_on_demand_is_bounded(broker: Broker) -> None:
    names = [asked(f"t{number}") for number in range(10_001)]
    answer = await errors(broker, *names, allow_auto_topic_creation=True)
    assert set(answer) == {Code.POLICY_VIOLATION}


async def test_authorized_operations_come_on_request(broker: Broker) -> None:
    await broker.topics.create([NewTopic("t")])
    silent = await ask(broker, [asked("t")], 10)
    assert silent.topics[0].authorized_operations == NOT_ASKED
    assert silent.authorized_operations == NOT_ASKED
    asking = await ask(
        broker,
        [asked("t")],
        10,
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )
    # Kafka 4.1 without an authorizer answers these numbers.
    assert asking.topics[0].authorized_operations == 3576
    assert asking.authorized_operations == 8096


@pytest.mark.parametrize("version", range(8, 14))
async def test_authorized_operations_of_names_that_are_not_there(
    broker: Broker, version: int
) -> None:
    names = [asked("none"), asked("a/b")]
    silent = await ask(broker, names, version)
    assert [topic.authorized_operations for topic in silent.topics] == [NOT_ASKED] * 2
    asking = await ask(broker, names, version, include_topic_authorized_operations=True)
    assert [topic.error_code for topic in asking.topics] == [
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.INVALID_TOPIC_EXCEPTION,
    ]
    assert [topic.authorized_operations for topic in asking.topics] == [3576] * 2


async def test_authorized_operations_are_not_told_of_unknown_ids(broker: Broker) -> None:
    unknown = [asked(None, uuid4())]
    answer = await ask(broker, unknown, include_topic_authorized_operations=True)
    assert [topic.authorized_operations for topic in answer.topics] == [NOT_ASKED]


async def test_leaders_are_spread_over_live_brokers_and_agreed_upon(
    make_broker: MakeBroker,
) -> None:
    one, other = await make_broker(rack="r1"), await make_broker()
    await one.cluster.heartbeat()
    await one.topics.create([NewTopic("t", 64)])
    answers = [await ask(broker, [asked("t")]) for broker in (one, other)]
    leaders = [[p.leader_id for p in answer.topics[0].partitions] for answer in answers]
    assert leaders[0] == leaders[1]
    assert all(leaders[0].count(each) >= 16 for each in (1, 2))
    assert [(node.node_id, node.rack) for node in answers[1].brokers] == [(1, "r1"), (2, None)]


async def test_internal_topics_are_marked(broker: Broker) -> None:
    await broker.topics.create([NewTopic("__consumer_offsets")])
    answer = await ask(broker, [asked("__consumer_offsets"), asked("__transaction_state")])
    assert [topic.is_internal for topic in answer.topics] == [True, True]


async def test_without_a_database_what_is_known_is_answered(
    broker: Broker, cut_off: Broker
) -> None:
    assert await errors(cut_off, asked("t"), asked(None, None), version=11) == [
        Code.INVALID_REQUEST,
        Code.INVALID_REQUEST,
    ]
    assert await errors(cut_off, asked("t"), asked("u")) == [Code.LEADER_NOT_AVAILABLE] * 2
    assert await errors(cut_off, asked(None, uuid4())) == [Code.LEADER_NOT_AVAILABLE]
    # An empty list would make a consumer by pattern give up its topics.
    with pytest.raises(StoreUnavailable):
        await ask(cut_off, None)
    await broker.topics.create([NewTopic("t")])
    await ask(broker, None)
    broker.topics._store = cut_off.topics._store
    broker.topics._configs._store = cut_off.configs._store
    assert await errors(broker, asked("t"), asked("u")) == [0, Code.LEADER_NOT_AVAILABLE]
    broker.topics.invalidate()
    assert [topic.name for topic in (await ask(broker, None)).topics] == ["t"]
