"""Pulsar's entries: the view of what a SEND carries, its checks, and on demand the messages inside.

    0x0e01 | u32 CRC-32C of the rest | u32 size | MessageMetadata | payload

An entry is stored and delivered as it came, from 0x0e01 on; its payload is opened only where
somebody asks for the messages: those of a batch lie one behind the other, each as
`u32 size | SingleMessageMetadata | payload_size bytes`, and all of it is compressed as a whole. The
room knows no topic, no offset and no connection. Sources: Commands.java, CompressionCodec*.java,
BatchMessageContainerImpl.
"""

import struct
import zlib
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import cramjam
from crc32c import crc32c
from google.protobuf.message import DecodeError

from core.errors import Error, Refusal
from core.log.records import InvalidBatch
from gateway.pulsar.commands import Buffer, CompressionType
from gateway.pulsar.commands_pb2 import CommandSend, MessageMetadata, SingleMessageMetadata

MAGIC: Final = b"\x0e\x01"
_HEAD: Final = struct.Struct(">2sII")  # magic, checksum, size of the metadata
_SIZE: Final = struct.Struct(">I")
_METADATA_AT: Final = 10
_CHECKED_FROM: Final = 6

# What one entry may decompress to, and how many messages it may have: as of Kafka's batches, a bomb
# of a megabyte must not stop the event loop for a minute.
MAX_UNCOMPRESSED: Final = 64 * 1024 * 1024
MAX_MESSAGES: Final = 1_000_000
_SMALLEST_MESSAGE: Final = 6  # four bytes of size, and metadata that says payload_size 0
_LZ4_TIMES_LARGER: Final = 255  # the most that a byte of an LZ4 block can stand for


class InvalidEntry(InvalidBatch):
    """The entry is not what its metadata says."""


class Entry(NamedTuple):
    """One entry, looked at as far as its metadata.

    block: its bytes as they are stored, from 0x0e01 on. payload: what is behind the metadata,
    compressed and encrypted as its producer left it; like `block` perhaps a view into a frame.
    """

    block: Buffer
    metadata: MessageMetadata
    payload: memoryview

    @property
    def is_batch(self) -> bool:
        """Whether messages have metadata of their own inside: by presence, also of 1."""
        return self.metadata.HasField("num_messages_in_batch")

    @property
    def message_count(self) -> int:
        """How many messages, and so offsets, it has."""
        return self.metadata.num_messages_in_batch  # 1 where it is not set

    @property
    def is_encrypted(self) -> bool:
        """Whether only its readers can open it."""
        return bool(self.metadata.encryption_keys)

    @property
    def is_chunk(self) -> bool:
        """Whether it is one of several parts of a message, which was compressed before the cut."""
        return self.metadata.num_chunks_from_msg > 1

    @property
    def is_opaque(self) -> bool:
        """Whether there is no telling what is inside."""
        return self.is_encrypted or self.is_chunk

    @property
    def sequence_ids(self) -> tuple[int, int]:
        """Those of its first and its last message."""
        first = self.metadata.sequence_id
        if self.metadata.HasField("highest_sequence_id"):
            return first, max(first, self.metadata.highest_sequence_id)
        return first, first


class Message(NamedTuple):
    """One message of an entry. metadata: MessageMetadata where it is alone in it; the fields that
    both have are named alike. payload: not compressed any more."""

    metadata: MessageMetadata | SingleMessageMetadata
    payload: memoryview


# --- what a SEND carries ---


def parse_send(send: CommandSend, data: memoryview | None) -> Entry | Refusal:
    """The entry of a SEND, or why it is refused: CORRUPT_MESSAGE is what a client may send again.

    Opens nothing: that a batch can be split shows only to those who read it. Its size is the
    frame's business, and a topic's.
    """
    if data is None:
        return Refusal(Error.INVALID_RECORD, "a SEND without an entry")
    entry = parse_entry(data)
    if isinstance(entry, Refusal):
        return entry
    return _refuse(send, entry) or entry


