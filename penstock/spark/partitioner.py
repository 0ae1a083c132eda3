"""Which partition a record goes to: Kafka's rules, for a whole column of records at once.

Knows keys as bytes and numbers of partitions; must not know Arrow, a batch or a socket. Sources:
Utils.murmur2, BuiltInPartitioner (KIP-480, KIP-794).
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint32]

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF
# From this length on a key is hashed alone: few are so long, and a turn for each of their words
# would cost more over the column.
_LONG: Final = 512


def murmur2(key: bytes) -> int:
    """The hash of one key, as an unsigned number."""
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


def murmur2_column(data: Bytes, starts: Numbers, lengths: Numbers) -> Hashes:
    """The hashes of many keys, each a stretch of `data`."""
    hashes = np.uint32(_SEED) ^ lengths.astype(np.uint32)
    is_long = lengths >= _LONG
    words = np.where(is_long, 0, lengths >> 2)
    # The keys with the most words first: those that have a j-th word are then the first so many.
    order = np.argsort(-words, kind="stable")
    places, rest, h = starts[order], words[order], hashes[order]
    padded = np.concatenate([data, np.zeros(4, np.uint8)])
    # Every four bytes as a number, wherever they begin.
    number_at = np.ndarray(max(len(padded) - 3, 0), np.dtype("<u4"), padded.data, strides=(1,))
    m = np.uint32(_M)
    for j in range(int(rest[0]) if len(rest) else 0):
        having = int(np.searchsorted(-rest, -j, side="left"))
        k = number_at[places[:having] + 4 * j] * m
        k ^= k >> np.uint32(24)
        h[:having] = (h[:having] * m) ^ (k * m)
    tails = (lengths & 3)[order]
    last = number_at[places + 4 * rest] & ((1 << (8 * tails)) - 1).astype(np.uint32)
    h = np.where(tails > 0, (h ^ last) * m, h)
    h = (h ^ (h >> np.uint32(13))) * m
    hashes[order] = h ^ (h >> np.uint32(15))
    for row in np.flatnonzero(is_long):
        hashes[row] = murmur2(data[starts[row] : starts[row] + lengths[row]].tobytes())
    return hashes


def partitions_of_keys(
    data: Bytes, starts: Numbers, lengths: Numbers, counts: int | Numbers
) -> Numbers:
    """Where Kafka's default partitioner puts keyed records. counts: the topics' partitions."""
    return (murmur2_column(data, starts, lengths) & np.uint32(0x7FFFFFFF)).astype(np.int64) % counts


class StickyPartitioner:
    """Spreads records without a key: a partition takes a batch's worth, then the next one's turn.

    first: where to begin, a random number of each task's own. Keeps its place from call to call.
    """

    def __init__(self, batch_size: int, first: int) -> None:
        self._batch_size = batch_size
        self._turn = first

    def partitions(self, sizes: Numbers, counts: int | Numbers) -> Numbers:
        """The partitions for records of these sizes, in order."""
        starts = runs(sizes, self._batch_size)
        turns = np.zeros(len(sizes), np.int64)
        turns[starts] = 1
        turns = self._turn + np.cumsum(turns)
        self._turn += len(starts)
        return np.asarray(turns % counts, dtype=np.int64)


def runs(sizes: Numbers, limit: int) -> Numbers:
    """Where to cut records in a row so that none of the pieces is larger than the limit.

    Gives the first record of each piece; a record that is larger by itself is a piece of its own.
    """
    ends = np.cumsum(sizes)
    starts = []
    first, before = 0, 0
    while first < len(ends):
        starts.append(first)
        first = max(first + 1, int(np.searchsorted(ends, before + limit, side="right")))
        before = int(ends[first - 1])
    return np.array(starts, np.int64)
