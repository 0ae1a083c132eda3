"""Which partition a record goes to that names none: Kafka's rules, for its default partitioner.

Knows keys as bytes and a number of partitions. Sources: Utils.murmur2, BuiltInPartitioner.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF


def murmur2(key: bytes) -> int:
    """The hash of a key, as an unsigned number of 32 bits."""
    whole = len(key) & ~3
    h = _SEED ^ len(key)
    for (k,) in struct.iter_unpack("<I", key[:whole]):
        k = k * _M & _MASK
        k ^= k >> 24
        h = (h * _M & _MASK) ^ (k * _M & _MASK)
    if tail := key[whole:]:
        h = (h ^ int.from_bytes(tail, "little")) * _M & _MASK
    h = (h ^ (h >> 13)) * _M & _MASK
    return h ^ (h >> 15)


@lru_cache(maxsize=20_000)
def _short_hash(key: bytes) -> int:
    return murmur2(key) & 0x7FFFFFFF


def partition_of(key: bytes, count: int) -> int:
    """Where records of a key go, of so many partitions."""
    positive = _short_hash(key) if len(key) <= 64 else murmur2(key) & 0x7FFFFFFF
    return positive % count


class Spreader:
    """Spreads records without a key: each bite's go to one partition of a topic, the next one's to
    another. So batches are large, and all partitions get their share."""

    def __init__(self, first: int) -> None:
        """first: where to begin, a random number."""
        self._turn = first

    def turn(self) -> None:
        """Another bite."""
        self._turn += 1

    def partition(self, count: int) -> int:
        """Of so many partitions."""
        return self._turn % count
