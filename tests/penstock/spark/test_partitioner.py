"""The partitioner against kafka-python's, key by key, and its spreading of records without key."""

from __future__ import annotations

from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as murmur2_of_kafka_python

from penstock.spark.partitioner import (
    StickyPartitioner,
    murmur2,
    murmur2_column,
    partitions_of_keys,
    runs,
)


def column(keys: list[bytes]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Keys as they lie in a column: data, starts, lengths."""
    lengths = np.array([len(key) for key in keys], np.int64)
    starts = np.cumsum(lengths) - lengths
    return np.frombuffer(b"".join(keys), np.uint8), starts, lengths


keys = st.one_of(st.binary(max_size=40), st.binary(min_size=500, max_size=530))


@given(st.lists(keys, max_size=30))
def test_hashes_are_kafkas(keys: list[bytes]) -> None:
    expected = [murmur2_of_kafka_python(key) & 0xFFFFFFFF for key in keys]

    assert murmur2_column(*column(keys)).tolist() == expected
    assert [murmur2(key) for key in keys] == expected


# org.apache.kafka.common.utils.UtilsTest.testMurmur2
@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_hashes_are_the_java_clients(key: bytes, expected: int) -> None:
    assert murmur2_column(*column([key, b"", key])).tolist()[::2] == [expected & 0xFFFFFFFF] * 2


def test_partitions_are_counted_by_topic() -> None:
    keys = [b"foobar", b"foobar", b"21"]
    positive = [murmur2(key) & 0x7FFFFFFF for key in keys]

    assert partitions_of_keys(*column(keys), np.array([7, 3, 1])).tolist() == [
        positive[0] % 7,
        positive[1] % 3,
        0,
    ]
    assert partitions_of_keys(*column(keys), 5).tolist() == [each % 5 for each in positive]


@given(st.lists(st.integers(1, 50), max_size=60), st.integers(1, 100))
def test_pieces_are_as_large_as_allowed(sizes: list[int], limit: int) -> None:
    starts = runs(np.array(sizes, np.int64), limit).tolist()

    pieces = [sizes[a:b] for a, b in zip(starts, [*starts[1:], len(sizes)], strict=False)]
    assert list(chain(*pieces)) == sizes
    assert all(sum(piece) <= limit or len(piece) == 1 for piece in pieces)
    assert all(sum(piece) + after[0] > limit for piece, after in pairwise(pieces))


def test_records_without_key_stay_for_a_batch_and_move_on() -> None:
    sticky = StickyPartitioner(batch_size=100, first=5)

    assert sticky.partitions(np.full(7, 40), 3).tolist() == [0, 0, 1, 1, 2, 2, 0]
    assert sticky.partitions(np.full(3, 40), 3).tolist() == [1, 1, 2]
