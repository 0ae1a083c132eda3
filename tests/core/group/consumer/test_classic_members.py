"""Members of the classic protocol in a consumer group."""

import pytest

from core.errors import Error
from core.group.consumer.member import UNRELEASED_PARTITIONS, UNREVOKED_PARTITIONS
from core.group.consumer.protocol import (
    Assignment,
    Subscription,
    parse_assignment,
)
from core.group.values import GroupSettings, JoinResult, SyncResult
from tests.core.group.consumer.driver import (
    CLASSIC_SESSION_MS,
    CLIENT,
    GROUP,
    REBALANCE_MS,
    Driver,
    held,
)
from tests.core.group.subscription_bytes import encode_subscription


def mixed() -> Driver:
    """a speaks KIP-848, c is classic; three partitions of foo each, in epoch 2."""
    driver = Driver()
    driver.enter("a", "foo")
    driver.enter_classic("c", "foo")
    assert driver.assigned("c", 2) == {}
    driver.go_on("a")
    driver.go_on("a")
    assert driver.beat("c", 2) is Error.REBALANCE_IN_PROGRESS
    assert rejoin(driver, "c", {}) == (2, {"foo": (3, 4, 5)})
    assert driver.state == "Stable"
    return driver


def rejoin(
    driver: Driver, member_id: str, owned: dict[str, tuple[int, ...]]
) -> tuple[int, dict[str, tuple[int, ...]]]:
    """Joins and syncs: the new generation, and what the member has in it."""
    joined = driver.join(member_id, "foo", owned=owned)
    assert joined is not None and joined.error is Error.NONE
    return joined.generation_id, dict(driver.assigned(member_id, joined.generation_id))


def test_a_classic_member_follows() -> None:
    driver = Driver()
    driver.enter("a", "foo")
    first = driver.join("", "foo", new_member_id="c")
    assert first == JoinResult(Error.MEMBER_ID_REQUIRED, member_id="c")
    assert driver.effects is None
    joined = driver.join("c", "foo", names=("range", "sticky"))
    assert joined == JoinResult(
        generation_id=2, protocol_type="consumer", protocol_name="range", member_id="c"
    )
    row = driver.row("c")
    assert (row.protocol, row.session_timeout_ms) == ("classic", CLASSIC_SESSION_MS)
    assert row.subscribed_topic_names == ("foo",)
    assert [name for name, _ in row.protocols] == ["range", "sticky"]
    synced = driver.sync("c", 2, protocol_name="range")
    assert synced is not None
    assert (synced.error, synced.protocol_type, synced.protocol_name) == (
        Error.NONE,
        "consumer",
        "range",
    )
    assert parse_assignment(synced.assignment) == Assignment(1, {})
    assert driver.consumer.describe().members[1].is_classic


def test_before_version_four_no_id_is_required() -> None:
    driver = Driver()
    driver.enter("a", "foo")
    joined = driver.join("", "foo", new_member_id="c", requires_known_member_id=False)
    assert joined is not None and (joined.error, joined.member_id) == (Error.NONE, "c")


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_the_assignment_is_in_the_members_version(version: int) -> None:
    driver = Driver()
    driver.enter("a", "foo")
    driver.heartbeat("a", -1)
    driver.enter("a", "foo")
    driver.join("c", "foo", version=version)
    synced = driver.sync("c", driver.row("c").member_epoch)
    assert synced is not None
    assert parse_assignment(synced.assignment) == Assignment(version, {})


def test_a_cooperative_member_gives_back_and_joins_again() -> None:
    driver = mixed()
    driver.enter("b", "foo")
    assert driver.row("c").target == held(foo=(3, 4))
    assert driver.beat("c", 2) is Error.REBALANCE_IN_PROGRESS
    generation, assigned = rejoin(driver, "c", {"foo": (3, 4, 5)})
    assert (generation, assigned) == (2, {"foo": (3, 4)})
    assert driver.row("c").state == UNREVOKED_PARTITIONS
    assert driver.commit("c", 2) is Error.NONE
    assert driver.commit("c", 2, knows_member_epochs=False) is Error.NONE
    assert driver.beat("c", 2) is Error.REBALANCE_IN_PROGRESS
    driver.go_on("b")
    assert driver.row("b").assigned == {}
    assert rejoin(driver, "c", {"foo": (3, 4)}) == (3, {"foo": (3, 4)})
    assert driver.beat("c", 3) is Error.NONE
    assert driver.commit("c", 2) is Error.ILLEGAL_GENERATION
    assert driver.commit("c", 2, knows_member_epochs=False) is Error.ILLEGAL_GENERATION
    driver.converge()
    assert driver.row("b").assigned == held(foo=(2, 5))


def test_an_eager_member_has_given_back_when_it_joins() -> None:
    driver = mixed()
    driver.enter("b", "foo")
    assert rejoin(driver, "c", {}) == (3, {"foo": (3, 4)})
    assert driver.go_on("b").assignment == held(foo=(5,))


