"""PRODUCER and CLOSE_PRODUCER: topics, names, access modes, ids; whose turn it is."""

from __future__ import annotations

from typing import Any

import pytest

from core.namespace.values import Tenant
from core.topic.rules import NewTopic
from gateway.pulsar.commands import CommandType, ProducerAccessMode, ServerError
from gateway.pulsar.commands_pb2 import (
    CommandCloseProducer,
    CommandProducer,
)
from tests.gateway.pulsar.conftest import Broker
from tests.gateway.pulsar.conversing import Conversation, entry_of

EXCLUSIVE = ProducerAccessMode.EXCLUSIVE
WAITING = ProducerAccessMode.WAIT_FOR_EXCLUSIVE
FENCING = ProducerAccessMode.EXCLUSIVE_WITH_FENCING


async def refused(client: Conversation, topic: str = "t", **producer: Any) -> tuple[int, str]:
    wanted = CommandProducer(**{"topic": topic, "producer_id": 9, **producer})
    error = await client.ask(wanted, CommandType.ERROR)
    return error.error, error.message


async def test_a_name_is_made_that_nobody_else_has(broker: Broker) -> None:
    client, other = await broker.client(), await broker.client()
    names = []
    for topic, number, who in [("t", 0, client), ("t", 1, client), ("t", 0, other)]:
        success = await who.produce_to(topic, producer_id=number)
        assert (success.last_sequence_id, success.producer_ready) == (-1, True)
        assert not success.HasField("topic_epoch")
        names.append(success.producer_name)
    assert len(set(names)) == 3
    another = broker.front_end.services.producers.make_name()
    assert another.rpartition("-")[0] == names[0].rpartition("-")[0]


async def test_a_given_name_is_its_holders_until_that_has_gone(broker: Broker) -> None:
    client, other = await broker.client(), await broker.client()
    assert (await client.produce_to("t", producer_name="mine")).producer_name == "mine"
    code, reason = await refused(other, producer_name="mine", epoch=5)
    assert (code, "already connected" in reason) == (ServerError.PRODUCER_BUSY, True)
    await client.hear(CommandType.PING)  # whether it is still there
    await other.produce_to("another", producer_name="mine")
    client.transport.close()
    await client.ended()
    await other.produce_to("t", producer_id=1, producer_name="mine")


async def test_a_made_name_is_taken_over_by_its_own_client(broker: Broker) -> None:
    client, again = await broker.client(), await broker.client()
    name = (await client.produce_to("t")).producer_name
    made = {"producer_name": name, "user_provided_producer_name": False}
    assert (await refused(again, **made))[0] == ServerError.PRODUCER_BUSY
    await client.hear(CommandType.PING)
    await again.produce_to("t", epoch=1, **made)
    await client.hear(CommandType.CLOSE_PRODUCER)


async def test_asked_again_the_answer_is_the_same(broker: Broker) -> None:
    client = await broker.client()
    first = await client.produce_to("t")
    again = await client.produce_to("persistent://public/default/t")
    assert again.producer_name == first.producer_name
    code, reason = await refused(client, "other", producer_id=0)
    assert (code, "public/default/t" in reason) == (ServerError.NOT_ALLOWED_ERROR, True)


async def test_an_exclusive_one_is_alone(broker: Broker) -> None:
    client, other = await broker.client(), await broker.client()
    success = await client.produce_to("t", producer_access_mode=EXCLUSIVE)
    assert (success.topic_epoch, success.HasField("topic_epoch")) == (0, True)
    assert (await refused(other))[0] == ServerError.PRODUCER_BUSY
    fenced = await refused(other, producer_access_mode=EXCLUSIVE)
    assert fenced[0] == ServerError.PRODUCER_FENCED
    assert (await refused(other, producer_access_mode=7))[0] == ServerError.NOT_ALLOWED_ERROR


async def test_who_waits_is_told_twice(broker: Broker) -> None:
    client, other = await broker.client(), await broker.client()
    await client.produce_to("t")
    waiting = await other.produce_to("t", producer_access_mode=WAITING)
    assert not waiting.producer_ready
    other.send(entry_of())
    assert (await other.hear(CommandType.SEND_ERROR)).error == ServerError.NOT_ALLOWED_ERROR
    await client.ask(CommandCloseProducer(producer_id=0), CommandType.SUCCESS)
    ready = await other.hear(CommandType.PRODUCER_SUCCESS)
    assert (ready.request_id, ready.producer_ready, ready.topic_epoch) == (
        waiting.request_id,
        True,
        0,
    )
    other.send(entry_of())
    await other.hear(CommandType.SEND_RECEIPT)


