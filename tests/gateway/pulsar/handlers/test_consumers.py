"""What commands of Pulsar's consumers are answered, and in which order."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.pulsar.commands import AckType, CommandType, ServerError, SubType
from gateway.pulsar.commands_pb2 import (
    CommandAck,
    CommandCloseConsumer,
    CommandConsumerStats,
    CommandFlow,
    CommandGetLastMessageId,
    CommandRedeliverUnacknowledgedMessages,
    CommandSeek,
    CommandSubscribe,
    CommandUnsubscribe,
    MessageIdData,
)
from gateway.pulsar.ids import NO_ID, earliest, unacknowledged_words
from tests.gateway.pulsar.conftest import Broker
from tests.gateway.pulsar.conversing import Conversation, entry_of

TOPIC = "persistent://public/default/t"
EARLIEST = 1


async def produce(broker: Broker, count: int) -> None:
    client = await broker.client()
    await client.produce_to(TOPIC)
    for number in range(count):
        client.send(entry_of(b"%d" % number, sequence_id=number), sequence_id=number)
        await client.hear(CommandType.SEND_RECEIPT)


async def subscribe(client: Conversation, permits: int = 100, **subscribe: Any) -> None:
    wanted = {"topic": TOPIC, "subscription": "s", "sub_type": SubType.SHARED, "consumer_id": 1}
    wanted |= {"initial_position": EARLIEST, **subscribe}
    await client.ask(CommandSubscribe(**wanted), CommandType.SUCCESS)
    if permits:
        client.say(CommandFlow(consumer_id=wanted["consumer_id"], message_permits=permits))


async def refused(client: Conversation, **subscribe: Any) -> tuple[ServerError, str]:
    wanted = {"topic": TOPIC, "subscription": "s", "sub_type": SubType.SHARED, "consumer_id": 1}
    answer = await client.ask(CommandSubscribe(**(wanted | subscribe)), CommandType.ERROR)
    return ServerError(answer.error), answer.message


async def messages(client: Conversation, count: int) -> list[Any]:
    return [await client.hear(CommandType.MESSAGE) for _ in range(count)]


async def test_nothing_comes_before_permits(broker: Broker) -> None:
    await produce(broker, 5)
    client = await broker.client()
    await subscribe(client, permits=0)
    client.say(CommandFlow(consumer_id=1, message_permits=2))
    found = await messages(client, 2)
    assert [each.message_id.entry_id for each in found] == [0, 1]
    assert {(each.consumer_id, each.message_id.partition) for each in found} == {(1, -1)}
    # What is answered behind it shows that no third one was sent.
    stats = await client.ask(
        CommandConsumerStats(consumer_id=1), CommandType.CONSUMER_STATS_RESPONSE
    )
    assert (stats.available_permits, stats.unacked_messages, stats.type) == (0, 2, "Shared")


async def test_a_receipt_is_asked_for_by_a_request_id(broker: Broker) -> None:
    await produce(broker, 3)
    client = await broker.client()
    await subscribe(client)
    ids = [each.message_id for each in await messages(client, 3)]
    client.say(CommandAck(consumer_id=1, ack_type=AckType.INDIVIDUAL, message_id=ids[:1]))
    ack = CommandAck(consumer_id=1, ack_type=AckType.INDIVIDUAL, message_id=ids[1:])
    answer = await client.ask(ack, CommandType.ACK_RESPONSE)
    assert (answer.consumer_id, answer.HasField("error")) == (1, False)
    found = await client.ask(
        CommandGetLastMessageId(consumer_id=1), CommandType.GET_LAST_MESSAGE_ID_RESPONSE
    )
    assert found.last_message_id.entry_id == 2
    assert found.consumer_mark_delete_position.entry_id == 2
    ack = CommandAck(consumer_id=7, ack_type=AckType.INDIVIDUAL, message_id=ids)
    answer = await client.ask(ack, CommandType.ACK_RESPONSE)
    assert answer.error == ServerError.CONSUMER_NOT_FOUND


async def test_ids_of_elsewhere_acknowledge_nothing(broker: Broker) -> None:
    await produce(broker, 2)
    client = await broker.client()
    await subscribe(client)
    (mine, _) = [each.message_id for each in await messages(client, 2)]
    for ledger_id, entry_id in ((mine.ledger_id + 1, 0), (NO_ID, NO_ID), (mine.ledger_id, 10**9)):
        each = MessageIdData(ledger_id=ledger_id, entry_id=entry_id)
        for kind in (AckType.INDIVIDUAL, AckType.CUMULATIVE):
            if entry_id == 10**9 and kind is AckType.CUMULATIVE:
                continue  # "all up to there" is all there is
            ack = CommandAck(consumer_id=1, ack_type=kind, message_id=[each])
            answer = await client.ask(ack, CommandType.ACK_RESPONSE)
            assert not answer.HasField("error")
    found = await client.ask(
        CommandGetLastMessageId(consumer_id=1), CommandType.GET_LAST_MESSAGE_ID_RESPONSE
    )
    assert found.consumer_mark_delete_position.entry_id == NO_ID


async def test_an_empty_topic_has_no_last_message(broker: Broker) -> None:
    client = await broker.client()
    await subscribe(client)
    found = await client.ask(
        CommandGetLastMessageId(consumer_id=1), CommandType.GET_LAST_MESSAGE_ID_RESPONSE
    )
    assert found.last_message_id == earliest()


async def test_seek_closes_the_consumer_and_then_answers(broker: Broker) -> None:
    await produce(broker, 3)
    client = await broker.client()
    await subscribe(client)
    ids = [each.message_id for each in await messages(client, 3)]
    client.say(CommandSeek(consumer_id=1, request_id=77, message_id=ids[1]))
    closed = await client.hear(CommandType.CLOSE_CONSUMER)
    assert (closed.consumer_id, closed.request_id) == (1, NO_ID)
    assert (await client.hear(CommandType.SUCCESS)).request_id == 77
    await subscribe(client)
    assert [each.message_id.entry_id for each in await messages(client, 2)] == [1, 2]


async def test_failovers_consumers_are_told_who_is_active(broker: Broker) -> None:
    client = await broker.client()
    kind = {"sub_type": SubType.FAILOVER, "permits": 0}
    await subscribe(client, consumer_name="a", priority_level=0, **kind)
    told = await client.hear(CommandType.ACTIVE_CONSUMER_CHANGE)
    assert (told.consumer_id, told.is_active) == (1, True)
    await subscribe(client, consumer_id=2, consumer_name="b", priority_level=1, **kind)
    told = await client.hear(CommandType.ACTIVE_CONSUMER_CHANGE)
    assert (told.consumer_id, told.is_active) == (2, False)
    client.say(CommandCloseConsumer(consumer_id=1, request_id=9))
    heard = {}
    for _ in range(2):
        await client._some()
        command = client.transport.commands.pop(0)
        client.transport.entries.pop(0)
        heard[command.type] = command.message
    assert heard[CommandType.SUCCESS].request_id == 9
    told = heard[CommandType.ACTIVE_CONSUMER_CHANGE]
    assert (told.consumer_id, told.is_active) == (2, True)


async def test_who_is_turned_away(broker: Broker) -> None:
    client, other = await broker.client(), await broker.client()
    await subscribe(client, sub_type=SubType.EXCLUSIVE)
    busy = ServerError.CONSUMER_BUSY
    assert (await refused(other, sub_type=SubType.EXCLUSIVE))[0] == busy
    assert (await refused(other, sub_type=SubType.SHARED))[0] == busy
    not_allowed = ServerError.NOT_ALLOWED_ERROR
    code, reason = await refused(other, subscription="c", read_compacted=True)
    assert (code, "compacted" in reason) == (not_allowed, True)
    assert (await refused(other, subscription="c", sub_type=9))[0] == not_allowed
    assert (await refused(other, subscription=""))[0] == not_allowed
    absent = await refused(
        other, topic="persistent://public/default/no", force_topic_creation=False
    )
    assert absent[0] == ServerError.TOPIC_NOT_FOUND
    await client.hear(CommandType.PING)  # whether it is there, since others want its place
    # Asked again for an id that it has, the answer is the same.
    await subscribe(client, sub_type=SubType.EXCLUSIVE)
    assert (await refused(client, subscription="other"))[0] == not_allowed


async def test_unsubscribing_while_others_are_there(broker: Broker) -> None:
    client, other = await broker.client(), await broker.client()
    await subscribe(client)
    await subscribe(other)
    answer = await client.ask(CommandUnsubscribe(consumer_id=1), CommandType.ERROR)
    assert answer.error == ServerError.METADATA_ERROR
    await client.ask(CommandUnsubscribe(consumer_id=1, force=True), CommandType.SUCCESS)
    await other.hear(CommandType.CLOSE_CONSUMER)


async def test_given_back_with_an_epoch_it_comes_with_it(broker: Broker) -> None:
    await produce(broker, 2)
    client = await broker.client()
    await subscribe(client, sub_type=SubType.EXCLUSIVE)
    await messages(client, 2)
    client.say(CommandRedeliverUnacknowledgedMessages(consumer_id=1, consumer_epoch=3))
    found = await messages(client, 2)
    assert [(each.consumer_epoch, each.redelivery_count) for each in found] == [(3, 1)] * 2


@pytest.mark.parametrize("acked", [[0], [3], [0, 1, 2, 8]])
async def test_of_a_batch_half_done_the_rest_is_told(broker: Broker, acked: list[int]) -> None:
    producer = await broker.client()
    await producer.produce_to(TOPIC)
    producer.send(entry_of(bytes(100), num_messages_in_batch=10), num_messages=10)
    await producer.hear(CommandType.SEND_RECEIPT)
    client = await broker.client()
    await subscribe(client)
    (found,) = await messages(client, 1)
    for index in acked:  # as Java does it: each for itself
        each = MessageIdData()
        each.CopyFrom(found.message_id)
        each.ack_set.append(1023 & ~(1 << index))
        ack = CommandAck(consumer_id=1, ack_type=AckType.INDIVIDUAL, message_id=[each])
        await client.ask(ack, CommandType.ACK_RESPONSE)
    client.say(CommandRedeliverUnacknowledgedMessages(consumer_id=1))
    (again,) = await messages(client, 1)
    left = 1023
    for index in acked:
        left &= ~(1 << index)
    assert (list(again.ack_set), again.redelivery_count) == ([left], 1)


async def test_a_connection_that_has_gone_gives_back(broker: Broker) -> None:
    await produce(broker, 3)
    client, other = await broker.client(), await broker.client()
    await subscribe(client)
    await messages(client, 3)
    await subscribe(other)
    client.transport.close()
    found = await messages(other, 3)
    assert [(each.message_id.entry_id, each.redelivery_count) for each in found] == [
        (0, 1),
        (1, 1),
        (2, 1),
    ]


def read_slowly(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> tuple[asyncio.Event, asyncio.Event]:
    """From now on what was read of the log is held up: that it is, and that it may go on."""
    partitions = broker.runtime.partitions
    read, is_reading, may_go_on = partitions.read, asyncio.Event(), asyncio.Event()

    async def held_up(*wanted: Any) -> Any:
        answer = await read(*wanted)
        is_reading.set()
        await may_go_on.wait()
        return answer

    monkeypatch.setattr(partitions, "read", held_up)
    return is_reading, may_go_on


@pytest.mark.parametrize("done", [1, 3])
async def test_what_is_acknowledged_while_it_is_read_again_does_not_come(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, done: int
) -> None:
    """An entry that is to be delivered again is read again, and that may take its time."""
    client = await broker.client()
    await client.produce_to(TOPIC)
    client.send(entry_of(b"x" * 30, num_messages_in_batch=3), num_messages=3)
    await client.hear(CommandType.SEND_RECEIPT)
    await subscribe(client, permits=6)
    (found,) = await messages(client, 1)
    is_reading, may_go_on = read_slowly(broker, monkeypatch)
    client.say(
        CommandRedeliverUnacknowledgedMessages(consumer_id=1, message_ids=[found.message_id])
    )
    await asyncio.wait_for(is_reading.wait(), 20)
    each = MessageIdData()
    each.CopyFrom(found.message_id)
    each.ack_set.extend(unacknowledged_words([range(done)], 3))
    ack = CommandAck(consumer_id=1, ack_type=AckType.INDIVIDUAL, message_id=[each])
    assert not (await client.ask(ack, CommandType.ACK_RESPONSE)).HasField("error")
    may_go_on.set()
    if done < 3:
        (again,) = await messages(client, 1)
        assert again.ack_set == [0b110]
    await asyncio.sleep(0.05)
    stats = CommandConsumerStats(consumer_id=1)
    told = await client.ask(stats, CommandType.CONSUMER_STATS_RESPONSE)
    assert (told.available_permits, told.unacked_messages) == (3 - (3 - done), 3 - done)


async def test_what_is_given_back_while_it_is_read_again_comes_once(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await produce(broker, 1)
    client = await broker.client()
    await subscribe(client, permits=6)
    (found,) = await messages(client, 1)
    is_reading, may_go_on = read_slowly(broker, monkeypatch)
    again = CommandRedeliverUnacknowledgedMessages(consumer_id=1, message_ids=[found.message_id])
    client.say(again)
    await asyncio.wait_for(is_reading.wait(), 20)
    client.say(again)
    stats = CommandConsumerStats(consumer_id=1)
    await client.ask(stats, CommandType.CONSUMER_STATS_RESPONSE)
    may_go_on.set()
    (come,) = await messages(client, 1)
    assert come.redelivery_count == 2
    await asyncio.sleep(0.05)
    told = await client.ask(stats, CommandType.CONSUMER_STATS_RESPONSE)
    assert (told.available_permits, told.unacked_messages) == (4, 1)
