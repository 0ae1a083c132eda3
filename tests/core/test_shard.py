"""A name's shard: written down in databases, so it never changes."""

from collections import Counter

from core.shard import SHARDS, shard_of


def test_shards_are_the_same_for_ever() -> None:
    names = ("", "a", "orders", "flüge", "g" * 32_767)
    assert [shard_of(name) for name in names] == [0, 3, 46, 3, 38]


def test_names_spread_over_all_shards() -> None:
    shards = Counter(shard_of(f"group-{n}") for n in range(6_400))
    assert set(shards) == set(range(SHARDS))
    assert max(shards.values()) < 200
