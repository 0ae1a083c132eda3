"""A name's shard: written down in databases, so it never changes."""

from collections import Counter

from core.shard import SHARDS, is_of_partitions, shard_of, shard_of_partition


def test_shards_are_the_same_for_ever() -> None:
    names = ("", "a", "orders", "flüge", "g" * 32_767)
    assert [shard_of(name) for name in names] == [0, 3, 46, 3, 38]


def test_names_spread_over_all_shards() -> None:
    shards = Counter(shard_of(f"group-{n}") for n in range(6_400))
    assert set(shards) == set(range(SHARDS))
    assert max(shards.values()) < 200


def test_groups_and_partitions_have_shards_of_their_own() -> None:
    of_partitions = {shard_of_partition(each) for each in range(7, 7 + SHARDS)}
    assert of_partitions == set(range(SHARDS, 2 * SHARDS))
    assert all(map(is_of_partitions, of_partitions))
    assert not any(map(is_of_partitions, range(SHARDS)))