def parse_entry(data: memoryview, *, verify: bool = True) -> Entry | Refusal:
    """The entry that these bytes are. Where the client left out magic and checksum, they are added
    (to a copy).

    verify: not needed for what was verified when it was stored.
    """
    if bytes(data[:2]) != MAGIC:
        data = memoryview(_sealed(data))
    if len(data) < _METADATA_AT:
        return Refusal(Error.INVALID_RECORD, f"an entry of {len(data)} bytes")
    _, checksum, size = _HEAD.unpack_from(data)
    if verify and crc32c(data[_CHECKED_FROM:]) != checksum:
        return Refusal(Error.CORRUPT_MESSAGE, "the entry's checksum does not match")
    end = _METADATA_AT + size
    if end > len(data):
        return Refusal(Error.INVALID_RECORD, f"metadata of {size} bytes in {len(data)}")
    try:
        metadata = MessageMetadata.FromString(data[_METADATA_AT:end])  # type: ignore[arg-type]
    except DecodeError as broken:
        return Refusal(Error.INVALID_RECORD, f"the metadata cannot be read: {broken}")
    return Entry(data, metadata, data[end:])


def open_stored(block: Buffer) -> Entry:
    """A stored entry, whose checksum was verified when it came. Raises InvalidEntry."""
    entry = parse_entry(memoryview(block), verify=False)
    if isinstance(entry, Refusal):
        raise InvalidEntry(entry.message)
    return entry


def _refuse(send: CommandSend, entry: Entry) -> Refusal | None:
    """What is wrong with metadata whose checksum is right: no second try would make it better."""
    metadata = entry.metadata
    for name in ("producer_name", "sequence_id", "publish_time"):
        if not metadata.HasField(name):
            return Refusal(Error.INVALID_RECORD, f"the metadata has no {name}")
    if metadata.HasField("marker_type") or send.marker:
        return Refusal(Error.INVALID_RECORD, "clients may not write markers")
    count = metadata.num_messages_in_batch
    if count != 1 and not 0 < count <= MAX_MESSAGES:
        return Refusal(Error.INVALID_RECORD, f"an entry of {count} messages")
    if send.num_messages != count and send.num_messages != 1:
        reason = f"SEND has {send.num_messages} messages, its entry {count}"
        return Refusal(Error.INVALID_RECORD, reason)
    size = len(entry.payload)
    if metadata.compression != CompressionType.NONE:
        size = metadata.uncompressed_size
    if size > MAX_UNCOMPRESSED and not entry.is_opaque:
        reason = f"an entry of {size} bytes uncompressed; the limit is {MAX_UNCOMPRESSED}"
        return Refusal(Error.MESSAGE_TOO_LARGE, reason)
    if count > 1 and count * _SMALLEST_MESSAGE > size:
        return Refusal(Error.INVALID_RECORD, f"{count} messages in {size} bytes")
    return None


# --- messages ---


