"""Keys go where Kafka's own producers send them; records without one are spread."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as theirs

from core.inbox.partitioner import Spreader, murmur2, partition_of

# Kafka's UtilsTest.testMurmur2.
JAVA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize("key", JAVA)
def test_keys_have_the_hashes_that_java_gives(key: bytes) -> None:
    assert murmur2(key) == JAVA[key] & 0xFFFFFFFF


@given(st.binary(max_size=300))
def test_any_key_has_the_hash_that_kafka_python_gives(key: bytes) -> None:
    assert murmur2(key) == theirs(key) & 0xFFFFFFFF


@given(st.binary(max_size=100), st.integers(1, 1_000))
def test_a_key_goes_where_a_producer_sends_it(key: bytes, count: int) -> None:
    """Utils.toPositive, then the remainder; long keys are not remembered."""
    assert partition_of(key, count) == (theirs(key) & 0x7FFFFFFF) % count


def test_keys_of_every_length_around_the_remembered_ones() -> None:
    for size in (0, 1, 63, 64, 65, 200):
        key = bytes(range(256))[:size]
        assert partition_of(key, 7) == partition_of(key, 7) == (theirs(key) & 0x7FFFFFFF) % 7


def test_records_without_a_key_go_to_another_partition_with_each_bite() -> None:
    spreader = Spreader(2**31)
    seen = []
    for _ in range(6):
        spreader.turn()
        seen.append(spreader.partition(3))
        assert spreader.partition(3) == seen[-1], "all of one bite"
    assert seen[:3] == seen[3:]
    assert sorted(seen[:3]) == [0, 1, 2]
    assert spreader.partition(1) == 0
