"""Names, counts and placements of topics (the handlers' tests cover each refusal's code)."""

from hypothesis import given
from hypothesis import strategies as st

from core.errors import Error, Refusal
from core.topic.rules import (
    MAX_NEW_PARTITIONS,
    MAX_STORED_NAME_BYTES,
    NewTopic,
    ReplicaAssignment,
    TopicDefaults,
    check_new_name,
    check_reassignment,
    check_topic_name,
    check_total_added,
    collision_key,
    decide_added_partitions,
    decide_partition_count,
    find_repeated,
    is_internal,
    is_storable_name,
    names_by_key,
    unknown_topic,
)

LEGAL = st.text("abzAZ019._-", min_size=1, max_size=249).filter(
    lambda name: name not in (".", "..")
)
DEFAULTS = TopicDefaults(partition_count=7, replication_factor=1)


@given(LEGAL)
def test_legal_names_pass(name: str) -> None:
    assert check_topic_name(name) is None
    assert check_new_name(name, {}) is None
    assert unknown_topic(name).error is Error.UNKNOWN_TOPIC_OR_PARTITION


@given(st.text().filter(lambda name: not name.isascii() or "\0" in name or " " in name))
def test_names_with_other_characters_are_refused(name: str) -> None:
    refusal = check_topic_name(name)
    assert refusal is not None
    assert refusal.error is Error.INVALID_TOPIC_EXCEPTION
    assert unknown_topic(name) == refusal


@given(LEGAL)
def test_legal_names_can_be_stored(name: str) -> None:
    assert is_storable_name(name)


def test_names_of_other_protocols_can_be_stored_if_they_fit() -> None:
    assert is_storable_name("tenant/namespace/ü")
    assert is_storable_name("ü" * (MAX_STORED_NAME_BYTES // 2))
    for name in ("", "nul\0", "half \ud800", "ü" * (MAX_STORED_NAME_BYTES // 2) + "x"):
        assert not is_storable_name(name)


@given(LEGAL, LEGAL)
def test_new_name_collides_exactly_where_metrics_names_would(name: str, other: str) -> None:
    refusal = check_new_name(name, names_by_key([other]))
    if name == other:
        assert refusal is not None
        assert refusal.error is Error.TOPIC_ALREADY_EXISTS
    else:
        assert (refusal is not None) == (collision_key(name) == collision_key(other))


def test_internal_names() -> None:
    assert is_internal("__consumer_offsets")
    assert not is_internal("consumer_offsets")


def test_minus_one_is_the_default() -> None:
    assert decide_partition_count(NewTopic("t"), DEFAULTS, {1}) == 7
    assert decide_partition_count(NewTopic("t", 3, 1), DEFAULTS, {1}) == 3


def test_default_replication_factor_is_held_against_live_brokers_too() -> None:
    refused = decide_partition_count(NewTopic("t", 1), TopicDefaults(1, 3), {1, 2})
    assert isinstance(refused, Refusal)
    assert refused.error is Error.INVALID_REPLICATION_FACTOR


def test_assignments_must_agree_on_their_number_of_replicas() -> None:
    uneven = (ReplicaAssignment(0, (1, 2)), ReplicaAssignment(1, (1,)))
    refused = decide_partition_count(NewTopic("t", assignments=uneven), DEFAULTS, {1, 2})
    assert isinstance(refused, Refusal)
    assert refused.error is Error.INVALID_REPLICA_ASSIGNMENT
    assert "not consistent with previous partitions, which have 2" in str(refused.message)
    even = (ReplicaAssignment(0, (1, 2)), ReplicaAssignment(1, (2, 1)))
    assert decide_partition_count(NewTopic("t", assignments=even), DEFAULTS, {1, 2}) == 2


@given(st.integers(1, 1000), st.integers(-(2**31), 2**31 - 1))
def test_partitions_only_grow(current: int, wanted: int) -> None:
    decided = decide_added_partitions("t", current, wanted, None, {1})
    if wanted > current:
        assert decided == wanted - current
    else:
        assert isinstance(decided, Refusal)
        assert decided.error is Error.INVALID_PARTITIONS


def test_total_of_a_request_is_bounded() -> None:
    assert check_total_added([MAX_NEW_PARTITIONS - 1, 1]) is None
    refusal = check_total_added([MAX_NEW_PARTITIONS, 1])
    assert refusal is not None
    assert refusal.error is Error.POLICY_VIOLATION


def test_repeated() -> None:
    assert find_repeated(["a", "b", "a", "a"]) == {"a"}
    assert find_repeated([]) == set()


@given(
    st.sets(st.integers(0, 5), min_size=1),
    st.data(),
    st.none() | st.lists(st.integers(-1, 6), max_size=3),
)
def test_only_what_is_so_already_can_be_reassigned(
    live: set[int], data: st.DataObject, broker_ids: list[int] | None
) -> None:
    leader = data.draw(st.sampled_from(sorted(live)))
    refusal = check_reassignment(broker_ids, leader, live)
    assert (refusal is None) == (broker_ids == [leader])
    if broker_ids is None:
        assert refusal == Refusal(Error.NO_REASSIGNMENT_IN_PROGRESS)
    elif not broker_ids or not set(broker_ids) <= live:
        assert refusal is not None
        assert refusal.error is Error.INVALID_REPLICA_ASSIGNMENT
