"""The key that a message is ordered by, and its place among the hashes that consumers share out.

Knows metadata; not entries, consumers or what is done with a hash. Sources:
Commands.resolveStickyKey, Murmur3_32Hash, StickyKeyConsumerSelectorUtils.
"""

import base64
import binascii
from typing import Final

from gateway.pulsar.commands_pb2 import MessageMetadata, SingleMessageMetadata

HASH_RANGE: Final = 1 << 16
"""Hashes go from 0 to 65535; Key_Shared consumers bring or get ranges of these."""

_C1: Final = 0xCC9E2D51
_C2: Final = 0x1B873593
_MASK: Final = 0xFFFFFFFF


def murmur3_32(data: bytes) -> int:
    """MurmurHash3, x86, 32 bits, with seed 0."""
    state = 0
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        block = int.from_bytes(data[at : at + 4], "little") * _C1 & _MASK
        block = (block << 15 | block >> 17) * _C2 & _MASK
        state ^= block
        state = ((state << 13 | state >> 19) * 5 + 0xE6546B64) & _MASK
    if whole < len(data):
        block = int.from_bytes(data[whole:], "little") * _C1 & _MASK
        state ^= (block << 15 | block >> 17) * _C2 & _MASK
    state ^= len(data)
    state = (state ^ state >> 16) * 0x85EBCA6B & _MASK
    state = (state ^ state >> 13) * 0xC2B2AE35 & _MASK
    return state ^ state >> 16


def key_of(metadata: MessageMetadata | SingleMessageMetadata) -> bytes | None:
    """The message's key as its application gave it; None without one."""
    if not metadata.HasField("partition_key"):
        return None
    key = metadata.partition_key
    if metadata.partition_key_b64_encoded:
        try:
            return base64.b64decode(key, validate=True)
        except binascii.Error:  # a lie; what is there is the key then
            return key
    return key


def sticky_key(metadata: MessageMetadata) -> bytes:
    """What the entry is ordered by: its ordering key, else its key, else a name of its own.

    A batch has the key of its first message here. Without any key, entries are shared out by
    producer and sequence.
    """
    if metadata.HasField("ordering_key"):
        return metadata.ordering_key
    key = key_of(metadata)
    if key is None:
        return f"{metadata.producer_name}-{metadata.sequence_id}".encode()
    return key


def key_hash(key: bytes) -> int:
    """The key's place in `HASH_RANGE`. Never 0, which Pulsar's dispatchers keep for "none"."""
    return (murmur3_32(key) & 0x7FFFFFFF) % HASH_RANGE or 1
