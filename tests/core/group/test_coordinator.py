"""Between the protocols: up, down, and which group an event meets."""

from dataclasses import replace

import pytest

from core.errors import Error
from core.group.classic.group import ClassicGroup
from core.group.consumer.group import ConsumerGroup
from core.group.consumer.member import UNREVOKED_PARTITIONS
from core.group.consumer.protocol import Assignment, encode_assignment
from core.group.coordinator import merged
from core.group.records import GroupEffects, GroupRow, MemberRow
from core.group.values import (
    ConsumerHeartbeatResult,
    GroupSettings,
    JoinResult,
    LeaveResult,
    Outcome,
    Reply,
    SyncResult,
)
from tests.core.group.consumer.driver import (
    CLASSIC_SESSION_MS,
    GROUP,
    REBALANCE_MS,
    TIMESTAMP_MS,
    Driver,
    held,
)

JOIN = {"names": ("foo",), "owned": {}, "rebalance_timeout_ms": REBALANCE_MS}
SETTINGS = GroupSettings(initial_rebalance_delay_ms=0)


def assignment(**topics: tuple[int, ...]) -> bytes:
    return encode_assignment(Assignment(1, topics))


def classic_group(settings: GroupSettings = SETTINGS, **said: object) -> Driver:
    """c and d in generation 2 of a classic group, three partitions of foo each."""
    driver = Driver(settings=settings)
    driver.join("", "foo", new_member_id="c", **said)  # type: ignore[arg-type]
    driver.join("c", "foo", **said)  # type: ignore[arg-type]
    driver.sync("c", 1, protocol_name=None)
    driver.join("", "foo", new_member_id="d", **said)  # type: ignore[arg-type]
    assert driver.join("d", "foo", **said) is None  # type: ignore[arg-type]
    driver.join("c", "foo", **said)  # type: ignore[arg-type]
    assert driver.classic.generation_id == 2
    given = {"c": assignment(foo=(0, 1, 2)), "d": assignment(foo=(3, 4, 5))}
    protocol_type = str(said.get("protocol_type", "consumer"))
    driver.sync("c", 2, assignments=given, protocol_type=protocol_type, protocol_name=None)
    synced = driver.sync("d", 2, protocol_type=protocol_type, protocol_name=None)
    assert synced is not None and synced.assignment == given["d"]
    driver.replies.clear()
    return driver


# --- up ---


def test_a_consumer_that_joins_a_classic_group_turns_it() -> None:
    driver = classic_group()
    driver.pass_time(10)
    result = driver.enter("a", "foo")
    assert (result.member_epoch, result.assignment) == (3, {})
    assert driver.effects is not None and driver.effects.group is not None
    assert driver.effects.group.protocol == "consumer"
    assert driver.effects.group.state_timestamp == TIMESTAMP_MS + 10
    assert len(driver.effects.put_members) == 3
    group = driver.consumer
    assert (group.group_epoch, group.state) == (3, "Reconciling")
    for member_id, has, shall in (("c", (0, 1, 2), (0, 1)), ("d", (3, 4, 5), (3, 4))):
        row = driver.row(member_id)
        assert (row.member_epoch, row.assigned) == (2, held(foo=has))
        assert row.target == held(foo=shall)
        assert (row.protocol, row.session_timeout_ms) == ("classic", CLASSIC_SESSION_MS)
        assert driver.commit(member_id, 2) is Error.NONE
        assert driver.beat(member_id, 2) is Error.REBALANCE_IN_PROGRESS


def test_who_waits_in_the_classic_group_joins_again() -> None:
    driver = classic_group()
    assert driver.join("c", "foo", owned={"foo": (0, 1, 2)}) is None
    waiter = driver.last_token
    driver.enter("a", "foo")
    assert driver.replies == {waiter: JoinResult(Error.REBALANCE_IN_PROGRESS, member_id="c")}
    joined = driver.join("c", "foo", owned={"foo": (0, 1, 2)})
    assert joined is not None and (joined.error, joined.generation_id) == (Error.NONE, 2)


