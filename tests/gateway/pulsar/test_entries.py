"""Entries: what a SEND may carry, what lies, and the messages inside for every codec."""

import struct
import time
import zlib
from typing import Any

import cramjam
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from core.errors import Error, Refusal
from gateway.pulsar import entries
from gateway.pulsar.commands import CompressionType
from gateway.pulsar.commands_pb2 import (
    CommandSend,
    EncryptionKeys,
    MessageMetadata,
    Property,
    SingleMessageMetadata,
)
from gateway.pulsar.entries import Entry, InvalidEntry

T0 = 1_700_000_000_000
CODECS = list(CompressionType)
codecs = pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)


def metadata_of(**fields: Any) -> MessageMetadata:
    return MessageMetadata(producer_name="p", sequence_id=3, publish_time=T0, **fields)


def batch(
    payloads: list[bytes], codec: CompressionType = CompressionType.NONE, **fields: Any
) -> bytes:
    singles = [(SingleMessageMetadata(sequence_id=at), each) for at, each in enumerate(payloads)]
    return entries.encode_batch(metadata_of(**fields), singles, codec)


def sent(block: bytes, **send: Any) -> Entry | Refusal:
    return entries.parse_send(CommandSend(producer_id=1, sequence_id=3, **send), memoryview(block))


def taken(block: bytes, **send: Any) -> Entry:
    entry = sent(block, **send)
    assert isinstance(entry, Entry), entry
    return entry


def refused(block: bytes, **send: Any) -> Error:
    refusal = sent(block, **send)
    assert isinstance(refusal, Refusal), refusal
    assert refusal.message
    return refusal.error


# What a SEND carries.


def test_a_lone_message() -> None:
    block = entries.encode_entry(metadata_of(partition_key=b"k"), b"payload")
    entry = taken(block)
    assert entry.block == block
    assert entry.payload == b"payload"
    assert entry.payload.obj is block
    assert (entry.is_batch, entry.message_count, entry.sequence_ids) == (False, 1, (3, 3))
    assert not entry.is_encrypted and not entry.is_chunk
    assert entries.messages(entry) == [(entry.metadata, b"payload")]


def test_a_batch_of_one_is_a_batch() -> None:
    entry = taken(batch([b"x"]))
    assert entry.is_batch and entry.message_count == 1


def test_a_batch_has_the_sequence_ids_of_its_first_and_last() -> None:
    assert taken(batch([b"x"] * 3, highest_sequence_id=5)).sequence_ids == (3, 5)


def test_a_chunk() -> None:
    fields = {"uuid": "u", "chunk_id": 1, "num_chunks_from_msg": 3, "total_chunk_msg_size": 30}
    assert taken(entries.encode_entry(metadata_of(**fields), b"x" * 10)).is_chunk


def test_magic_and_checksum_are_added_where_the_client_left_them_out() -> None:
    block = entries.encode_entry(metadata_of(), b"payload")
    assert bytes(taken(block[6:]).block) == block


def test_no_entry_at_all() -> None:
    refusal = entries.parse_send(CommandSend(producer_id=1, sequence_id=3), None)
    assert isinstance(refusal, Refusal) and refusal.error is Error.INVALID_RECORD


@given(st.integers(2, 40), st.integers(1, 255))
def test_any_flipped_bit_is_noticed(at: int, flip: int) -> None:
    block = bytearray(entries.encode_entry(metadata_of(), b"x" * 30))
    block[at] ^= flip
    assert refused(bytes(block)) is Error.CORRUPT_MESSAGE


def test_a_stored_entry_is_not_verified_again() -> None:
    block = bytearray(entries.encode_entry(metadata_of(), b"x"))
    block[-1] ^= 1
    assert entries.open_stored(block).payload == b"y"
    with pytest.raises(InvalidEntry):
        entries.open_stored(b"\x0e\x01")


def sealed(rest: bytes) -> bytes:
    return b"\x0e\x01" + crc32c(rest).to_bytes(4, "big") + rest


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"\x0e",
        b"\x0e\x01\0\0\0\0",
        sealed(struct.pack(">I", 5) + b"abc"),
        sealed(struct.pack(">I", 2**32 - 1)),
        sealed(struct.pack(">I", 3) + b"\x0a\x05x"),
        sealed(struct.pack(">I", 3) + b"\x0a\x01\xff"),  # a name that is no text
        sealed(struct.pack(">I", 0)),
    ],
)
def test_broken_metadata_is_an_invalid_record(block: bytes) -> None:
    assert refused(block) is Error.INVALID_RECORD


