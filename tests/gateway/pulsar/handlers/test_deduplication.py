"""Deduplication: what PRODUCER tells, what SEND stores, how a duplicate is answered."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from core.config.rules import ConfigAlteration, ConfigOperation, ConfigResource
from core.topic.rules import NewTopic
from gateway.pulsar.commands import CommandType, ProducerAccessMode, ServerError
from gateway.pulsar.commands_pb2 import CommandCloseProducer, CommandProducer
from gateway.pulsar.ids import NO_ID
from tests.gateway.pulsar.conftest import Broker
from tests.gateway.pulsar.conversing import Conversation, entry_of

SETTING = "penstock.deduplication.enabled"
DUPLICATE = (NO_ID, NO_ID)


async def make_topic(broker: Broker, name: str = "t", *, is_on: bool = True) -> int:
    """A topic of one partition, and its number in the store."""
    await broker.runtime.topics.create([NewTopic(name, 1, configs=((SETTING, str(is_on)),))])
    topic = await broker.runtime.topics.get(name)
    assert topic is not None
    return topic.partition_ids[0]


async def switch(broker: Broker, value: str, topic: str = "t") -> None:
    steps = ConfigAlteration(ConfigResource(2, topic), (ConfigOperation(SETTING, 0, value),))
    assert await broker.runtime.configs.alter([steps], validate_only=False) == [None]
    broker.runtime.on_metadata()
    await broker.runtime.topics.get(topic)


async def sent(client: Conversation, sequence_id: int, **send: Any) -> tuple[int, int]:
    """The id that a message got."""
    metadata = send.pop("metadata", {})
    entry = entry_of(b"%020d" % sequence_id * 2, **metadata)
    client.send(entry, sequence_id=sequence_id, **send)
    receipt = await client.hear(CommandType.SEND_RECEIPT)
    assert receipt.sequence_id == sequence_id
    return receipt.message_id.ledger_id, receipt.message_id.entry_id


async def count(broker: Broker, topic: str = "t") -> int:
    return len(await broker.lines(topic))


async def produce(client: Conversation, **producer: Any) -> int:
    """Its PRODUCER; gives the last sequence id it is told."""
    name = "persistent://public/default/t"
    success = await client.produce_to(name, **{"producer_name": "p", **producer})
    return int(success.last_sequence_id)


async def restarted(broker: Broker, client: Conversation) -> Conversation:
    client.transport.close()
    await client.ended()
    return await broker.client()


async def test_a_message_is_stored_once_and_its_producer_told_where_it_was(
    broker: Broker,
) -> None:
    p = await make_topic(broker)
    client = await broker.client()
    assert await produce(client) == -1
    assert [await sent(client, n) for n in (3, 7)] == [(p, 0), (p, 1)]
    assert [await sent(client, n) for n in (7, 3, 0)] == [DUPLICATE] * 3
    client = await restarted(broker, client)
    assert await produce(client) == 7
    assert [await sent(client, n) for n in (7, 8)] == [DUPLICATE, (p, 2)]
    assert await produce(await broker.client(), producer_name="q") == -1
    assert await count(broker) == 3


async def test_without_the_setting_all_is_stored(broker: Broker) -> None:
    await make_topic(broker, is_on=False)
    client = await broker.client()
    assert await produce(client) == -1
    assert [(await sent(client, n))[1] for n in (3, 3)] == [0, 1]
    client = await restarted(broker, client)
    assert await produce(client) == -1


async def test_a_broker_may_have_it_for_all_topics(make_broker: Any) -> None:
    broker = await make_broker({"penstock.broker.deduplication.enabled": "true"})
    client = await broker.client()
    assert await produce(client) == -1  # makes the topic
    assert [(await sent(client, n))[1] for n in (0, 0)] == [0, NO_ID]
    await make_topic(broker, "other", is_on=False)
    await client.produce_to("other", producer_id=1)
    assert (await sent(client, 0, producer_id=1))[1] == 0
    assert (await sent(client, 0, producer_id=1))[1] == 1


async def test_receipts_stay_in_order_and_tell_the_highest_as_sent(broker: Broker) -> None:
    await make_topic(broker)
    client = await broker.client()
    await produce(client)
    for number in (0, 0, 1, 0, 1, 2):
        client.send(entry_of(), sequence_id=number, highest_sequence_id=number)
    client.send(entry_of(marker_type=21), sequence_id=2)
    heard = [await client.hear(CommandType.SEND_RECEIPT) for _ in range(6)]
    assert [each.sequence_id for each in heard] == [0, 0, 1, 0, 1, 2]
    assert [each.highest_sequence_id for each in heard] == [0, 0, 1, 0, 1, 2]
    is_new = [each.message_id.entry_id != NO_ID for each in heard]
    assert is_new == [True, False, True, False, False, True]
    assert (await client.hear(CommandType.SEND_ERROR)).sequence_id == 2
    assert broker.memory.held_bytes == 0


async def test_batches_are_told_by_their_first_and_counted_by_their_highest(
    broker: Broker,
) -> None:
    p = await make_topic(broker)
    client = await broker.client()
    await produce(client)
    batch = {"num_messages": 5, "metadata": {"num_messages_in_batch": 5}}
    assert await sent(client, 10, highest_sequence_id=14, **batch) == (p, 0)
    assert await sent(client, 10, highest_sequence_id=14, **batch) == DUPLICATE
    assert await sent(client, 12, highest_sequence_id=16, **batch) == DUPLICATE  # as in Pulsar
    assert await sent(client, 14) == DUPLICATE
    assert await sent(client, 15, highest_sequence_id=19, **batch) == (p, 5)
    client = await restarted(broker, client)
    assert await produce(client) == 19


async def test_chunks_have_one_sequence_id(broker: Broker) -> None:
    await make_topic(broker)
    client = await broker.client()
    await produce(client)

    async def chunk(number: int, of: int, sequence_id: int = 4) -> bool:
        metadata = {"chunk_id": number, "num_chunks_from_msg": of, "uuid": "u"}
        found = await sent(client, sequence_id, is_chunk=True, metadata=metadata)
        return found != DUPLICATE

    assert [await chunk(n, 3) for n in (0, 1, 1)] == [True, True, False]
    client = await restarted(broker, client)
    assert await produce(client) == -1  # the message is not whole
    assert [await chunk(n, 3) for n in (1, 2, 2, 0)] == [False, True, False, False]
    assert [await chunk(n, 1, sequence_id=5) for n in (0, 0)] == [True, False]
    client = await restarted(broker, client)
    assert await produce(client) == 5
    assert await count(broker) == 4


async def test_sequence_ids_are_unsigned(broker: Broker) -> None:
    p = await make_topic(broker)
    client = await broker.client()
    await produce(client)
    ids = (2**63 - 1, 2**63, 2**64 - 2)
    assert [await sent(client, each) for each in ids] == [(p, 0), (p, 1), (p, 2)]
    assert await sent(client, 2**63) == DUPLICATE
    client = await restarted(broker, client)
    assert await produce(client) == -2  # as Java has it
    assert await sent(client, 2**64 - 2) == DUPLICATE


async def test_asked_again_the_answer_tells_the_same(broker: Broker) -> None:
    await make_topic(broker)
    client = await broker.client()
    await produce(client)
    await sent(client, 5)
    client = await restarted(broker, client)
    assert [await produce(client) for _ in range(2)] == [5, 5]
    await sent(client, 6)


async def test_who_waits_its_turn_is_told_with_the_second_answer_too(broker: Broker) -> None:
    p = await make_topic(broker)
    waiting = ProducerAccessMode.WAIT_FOR_EXCLUSIVE
    client, other = await broker.client(), await broker.client()
    await produce(other, producer_name="q")
    await sent(other, 9)
    other = await restarted(broker, other)
    await produce(client)
    first = await other.produce_to("t", producer_name="q", producer_access_mode=waiting)
    assert (first.producer_ready, first.last_sequence_id) == (False, 9)
    await client.ask(CommandCloseProducer(producer_id=0), CommandType.SUCCESS)
    ready = await other.hear(CommandType.PRODUCER_SUCCESS)
    assert (ready.producer_ready, ready.last_sequence_id, ready.topic_epoch) == (True, 9, 0)
    assert [await sent(other, n) for n in (9, 10)] == [DUPLICATE, (p, 1)]


async def test_who_fences_a_name_goes_on_where_it_was(broker: Broker) -> None:
    p = await make_topic(broker)
    fencing = ProducerAccessMode.EXCLUSIVE_WITH_FENCING
    client, other = await broker.client(), await broker.client()
    await produce(client)
    await sent(client, 0)
    for number in range(1, 40):
        client.send(entry_of(), sequence_id=number)
    told = await produce(other, producer_access_mode=fencing)
    assert 0 <= told < 40
    assert await sent(other, told) == DUPLICATE
    assert await sent(other, told + 1) == (p, told + 1)
    assert await count(broker) == told + 2


async def test_two_brokers_and_one_name(make_broker: Any) -> None:
    """The first does not know that its producer is not the last of its name any more."""
    here, there = await make_broker(), await make_broker()
    p = await make_topic(here)
    client = await here.client()
    owned = await here.runtime.subscriptions.claim(p)
    if not owned:
        here, there = there, here
        client = await here.client()
    assert await produce(client) == -1
    await sent(client, 0)
    assert (await there.runtime.partitions.claim_name(p, "p")).highest_sequence_id == 0
    client.send(entry_of(), sequence_id=1)
    closing = await client.hear(CommandType.CLOSE_PRODUCER)
    assert closing.producer_id == 0
    assert await produce(client) == 0
    assert [await sent(client, n) for n in (0, 1)] == [DUPLICATE, (p, 1)]


async def test_switched_on_its_producers_come_again_and_lose_nothing(broker: Broker) -> None:
    p = await make_topic(broker, is_on=False)
    client = await broker.client()
    assert await produce(client) == -1
    assert await sent(client, 4) == (p, 0)
    client.send(entry_of(), sequence_id=5)
    await switch(broker, "true")
    for number in (6, 7):
        client.send(entry_of(), sequence_id=number)
    receipt = await client.hear(CommandType.SEND_RECEIPT)  # what was taken in is answered
    assert (receipt.sequence_id, receipt.message_id.entry_id) == (5, 1)
    assert (await client.hear(CommandType.CLOSE_PRODUCER)).producer_id == 0
    client.send(entry_of(), sequence_id=8)  # sent before that was heard
    assert await produce(client) == -1
    assert [await sent(client, n) for n in (6, 7, 8, 6)] == [(p, 2), (p, 3), (p, 4), DUPLICATE]


async def test_switched_off_nothing_is_compared_any_more(broker: Broker) -> None:
    p = await make_topic(broker)
    client = await broker.client()
    await produce(client)
    assert [await sent(client, n) for n in (4, 4)] == [(p, 0), DUPLICATE]
    assert broker.runtime.partitions.names_in_use() == [(p, "p")]
    await switch(broker, "false")
    assert [await sent(client, n) for n in (4, 4)] == [(p, 1), (p, 2)]
    assert broker.runtime.partitions.names_in_use() == []


async def test_a_name_is_in_use_while_its_producer_is_there(broker: Broker) -> None:
    p = await make_topic(broker)
    client = await broker.client()
    await produce(client)
    assert broker.runtime.partitions.names_in_use() == [(p, "p")]
    await client.ask(CommandCloseProducer(producer_id=0), CommandType.SUCCESS)
    assert broker.runtime.partitions.names_in_use() == []


@pytest.mark.parametrize("end", ["close", "connection"])
@pytest.mark.usefixtures("patient_sessions")
async def test_a_producer_may_go_while_its_name_is_claimed(
    broker: Broker, database_url: str, end: str
) -> None:
    p = await make_topic(broker)
    client = await broker.client()
    with psycopg.connect(database_url) as other:
        other.execute("SELECT 1 FROM topic_partition FOR UPDATE")
        wanted = CommandProducer(topic="t", producer_id=0, producer_name="p", request_id=70)
        client.say(wanted)
        await asyncio.sleep(0.3)
        if end == "close":
            await client.ask(CommandCloseProducer(producer_id=0), CommandType.SUCCESS)
        else:
            client.transport.close()
            await client.ended()
    if end == "close":
        error = await client.hear(CommandType.ERROR)
        assert (error.request_id, error.error) == (70, ServerError.SERVICE_NOT_READY)
    async with asyncio.timeout(20):
        while True:  # its name is free again
            again = await broker.client()
            again.say(wanted)
            await again._some()
            if again.transport.commands[0].type is CommandType.PRODUCER_SUCCESS:
                break
            await asyncio.sleep(0.05)
    assert broker.runtime.partitions.names_in_use() == [(p, "p")]


async def test_a_name_that_cannot_be_claimed_now_is_tried_again(
    broker: Broker, database_url: str
) -> None:
    await make_topic(broker)
    client = await broker.client()
    with psycopg.connect(database_url) as other:
        other.execute("SELECT 1 FROM topic_partition FOR UPDATE")
        wanted = CommandProducer(topic="t", producer_id=0, producer_name="p")
        error = await client.ask(wanted, CommandType.ERROR)
        assert error.error == ServerError.SERVICE_NOT_READY
    assert await produce(client) == -1


async def test_a_damaged_message_is_not_overtaken(broker: Broker) -> None:
    """Its client sends it again: were a later one stored by then, it would be taken for one of
    before."""
    p = await make_topic(broker)
    client = await broker.client()
    await produce(client)
    damaged = bytearray(entry_of())
    damaged[-1] ^= 1
    client.send(entry_of(), sequence_id=0)
    client.send(bytes(damaged), sequence_id=1)
    client.send(entry_of(), sequence_id=2)
    assert (await client.hear(CommandType.SEND_RECEIPT)).sequence_id == 0
    error = await client.hear(CommandType.SEND_ERROR)
    assert (error.sequence_id, error.error) == (1, ServerError.CHECKSUM_ERROR)
    await client.hear(CommandType.CLOSE_PRODUCER)
    assert await produce(client) == 0
    assert [await sent(client, n) for n in (1, 2)] == [(p, 1), (p, 2)]