def test_who_waits_for_an_assignment_joins_again() -> None:
    driver = classic_group()
    assert driver.join("c", "foo", owned={"foo": (0, 1, 2)}) is None
    driver.join("d", "foo")
    assert driver.classic.generation_id == 3
    assert driver.sync("d", 3) is None
    waiter = driver.last_token
    driver.replies.clear()
    driver.enter("a", "foo")
    assert driver.replies == {waiter: SyncResult(Error.REBALANCE_IN_PROGRESS)}
    # What was assigned before counts: c has it still, d is to have it again.
    assert driver.row("c").assigned == held(foo=(0, 1, 2))


def test_what_a_cooperative_member_has_not_yet_given_back_is_not_given_away() -> None:
    """It has joined with it, the leader gave it to nobody, and it has not heard so yet."""
    driver = classic_group()
    driver.join("", "foo", new_member_id="e")
    assert driver.join("e", "foo") is None
    assert driver.join("c", "foo", owned={"foo": (0, 1, 2)}) is None
    joined = driver.join("d", "foo", owned={"foo": (3, 4, 5)})
    assert joined is not None and joined.generation_id == 3
    given = {"c": assignment(foo=(0, 1)), "d": assignment(foo=(3, 4)), "e": assignment()}
    driver.sync("c", 3, assignments=given)
    driver.enter("a", "foo")
    assert driver.row("c").state == UNREVOKED_PARTITIONS
    assert (driver.row("c").assigned, driver.row("c").revoking) == (
        held(foo=(0, 1)),
        held(foo=(2,)),
    )
    driver.go_on("a")
    assert driver.row("a").assigned == {}
    joined = driver.join("c", "foo", owned={"foo": (0, 1)})
    assert joined is not None and joined.error is Error.NONE
    assert driver.row("c").revoking == {}


def test_a_partition_that_a_leader_gave_twice_is_had_once() -> None:
    driver = classic_group()
    assert driver.join("c", "foo") is None
    driver.join("d", "foo")
    both = assignment(foo=(0, 1, 2, 3, 4, 5), gone=(1,))
    driver.sync("c", 3, assignments={"c": both, "d": both})
    driver.enter("a", "foo")
    assert driver.row("c").assigned == held(foo=range(6))
    assert driver.row("d").assigned == {}


def test_a_member_that_is_not_stored_any_more_goes_from_the_store() -> None:
    driver = classic_group()
    driver.leave(("d", None))
    assert driver.store.members.keys() == {"c", "d"}
    driver.enter("a", "foo")
    assert driver.store.members.keys() == {"a", "c"}


def test_a_group_that_has_never_been_stable() -> None:
    driver = Driver(settings=GroupSettings(initial_rebalance_delay_ms=3_000))
    driver.join("", "foo", new_member_id="c")
    assert driver.join("c", "foo") is None
    waiter = driver.last_token
    driver.enter("a", "foo")
    assert driver.replies == {waiter: JoinResult(Error.REBALANCE_IN_PROGRESS, member_id="c")}
    assert driver.consumer.group_epoch == 1
    driver.replies.clear()
    driver.enter_classic("c", "foo")
    assert driver.row("c").target == held(foo=(1, 3, 5))


def _no_upgrade(why: str) -> ConsumerHeartbeatResult:
    return ConsumerHeartbeatResult(
        Error.GROUP_ID_NOT_FOUND,
        f"Cannot upgrade classic group group to consumer group because {why}.",
    )


def refused(driver: Driver) -> ConsumerHeartbeatResult:
    """A join that changes nothing."""
    before = driver.classic.stored()
    result = driver.heartbeat("a", 0, **JOIN)  # type: ignore[arg-type]
    assert driver.classic.stored() == before
    assert driver.beat("c", 2) is Error.NONE
    return result


def test_the_policy_may_forbid_it() -> None:
    driver = classic_group(replace(SETTINGS, upgrade_allowed=False))
    assert refused(driver) == _no_upgrade("online upgrade is disabled")


def test_a_group_that_is_not_of_consumers_stays() -> None:
    driver = classic_group(protocol_type="connect", metadata=b"anything")
    assert refused(driver) == _no_upgrade("the group does not use the consumer embedded protocol")


def test_a_group_that_is_too_large_stays() -> None:
    driver = classic_group(replace(SETTINGS, consumer_max_size=1))
    assert refused(driver) == _no_upgrade("the group size exceeds the consumer group maximum size")