async def test_who_fences_ejects_the_others(broker: Broker) -> None:
    client, waiting, other = [await broker.client() for _ in range(3)]
    await client.produce_to("t", producer_access_mode=EXCLUSIVE)
    await waiting.produce_to("t", producer_access_mode=WAITING)
    success = await other.produce_to("t", producer_access_mode=FENCING)
    assert success.topic_epoch == 1
    await client.hear(CommandType.CLOSE_PRODUCER)
    error = await waiting.hear(CommandType.ERROR)
    assert error.error == ServerError.PRODUCER_FENCED
    late = await refused(client, producer_access_mode=EXCLUSIVE, topic_epoch=0)
    assert late[0] == ServerError.PRODUCER_FENCED


@pytest.mark.parametrize(
    ("topic", "code", "reason"),
    [
        ("non-persistent://public/default/t", ServerError.NOT_ALLOWED_ERROR, "only persistent"),
        ("persistent://a/b/c/d", ServerError.INVALID_TOPIC_NAME, "before 2.0"),
        ("p", ServerError.NOT_ALLOWED_ERROR, "is partitioned; name a partition"),
        ("p-partition-3", ServerError.TOPIC_NOT_FOUND, "does not exist"),
        ("one-partition-1", ServerError.TOPIC_NOT_FOUND, "does not exist"),
        ("none-partition-0", ServerError.TOPIC_NOT_FOUND, "does not exist"),
    ],
)
async def test_topics_that_cannot_be_written_to(
    broker: Broker, topic: str, code: ServerError, reason: str
) -> None:
    await broker.runtime.topics.create([NewTopic("p", 3), NewTopic("one", 1)])
    told, message = await refused(await broker.client(), topic)
    assert (told, reason in message) == (code, True), message


async def test_partitions_and_other_namespaces(broker: Broker) -> None:
    (created,) = (await broker.runtime.topics.create([NewTopic("p", 3)])).values()
    namespaces = broker.runtime.namespaces
    assert await namespaces.put_tenant(Tenant("a"), is_new=True) is None
    assert await namespaces.create("a", "b") is None
    client = await broker.client()
    wanted = ["p-partition-2", "one", "one-partition-0", "persistent://a/b/c"]
    for number, topic in enumerate(wanted):
        await client.produce_to(topic, producer_id=number)
        client.send(entry_of(), producer_id=number)
        assert (await client.hear(CommandType.SEND_RECEIPT)).message_id.entry_id == (number == 2)
    assert created
    made = [topic.name for topic in await broker.runtime.topics.all()]
    assert made == ["one", "p", "pulsar.a.b.c"]


async def test_topics_are_made_only_where_clients_may(make_broker: Any) -> None:
    broker: Broker = await make_broker({"auto.create.topics.enable": "false"})
    assert (await refused(await broker.client()))[0] == ServerError.TOPIC_NOT_FOUND


async def test_another_broker_leads_the_partition(make_broker: Any) -> None:
    one, other = [await make_broker() for _ in range(2)]
    for broker in (one, other):
        await broker.runtime.cluster.heartbeat()
    await one.runtime.topics.create([NewTopic("t", 1)])
    leader = (await one.runtime.topics.get("t")).partition_ids[0]
    brokers = {each.runtime.cluster.broker_id: each for each in (one, other)}
    leading = brokers.pop(one.runtime.cluster.leader_of(leader))
    (following,) = brokers.values()
    await (await leading.client()).produce_to("t")
    code, reason = await refused(await following.client())
    assert (code, "look it up again" in reason) == (ServerError.SERVICE_NOT_READY, True)


async def test_closing_waits_for_receipts_and_frees_the_name(broker: Broker) -> None:
    client = await broker.client()
    await client.produce_to("t", producer_name="mine")
    for number in range(3):
        client.send(entry_of(), sequence_id=number)
    client.say(CommandCloseProducer(producer_id=0, request_id=77))
    for number in range(3):
        assert (await client.hear(CommandType.SEND_RECEIPT)).sequence_id == number
    assert (await client.hear(CommandType.SUCCESS)).request_id == 77
    await client.produce_to("t", producer_name="mine")
    error = await client.ask(CommandCloseProducer(producer_id=5), CommandType.ERROR)
    assert error.error == ServerError.UNKNOWN_ERROR


async def test_one_that_is_closed_before_it_is_made_is_none(broker: Broker) -> None:
    client = await broker.client()
    client.say(CommandProducer(topic="t", producer_id=0, request_id=1, producer_name="mine"))
    client.say(CommandProducer(topic="t", producer_id=0, request_id=2))
    client.say(CommandCloseProducer(producer_id=0, request_id=3))
    twice = await client.hear(CommandType.ERROR)
    assert (twice.request_id, twice.error) == (2, ServerError.SERVICE_NOT_READY)
    assert (await client.hear(CommandType.SUCCESS)).request_id == 3
    assert (await client.hear(CommandType.ERROR)).request_id == 1
    await client.produce_to("t", producer_name="mine")