def messages(entry: Entry) -> list[Message]:
    """The messages inside, in order. Raises InvalidEntry where they are broken, or opaque."""
    if entry.is_opaque:
        raise InvalidEntry("the entry is encrypted, or a chunk")
    body = decompressed(entry)
    if not entry.is_batch:
        return [Message(entry.metadata, body)]
    count = entry.message_count
    if not 0 < count <= min(MAX_MESSAGES, len(body) // _SMALLEST_MESSAGE):
        raise InvalidEntry(f"{count} messages in {len(body)} bytes")
    found = []
    pos, end = 0, len(body)
    for index in range(count):
        if pos + _SIZE.size > end:
            raise InvalidEntry(f"message {index} is missing")
        (size,) = _SIZE.unpack_from(body, pos)
        pos += _SIZE.size
        if pos + size > end:
            raise InvalidEntry(f"metadata of {size} bytes in message {index}")
        try:
            metadata = SingleMessageMetadata.FromString(body[pos : pos + size])  # type: ignore[arg-type]
        except DecodeError as broken:
            raise InvalidEntry(f"message {index}: {broken}") from None
        pos += size
        size = metadata.payload_size
        if size < 0 or pos + size > end:
            raise InvalidEntry(f"{size} bytes of payload in message {index}")
        found.append(Message(metadata, body[pos : pos + size]))
        pos += size
    if pos != end:
        raise InvalidEntry("there are bytes after the last message")
    return found


def encode_entry(metadata: MessageMetadata, payload: Buffer) -> bytes:
    """The entry of this metadata, with a payload that is as the metadata says."""
    encoded = metadata.SerializeToString()
    return _sealed(_SIZE.pack(len(encoded)), encoded, payload)


def encode_batch(
    metadata: MessageMetadata,
    singles: Iterable[tuple[SingleMessageMetadata, Buffer]],
    compression: CompressionType,
) -> bytes:
    """The entry of a batch. Fills in of `metadata` what says how many messages there are and how
    they are compressed, and of each message its size."""
    body = bytearray()
    count = 0
    for single, payload in singles:
        single.payload_size = len(payload)
        encoded = single.SerializeToString()
        body += _SIZE.pack(len(encoded)) + encoded + payload
        count += 1
    metadata.num_messages_in_batch = count
    return encode_compressed(metadata, body, compression)


def encode_compressed(
    metadata: MessageMetadata, body: Buffer, compression: CompressionType
) -> bytes:
    """The entry of a body that is not compressed yet, which it fills in of `metadata`."""
    metadata.uncompressed_size = len(body)
    if compression is not CompressionType.NONE:
        metadata.compression = compression
        body = _COMPRESS[compression](bytes(body))
    return encode_entry(metadata, body)


def _sealed(*pieces: Buffer) -> bytes:
    """Magic and checksum before these pieces."""
    checksum = 0
    for piece in pieces:
        checksum = crc32c(piece, checksum)
    return b"".join((MAGIC, _SIZE.pack(checksum), *pieces))


# --- compression ---

_COMPRESS: Final[dict[int, Callable[[bytes], Buffer]]] = {
    CompressionType.LZ4: lambda body: bytes(cramjam.lz4.compress_block(body, store_size=False)),
    CompressionType.ZLIB: zlib.compress,
    CompressionType.ZSTD: lambda body: bytes(cramjam.zstd.compress(body)),
    CompressionType.SNAPPY: lambda body: bytes(cramjam.snappy.compress_raw(body)),
}
_DECOMPRESS_INTO: Final[dict[int, Callable[[memoryview, bytearray], int]]] = {
    CompressionType.LZ4: cramjam.lz4.decompress_block_into,
    CompressionType.ZSTD: cramjam.zstd.decompress_into,
    CompressionType.SNAPPY: cramjam.snappy.decompress_raw_into,
}
# How many bytes one byte can stand for, at the most; a greater size is a lie worth no allocation.
# In Zstandard a few bytes may stand for all there can be.
_TIMES_LARGER: Final[dict[int, int]] = {CompressionType.LZ4: 255, CompressionType.SNAPPY: 64}


def decompressed(entry: Entry) -> memoryview:
    """The payload as it was before compression. Raises InvalidEntry."""
    payload, codec = entry.payload, entry.metadata.compression
    if codec == CompressionType.NONE:
        return payload
    if codec not in _COMPRESS:
        raise InvalidEntry(f"unknown compression type {codec}")
    if not entry.metadata.HasField("uncompressed_size"):
        raise InvalidEntry("a compressed entry without its size")
    size = entry.metadata.uncompressed_size
    if size > MAX_UNCOMPRESSED:
        raise InvalidEntry(f"{size} bytes uncompressed; the limit is {MAX_UNCOMPRESSED}")
    if size > _TIMES_LARGER.get(codec, size) * len(payload):
        raise InvalidEntry(f"{size} bytes cannot come of {len(payload)}")
    if size == 0:  # codecs differ in what they make of nothing
        return payload[:0]
    try:
        body = (
            _inflate(payload, size)
            if codec == CompressionType.ZLIB
            else _into(payload, codec, size)
        )
    except (cramjam.DecompressionError, zlib.error) as broken:
        raise InvalidEntry(f"the payload cannot be decompressed: {broken}") from broken
    if len(body) != size:
        raise InvalidEntry(f"{len(body)} bytes uncompressed where {size} were announced")
    return body


def _inflate(payload: memoryview, size: int) -> memoryview:
    """At most one byte more than `size`, which is enough to see a lie.

    Java's client flushes its streams and never ends them (Pulsar's CompressionCodecZLib,
    SYNC_FLUSH), so the size alone tells whether all is there.
    """
    return memoryview(zlib.decompressobj().decompress(payload, size + 1))


def _into(payload: memoryview, codec: int, size: int) -> memoryview:
    """At most `size` bytes. The buffer grows with what comes, not with what was announced."""
    decompress_into = _DECOMPRESS_INTO[codec]
    room = min(size, 4096 + 64 * len(payload)) if codec == CompressionType.ZSTD else size
    while True:
        body = bytearray(room)
        try:
            return memoryview(body)[: decompress_into(payload, body)]
        except cramjam.DecompressionError:
            if room == size:
                raise
        room = min(size, 8 * room)
