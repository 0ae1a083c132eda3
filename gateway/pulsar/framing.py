"""Pulsar's frames: a command, and behind it, in SEND and MESSAGE, an entry.

    u32 size of what follows | u32 size of the command | BaseCommand
        | [0x0e02 | u32 size | BrokerEntryMetadata]     to consumers only
        | 0x0e01 | u32 CRC-32C | u32 size | MessageMetadata | payload

All numbers are big-endian. Sans-IO: `gateway.framing` cuts the stream, here a frame is taken apart
and made. From 0x0e01 on the bytes are the entry, which is stored and delivered as it came. This
room knows no socket, and does not look into an entry (`entries.py`).
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from google.protobuf.message import Message

from gateway.framing import FrameError
from gateway.pulsar.commands import (
    Buffer,
    Command,
    CommandType,
    MalformedCommand,
    encode_command,
    encode_varint,
    parse_command,
)
from gateway.pulsar.commands_pb2 import BrokerEntryMetadata

DEFAULT_MAX_MESSAGE_SIZE: Final = 5 * 1024 * 1024
"""What CONNECTED announces: bytes of an entry's metadata and payload (`maxMessageSize`)."""

_FRAME_PADDING: Final = 10 * 1024  # room for the command (Commands.MESSAGE_SIZE_FRAME_PADDING)

# A frame of empty messages takes forty times its size as objects: 5 MiB of them 200 MB. Of real
# acknowledgements, some 25 bytes each, this is 80,000 in one ACK.
MAX_COMMAND_SIZE: Final = 2 * 1024 * 1024

_WITH_ENTRY: Final = frozenset({CommandType.SEND, CommandType.MESSAGE})
_BROKER_ENTRY_METADATA_MAGIC: Final = b"\x0e\x02"
_SIZE: Final = struct.Struct(">I")
_SIZES: Final = struct.Struct(">II")


class Frame(NamedTuple):
    """One frame taken apart. entry: what is behind the command, None where there is nothing."""

    command: Command
    entry: memoryview | None


def max_frame_size(max_message_size: int = DEFAULT_MAX_MESSAGE_SIZE) -> int:
    """What a frame may announce, in bytes, where entries may have `max_message_size`."""
    return max_message_size + _FRAME_PADDING


def parse_frame(frame: memoryview, max_command_size: int = MAX_COMMAND_SIZE) -> Frame:
    """Take apart a frame as the framer gives it, without its size.

    The entry is a view into it. Raises FrameError where the sizes do not fit, MalformedCommand
    where the command does not.
    """
    if len(frame) < _SIZE.size:
        raise FrameError(f"a frame of {len(frame)} bytes has no command")
    (size,) = _SIZE.unpack_from(frame)
    end = _SIZE.size + size
    if end > len(frame):
        raise FrameError(f"a command of {size} bytes in a frame of {len(frame)}")
    if size > max_command_size:
        raise FrameError(f"a command of {size} bytes; the limit is {max_command_size}")
    command = parse_command(frame[_SIZE.size : end])
    if end == len(frame):
        return Frame(command, None)
    if command.type not in _WITH_ENTRY:
        raise MalformedCommand(f"{command.type.name} with {len(frame) - end} bytes behind it")
    return Frame(command, frame[end:])


def encode_frame(message: Message) -> bytes:
    """The simple frame of a command, given as its own message (CommandConnected, …)."""
    command = encode_command(message)
    return _SIZES.pack(len(command) + _SIZE.size, len(command)) + command


def encode_entry_frame(message: Message, entry: Buffer) -> list[Buffer]:
    """The frame of a SEND or MESSAGE, as buffers to be written in turn. The entry is not copied."""
    command = encode_command(message)
    return [_SIZES.pack(_SIZE.size + len(command) + len(entry), len(command)) + command, entry]


def encode_send_receipt(
    producer_id: int, sequence_id: int, highest_sequence_id: int, ledger_id: int, entry_id: int
) -> bytes:
    """SEND_RECEIPT's frame. All from 0 to 2^64-1, the sequence ids as SEND had them."""
    # By hand: a message object costs as much again, and each SEND ends here.
    message_id = b"\x08%b\x10%b" % (encode_varint(ledger_id), encode_varint(entry_id))
    body = b"\x08%b\x10%b\x1a%c%b\x20%b" % (
        encode_varint(producer_id),
        encode_varint(sequence_id),
        len(message_id),
        message_id,
        encode_varint(highest_sequence_id),
    )
    size = len(body) + 4  # at most 61 bytes, so lengths take one byte each
    return b"%b\x08\x07\x3a%c%b" % (_SIZES.pack(size + _SIZE.size, size), len(body), body)


def encode_ack_receipt(consumer_id: int, request_id: int) -> bytes:
    """ACK_RESPONSE's frame, where all went well. Both from 0 to 2^64-1."""
    body = b"\x08%b\x30%b" % (encode_varint(consumer_id), encode_varint(request_id))
    size = len(body) + 5
    return b"%b\x08\x26\xb2\x02%c%b" % (_SIZES.pack(size + _SIZE.size, size), len(body), body)


def encode_message(
    consumer_id: int,
    ledger_id: int,
    entry_id: int,
    entry: Buffer,
    *,
    partition: int = -1,
    redelivery_count: int = 0,
    ack_set: Sequence[int] = (),
    consumer_epoch: int | None = None,
    broker_entry_metadata: BrokerEntryMetadata | None = None,
) -> list[Buffer]:
    """MESSAGE's frame, as buffers to be written in turn; the entry, from 0x0e01 on, is not copied.

    partition: -1 where the topic is none. ack_set: signed words, 1 = not acknowledged; none for a
    whole entry. consumer_epoch: the latest that the consumer told. broker_entry_metadata: only for
    clients that said `supports_broker_entry_metadata`.
    """
    message_id = b"\x08%b\x10%b" % (encode_varint(ledger_id), encode_varint(entry_id))
    if partition >= 0:
        message_id += b"\x18" + encode_varint(partition)
    body = b"\x08%b\x12%c%b" % (encode_varint(consumer_id), len(message_id), message_id)
    if redelivery_count:
        body += b"\x18" + encode_varint(redelivery_count)
    if ack_set:
        body += b"".join(b"\x20" + encode_varint(word & 0xFFFFFFFFFFFFFFFF) for word in ack_set)
    if consumer_epoch is not None:
        body += b"\x28" + encode_varint(consumer_epoch)
    command = b"\x08\x09\x4a%b%b" % (encode_varint(len(body)), body)
    between = b""
    if broker_entry_metadata is not None:
        encoded = broker_entry_metadata.SerializeToString()
        between = _BROKER_ENTRY_METADATA_MAGIC + _SIZE.pack(len(encoded)) + encoded
    size = _SIZE.size + len(command) + len(between) + len(entry)
    return [_SIZES.pack(size, len(command)) + command + between, entry]
