"""Rendezvous hashing: alike everywhere, even, and calm when brokers come and go."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from core.leadership import choose_leader

PARTITIONS = range(1, 2001)
GOLDEN = [1, 2, 3, 2, 2, 3, 3, 1, 3, 1, 3, 1]
BROKERS = st.sets(st.integers(0, 2**31 - 1), min_size=1, max_size=8)


def test_nobody_leads_where_nobody_is() -> None:
    assert choose_leader(1, []) is None


def test_choice_never_changes_between_versions_or_machines() -> None:
    # Brokers of different age must agree: these numbers may not change.
    assert [choose_leader(each, [1, 2, 3]) for each in range(1, 13)] == GOLDEN


@given(st.integers(1, 2**62), BROKERS)
def test_order_of_brokers_does_not_matter(partition_id: int, brokers: set[int]) -> None:
    leader = choose_leader(partition_id, sorted(brokers))
    assert leader in brokers
    assert leader == choose_leader(partition_id, sorted(brokers, reverse=True))


def test_partitions_are_spread_evenly() -> None:
    counts = Counter(choose_leader(each, [1, 2, 3, 4]) for each in PARTITIONS)
    assert all(400 < counts[broker] < 600 for broker in (1, 2, 3, 4))


@given(st.integers(1, 2**62), BROKERS, st.integers(0, 2**31 - 1))
def test_only_the_leavers_partitions_move(
    partition_id: int, brokers: set[int], newcomer: int
) -> None:
    before = choose_leader(partition_id, brokers)
    after = choose_leader(partition_id, {*brokers, newcomer})
    assert after in (before, newcomer)