def test_a_group_that_would_be_too_large_stays() -> None:
    driver = classic_group(replace(SETTINGS, consumer_max_size=2))
    assert refused(driver).error is Error.GROUP_MAX_SIZE_REACHED


def test_a_group_whose_members_cannot_be_understood_stays() -> None:
    driver = classic_group(metadata=b"\x00")
    assert refused(driver) == _no_upgrade("the embedded consumer protocol is malformed")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (b"\x00", "the embedded consumer protocol is malformed"),
        (
            encode_assignment(Assignment(1, {"foo": (1,)}, b"mine")),
            "an unsupported custom assignor is in use. Please refer to the documentation or switch "
            "to a default assignor before re-attempting the upgrade",
        ),
    ],
)
def test_assignments_that_cannot_be_taken_over(given: bytes, why: str) -> None:
    mine = ("mine",)
    driver = classic_group(names=mine)
    assert driver.join("c", "foo", names=mine) is None
    driver.join("d", "foo", names=mine)
    driver.sync("c", 3, assignments={"c": given}, protocol_name=None)
    result = driver.heartbeat("a", 0, **JOIN)  # type: ignore[arg-type]
    assert result == _no_upgrade(why)
    assert isinstance(driver.group, ClassicGroup)


@pytest.mark.parametrize("name", ["cooperative-sticky", "sticky"])
def test_what_a_sticky_assignor_gives_back_is_no_custom_assignors(name: str) -> None:
    """librdkafka's does; Kafka 4.1 refuses that upgrade, which ends the consumer that asked."""
    driver = classic_group(names=(name,))
    assert driver.join("c", "foo", names=(name,)) is None
    driver.join("d", "foo", names=(name,))
    given = encode_assignment(Assignment(1, {"foo": (1,)}, b"generation 2"))
    driver.sync("c", 3, assignments={"c": given}, protocol_name=None)
    driver.enter("a", "foo")
    assert driver.consumer.group_epoch == 4
    assert driver.row("c").assigned == held(foo=(1,))


@pytest.mark.parametrize("epoch", [1, -1])
def test_only_who_joins_turns_a_group(epoch: int) -> None:
    driver = classic_group()
    assert driver.heartbeat("a", epoch) == ConsumerHeartbeatResult(
        Error.GROUP_ID_NOT_FOUND, "Group group is not a consumer group."
    )
    assert driver.heartbeat("a", 0).error is Error.INVALID_REQUEST


def test_a_static_consumer_replaces_a_classic_member_and_turns_the_group() -> None:
    driver = Driver()
    driver.join("", "foo", instance_id="s", new_member_id="s1")
    driver.sync("s1", 1, assignments={"s1": assignment(foo=(0, 1, 2, 3, 4, 5))})
    driver.pass_time(10)
    result = driver.enter("s2", "foo", instance_id="s")
    assert (result.member_epoch, result.assignment) == (2, held(foo=range(6)))
    assert driver.store.members.keys() == {"s2"}
    assert driver.store.group is not None
    assert driver.store.group.state_timestamp == TIMESTAMP_MS + 10
    assert driver.consumer.group_epoch == 2


def test_a_static_consumer_with_the_same_subscription_gets_a_target_of_the_servers() -> None:
    """What a classic leader had assigned was for another subscription."""
    driver = Driver({"foo": 2})
    driver.join("", "foo", instance_id="s", new_member_id="s1")
    driver.sync("s1", 1, assignments={"s1": assignment(foo=(0, 1))})
    driver.join("s1", "bar", instance_id="s")
    driver.enter("s2", "bar", instance_id="s")
    assert driver.row("s2").target == {}
    driver.converge()
    assert driver.row("s2").assigned == {}


def test_an_empty_classic_group_gives_its_name_away() -> None:
    driver = classic_group()
    driver.leave(("c", None), ("d", None))
    assert driver.state == "Empty"
    generation = driver.classic.generation_id
    result = driver.enter("a", "foo")
    assert result.member_epoch == generation + 1, "no generation is there twice"
    assert driver.store.group is not None and driver.store.group.protocol == "consumer"


def test_a_group_with_offsets_only_gives_its_name_away() -> None:
    driver = Driver()
    driver.store.group = GroupRow(GROUP, "classic")
    driver.reload()
    assert driver.enter("a", "foo").member_epoch == 1


