"""uniform and range: every partition once, to a subscriber, balanced, with few moves."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.group.assignors import ASSIGNORS, Assignor, Subscriber, by_range, uniform
from core.group.records import Partitions

TOPICS = ("a", "b", "c", "d", "e")
BOTH = pytest.mark.parametrize("assignor", [uniform, by_range])


@st.composite
def groups(draw: st.DrawFn, *, alike: bool = False) -> tuple[list[Subscriber], dict[str, int]]:
    """Members with whatever subscriptions, and whatever they were given before: also too much,
    what is gone, and what another has as well."""
    partitions = {topic: draw(st.integers(0, 8)) for topic in TOPICS}
    common = draw(st.frozensets(st.sampled_from(TOPICS)))
    members = []
    for index in range(draw(st.integers(1, 6))):
        topics = common if alike else draw(st.frozensets(st.sampled_from(TOPICS)))
        before = draw(
            st.dictionaries(
                st.sampled_from((*TOPICS, "gone")), st.sets(st.integers(0, 9), min_size=1)
            )
        )
        assigned = {topic: tuple(sorted(held)) for topic, held in before.items()}
        instance_id = draw(st.none() | st.just(f"i{9 - index}"))
        members.append(Subscriber(f"m{index}", instance_id, topics, assigned))
    return members, partitions


def pairs(partitions: Partitions) -> set[tuple[str, int]]:
    return {(topic, each) for topic, held in partitions.items() for each in held}


def loads(assignment: Mapping[str, Partitions]) -> dict[str, int]:
    return {member_id: len(pairs(held)) for member_id, held in assignment.items()}


def carried_on(
    members: Sequence[Subscriber], assignment: Mapping[str, Partitions]
) -> list[Subscriber]:
    """The members with what they have just been given."""
    return [replace(each, assigned=assignment[each.member_id]) for each in members]


@BOTH
@given(group=groups())
def test_every_partition_goes_once_to_a_subscriber(
    assignor: Assignor, group: tuple[list[Subscriber], dict[str, int]]
) -> None:
    members, partitions = group
    assignment = assignor(members, partitions)
    assert assignment.keys() == {each.member_id for each in members}
    given_out = Counter(pair for held in assignment.values() for pair in pairs(held))
    wanted = frozenset().union(*(each.topic_ids for each in members))
    assert given_out == Counter(
        (topic, number) for topic in wanted for number in range(partitions[topic])
    )
    for each in members:
        assert assignment[each.member_id].keys() <= each.topic_ids
        for held in assignment[each.member_id].values():
            assert held and list(held) == sorted(held)


@BOTH
@given(group=groups(), seed=st.randoms(use_true_random=False))
def test_the_order_in_which_members_are_named_makes_no_difference(
    assignor: Assignor, group: tuple[list[Subscriber], dict[str, int]], seed: object
) -> None:
    members, partitions = group
    shuffled = list(members)
    seed.shuffle(shuffled)  # type: ignore[attr-defined]
    assert assignor(shuffled, dict(reversed(partitions.items()))) == assignor(members, partitions)


@BOTH
@given(group=groups())
def test_a_second_look_changes_nothing(
    assignor: Assignor, group: tuple[list[Subscriber], dict[str, int]]
) -> None:
    members, partitions = group
    assignment = assignor(members, partitions)
    assert assignor(carried_on(members, assignment), partitions) == assignment


@given(group=groups(alike=True))
def test_uniform_is_balanced_and_moves_as_little_as_can_be(
    group: tuple[list[Subscriber], dict[str, int]],
) -> None:
    members, partitions = group
    assignment = uniform(members, partitions)
    counts = loads(assignment).values()
    assert max(counts) - min(counts) <= 1

    # What each had that still exists; of what two had, the first in order of ids keeps it.
    taken: set[tuple[str, int]] = set()
    had = {}
    for each in members:
        had[each.member_id] = {
            (topic, number)
            for topic, number in pairs(each.assigned)
            if topic in each.topic_ids and number < partitions[topic]
        } - taken
        taken |= had[each.member_id]
    total = sum(partitions[topic] for topic in members[0].topic_ids)
    quota, extra = divmod(total, len(members))
    over = sum(len(mine) > quota for mine in had.values())
    most_that_can_stay = sum(min(len(mine), quota) for mine in had.values()) + min(over, extra)
    stayed = sum(len(pairs(assignment[each]) & mine) for each, mine in had.items())
    assert stayed == most_that_can_stay


@given(group=groups(alike=True), gone=st.integers(0, 5))
def test_when_a_member_goes_the_others_keep_all_they_have(
    group: tuple[list[Subscriber], dict[str, int]], gone: int
) -> None:
    members, partitions = group
    before = uniform(members, partitions)
    left = carried_on(members, before)
    del left[gone % len(left)]
    after = uniform(left, partitions)
    for each in left:
        assert pairs(before[each.member_id]) <= pairs(after[each.member_id])


@given(group=groups())
def test_uniform_leaves_no_partition_that_would_be_better_elsewhere(
    group: tuple[list[Subscriber], dict[str, int]],
) -> None:
    members, partitions = group
    assignment = uniform(members, partitions)
    count = loads(assignment)
    for owner in members:
        for topic in assignment[owner.member_id]:
            for other in members:
                if topic in other.topic_ids:
                    assert count[owner.member_id] - count[other.member_id] <= 1


@given(
    sizes=st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 12), min_size=1),
    count=st.integers(1, 6),
)
def test_a_member_that_comes_takes_only_what_it_is_to_have(
    sizes: dict[str, int], count: int
) -> None:
    members = [Subscriber(f"m{i}", None, frozenset(sizes), {}) for i in range(count)]
    before = uniform(members, sizes)
    newcomer = Subscriber("new", None, frozenset(sizes), {})
    after = uniform([*carried_on(members, before), newcomer], sizes)
    moved = sum(len(pairs(before[each]) - pairs(after[each])) for each in before)
    assert moved == len(pairs(after["new"]))


def test_uniform_spreads_a_topic_over_its_members() -> None:
    members = [Subscriber(each, None, frozenset({"a", "b"}), {}) for each in ("x", "y")]
    assert uniform(members, {"a": 2, "b": 2}) == {
        "x": {"a": (0,), "b": (0,)},
        "y": {"a": (1,), "b": (1,)},
    }


def test_uniform_leaves_the_odd_partition_with_the_member_that_has_most() -> None:
    members = [
        Subscriber("x", None, frozenset({"a"}), {}),
        Subscriber("y", None, frozenset({"a"}), {"a": (0, 1, 2)}),
    ]
    assert uniform(members, {"a": 3}) == {"x": {"a": (2,)}, "y": {"a": (0, 1)}}


def test_uniform_takes_newly_given_partitions_before_old_ones() -> None:
    members = [
        Subscriber("x", None, frozenset({"a", "b"}), {"a": (0, 1)}),
        Subscriber("y", None, frozenset({"a"}), {}),
    ]
    assert uniform(members, {"a": 4, "b": 1}) == {"x": {"a": (0, 1), "b": (0,)}, "y": {"a": (2, 3)}}


@given(group=groups())
def test_ranges_are_contiguous_and_of_like_size(
    group: tuple[list[Subscriber], dict[str, int]],
) -> None:
    members, partitions = group
    assignment = by_range(members, partitions)
    in_order = sorted(
        members, key=lambda each: (each.instance_id is None, each.instance_id or each.member_id)
    )
    for topic in TOPICS:
        ranges = [
            assignment[each.member_id].get(topic, ())
            for each in in_order
            if topic in each.topic_ids
        ]
        if not ranges:
            continue
        assert [number for held in ranges for number in held] == list(range(partitions[topic]))
        sizes = [len(held) for held in ranges]
        assert sizes == sorted(sizes, reverse=True) and sizes[0] - sizes[-1] <= 1


def test_topics_of_the_same_size_are_cut_alike() -> None:
    members = [Subscriber(each, None, frozenset({"a", "b"}), {}) for each in ("x", "y")]
    assert by_range(members, {"a": 3, "b": 3}) == {
        "x": {"a": (0, 1), "b": (0, 1)},
        "y": {"a": (2,), "b": (2,)},
    }


def test_static_members_get_the_same_ranges_under_new_member_ids() -> None:
    def assigned(*ids: tuple[str, str | None]) -> dict[str | None, Partitions]:
        members = [Subscriber(each, instance, frozenset({"a"}), {}) for each, instance in ids]
        result = by_range(members, {"a": 5})
        return {instance: result[each] for each, instance in ids}

    expected = {"one": {"a": (0, 1)}, "two": {"a": (2, 3)}, None: {"a": (4,)}}
    assert assigned(("x", "one"), ("y", "two"), ("a", None)) == expected
    assert assigned(("y", "one"), ("x", "two"), ("a", None)) == expected


@BOTH
def test_nobody_and_nothing(assignor: Assignor) -> None:
    assert assignor([], {}) == {}
    assert assignor([Subscriber("m", None, frozenset(), {"a": (1,)})], {}) == {"m": {}}
    more = [Subscriber(f"m{i}", None, frozenset({"a"}), {}) for i in range(3)]
    assert sorted(loads(assignor(more, {"a": 1})).values()) == [0, 0, 1]


def test_names() -> None:
    assert dict(ASSIGNORS) == {"uniform": uniform, "range": by_range}


@BOTH
@pytest.mark.parametrize(("members", "partitions", "topics"), [(50, 200, 4), (1_000, 2_000, 100)])
def test_large_groups(assignor: Assignor, members: int, partitions: int, topics: int) -> None:
    """Alike and not alike; the balance of `uniform` also here."""
    names = [f"t{i}" for i in range(topics)]
    sizes = dict.fromkeys(names, partitions // topics)
    for step in (1, 3):
        group = [
            Subscriber(f"m{i}", None, frozenset(names[i % step :: step]), {})
            for i in range(members)
        ]
        assignment = assignor(group, sizes)
        count = Counter(pair for held in assignment.values() for pair in pairs(held))
        assert len(count) == partitions and set(count.values()) == {1}
        if assignor is uniform:
            count_of = loads(assignment)
            for first in range(step):
                alike = [count_of[each.member_id] for each in group[first::step]]
                assert max(alike) - min(alike) <= 1