@pytest.mark.parametrize("name", ["producer_name", "sequence_id", "publish_time"])
def test_what_metadata_must_have(name: str) -> None:
    metadata = metadata_of()
    metadata.ClearField(name)  # type: ignore[arg-type]
    assert refused(entries.encode_entry(metadata, b"x")) is Error.INVALID_RECORD


@pytest.mark.parametrize("count", [0, -1, -(2**31), 2, 2**31 - 1, 1_000_001])
def test_impossible_counts_are_invalid_records(count: int) -> None:
    metadata = metadata_of(num_messages_in_batch=count)
    assert refused(entries.encode_entry(metadata, b"x" * 11)) is Error.INVALID_RECORD
    metadata.compression = CompressionType.LZ4
    metadata.uncompressed_size = 11
    assert refused(entries.encode_entry(metadata, b"x")) is Error.INVALID_RECORD


def test_send_and_entry_must_agree_on_the_count() -> None:
    block = batch([b"x"] * 3)
    assert taken(block, num_messages=3).message_count == 3
    assert taken(block).message_count == 3  # not told at all
    assert refused(block, num_messages=4) is Error.INVALID_RECORD


def test_markers_are_not_for_clients() -> None:
    block = entries.encode_entry(metadata_of(marker_type=21), b"")
    assert refused(block) is Error.INVALID_RECORD
    assert refused(entries.encode_entry(metadata_of(), b""), marker=True) is Error.INVALID_RECORD


@given(st.binary(max_size=80), st.booleans())
def test_any_bytes_are_an_entry_or_refused(noise: bytes, is_sealed: bool) -> None:
    found = sent(sealed(struct.pack(">I", len(noise)) + noise) if is_sealed else noise)
    assert isinstance(found, Entry | Refusal)


def test_a_bomb_is_too_large_when_it_comes() -> None:
    metadata = metadata_of(compression=CompressionType.ZSTD, uncompressed_size=2**32 - 1)
    assert refused(entries.encode_entry(metadata, b"x")) is Error.MESSAGE_TOO_LARGE


def test_an_encrypted_entry_is_taken_and_never_opened() -> None:
    key = EncryptionKeys(key="k", value=b"v")
    metadata = metadata_of(num_messages_in_batch=2, encryption_keys=[key])
    entry = taken(entries.encode_entry(metadata, b"?" * 40))
    assert entry.is_encrypted and entry.message_count == 2
    with pytest.raises(InvalidEntry, match="encrypted"):
        entries.messages(entry)


# Messages.


@codecs
def test_a_batch_comes_back(codec: CompressionType) -> None:
    payloads = [b"", b"one", b"x" * 3000, bytes(range(256))]
    entry = taken(batch(payloads, codec))
    found = entries.messages(entry)
    assert [bytes(each.payload) for each in found] == payloads
    assert [each.metadata.sequence_id for each in found] == [0, 1, 2, 3]


@codecs
@pytest.mark.parametrize("body", [b"", b"x", b"hello " * 1000])
def test_a_lone_message_comes_back(codec: CompressionType, body: bytes) -> None:
    entry = taken(entries.encode_compressed(metadata_of(), body, codec))
    ((_, payload),) = entries.messages(entry)
    assert payload == body


def broken(codec: CompressionType, body: bytes, **fields: Any) -> str:
    metadata = metadata_of(compression=codec, **fields)
    with pytest.raises(InvalidEntry) as error:
        entries.messages(entries.open_stored(entries.encode_entry(metadata, body)))
    return str(error.value)


COMPRESSED = {
    CompressionType.LZ4: bytes(cramjam.lz4.compress_block(b"x" * 1000, store_size=False)),
    CompressionType.ZLIB: zlib.compress(b"x" * 1000),
    CompressionType.ZSTD: bytes(cramjam.zstd.compress(b"x" * 1000)),
    CompressionType.SNAPPY: bytes(cramjam.snappy.compress_raw(b"x" * 1000)),
}


