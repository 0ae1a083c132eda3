"""Pulsar's clients held to quotas of users: who sends is left unread, who is sent waits."""

from __future__ import annotations

import asyncio

import pytest

from core.quota.changes import Alteration
from core.security.principal import ANONYMOUS
from gateway.listener import ConnectionLimits
from gateway.pulsar.commands import CommandType, SubType
from gateway.pulsar.commands_pb2 import CommandFlow, CommandPing, CommandSubscribe
from gateway.request_memory import RequestMemory
from tests.gateway.pulsar.conftest import Broker
from tests.gateway.pulsar.conversing import Conversation, entry_of

TOPIC = "persistent://public/default/t"
VALUE = b"x" * 1000
EARLIEST = 1


async def rate(broker: Broker, key: str, value: float | None) -> None:
    """For each user; None takes it away."""
    wanted = Alteration((("user", None),), [(key, value)])
    await broker.runtime.quotas.alter(
        [wanted], only_validate=False, principal=ANONYMOUS, peer="here"
    )


@pytest.fixture
async def client(broker: Broker) -> Conversation:
    broker.front_end.throttles = broker.runtime.throttles
    found = await broker.client()
    await found.produce_to(TOPIC)
    return found


def now() -> float:
    return asyncio.get_running_loop().time()


async def receipts(client: Conversation, count: int) -> None:
    for _ in range(count):
        await client.hear(CommandType.SEND_RECEIPT)


async def test_who_sends_too_much_is_left_unread(broker: Broker, client: Conversation) -> None:
    """What was read meanwhile waits its turn; a quota that goes frees it."""
    await rate(broker, "producer_byte_rate", 3_000)
    began = now()
    for number in range(3):
        client.send(entry_of(VALUE, sequence_id=number), sequence_id=number)
        assert not client.transport.is_reading
    client.say(CommandPing())
    await receipts(client, 3)
    assert now() - began > 0.6
    await client.hear(CommandType.PONG)
    assert now() - began > 0.9
    client.send(entry_of(VALUE * 1000, sequence_id=4), sequence_id=4)
    assert not client.transport.is_reading
    # Ten seconds at most, so that the client hears that the broker is there.
    assert client.connection._reading is not None
    assert 9 < client.connection._reading.left_s <= 10
    await receipts(client, 1)
    await rate(broker, "producer_byte_rate", None)
    client.say(CommandPing())
    await client.hear(CommandType.PONG)
    assert client.transport.is_reading


async def test_who_is_left_unread_cannot_take_all_memory(
    broker: Broker, client: Conversation
) -> None:
    """Of what came before the hold began; nor who takes no answers."""
    limits = ConnectionLimits(socket_request_max_bytes=100_000, queued_max_request_bytes=1_000_000)
    await rate(broker, "producer_byte_rate", 1)
    for is_held in (True, False):
        memory = broker.front_end.memory = RequestMemory(limits)
        clients = [await broker.client() for _ in range(4)]
        for number, each in enumerate(clients):
            if is_held:
                await each.produce_to(f"{TOPIC}-{number}")
                each.send(entry_of(VALUE))
            else:
                each.connection.pause_writing()
        for each in clients:
            each.send(entry_of(VALUE * 300))
        await asyncio.sleep(0)
        cut = [each for each in clients if each.transport.is_closed]
        assert len(cut) == 3, "of four times 300 kB half a megabyte may be left"
        assert not memory.is_full


async def test_who_is_sent_too_much_waits(broker: Broker, client: Conversation) -> None:
    for number in range(20):
        client.send(entry_of(VALUE, sequence_id=number), sequence_id=number)
    await receipts(client, 20)
    await rate(broker, "consumer_byte_rate", 8_000)
    subscribe = CommandSubscribe(
        topic=TOPIC,
        subscription="s",
        sub_type=SubType.SHARED,
        consumer_id=1,
        initial_position=EARLIEST,
    )
    reader = await broker.client()
    await reader.ask(subscribe, CommandType.SUCCESS)
    began = now()
    reader.say(CommandFlow(consumer_id=1, message_permits=100))
    for _ in range(20):
        await reader.hear(CommandType.MESSAGE)
    assert 1 < now() - began < 15
    # It is read all the while.
    assert reader.transport.is_reading


async def test_a_client_id_is_nothing_of_pulsars(broker: Broker, client: Conversation) -> None:
    wanted = Alteration((("client-id", None),), [("producer_byte_rate", 1)])
    await broker.runtime.quotas.alter(
        [wanted], only_validate=False, principal=ANONYMOUS, peer="here"
    )
    client.send(entry_of(VALUE))
    await receipts(client, 1)
    assert client.transport.is_reading