# --- down ---


def mixed(settings: GroupSettings = SETTINGS) -> Driver:
    """c is classic and a is not; three partitions of foo each, in epoch 2."""
    driver = Driver(settings=settings)
    driver.enter("a", "foo")
    driver.enter_classic("c", "foo")
    driver.assigned("c", 2)
    driver.go_on("a")
    driver.go_on("a")
    driver.join("c", "foo")
    assert driver.assigned("c", 2) == {"foo": (3, 4, 5)}
    assert driver.state == "Stable"
    return driver


def test_when_the_last_consumer_leaves_the_group_is_classic_again() -> None:
    driver = mixed()
    assert driver.heartbeat("a", -1).error is Error.NONE
    assert [event for event, _ in driver.outcome.notes] == [
        "consumer_removed",
        "group_downgraded",
        "group_rebalance_started",
    ]
    group = driver.classic
    assert (group.state, group.generation_id) == ("PreparingRebalance", 2)
    assert (group.protocol_type, group.protocol_name) == ("consumer", "cooperative-sticky")
    assert driver.effects is not None and driver.effects.group is not None
    assert driver.effects.group.protocol == "classic"
    assert driver.effects.delete_members == ("a",)
    (row,) = driver.effects.put_members
    assert row.assignment == assignment(foo=(3, 4, 5))
    assert (row.assigned, row.subscribed_topic_names) == ({"foo": (3, 4, 5)}, ("foo",))
    assert (row.member_epoch, row.state, row.target) == (0, "", {})
    # It goes on, and is asked to join; nothing of it is lost.
    assert driver.commit("c", 2) is Error.NONE
    assert driver.beat("c", 2) is Error.REBALANCE_IN_PROGRESS
    joined = driver.join("c", "foo")
    assert joined is not None
    assert (joined.generation_id, joined.leader) == (3, "c")


@pytest.mark.parametrize("how", ["LeaveGroup", "session"])
def test_however_it_goes(how: str) -> None:
    driver = mixed()
    if how == "LeaveGroup":
        assert driver.leave(("a", None)) == [Error.NONE]
    else:
        for _ in range(5):
            driver.advance(10_000)
            driver.beat("c", 2)
    assert isinstance(driver.group, ClassicGroup)
    assert driver.state == "PreparingRebalance"


def test_what_a_member_has_still_to_give_back_counts_as_assigned() -> None:
    driver = mixed()
    driver.enter("b", "foo")
    driver.join("c", "foo", owned={"foo": (3, 4, 5)})
    assert driver.row("c").revoking == held(foo=(5,))
    driver.heartbeat("b", -1)
    driver.heartbeat("a", -1)
    assert driver.store.members["c"].assignment == assignment(foo=(3, 4, 5))


def test_when_the_last_static_consumer_comes_back_as_classic_nobody_need_join() -> None:
    driver = Driver()
    driver.enter("s1", "foo", instance_id="s")
    driver.enter_classic("c", "foo")
    driver.go_on("s1")
    driver.go_on("s1")
    driver.join("c", "foo")
    driver.assigned("c", 2)
    joined = driver.join("", "foo", instance_id="s", new_member_id="s2")
    assert joined == JoinResult(
        generation_id=2,
        protocol_type="consumer",
        protocol_name="cooperative-sticky",
        member_id="s2",
    )
    assert (driver.classic.state, driver.classic.generation_id) == ("Stable", 2)
    synced = driver.sync("s2", 2, instance_id="s")
    assert synced is not None and synced.assignment == assignment(foo=(0, 1, 2))
    assert driver.beat("c", 2) is Error.NONE
    assert driver.store.members.keys() == {"c", "s2"}


def test_when_it_comes_back_with_another_subscription_all_join() -> None:
    driver = Driver({"foo": 6, "bar": 1})
    driver.enter("s1", "foo", instance_id="s")
    driver.enter_classic("c", "foo")
    driver.go_on("s1")
    driver.go_on("s1")
    driver.join("c", "foo")
    driver.assigned("c", 2)
    joined = driver.join("", "bar", instance_id="s", new_member_id="s2")
    assert joined is not None and joined.error is Error.NONE
    assert driver.classic.state == "PreparingRebalance"