@pytest.mark.parametrize("codec", COMPRESSED, ids=lambda codec: codec.name)
@pytest.mark.parametrize("size", [1, 999, 1001, 5000])
def test_another_size_than_announced_is_broken(codec: CompressionType, size: int) -> None:
    broken(codec, COMPRESSED[codec], uncompressed_size=size)


@pytest.mark.parametrize("codec", COMPRESSED, ids=lambda codec: codec.name)
def test_broken_compression(codec: CompressionType) -> None:
    assert broken(codec, b"\xff" * 30, uncompressed_size=1000)
    half = len(COMPRESSED[codec]) // 2
    assert broken(codec, COMPRESSED[codec][:half], uncompressed_size=1000)
    assert broken(codec, b"", uncompressed_size=1000)
    assert "without its size" in broken(codec, COMPRESSED[codec])
    assert "limit" in broken(codec, COMPRESSED[codec], uncompressed_size=2**32 - 1)


def test_a_zlib_stream_that_is_flushed_and_never_ended() -> None:
    """As Java's client writes them."""
    stream = zlib.compressobj()
    body = stream.compress(b"x" * 1000) + stream.flush(zlib.Z_SYNC_FLUSH)
    metadata = metadata_of(compression=CompressionType.ZLIB, uncompressed_size=1000)
    ((_, payload),) = entries.messages(taken(entries.encode_entry(metadata, body)))
    assert payload == b"x" * 1000
    assert broken(CompressionType.ZLIB, body[:-8], uncompressed_size=1000)


def test_an_unknown_codec() -> None:
    body = metadata_of(compression=9, uncompressed_size=5)
    with pytest.raises(InvalidEntry, match="unknown compression type 9"):
        entries.messages(entries.open_stored(entries.encode_entry(body, b"x")))


@pytest.mark.parametrize("codec", COMPRESSED, ids=lambda codec: codec.name)
def test_decompression_is_bounded(codec: CompressionType) -> None:
    """A small payload that claims 64 MiB, and one that would be them."""
    start = time.monotonic()
    broken(codec, COMPRESSED[codec], uncompressed_size=entries.MAX_UNCOMPRESSED)
    bomb = bytes(entries.MAX_UNCOMPRESSED + 1)
    bombs = {
        CompressionType.ZLIB: lambda: zlib.compress(bomb, 1),
        CompressionType.ZSTD: lambda: bytes(cramjam.zstd.compress(bomb)),
    }
    if codec in bombs:
        broken(codec, bombs[codec](), uncompressed_size=1000)
    assert time.monotonic() - start < 20


def single(size: int, body: bytes, **fields: Any) -> bytes:
    metadata = SingleMessageMetadata(payload_size=size, **fields).SerializeToString()
    return struct.pack(">I", len(metadata)) + metadata + body


@pytest.mark.parametrize(
    ("body", "count"),
    [
        (single(3, b"abc"), 2),
        (single(3, b"abc") * 2, 1),
        (single(3, b"ab"), 1),
        (single(-1, b"abc"), 1),
        (single(2**31 - 1, b"abc"), 1),
        (struct.pack(">I", 2**32 - 1) + b"abc", 1),
        (struct.pack(">I", 3) + b"\x0a\x7fx", 1),
        (b"", 1),
        (b"abc", 1),
    ],
)
def test_sizes_that_do_not_add_up_are_broken(body: bytes, count: int) -> None:
    broken(CompressionType.NONE, body, num_messages_in_batch=count)


@given(st.binary(max_size=100), st.integers(-3, 5), st.integers(0, 5))
def test_any_payload_is_messages_or_invalid(body: bytes, count: int, codec: int) -> None:
    metadata = metadata_of(num_messages_in_batch=count, compression=codec, uncompressed_size=50)
    entry = entries.open_stored(entries.encode_entry(metadata, body))
    try:
        assert len(entries.messages(entry)) == count
    except InvalidEntry as invalid:
        assert str(invalid)


def test_properties_keep_their_order() -> None:
    properties = [Property(key=b"b", value=b"1"), Property(key=b"a", value=b"2")]
    block = entries.encode_batch(
        metadata_of(), [(SingleMessageMetadata(properties=properties), b"")], CompressionType.LZ4
    )
    ((metadata, _),) = entries.messages(taken(block))
    assert list(metadata.properties) == properties
