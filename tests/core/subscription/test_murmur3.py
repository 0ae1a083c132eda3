"""MurmurHash3: published values (smhasher, seed 0), without the sign bit."""

import pytest

from core.subscription.key_ranges import slot_of_split, slot_of_sticky
from core.subscription.murmur3 import murmur3_32


@pytest.mark.parametrize(
    ("data", "hashed"),
    [
        (b"", 0),
        (b"a", 0x3C2569B2),
        (b"abc", 0xB3DD93FA),
        (b"test", 0xBA6BD213),
        (b"Hello, world!", 0xC0363E43),
        (b"The quick brown fox jumps over the lazy dog", 0x2E4FF723),
    ],
)
def test_known_values(data: bytes, hashed: int) -> None:
    assert murmur3_32(data) == hashed & 0x7FFFFFFF


def test_slots_leave_zero_out() -> None:
    slots = {(slot_of_split(b"%d" % each), slot_of_sticky(b"%d" % each)) for each in range(200)}
    assert all(0 < split < 65_536 and 0 < sticky < 65_536 for split, sticky in slots)
    assert slot_of_split(b"") == slot_of_sticky(b"") == 1
