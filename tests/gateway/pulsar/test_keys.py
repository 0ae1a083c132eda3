"""Keys and their hashes: MurmurHash3's own vectors, and whose key an entry is ordered by."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.pulsar.commands_pb2 import MessageMetadata
from gateway.pulsar.keys import HASH_RANGE, key_hash, key_of, murmur3_32, sticky_key


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"", 0),
        (b"\xff\xff\xff\xff", 0x76293B50),
        (b"\x21\x43\x65\x87", 0xF55B516B),
        (b"\x21\x43\x65", 0x7E4A8634),
        (b"\x21\x43", 0xA0F7B07A),
        (b"\x21", 0x72661CF4),
        (b"\0\0\0\0", 0x2362F9DE),
        (b"\0\0\0", 0x85F0B427),
        (b"\0\0", 0x30F4C306),
        (b"\0", 0x514E28B7),
        (b"The quick brown fox jumps over the lazy dog", 0x2E4FF723),
    ],
)
def test_murmur3_32(data: bytes, value: int) -> None:
    assert murmur3_32(data) == value


@given(st.binary(max_size=40))
def test_hashes_are_within_their_range_and_never_none(key: bytes) -> None:
    assert 0 < key_hash(key) < HASH_RANGE


def test_the_hash_of_nothing_is_not_zero() -> None:
    assert murmur3_32(b"") == 0
    assert key_hash(b"") == 1


def test_whose_key_orders() -> None:
    metadata = MessageMetadata(producer_name="p-1", sequence_id=7)
    assert sticky_key(metadata) == b"p-1-7"
    metadata.partition_key = "schlüssel".encode()
    assert sticky_key(metadata) == "schlüssel".encode()
    metadata.ordering_key = b"\xff"
    assert sticky_key(metadata) == b"\xff"


def test_keys_in_base64() -> None:
    metadata = MessageMetadata(
        partition_key=base64.b64encode(b"\x00\xff"), partition_key_b64_encoded=True
    )
    assert key_of(metadata) == sticky_key(metadata) == b"\x00\xff"
    metadata.partition_key = b"no base64!"
    assert key_of(metadata) == b"no base64!"


def test_an_empty_key_is_a_key() -> None:
    assert key_of(MessageMetadata()) is None
    assert key_of(MessageMetadata(partition_key=b"")) == b""