def test_a_member_that_waits_is_called_when_all_is_free() -> None:
    driver = Driver()
    driver.enter("a", "foo")
    driver.enter("b", "foo")
    driver.converge()
    driver.enter_classic("c", "foo")
    assert driver.row("c").target == held(foo=(2, 5))
    assert driver.row("c").state == UNRELEASED_PARTITIONS
    assert driver.beat("c", 3) is Error.NONE
    driver.go_on("a")
    driver.go_on("a")
    assert driver.beat("c", 3) is Error.NONE, "b still has what it is to get"
    driver.go_on("b")
    driver.go_on("b")
    assert driver.beat("c", 3) is Error.REBALANCE_IN_PROGRESS
    assert rejoin(driver, "c", {}) == (3, {"foo": (2, 5)})


def test_what_a_leader_says_is_ignored() -> None:
    driver = mixed()
    synced = driver.sync("c", 2, assignments={"a": b"x", "c": b"y"})
    assert synced is not None
    assert parse_assignment(synced.assignment) == Assignment(1, {"foo": (3, 4, 5)})
    assert driver.effects is None


def test_topics_that_are_gone_are_not_in_the_assignment() -> None:
    driver = mixed()
    driver.show({"bar": 1})
    assert driver.assigned("c", 2) == {}


def test_owned_partitions_that_do_not_exist_do_not_matter() -> None:
    driver = mixed()
    assert rejoin(driver, "c", {"foo": (3, 4, 5, 77), "gone": (1,)}) == (2, {"foo": (3, 4, 5)})


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ({"session_timeout_ms": 5_999}, Error.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1_800_001}, Error.INVALID_SESSION_TIMEOUT),
        ({"protocol_type": "connect"}, Error.INCONSISTENT_GROUP_PROTOCOL),
        ({"names": ("other",)}, Error.INCONSISTENT_GROUP_PROTOCOL),
        ({"metadata": b"\x00"}, Error.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
@pytest.mark.parametrize("member_id", ["", "c", "d"])
def test_joins_that_are_refused(member_id: str, said: dict[str, object], error: Error) -> None:
    driver = mixed()
    before = driver.consumer.stored()
    if member_id or "metadata" not in said:
        expected = JoinResult(error, member_id=member_id)
        assert driver.join(member_id, **said) == expected  # type: ignore[arg-type]
    assert driver.consumer.stored() == before


def test_a_member_that_was_removed_may_not_come_back_with_what_it_had() -> None:
    """It has not noticed, and others have by now what it thinks it owns."""
    driver = mixed()
    driver.leave(("c", None))
    unknown = JoinResult(Error.UNKNOWN_MEMBER_ID, member_id="c")
    assert driver.join("c", "foo", owned={"foo": (3, 4, 5)}) == unknown
    assert driver.effects is None
    driver.enter_classic("c", "foo")


def test_no_protocols_at_all() -> None:
    driver = mixed()
    driver.leave(("c", None))
    # Nor may it come where no classic member is that it could disagree with.
    inconsistent = JoinResult(Error.INCONSISTENT_GROUP_PROTOCOL, member_id="d")
    assert driver.join("d", names=()) == inconsistent


def test_a_full_group() -> None:
    driver = Driver(settings=GroupSettings(consumer_max_size=2))
    driver.enter("a", "foo")
    driver.enter_classic("s1", "foo", instance_id="s")
    full = JoinResult(Error.GROUP_MAX_SIZE_REACHED, member_id="")
    assert driver.join("", "foo") == full
    assert driver.join("", "foo", instance_id="t") == full
    driver.enter_classic("s2", "foo", instance_id="s")


# --- static ---


def test_a_static_classic_member_takes_over_at_once() -> None:
    driver = Driver()
    driver.enter("a", "foo")
    driver.enter_classic("s1", "foo", instance_id="s")
    driver.go_on("a")
    driver.go_on("a")
    assert rejoin_static(driver, "s1") == {"foo": (3, 4, 5)}
    joined = driver.enter_classic("s2", "foo", instance_id="s")
    assert joined.generation_id == 2
    assert driver.assigned("s2", 2) == {"foo": (3, 4, 5)}
    assert driver.beat("s1", 2, "s") is Error.FENCED_INSTANCE_ID
    assert driver.beat("s1", 2) is Error.UNKNOWN_MEMBER_ID
    assert driver.join("s1", "foo", instance_id="s") == JoinResult(
        Error.FENCED_INSTANCE_ID, member_id="s1"
    )
    assert driver.sync("s1", 2, instance_id="s") == SyncResult(Error.FENCED_INSTANCE_ID)
    assert driver.leave(("s1", "s")) == [Error.FENCED_INSTANCE_ID]


def rejoin_static(driver: Driver, member_id: str) -> dict[str, tuple[int, ...]]:
    joined = driver.join(member_id, "foo", instance_id="s")
    assert joined is not None and joined.error is Error.NONE
    return dict(driver.assigned(member_id, joined.generation_id))


def test_a_static_member_may_change_its_protocol() -> None:
    driver = Driver()
    driver.enter("a", "foo")
    driver.enter_classic("s1", "foo", instance_id="s")
    driver.go_on("a")
    driver.go_on("a")
    rejoin_static(driver, "s1")
    # To KIP-848: whatever state the classic one is in.
    back = driver.enter("s2", "foo", instance_id="s")
    assert (back.member_epoch, back.assignment) == (2, held(foo=(3, 4, 5)))
    row = driver.row("s2")
    assert (row.protocol, row.protocols, row.session_timeout_ms) == ("consumer", (), 0)
    # And back.
    joined = driver.enter_classic("s3", "foo", instance_id="s")
    assert joined.generation_id == 2
    assert driver.assigned("s3", 2) == {"foo": (3, 4, 5)}
    assert driver.row("s3").protocol == "classic"


def test_an_expression_is_given_up_with_the_protocol() -> None:
    driver = Driver({"foo": 2, "bar": 2})
    driver.enter("a", "foo")
    driver.enter("s1", regex="ba.", instance_id="s")
    driver.enter_classic("s2", "foo", instance_id="s")
    assert driver.row("s2").subscribed_topic_regex is None
    assert driver.consumer.expressions == set()


# --- deadlines ---


def test_a_classic_members_session_is_its_own() -> None:
    driver = mixed()
    driver.pass_time(CLASSIC_SESSION_MS - 1)
    driver.heartbeat("a", 2)
    driver.advance(0)
    assert driver.beat("c", 2) is Error.NONE
    driver.advance(CLASSIC_SESSION_MS - 1)
    assert "c" in driver.consumer.roster.members
    driver.heartbeat("a", 2)
    driver.advance(1)
    assert "c" not in driver.consumer.roster.members


def keep_alive(driver: Driver, milliseconds: int, classic: str, generation: int) -> None:
    """Everybody's heartbeats come, and nothing else."""
    for _ in range(milliseconds // 1_000):
        driver.advance(1_000)
        if classic in driver.consumer.roster.members:
            driver.beat(classic, generation)
        driver.heartbeat("a", driver.row("a").member_epoch, owned=driver.row("a").assigned)


def test_who_does_not_sync_is_removed() -> None:
    driver = mixed()
    rejoin_result = driver.join("c", "foo", owned={"foo": (3, 4, 5)})
    assert rejoin_result is not None and rejoin_result.generation_id == 2
    keep_alive(driver, REBALANCE_MS - 1_000, "c", 2)
    assert "c" in driver.consumer.roster.members
    keep_alive(driver, 1_000, "c", 2)
    assert "c" not in driver.consumer.roster.members


def test_who_does_not_join_again_is_removed() -> None:
    driver = mixed()
    driver.enter("b", "foo")
    driver.heartbeat("b", -1)
    keep_alive(driver, REBALANCE_MS, "c", 2)
    assert "c" in driver.consumer.roster.members
    keep_alive(driver, 1_000, "c", 2)
    assert "c" not in driver.consumer.roster.members


def test_who_joins_and_syncs_is_not() -> None:
    driver = mixed()
    driver.enter("b", "foo")
    driver.heartbeat("b", -1)
    assert driver.beat("c", 2) is Error.REBALANCE_IN_PROGRESS
    generation, _assigned = rejoin(driver, "c", {"foo": (3, 4, 5)})
    keep_alive(driver, 3 * REBALANCE_MS, "c", generation)
    assert "c" in driver.consumer.roster.members


def test_a_sync_that_comes_too_early_asks_for_a_join_in_time() -> None:
    driver = mixed()
    driver.enter("b", "foo")
    driver.heartbeat("b", -1)
    assert driver.sync("c", 2) == SyncResult(Error.REBALANCE_IN_PROGRESS)
    keep_alive(driver, REBALANCE_MS + 1_000, "x", 0)
    assert "c" not in driver.consumer.roster.members


# --- leaving ---


def test_several_members_leave_at_once() -> None:
    driver = mixed()
    driver.enter("s1", "foo", instance_id="s")
    epoch = driver.consumer.group_epoch
    assert driver.leave(("c", None), ("x", None), ("", "s"), ("c", None)) == [
        Error.NONE,
        Error.UNKNOWN_MEMBER_ID,
        Error.NONE,
        Error.NONE,
    ]
    assert driver.consumer.group_epoch == epoch + 1
    assert list(driver.consumer.roster.members) == ["a"]
    assert driver.leave(("", None), ("", "s")) == [Error.UNKNOWN_MEMBER_ID] * 2
    assert driver.effects is None
    driver.converge()
    assert driver.row("a").assigned == held(foo=range(6))


def test_metadata_in_a_version_of_the_future() -> None:
    driver = Driver()
    driver.enter("a", "foo")
    driver.join("c", metadata=encode_subscription(Subscription(3, ("foo",), None, {}, 7, "rack")))
    assert driver.row("c").rack_id == "rack"
    assert (driver.row("c").client_id, driver.consumer.group_id) == (CLIENT.client_id, GROUP)
