"""MurmurHash3, 32 bits, seed 0 (Austin Appleby, public domain), without its sign.

As Pulsar's Murmur3_32Hash gives it, for places on rings of hashes. Plain Python: some microseconds,
which is too slow for each key of a stream.
"""

_MASK = 0xFFFFFFFF


def _mixed(block: int) -> int:
    block = (block * 0xCC9E2D51) & _MASK
    block = (block << 15 | block >> 17) & _MASK
    return (block * 0x1B873593) & _MASK


def murmur3_32(data: bytes) -> int:
    """0 … 2³¹-1."""
    hashed = 0
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        hashed ^= _mixed(int.from_bytes(data[at : at + 4], "little"))
        hashed = (hashed << 13 | hashed >> 19) & _MASK
        hashed = (hashed * 5 + 0xE6546B64) & _MASK
    if tail := data[whole:]:
        hashed ^= _mixed(int.from_bytes(tail, "little"))
    hashed ^= len(data)
    hashed = ((hashed ^ hashed >> 16) * 0x85EBCA6B) & _MASK
    hashed = ((hashed ^ hashed >> 13) * 0xC2B2AE35) & _MASK
    return (hashed ^ hashed >> 16) & 0x7FFFFFFF
