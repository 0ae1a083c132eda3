"""gateway.pulsar.connection: who is greeted, what is answered when, back-pressure, the end."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from google.protobuf.message import Message
from structlog.testing import capture_logs

from gateway.pulsar.api import Registry
from gateway.pulsar.commands import CommandType, ServerError
from gateway.pulsar.commands_pb2 import (
    CommandAuthResponse,
    CommandCloseProducer,
    CommandConnect,
    CommandConnected,
    CommandLookupTopic,
    CommandNewTxn,
    CommandPing,
    CommandPong,
    CommandSendReceipt,
    FeatureFlags,
)
from gateway.pulsar.framing import encode_frame, max_frame_size
from tests.gateway.pulsar.conftest import Broker
from tests.gateway.pulsar.conversing import CONNECT, Conversation, entry_of


@pytest.mark.parametrize(("said", "answered"), [(21, 21), (99, 21), (19, 19), (0, 0), (-3, 0)])
async def test_connected_tells_what_holds(broker: Broker, said: int, answered: int) -> None:
    client = broker.call()
    client.say(CommandConnect(client_version="x", protocol_version=said))
    connected = await client.hear(CommandType.CONNECTED)
    assert connected.protocol_version == answered
    assert connected.max_message_size == 5 * 1024 * 1024
    assert connected.feature_flags == FeatureFlags(
        supports_topic_watchers=True, supports_get_partitioned_metadata_without_auto_creation=True
    )


@pytest.mark.parametrize(
    ("before", "said", "reason"),
    [
        ([], CommandPing(), "PING before CONNECT"),
        ([], CommandLookupTopic(topic="t", request_id=1), "LOOKUP before CONNECT"),
        ([CONNECT], CONNECT, "CONNECT of a client that is connected"),
        (
            [CONNECT],
            CommandConnected(server_version="x"),
            "CONNECTED of a client that is connected",
        ),
        ([CONNECT], CommandSendReceipt(producer_id=1, sequence_id=1), "SEND_RECEIPT of a client"),
        ([CONNECT], CommandAuthResponse(), "AUTH_RESPONSE is not served"),
    ],
)
async def test_what_is_out_of_order_ends_the_connection(
    broker: Broker, before: list[Message], said: Message, reason: str
) -> None:
    client = broker.call()
    for each in before:
        client.say(each)
    with capture_logs() as lines:
        client.say(said)
        await client.ended()
    (line,) = lines
    assert line["event"] == "connection closed"
    assert reason in line["reason"]
    assert broker.memory.held_bytes == 0


async def test_a_request_that_is_not_served_is_an_error(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that clients ask is served; a later protocol may have more."""
    monkeypatch.setattr(broker.front_end, "registry", Registry())
    client = await broker.client()
    answer = await client.ask(CommandNewTxn(), CommandType.ERROR)
    assert (answer.error, answer.message) == (
        ServerError.NOT_ALLOWED_ERROR,
        "NEW_TXN is not served",
    )


async def test_ping_is_answered_while_others_wait(broker: Broker) -> None:
    client = await broker.client()
    client.say(CommandLookupTopic(topic="t", request_id=1))  # asks the database
    client.say(CommandPing())
    await client.hear(CommandType.PONG)
    await client.hear(CommandType.LOOKUP_RESPONSE)


@pytest.mark.parametrize("answers", [True, False])
async def test_a_silent_client_is_asked(make_broker: Any, answers: bool) -> None:
    broker: Broker = await make_broker(keep_alive_s=0.5 if answers else 0.05)
    client = await broker.client()
    await client.hear(CommandType.PING)
    if answers:
        for _ in range(3):
            client.say(CommandPong())
            await client.hear(CommandType.PING)
    with capture_logs() as lines:
        await client.ended()
    assert [line["reason"] for line in lines] == ["the client does not answer"]


async def test_who_never_says_connect_is_not_waited_for(make_broker: Any) -> None:
    broker: Broker = await make_broker(keep_alive_s=0.05)
    with capture_logs() as lines:
        await broker.call().ended()
    assert "no CONNECT" in lines[0]["reason"]


