"""Frames: taken apart and made; what does not fit is refused; entries are not copied."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.framing import FrameError, Framer, FrameTooLarge, make_scratch
from gateway.pulsar import framing
from gateway.pulsar.commands import CommandType, MalformedCommand, encode_command
from gateway.pulsar.commands_pb2 import (
    BrokerEntryMetadata,
    CommandAckResponse,
    CommandMessage,
    CommandPing,
    CommandSend,
    CommandSendReceipt,
    MessageIdData,
)

u64 = st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1), st.just(2**64 - 1))
ENTRY = b"\x0e\x01entry"


def cut(stream: bytes, limit: int = framing.max_frame_size()) -> list[memoryview]:
    framer = Framer(limit, make_scratch())
    frames = framer.feed(memoryview(stream))
    if framer.error is not None:
        raise framer.error
    assert not framer.is_partial
    return frames


def joined(buffers: list[bytes | bytearray | memoryview]) -> bytes:
    return b"".join(buffers)


def test_a_simple_frame() -> None:
    stream = framing.encode_frame(CommandPing())
    assert stream == bytes.fromhex("00000009 00000005 0812 920100")
    (frame,) = cut(stream)
    assert framing.parse_frame(frame) == ((CommandType.PING, CommandPing()), None)


def test_an_entry_is_a_view_into_its_frame() -> None:
    send = CommandSend(producer_id=1, sequence_id=2)
    buffers = framing.encode_entry_frame(send, ENTRY)
    assert buffers[1] is ENTRY
    (frame,) = cut(joined(buffers))
    command, entry = framing.parse_frame(frame)
    assert command == (CommandType.SEND, send)
    assert entry == ENTRY
    assert entry is not None and entry.obj is frame.obj


def test_many_frames_in_one_stream() -> None:
    ping = framing.encode_frame(CommandPing())
    send = joined(framing.encode_entry_frame(CommandSend(producer_id=1, sequence_id=2), ENTRY))
    kinds = [framing.parse_frame(frame).command.type for frame in cut(ping + send + ping)]
    assert kinds == [CommandType.PING, CommandType.SEND, CommandType.PING]


def test_a_frame_may_be_as_large_as_announced() -> None:
    entry = bytes(framing.DEFAULT_MAX_MESSAGE_SIZE)
    stream = joined(framing.encode_entry_frame(CommandSend(producer_id=1, sequence_id=2), entry))
    assert framing.parse_frame(cut(stream)[0]).entry == entry
    with pytest.raises(FrameTooLarge):
        cut(stream, framing.max_frame_size(len(entry) - 20_000))


@pytest.mark.parametrize(
    "frame", [b"", b"\0\0\0", struct.pack(">I", 1), struct.pack(">I", 2**32 - 1) + b"x"]
)
def test_sizes_that_do_not_fit_are_refused(frame: bytes) -> None:
    with pytest.raises(FrameError):
        framing.parse_frame(memoryview(frame))


def test_a_command_of_no_bytes_is_malformed() -> None:
    with pytest.raises(MalformedCommand):
        framing.parse_frame(memoryview(b"\0\0\0\0"))


def test_a_command_may_not_be_larger_than_its_limit() -> None:
    frame = memoryview(framing.encode_frame(CommandPing()))[4:]
    with pytest.raises(FrameError, match="limit is 4"):
        framing.parse_frame(frame, max_command_size=4)


def test_bytes_behind_a_command_that_has_no_entry_are_refused() -> None:
    with pytest.raises(MalformedCommand, match="PING with 1 bytes"):
        framing.parse_frame(memoryview(framing.encode_frame(CommandPing()) + b"x")[4:])


@given(u64, u64, u64, u64, u64)
def test_a_receipt_is_what_protobuf_writes(a: int, b: int, c: int, d: int, e: int) -> None:
    message_id = MessageIdData(ledger_id=d, entry_id=e)
    expected = CommandSendReceipt(
        producer_id=a, sequence_id=b, highest_sequence_id=c, message_id=message_id
    )
    assert framing.encode_send_receipt(a, b, c, d, e) == framing.encode_frame(expected)


@given(u64, u64)
def test_a_receipt_of_an_acknowledgement_is_what_protobuf_writes(a: int, b: int) -> None:
    expected = CommandAckResponse(consumer_id=a, request_id=b)
    assert framing.encode_ack_receipt(a, b) == framing.encode_frame(expected)


@given(
    u64,
    u64,
    u64,
    st.one_of(st.just(-1), st.integers(0, 2**31 - 1)),
    st.integers(0, 2**32 - 1),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=40),
    st.none() | u64,
)
def test_a_message_is_what_protobuf_writes(
    consumer: int, ledger: int, entry: int, partition: int, count: int, acks: list[int], epoch: int
) -> None:
    expected = CommandMessage(
        consumer_id=consumer, message_id=MessageIdData(ledger_id=ledger, entry_id=entry)
    )
    if partition >= 0:
        expected.message_id.partition = partition
    if count:
        expected.redelivery_count = count
    expected.ack_set.extend(acks)
    if epoch is not None:
        expected.consumer_epoch = epoch
    buffers = framing.encode_message(
        consumer,
        ledger,
        entry,
        ENTRY,
        partition=partition,
        redelivery_count=count,
        ack_set=acks,
        consumer_epoch=epoch,
    )
    assert buffers[1] is ENTRY
    assert joined(buffers) == joined(framing.encode_entry_frame(expected, ENTRY))


def test_broker_entry_metadata_goes_before_the_entry() -> None:
    metadata = BrokerEntryMetadata(broker_timestamp=5, index=7)
    buffers = framing.encode_message(1, 2, 3, ENTRY, broker_entry_metadata=metadata)
    command = encode_command(
        CommandMessage(consumer_id=1, message_id=MessageIdData(ledger_id=2, entry_id=3))
    )
    (frame,) = cut(joined(buffers))
    expected = b"\x0e\x02\0\0\0\x04\x08\x05\x10\x07" + ENTRY
    assert frame == struct.pack(">I", len(command)) + command + expected
