"""SEND: what is stored, in which order it is answered, what is refused and how."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from core.errors import Error
from core.topic.rules import NewTopic
from core.types import BatchFormat
from gateway.pulsar.commands import CommandType, CompressionType, ServerError
from gateway.pulsar.commands_pb2 import (
    CommandCloseProducer,
    CommandConnect,
    EncryptionKeys,
    MessageMetadata,
    SingleMessageMetadata,
)
from gateway.pulsar.entries import encode_batch
from gateway.pulsar.ids import NO_ID
from gateway.runtime.flush.outcomes import Reason, Unconfirmed
from tests.gateway.pulsar.conftest import Broker
from tests.gateway.pulsar.conversing import T0, entry_of


def batch_of(count: int, codec: CompressionType = CompressionType.NONE) -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=T0)
    singles = [(SingleMessageMetadata(), b"%d" % each) for each in range(count)]
    return encode_batch(metadata, singles, codec)


async def test_an_entry_is_stored_as_it_came_and_has_an_id_for_each_message(broker: Broker) -> None:
    client = await broker.client()
    await client.produce_to("t")
    entries = [entry_of(), batch_of(3, CompressionType.ZSTD), entry_of(b"", event_time=T0 + 5)]
    ids = []
    for number, entry in enumerate(entries):
        client.send(entry, sequence_id=number, highest_sequence_id=7)
        receipt = await client.hear(CommandType.SEND_RECEIPT)
        assert (receipt.producer_id, receipt.sequence_id, receipt.highest_sequence_id) == (
            0,
            number,
            7,
        )
        ids.append((receipt.message_id.ledger_id, receipt.message_id.entry_id))
    topic = await broker.runtime.topics.get("t")
    assert topic is not None
    (partition_id,) = topic.partition_ids
    assert ids == [(partition_id, 0), (partition_id, 1), (partition_id, 4)]
    stored = [(0, 0, entries[0], -1), (1, 3, entries[1], -1), (4, 4, entries[2], -1)]
    assert await broker.lines("t") == stored
    found = await broker.runtime.partitions.find_max_timestamp(partition_id)
    assert found is not None
    assert (found.base_offset, found.format) == (4, BatchFormat.PULSAR)  # by its event's time


async def test_a_send_without_a_highest_sequence_is_answered_without(broker: Broker) -> None:
    client = await broker.client()
    await client.produce_to("t")
    client.send(entry_of(), sequence_id=2**64 - 2)
    receipt = await client.hear(CommandType.SEND_RECEIPT)
    assert (receipt.sequence_id, receipt.highest_sequence_id) == (2**64 - 2, NO_ID)


async def test_an_entry_that_only_its_readers_can_open_is_stored_as_it_came(broker: Broker) -> None:
    client = await broker.client()
    await client.produce_to("t")
    keys = [EncryptionKeys(key="k", value=b"\1")]
    entry = entry_of(b"\xff" * 40, encryption_keys=keys, num_messages_in_batch=2)
    client.send(entry, num_messages=2)
    await client.hear(CommandType.SEND_RECEIPT)
    assert await broker.lines("t") == [(0, 1, entry, -1)]


def broken() -> bytes:
    entry = bytearray(entry_of())
    entry[-1] ^= 1
    return bytes(entry)


@pytest.mark.parametrize(
    ("entry", "send", "code"),
    [
        (broken(), {}, ServerError.CHECKSUM_ERROR),
        (entry_of(marker_type=21), {}, ServerError.NOT_ALLOWED_ERROR),
        (entry_of(num_messages_in_batch=0), {}, ServerError.NOT_ALLOWED_ERROR),
        (b"\x0e\x01", {}, ServerError.NOT_ALLOWED_ERROR),
        (entry_of(), {"txnid_least_bits": 0, "txnid_most_bits": 0}, ServerError.NOT_ALLOWED_ERROR),
    ],
)
async def test_what_is_refused_is_answered_in_order(
    broker: Broker, entry: bytes, send: dict[str, Any], code: ServerError
) -> None:
    client = await broker.client()
    await client.produce_to("t")
    client.send(entry_of(), sequence_id=0)
    client.send(entry, sequence_id=1, **send)
    client.send(entry_of(), sequence_id=2)
    assert (await client.hear(CommandType.SEND_RECEIPT)).sequence_id == 0
    error = await client.hear(CommandType.SEND_ERROR)
    assert (error.producer_id, error.sequence_id, error.error) == (0, 1, code)
    assert error.message
    assert (await client.hear(CommandType.SEND_RECEIPT)).sequence_id == 2
    assert broker.memory.held_bytes == 0


async def test_how_large_an_entry_may_be_is_the_topics_to_say(broker: Broker) -> None:
    limit = (("max.message.bytes", "500"),)
    await broker.runtime.topics.create([NewTopic("small", 1, configs=limit)])
    client = await broker.client()
    await client.produce_to("small")
    client.send(entry_of(bytes(600)))
    error = await client.hear(CommandType.SEND_ERROR)
    assert (error.error, "500" in error.message) == (ServerError.NOT_ALLOWED_ERROR, True)
    await client.produce_to("made-by-pulsar", producer_id=1)
    client.send(entry_of(bytes(5 * 1024 * 1024)), producer_id=1)
    await client.hear(CommandType.SEND_RECEIPT)


async def test_the_cpp_client_ends_a_message_on_one_code_only(broker: Broker) -> None:
    client = broker.call()
    client.say(CommandConnect(client_version="Pulsar-CPP-v4.2.0", protocol_version=20))
    await client.hear(CommandType.CONNECTED)
    await client.produce_to("t")
    client.send(entry_of(marker_type=21))
    error = await client.hear(CommandType.SEND_ERROR)
    assert error.error == ServerError.CHECKSUM_ERROR


async def test_an_unknown_producer_ends_the_connection(broker: Broker) -> None:
    client = await broker.client()
    with capture_logs() as lines:
        client.send(entry_of())
        await client.ended()
    assert lines[0]["reason"] == "SEND of an unknown producer 0"


@pytest.mark.parametrize("reason", list(Reason))
async def test_what_is_not_confirmed_ends_the_connection(
    broker: Broker, reason: Reason, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await broker.client()
    await client.produce_to("t")

    def append(*_: object, **__: object) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.set_result(Unconfirmed(reason, "why"))
        return future

    monkeypatch.setattr(broker.runtime.partitions, "append", append)
    client.send(entry_of(), sequence_id=0)
    client.send(entry_of(), sequence_id=1)
    error = await client.hear(CommandType.SEND_ERROR)
    assert error.sequence_id == 0
    assert error.error in {  # on which clients connect again, and send again
        ServerError.UNKNOWN_ERROR,
        ServerError.PERSISTENCE_ERROR,
        ServerError.SERVICE_NOT_READY,
    }
    await client.ended()
    assert not client.transport.commands
    assert broker.memory.held_bytes == 0


async def test_a_topic_made_anew_has_its_producers_come_again(broker: Broker) -> None:
    client = await broker.client()
    await client.produce_to("t")
    client.send(entry_of())
    first = (await client.hear(CommandType.SEND_RECEIPT)).message_id
    await broker.runtime.topics.delete(["t"])
    await broker.runtime.topics.create([NewTopic("t", 1)])
    client.send(entry_of(), sequence_id=1)
    client.send(entry_of(), sequence_id=2)
    closing = await client.hear(CommandType.CLOSE_PRODUCER)
    assert (closing.producer_id, closing.request_id) == (0, NO_ID)
    client.send(entry_of(), sequence_id=3)  # sent before that was heard
    answered = await client.ask(CommandCloseProducer(producer_id=0), CommandType.SUCCESS)
    assert answered.request_id
    await client.produce_to("t")
    client.send(entry_of(), sequence_id=1)
    second = (await client.hear(CommandType.SEND_RECEIPT)).message_id
    assert (second.ledger_id > first.ledger_id, second.entry_id) == (True, 0)


async def test_a_changed_setting_is_not_another_topic(broker: Broker) -> None:
    client = await broker.client()
    await client.produce_to("t")
    broker.runtime.topics.invalidate()
    for number in range(3):
        client.send(entry_of(), sequence_id=number)
        await client.hear(CommandType.SEND_RECEIPT)


@pytest.mark.parametrize(
    ("refused", "told"),
    [
        (Error.INVALID_RECORD, ServerError.NOT_ALLOWED_ERROR),
        (Error.POLICY_VIOLATION, ServerError.TOPIC_TERMINATED_ERROR),
    ],
)
async def test_a_refusal_of_the_log_is_told(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, refused: Error, told: ServerError
) -> None:
    from gateway.runtime.flush.work import AppendResult

    client = await broker.client()
    await client.produce_to("t")

    def append(*_: object, **__: object) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.set_result(AppendResult(refused, "no"))
        return future

    monkeypatch.setattr(broker.runtime.partitions, "append", append)
    client.send(entry_of())
    error = await client.hear(CommandType.SEND_ERROR)
    assert (error.error, error.message) == (told, "no")


async def test_a_broker_that_stops_sends_producers_to_the_next_one(broker: Broker) -> None:
    """Once all that they had sent before is answered; what they send meanwhile they send again."""
    client = await broker.client()
    await client.produce_to("t")
    client.send(entry_of(), sequence_id=0)
    await broker.runtime.partitions.stop()
    client.send(entry_of(), sequence_id=1)
    client.send(entry_of(), sequence_id=2)
    assert (await client.hear(CommandType.SEND_RECEIPT)).sequence_id == 0
    closed = await client.hear(CommandType.CLOSE_PRODUCER)
    assert closed.producer_id == 0
    client.send(entry_of(), sequence_id=3)
    await asyncio.sleep(0.05)
    assert not client.transport.commands
    assert len(await broker.lines("t")) == 1