def test_the_policy_may_forbid_that_too() -> None:
    driver = mixed(replace(SETTINGS, downgrade_allowed=False))
    driver.heartbeat("a", -1)
    assert isinstance(driver.group, ConsumerGroup)
    assert driver.beat("c", 2) is Error.REBALANCE_IN_PROGRESS
    joined = driver.join("c", "foo", owned={"foo": (3, 4, 5)})
    assert joined is not None and joined.generation_id == 3
    assert driver.assigned("c", 3) == {"foo": (0, 1, 2, 3, 4, 5)}
    # Allowed later, it is made up for.
    driver.consumer.settings = SETTINGS
    driver.join("c", "foo", owned={"foo": (0, 1, 2, 3, 4, 5)})
    assert driver.state == "Stable" and isinstance(driver.group, ClassicGroup)


def test_a_group_too_large_for_a_classic_one_stays() -> None:
    driver = mixed(replace(SETTINGS, max_size=1))
    driver.enter_classic("d", "foo")
    driver.heartbeat("a", -1)
    assert isinstance(driver.group, ConsumerGroup)


def test_an_empty_consumer_group_gives_its_name_away() -> None:
    driver = Driver()
    driver.enter("a", "foo")
    driver.heartbeat("a", -1)
    assert driver.join("x", "foo") == JoinResult(Error.UNKNOWN_MEMBER_ID, member_id="x")
    assert isinstance(driver.group, ConsumerGroup), "nobody has joined"
    driver.join("", "foo", new_member_id="c")
    joined = driver.join("c", "foo")
    assert joined is not None and joined.generation_id == 3, "no epoch is there twice"
    driver.sync("c", 3, assignments={"c": assignment(foo=(0,))})
    assert driver.store.group is not None and driver.store.group.protocol == "classic"
    assert driver.store.members.keys() == {"c"}


def test_a_group_of_no_kind_yet() -> None:
    driver = Driver()
    assert driver.join("x", "foo") == JoinResult(Error.UNKNOWN_MEMBER_ID, member_id="x")
    assert driver.group is None


# --- to and fro ---


def test_there_and_back_and_there() -> None:
    driver = classic_group()
    for turn in range(3):
        driver.enter(f"a{turn}", "foo")
        assert isinstance(driver.group, ConsumerGroup)
        driver.reload()
        driver.heartbeat(f"a{turn}", -1)
        assert isinstance(driver.group, ClassicGroup)
        assert driver.classic.members.keys() == {"c", "d"}
        assert driver.commit("c", 2) is Error.NONE
        driver.reload()
        assert driver.state == "Stable"
        assert driver.beat("d", 2) is Error.NONE


def test_a_member_of_a_group_that_was_turned_while_it_was_down() -> None:
    """It comes back with an id that nobody knows, in either kind of group."""
    driver = mixed()
    assert driver.beat("gone", 2) is Error.UNKNOWN_MEMBER_ID
    driver.heartbeat("a", -1)
    assert driver.beat("gone", 2) is Error.UNKNOWN_MEMBER_ID
    assert driver.heartbeat("a", 2).error is Error.GROUP_ID_NOT_FOUND


def test_outcomes_of_one_event_are_one() -> None:
    def row(member_id: str, epoch: int) -> MemberRow:
        return MemberRow(member_id, "consumer", member_epoch=epoch)

    group = GroupRow(GROUP, "consumer")
    later = GroupRow(GROUP, "classic", state_timestamp=TIMESTAMP_MS)
    first = Outcome(
        (Reply(1, LeaveResult(())),),
        GroupEffects(GROUP, group, (row("a", 1), row("b", 1)), ("c", "d"), lazy=True),
        (("one", {}),),
    )
    second = Outcome(
        (Reply(2, LeaveResult(())),),
        GroupEffects(GROUP, later, (row("a", 2), row("c", 2)), ("b",)),
        (("two", {}),),
    )
    both = merged(first, second)
    assert [reply.waiter for reply in both.replies] == [1, 2]
    assert [event for event, _ in both.notes] == ["one", "two"]
    assert both.effects == GroupEffects(
        GROUP, later, (row("a", 2), row("c", 2)), ("d", "b"), lazy=False
    )
    assert merged(first, Outcome()).effects is first.effects
    assert merged(Outcome(), second).effects is second.effects