async def test_a_command_that_never_ends_is_not_waited_for(make_broker: Any) -> None:
    broker: Broker = await make_broker(keep_alive_s=0.1)
    client = await broker.client()
    with capture_logs() as lines:
        for _ in range(20):
            client.feed(b"\0")  # of a size, and then of what it says
            await asyncio.sleep(0.02)
            if client.transport.is_closed:
                break
        await client.ended()
    assert lines[0]["reason"] in {
        "a command was not complete in time",
        "a frame of 0 bytes has no command",
    }


async def test_a_frame_too_long_is_not_read(broker: Broker) -> None:
    client = await broker.client()
    with capture_logs() as lines:
        client.feed((max_frame_size() + 1).to_bytes(4, "big"))
        await client.ended()
    assert "the limit is" in lines[0]["reason"]


async def test_random_bytes_harm_nobody_else(broker: Broker, seed: int) -> None:
    chance = random.Random(seed)
    other = await broker.client()
    await other.produce_to("t")
    for _ in range(200):
        client = broker.call()
        if chance.random() < 0.5:
            client.say(CONNECT)
        frame = bytearray(
            chance.choice(
                [
                    chance.randbytes(chance.randrange(200)),
                    encode_frame(CommandLookupTopic(topic="t", request_id=1)),
                    encode_frame(CommandCloseProducer(producer_id=1, request_id=2)),
                ]
            )
        )
        for _ in range(chance.randrange(4)):
            if frame:
                frame[chance.randrange(len(frame))] = chance.randrange(256)
        with capture_logs():
            client.feed(frame)
            await asyncio.sleep(0)
            client.transport.close()
            await client.ended()
    other.send(entry_of())
    await other.hear(CommandType.SEND_RECEIPT)
    await broker.front_end.drain(10)
    assert broker.memory.held_bytes == 0


async def test_who_sends_too_much_is_not_read_until_it_is_stored(broker: Broker) -> None:
    client = await broker.client()
    await client.produce_to("t")
    for number in range(1100):
        client.send(entry_of(), sequence_id=number)
    assert not client.transport.is_reading
    for number in range(1100):
        receipt = await client.hear(CommandType.SEND_RECEIPT)
        assert receipt.sequence_id == number
    assert client.transport.is_reading
    assert broker.memory.held_bytes == 0


async def test_who_does_not_take_his_answers_is_not_served(broker: Broker) -> None:
    client = await broker.client()
    client.connection.pause_writing()
    assert not client.transport.is_reading
    client.say(CommandPing())
    await asyncio.sleep(0.01)
    assert not client.transport.commands
    client.connection.resume_writing()
    await client.hear(CommandType.PONG)
    assert client.transport.is_reading


async def test_at_the_end_producers_are_told_after_their_receipts(broker: Broker) -> None:
    client = await broker.client()
    await client.produce_to("t")
    for number in range(3):
        client.send(entry_of(), sequence_id=number)
    client.connection.finish()
    client.say(CommandPing())  # nothing more is read
    for number in range(3):
        assert (await client.hear(CommandType.SEND_RECEIPT)).sequence_id == number
    closing = await client.hear(CommandType.CLOSE_PRODUCER)
    assert (closing.producer_id, closing.request_id) == (0, 2**64 - 1)
    await client.ended()
    assert broker.memory.held_bytes == 0


async def test_commands_are_counted(broker: Broker) -> None:
    client: Conversation = await broker.client()
    await client.produce_to("t")
    client.send(entry_of())
    await client.hear(CommandType.SEND_RECEIPT)
    for name in ("PulsarProducer", "PulsarSend"):
        labels = {"request": name, "version": "21"}
        name = "kafka_network_requestmetrics_requests_total"
        assert broker.metrics.registry.get_sample_value(name, labels) == 1


async def test_what_was_to_be_delivered_when_the_session_ended_is_not(broker: Broker) -> None:
    """As where the process stands still (SIGSTOP) between the decision and the socket: another
    broker has the topic by the time it goes on."""
    client = await broker.client()
    frame = encode_frame(CommandPing())
    client.connection.deliver(frame)
    await client.hear(CommandType.PING)
    broker.runtime.cluster._lives_until = 0
    client.connection.write(frame)  # what is no delivery goes out all the same
    await client.hear(CommandType.PING)
    client.connection.deliver(frame)
    await client.ended()
    assert not client.transport.commands
