"""Which shard a name falls into: the unit that a lease covers.

Groups are coordinated by shard, and partitions dispatched, each kind by its own: not every broker
that can coordinate groups can be reached by those to whom is dispatched. The arithmetic is fixed,
the same in every process and for ever, because rows store their shard. Knows no leases.
"""

from zlib import crc32

SHARDS = 64
"""Of groups, and as many of partitions, numbered behind them. Few enough to read all leases each
second, enough to spread over a handful of brokers."""


def shard_of(name: str) -> int:
    """The shard of a group's id, or of another name, from 0 to SHARDS - 1."""
    return crc32(name.encode()) % SHARDS


def shard_of_partition(partition_id: int) -> int:
    """The shard of a partition's subscriptions and writers, from SHARDS on. A topic's partitions
    lie in different ones."""
    return SHARDS + partition_id % SHARDS


def is_of_partitions(shard: int) -> bool:
    """Whether partitions lie in the shard; else groups."""
    return shard >= SHARDS
