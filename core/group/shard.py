"""Which shard a group falls into: the unit that a lease of coordination covers.

Fixed arithmetic, alike in every process and for ever, because shards are written down with their
groups. Knows no leases.
"""

from zlib import crc32

SHARDS = 64
"""Few enough to read all leases each second, enough to spread over a handful of brokers."""


def shard_of(group_id: str) -> int:
    """The group's shard, from 0 to SHARDS - 1."""
    return crc32(group_id.encode()) % SHARDS
