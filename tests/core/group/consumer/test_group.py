"""A consumer group of KIP-848: joining, epochs, reconciliation, topics, sessions, effects."""

from dataclasses import replace

import pytest

from core.errors import Error
from core.group.consumer.member import STABLE, UNRELEASED_PARTITIONS, UNREVOKED_PARTITIONS
from core.group.records import GroupEffects, GroupRow, MemberRow
from core.group.values import (
    ClientIdentity,
    ConsumerHeartbeatResult,
    DescribedConsumer,
    DescribedConsumerGroup,
    GroupSettings,
    Outcome,
)
from tests.core.group.consumer.driver import (
    CLIENT,
    GROUP,
    REBALANCE_MS,
    SESSION_MS,
    TIMESTAMP_MS,
    Driver,
    held,
    topic_id,
)

HEARTBEAT_MS = 5_000


def two_members() -> Driver:
    """a and b, with three partitions of foo each, in epoch 2."""
    driver = Driver()
    driver.enter("a", "foo")
    driver.enter("b", "foo")
    driver.converge()
    assert driver.row("a").assigned == held(foo=(0, 1, 2))
    assert driver.row("b").assigned == held(foo=(3, 4, 5))
    assert driver.consumer.group_epoch == 2
    return driver


# --- joining ---


def test_the_first_member_gets_everything() -> None:
    driver = Driver()
    result = driver.enter("a", "foo")
    assert result == ConsumerHeartbeatResult(
        member_id="a",
        member_epoch=1,
        heartbeat_interval_ms=HEARTBEAT_MS,
        assignment=held(foo=range(6)),
    )
    row = MemberRow(
        "a",
        "consumer",
        client_id=CLIENT.client_id,
        client_host=CLIENT.client_host,
        rebalance_timeout_ms=REBALANCE_MS,
        member_epoch=1,
        previous_member_epoch=0,
        state=STABLE,
        subscribed_topic_names=("foo",),
        assigned=held(foo=range(6)),
        target=held(foo=range(6)),
    )
    assert driver.effects is not None and driver.effects.group is not None
    assert driver.effects == GroupEffects(
        GROUP,
        GroupRow(
            GROUP,
            "consumer",
            "consumer",
            "uniform",
            generation_id=1,
            assignment_epoch=1,
            state="Stable",
            state_timestamp=TIMESTAMP_MS,
            metadata_hash=driver.effects.group.metadata_hash,
        ),
        (row,),
    )
    assert driver.effects.group.metadata_hash != 0
    assert driver.outcome.notes == (("consumer_joined", {"member_id": "a", "instance_id": None}),)


def test_who_joins_again_with_its_id_is_told_all_it_has() -> None:
    """After a lost answer, or after it was told to begin anew and had not been removed."""
    driver = two_members()
    result = driver.enter("a", "foo")
    assert (result.member_epoch, result.assignment) == (2, held(foo=(0, 1, 2)))
    assert driver.consumer.group_epoch == 2
    assert driver.effects is None


def test_a_member_without_topics_is_in_the_group() -> None:
    driver = Driver()
    result = driver.enter("a")
    assert (result.member_epoch, result.assignment) == (1, {})
    driver.enter("b", "foo")
    epoch = driver.consumer.group_epoch
    assert driver.enter("c").member_epoch == epoch
    assert driver.consumer.group_epoch == epoch, "nobody's partitions can change by it"


def test_a_topic_that_does_not_exist_gives_nothing() -> None:
    driver = Driver()
    assert driver.enter("a", "missing").assignment == {}
    assert driver.state == "Stable"


JOIN = {"names": ("foo",), "owned": {}, "rebalance_timeout_ms": REBALANCE_MS}
NO_TOPICS = (
    "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(
    ("member_id", "epoch", "said", "message"),
    [
        ("", 0, JOIN, "MemberId can't be empty."),
        (" ", 3, {}, "MemberId can't be empty."),
        ("", -1, {}, "MemberId can't be empty."),
        ("a", 0, JOIN | {"instance_id": ""}, "InstanceId can't be empty."),
        ("a", 5, {"instance_id": "\t"}, "InstanceId can't be empty."),
        ("a", 0, JOIN | {"rack_id": ""}, "RackId can't be empty."),
        (
            "a",
            0,
            JOIN | {"rebalance_timeout_ms": -1},
            "RebalanceTimeoutMs must be provided in first request.",
        ),
        ("a", 0, JOIN | {"owned": None}, "TopicPartitions must be empty when (re-)joining."),
        (
            "a",
            0,
            JOIN | {"owned": held(foo=(1,))},
            "TopicPartitions must be empty when (re-)joining.",
        ),
        ("a", 0, JOIN | {"names": None}, NO_TOPICS),
        ("a", -2, {}, "InstanceId can't be null."),
        ("a", -3, {}, "MemberEpoch is invalid."),
    ],
)
def test_requests_that_make_no_sense(
    known: bool, member_id: str, epoch: int, said: dict[str, object], message: str
) -> None:
    driver = two_members() if known else Driver()
    result = driver.heartbeat(member_id, epoch, **said)  # type: ignore[arg-type]
    assert result == ConsumerHeartbeatResult(Error.INVALID_REQUEST, message)
    assert known or driver.group is None


def test_an_unsupported_assignor() -> None:
    result = Driver().heartbeat("a", 0, **JOIN, assignor="sticky")  # type: ignore[arg-type]
    assert result == ConsumerHeartbeatResult(
        Error.UNSUPPORTED_ASSIGNOR,
        "ServerAssignor sticky is not supported. Supported assignors: uniform, range.",
    )


@pytest.mark.parametrize(
    ("epoch", "message"),
    [
        (1, "Consumer group group not found."),
        (-1, "Group group not found."),
    ],
)
def test_an_unknown_group(epoch: int, message: str) -> None:
    driver = Driver()
    result = driver.heartbeat("a", epoch)
    assert result == ConsumerHeartbeatResult(Error.GROUP_ID_NOT_FOUND, message)
    assert driver.group is None


def test_a_stranger_and_an_epoch_from_nowhere() -> None:
    driver = two_members()
    assert driver.heartbeat("c", 2).message == "Member c is not a member of group group."
    assert driver.heartbeat("a", 7) == ConsumerHeartbeatResult(
        Error.FENCED_MEMBER_EPOCH,
        "The consumer group member has a greater member epoch (7) than the one known by the group "
        "coordinator (2). The member must abandon all its partitions and rejoin.",
    )
    driver.show({"foo": 7})
    driver.converge()
    driver.show({"foo": 8})
    driver.converge()
    assert driver.heartbeat("a", 2, owned={}) == ConsumerHeartbeatResult(
        Error.FENCED_MEMBER_EPOCH,
        "The consumer group member has a smaller member epoch (2) than the one known by the group "
        "coordinator (4). The member must abandon all its partitions and rejoin.",
    )


def test_a_full_group() -> None:
    driver = Driver(settings=GroupSettings(consumer_max_size=2))
    driver.enter("a", "foo")
    driver.enter("s1", "foo", instance_id="s")
    full = ConsumerHeartbeatResult(
        Error.GROUP_MAX_SIZE_REACHED,
        "The consumer group has reached its maximum capacity of 2 members.",
    )
    assert driver.heartbeat("b", 0, **JOIN) == full  # type: ignore[arg-type]
    assert driver.heartbeat("b", 0, **JOIN, instance_id="t") == full  # type: ignore[arg-type]
    assert driver.heartbeat("b", 3) == full
    driver.converge()
    driver.enter("a", "foo")
    # A static member that restarts makes it no larger.
    driver.heartbeat("s1", -2, instance_id="s")
    driver.enter("s2", "foo", instance_id="s")
    driver.heartbeat("a", -1)
    driver.enter("b", "foo")


# --- steady members ---


def test_a_steady_heartbeat_changes_nothing() -> None:
    driver = two_members()
    driver.pass_time(HEARTBEAT_MS)
    result = driver.heartbeat("a", 2)
    assert result == ConsumerHeartbeatResult(
        member_id="a", member_epoch=2, heartbeat_interval_ms=HEARTBEAT_MS
    )
    assert driver.outcome == Outcome()
    assert driver.heartbeat("a", 2, owned=held(foo=(0, 1, 2))).assignment is None
    assert driver.outcome == Outcome()


def test_who_tells_all_is_told_all() -> None:
    driver = two_members()
    said = {"names": ("foo",), "owned": held(foo=(0,)), "rebalance_timeout_ms": REBALANCE_MS}
    assert driver.heartbeat("a", 2, **said).assignment == held(foo=(0, 1, 2))  # type: ignore[arg-type]
    assert driver.effects is None
    for left_out in said:
        part = {name: value for name, value in said.items() if name != left_out}
        assert driver.heartbeat("a", 2, **part).assignment is None  # type: ignore[arg-type]


def test_a_client_at_another_address_is_stored_and_nothing_else() -> None:
    driver = two_members()
    driver.heartbeat("a", 2, client=ClientIdentity("client", "/10.0.0.1"))
    group = driver.group.stored().group
    assert driver.effects == GroupEffects(GROUP, group, put_members=(driver.row("a"),))
    assert driver.row("a").client_host == "/10.0.0.1"
    driver.heartbeat("a", 2, client=ClientIdentity("client", "/10.0.0.1"))
    assert driver.effects is None


def test_rack_and_timeout_may_change() -> None:
    driver = two_members()
    driver.heartbeat("a", 2, rack_id="r", rebalance_timeout_ms=7)
    assert (driver.row("a").rack_id, driver.row("a").rebalance_timeout_ms) == ("r", 7)
    assert driver.consumer.group_epoch == 2


# --- reconciliation ---


def test_partitions_pass_from_one_member_to_another_without_a_barrier() -> None:
    driver = Driver()
    driver.enter("a", "foo")
    joined = driver.enter("b", "foo")
    # b has to wait: a has them all.
    assert (joined.member_epoch, joined.assignment) == (2, {})
    assert driver.row("b").state == UNRELEASED_PARTITIONS
    assert driver.effects is not None
    assert [row.member_id for row in driver.effects.put_members] == ["b", "a"]
    assert driver.row("a").target == held(foo=(0, 1, 2))
    assert driver.state == "Reconciling"

    # a is told to let go; it stays in its epoch.
    told = driver.heartbeat("a", 1, owned=held(foo=range(6)))
    assert (told.member_epoch, told.assignment) == (1, held(foo=(0, 1, 2)))
    assert driver.row("a").state == UNREVOKED_PARTITIONS
    assert driver.row("a").revoking == held(foo=(3, 4, 5))
    assert driver.effects is not None
    # Whoever commits offsets in SQL holds the group's row alone.
    assert driver.effects.group == driver.group.stored().group
    assert driver.effects.put_members == (driver.row("a"),)
    assert driver.go_on("b").assignment is None
    assert driver.commit("a", 1) is Error.NONE

    # It has let go of one: not enough.
    assert driver.heartbeat("a", 1, owned=held(foo=(0, 1, 2, 3, 4))).assignment is None
    assert driver.effects is None
    assert driver.heartbeat("a", 1).assignment is None

    done = driver.heartbeat("a", 1, owned=held(foo=(0, 1, 2)))
    assert (done.member_epoch, done.assignment) == (2, None)
    assert driver.state == "Reconciling"
    assert driver.commit("a", 1) is Error.STALE_MEMBER_EPOCH
    got = driver.go_on("b")
    assert (got.member_epoch, got.assignment) == (2, held(foo=(3, 4, 5)))
    assert driver.state == "Stable"
    assert driver.effects is not None and driver.effects.group is not None
    assert driver.effects.group.state == "Stable"


def test_a_member_waits_only_for_what_is_taken() -> None:
    driver = Driver({"foo": 6, "bar": 2})
    driver.enter("a", "foo")
    got = driver.enter("b", "foo", "bar")
    assert got.assignment == held(bar=(0, 1))
    assert driver.row("b").target == held(foo=(4, 5), bar=(0, 1))


def test_a_member_that_leaves_frees_what_it_has() -> None:
    driver = two_members()
    result = driver.heartbeat("a", -1)
    assert result == ConsumerHeartbeatResult(member_id="a", member_epoch=-1)
    assert driver.state == "Assigning"
    assert driver.effects is not None and driver.effects.group is not None
    assert driver.effects.delete_members == ("a",) and not driver.effects.put_members
    assert driver.effects.group.generation_id == 3
    assert driver.commit("a", 2) is Error.UNKNOWN_MEMBER_ID
    got = driver.go_on("b")
    assert (got.member_epoch, got.assignment) == (3, held(foo=range(6)))
    driver.heartbeat("b", -1)
    assert driver.state == "Empty" and driver.consumer.is_idle
    assert driver.commit("", -1) is Error.NONE
    assert driver.enter("c", "foo").member_epoch == 5


def test_a_lost_answer_is_given_again() -> None:
    driver = two_members()
    driver.show({"foo": 8})
    for _ in range(3):  # and again, and again
        got = driver.heartbeat(
            "a", 2, names=("foo",), owned=held(foo=(0, 1)), rebalance_timeout_ms=REBALANCE_MS
        )
        assert (got.member_epoch, got.assignment) == (3, held(foo=(0, 1, 2, 6)))
    result = driver.heartbeat("a", 2, owned=held(foo=(0, 5)))
    assert result.error is Error.FENCED_MEMBER_EPOCH


def test_lost_answers_do_not_fence_a_member_that_waits() -> None:
    """In Kafka the second one does: it forgets the previous epoch."""
    driver = Driver()
    driver.enter("a", "foo")
    driver.enter("b", "foo")
    driver.show({"foo": 6, "bar": 1})
    driver.enter("c", "foo", "bar")
    assert driver.row("b").member_epoch == 2
    for _ in range(3):
        assert driver.heartbeat("b", 2, owned={}).member_epoch == 3
        assert driver.row("b").state == UNRELEASED_PARTITIONS


def test_a_target_that_changes_on_the_way() -> None:
    driver = Driver()
    driver.enter("a", "foo")
    driver.enter("b", "foo")
    driver.go_on("a", owned=held(foo=range(6)))
    driver.enter("c", "foo")
    # a first has to finish what it was told; then comes the rest.
    assert driver.go_on("a", owned=held(foo=range(6))).assignment is None
    second = driver.heartbeat("a", 1, owned=held(foo=(0, 1, 2)))
    assert (second.member_epoch, second.assignment) == (2, held(foo=(0, 1)))
    assert driver.row("a").revoking == held(foo=(2,))
    driver.converge()
    assert driver.row("a").assigned == held(foo=(0, 1))
    assert {driver.row(each).member_epoch for each in "abc"} == {3}


# --- subscriptions and topics ---


def test_a_subscription_may_change() -> None:
    driver = Driver({"foo": 2, "bar": 2})
    driver.enter("a", "foo")
    told = driver.heartbeat("a", 1, names=("bar",), owned=held(foo=(0, 1)))
    assert (told.member_epoch, told.assignment) == (1, {})
    got = driver.heartbeat("a", 1, owned={})
    assert (got.member_epoch, got.assignment) == (2, held(bar=(0, 1)))
    assert not driver.consumer.is_subscribed_to("foo")
    assert driver.consumer.is_subscribed_to("bar")


def test_the_same_subscription_in_another_order_is_the_same() -> None:
    driver = Driver({"foo": 2, "bar": 2})
    driver.enter("a", "foo", "bar")
    driver.heartbeat("a", 1, names=("bar", "foo", "bar"))
    assert driver.consumer.group_epoch == 1 and driver.effects is None


def test_topics_that_appear_grow_and_go() -> None:
    driver = Driver({"foo": 1})
    driver.enter("a", "foo", "bar")
    assert driver.row("a").assigned == held(foo=(0,))

    driver.show({"foo": 1, "bar": 1})
    appeared = driver.go_on("a")
    assert (appeared.member_epoch, appeared.assignment) == (2, held(foo=(0,), bar=(0,)))

    driver.show({"foo": 3, "bar": 1, "other": 9})
    grown = driver.go_on("a")
    assert (grown.member_epoch, grown.assignment) == (3, held(foo=(0, 1, 2), bar=(0,)))

    driver.show({"foo": 3, "other": 8})
    told = driver.go_on("a")
    assert (told.member_epoch, told.assignment) == (3, held(foo=(0, 1, 2)))
    assert driver.go_on("a").member_epoch == 4

    driver.show({"foo": 3, "more": 1})
    assert driver.go_on("a").member_epoch == 4
    assert driver.effects is None, "nobody subscribes to what has changed"


def test_a_topic_that_is_deleted_and_made_again_is_another() -> None:
    driver = Driver({"foo": 2})
    driver.enter("a", "foo")
    driver.show({"foo": 2}, ids={"foo": "another"})
    assert driver.go_on("a").assignment == {}
    assert driver.heartbeat("a", 1, owned={}).assignment == {"another": (0, 1)}
    assert driver.row("a").member_epoch == 2


def test_one_change_of_topics_is_one_epoch_for_all() -> None:
    driver = two_members()
    driver.show({"foo": 12})
    driver.converge()
    assert driver.consumer.group_epoch == 3
    assert {row.member_epoch for row in driver.consumer.roster.members.values()} == {3}


# --- regular expressions ---


def test_an_expression_is_what_it_matches() -> None:
    driver = Driver({"foo-1": 1, "foo-2": 1, "bar": 1})
    result = driver.enter("a", regex="foo-.*")
    assert result.assignment == {topic_id("foo-1"): (0,), topic_id("foo-2"): (0,)}
    assert driver.row("a").subscribed_topic_regex == "foo-.*"
    assert driver.consumer.expressions == {"foo-.*"}
    assert driver.consumer.is_subscribed_to("foo-1")
    assert not driver.consumer.is_subscribed_to("bar")

    driver.show({"foo-1": 1, "foo-2": 1, "foo-3": 1, "bar": 1})
    result = driver.go_on("a")
    assert (result.member_epoch, len(result.assignment or ())) == (2, 3)
    driver.show({"foo-1": 1, "bar": 1})
    driver.converge()
    assert driver.row("a").assigned == {topic_id("foo-1"): (0,)}


def test_an_expression_and_names() -> None:
    driver = Driver({"foo": 1, "bar": 1, "baz": 1})
    driver.enter("a", "foo", regex="ba.")
    assert driver.row("a").assigned == held(foo=(0,), bar=(0,), baz=(0,))
    driver.enter("b", "bar")
    driver.converge()
    assert driver.row("b").assigned == held(bar=(0,))


def test_what_is_no_expression() -> None:
    driver = Driver()
    said = JOIN | {"names": None, "regex": "fo["}
    result = driver.heartbeat("a", 0, **said)  # type: ignore[arg-type]
    assert result == ConsumerHeartbeatResult(
        Error.INVALID_REGULAR_EXPRESSION,
        "SubscribedTopicRegex `fo[` is not a valid regular expression: unterminated character set.",
    )
    assert driver.group is None
    driver = two_members()
    before = driver.consumer.stored()
    assert driver.heartbeat("a", 2, regex="fo[").error is Error.INVALID_REGULAR_EXPRESSION
    assert driver.consumer.stored() == before


def test_from_an_expression_to_names() -> None:
    driver = Driver({"foo": 1, "bar": 1})
    driver.enter("a", regex=".*")
    driver.heartbeat("a", 1, names=("bar",), regex="", owned=held(foo=(0,), bar=(0,)))
    assert driver.row("a").subscribed_topic_regex is None
    driver.converge()
    assert driver.row("a").assigned == held(bar=(0,))
    assert driver.consumer.expressions == set()
    assert not driver.consumer.is_subscribed_to("foo")


def test_an_expression_of_several_members() -> None:
    driver = Driver({"foo": 2})
    driver.enter("a", regex="fo+")
    driver.enter("b", regex="fo+")
    driver.heartbeat("a", -1)
    driver.converge()
    assert driver.row("b").assigned == held(foo=(0, 1))
    assert driver.consumer.is_subscribed_to("foo")


def test_expressions_after_a_reload() -> None:
    driver = Driver({"foo": 1, "bar": 1})
    driver.enter("a", regex="fo+")
    driver.reload()
    assert driver.consumer.is_subscribed_to("anything"), "in doubt, offsets are kept"
    assert driver.heartbeat("a", 1).member_epoch == 1
    assert driver.effects is None
    assert not driver.consumer.is_subscribed_to("anything")
    driver.reload()
    driver.show({"foo": 1, "fooo": 1})
    assert driver.heartbeat("a", 1).assignment == held(foo=(0,), fooo=(0,))


# --- assignors ---


def test_the_assignor_most_members_want() -> None:
    driver = Driver({"foo": 4, "bar": 4})
    driver.enter("a", "foo", "bar", assignor="range")
    assert driver.consumer.describe().assignor == "range"
    driver.enter("b", "foo", "bar", assignor="uniform")
    assert driver.consumer.describe().assignor == "uniform", "the first one configured breaks a tie"
    driver.enter("c", "foo", "bar", assignor="range")
    assert driver.consumer.describe().assignor == "range"
    driver.converge()
    assert driver.row("a").assigned == held(foo=(0, 1), bar=(0, 1))
    driver.heartbeat("a", driver.row("a").member_epoch, assignor="uniform")
    assert driver.consumer.describe().assignor == "uniform"
    driver.heartbeat("a", -1)
    assert driver.consumer.describe().assignor == "uniform"


def test_votes_for_an_assignor_that_is_not_configured_any_more_do_not_count() -> None:
    driver = Driver()
    driver.enter("a", "foo", assignor="range")
    driver.settings = replace(driver.settings, consumer_assignors=("uniform",))
    driver.reload()
    driver.enter("b", "foo")
    assert driver.consumer.describe().assignor == "uniform"


# --- static members ---


def static_member() -> Driver:
    driver = two_members()
    driver.enter("s1", "foo", instance_id="s")
    driver.converge()
    assert driver.row("s1").assigned == held(foo=(2, 5))
    return driver


def test_a_static_member_comes_back_to_what_it_had() -> None:
    driver = static_member()
    left = driver.heartbeat("s1", -2, instance_id="s")
    assert left == ConsumerHeartbeatResult(member_id="s1", member_epoch=-2)
    assert driver.row("s1").member_epoch == -2
    assert driver.go_on("a").assignment is None
    assert driver.commit("s1", 3) is Error.STALE_MEMBER_EPOCH

    back = driver.enter("s2", "foo", instance_id="s")
    assert (back.member_epoch, back.assignment) == (3, held(foo=(2, 5)))
    assert driver.consumer.group_epoch == 3 and driver.state == "Stable"
    assert driver.effects is not None
    assert driver.effects.delete_members == ("s1",)
    assert driver.effects.put_members == (driver.row("s2"),)
    assert driver.heartbeat("s1", 3, instance_id="s").message == (
        "Static member s1 with instance id s was fenced by member s2."
    )
    assert driver.heartbeat("s1", 3).error is Error.UNKNOWN_MEMBER_ID
    assert driver.commit("s1", 3) is Error.UNKNOWN_MEMBER_ID


def test_an_instance_id_that_is_in_use() -> None:
    driver = static_member()
    result = driver.heartbeat("s2", 0, instance_id="s", **JOIN)  # type: ignore[arg-type]
    assert result == ConsumerHeartbeatResult(
        Error.UNRELEASED_INSTANCE_ID,
        "Static member s2 with instance id s cannot join the group because the instance id is "
        "owned by s1 member.",
    )
    assert driver.heartbeat("x", 3, instance_id="t").message == "Instance id t is unknown."
    assert driver.heartbeat("s2", -1, instance_id="s").error is Error.FENCED_INSTANCE_ID


def test_a_static_member_may_come_back_with_another_subscription() -> None:
    driver = static_member()
    driver.show({"foo": 6, "bar": 1})
    driver.heartbeat("s1", -2, instance_id="s")
    driver.enter("s2", "bar", instance_id="s")
    driver.converge()
    assert driver.row("s2").assigned == held(bar=(0,))
    assert driver.consumer.group_epoch == 4


def test_a_static_member_that_has_to_give_back_and_leaves_has_given_back() -> None:
    driver = Driver()
    driver.enter("s1", "foo", instance_id="s")
    driver.enter("b", "foo")
    driver.heartbeat("s1", 1, owned=held(foo=range(6)), instance_id="s")
    assert driver.row("s1").state == UNREVOKED_PARTITIONS
    driver.heartbeat("s1", -2, instance_id="s")
    assert driver.go_on("b").assignment == held(foo=(3, 4, 5))
    assert driver.enter("s2", "foo", instance_id="s").assignment == held(foo=(0, 1, 2))


def test_a_static_member_that_does_not_come_back_is_removed_with_its_session() -> None:
    driver = static_member()
    driver.pass_time(SESSION_MS - 1_000)
    for each in "ab":
        driver.heartbeat(each, 3)
    driver.heartbeat("s1", -2, instance_id="s")
    driver.advance(999)
    assert "s1" in driver.consumer.roster.members
    driver.advance(1)
    assert "s1" not in driver.consumer.roster.members
    driver.converge()
    assert driver.row("a").assigned == held(foo=(0, 1, 2))


def test_a_static_member_may_leave_for_good() -> None:
    driver = static_member()
    driver.heartbeat("s1", -1, instance_id="s")
    assert "s1" not in driver.consumer.roster.members
    assert driver.enter("s2", "foo", instance_id="s").member_epoch == 5


# --- sessions and deadlines ---


def test_a_silent_member_is_removed() -> None:
    driver = two_members()
    driver.pass_time(SESSION_MS - 1)
    driver.heartbeat("a", 2)
    driver.advance(0)
    assert driver.outcome == Outcome()
    driver.advance(1)
    assert list(driver.consumer.roster.members) == ["a"]
    assert driver.outcome.notes == (
        (
            "consumer_removed",
            {"member_id": "b", "instance_id": None, "reason": "the member session expired"},
        ),
    )
    assert driver.heartbeat("b", 2).error is Error.UNKNOWN_MEMBER_ID
    assert driver.go_on("a").assignment == held(foo=range(6))
    driver.advance(SESSION_MS)
    assert driver.state == "Empty"
    assert driver.consumer.deadline_ms is None


def test_several_silent_members_are_one_epoch() -> None:
    driver = two_members()
    driver.pass_time(2 * SESSION_MS)
    driver.advance(0)
    assert driver.state == "Empty" and driver.consumer.group_epoch == 3


def test_a_session_may_be_the_groups_own() -> None:
    driver = Driver(
        settings=GroupSettings(
            consumer_session_timeout_ms=50_000, consumer_heartbeat_interval_ms=7_000
        )
    )
    assert driver.enter("a", "foo").heartbeat_interval_ms == 7_000
    driver.consumer.settings = replace(driver.settings, consumer_session_timeout_ms=60_000)
    driver.heartbeat("a", 1)
    driver.advance(59_999)
    assert driver.state == "Stable"
    driver.advance(1)
    assert driver.state == "Empty"


def test_who_does_not_give_back_in_time_is_removed() -> None:
    driver = Driver()
    driver.enter("a", "foo")
    driver.enter("b", "foo")
    driver.go_on("a", owned=held(foo=range(6)))
    for _ in range(REBALANCE_MS // HEARTBEAT_MS - 1):
        driver.advance(HEARTBEAT_MS)
        driver.go_on("a", owned=held(foo=range(6)))
        driver.go_on("b")
    driver.advance(HEARTBEAT_MS - 1)
    assert len(driver.consumer.roster.members) == 2
    driver.advance(1)
    assert list(driver.consumer.roster.members) == ["b"]
    (_event, fields), *_ = driver.outcome.notes
    assert fields["reason"] == "it failed to revoke its partitions within the rebalance timeout"
    assert driver.go_on("b").assignment == held(foo=range(6))


def test_who_gives_back_in_time_is_not() -> None:
    driver = Driver()
    driver.enter("a", "foo")
    driver.enter("b", "foo")
    driver.go_on("a", owned=held(foo=range(6)))
    driver.converge()
    for _ in range(2 * REBALANCE_MS // HEARTBEAT_MS):
        driver.advance(HEARTBEAT_MS)
        driver.converge()
    assert len(driver.consumer.roster.members) == 2


def test_after_a_reload_all_have_their_time_anew() -> None:
    driver = Driver()
    driver.enter("a", "foo")
    driver.enter("b", "foo")
    driver.go_on("a", owned=held(foo=range(6)))
    driver.pass_time(2 * REBALANCE_MS)
    driver.reload()
    driver.advance(SESSION_MS - 1)
    assert len(driver.consumer.roster.members) == 2
    driver.heartbeat("a", 1, owned=held(foo=range(6)))
    driver.heartbeat("b", 2)
    driver.advance(REBALANCE_MS - SESSION_MS)
    assert len(driver.consumer.roster.members) == 2
    driver.advance(1)
    assert list(driver.consumer.roster.members) == ["b"]


# --- the rest of its face ---


def test_it_is_described_as_kafka_does() -> None:
    driver = Driver({"foo": 2})
    driver.enter("a", "foo")
    driver.enter("b", regex="fo.", instance_id="i")
    common = {"rack_id": None, "client": CLIENT, "is_classic": False}
    assert driver.consumer.describe() == DescribedConsumerGroup(
        "Reconciling",
        2,
        2,
        "uniform",
        (
            DescribedConsumer(
                member_id="a",
                instance_id=None,
                member_epoch=1,
                subscribed_topic_names=("foo",),
                subscribed_topic_regex=None,
                assigned=held(foo=(0, 1)),
                target=held(foo=(0,)),
                **common,
            ),
            DescribedConsumer(
                member_id="b",
                instance_id="i",
                member_epoch=2,
                subscribed_topic_names=(),
                subscribed_topic_regex="fo.",
                assigned={},
                target=held(foo=(1,)),
                **common,
            ),
        ),
    )


def test_offsets_and_deletion() -> None:
    driver = two_members()
    group = driver.consumer
    assert group.commit_refusal("a", None, 2, driver.now, is_transactional=True) is Error.NONE
    assert group.commit_refusal("", None, -1, driver.now, is_transactional=True) is Error.NONE
    assert group.commit_refusal("", None, -1, driver.now) is Error.UNKNOWN_MEMBER_ID
    for nobody in (("", "i", -1), ("c", None, -1), ("", None, 2)):
        refusal = group.commit_refusal(*nobody, driver.now, is_transactional=True)
        assert refusal is Error.UNKNOWN_MEMBER_ID
    assert group.fetch_refusal(None, 1) is Error.UNKNOWN_MEMBER_ID
    assert group.delete_offsets_refusal() is Error.NONE
    assert group.offset_expiration().since_ms is None
    assert group.unload(Error.NOT_COORDINATOR, driver.now) == Outcome()
    for each in "ab":
        driver.heartbeat(each, -1)
    assert group.delete(driver.now).effects == GroupEffects(GROUP, deleted=True)


def test_who_has_a_member_epoch_commits_with_it() -> None:
    driver = two_members()
    for member_id, epoch, refusal in (
        ("a", 2, Error.UNSUPPORTED_VERSION),
        ("a", 1, Error.UNSUPPORTED_VERSION),
        ("a", -1, Error.UNSUPPORTED_VERSION),
        ("c", 2, Error.UNKNOWN_MEMBER_ID),
        ("", -1, Error.UNKNOWN_MEMBER_ID),
    ):
        assert driver.commit(member_id, epoch, knows_member_epochs=False) is refusal
    for each in "ab":
        driver.heartbeat(each, -1)
    assert driver.commit("", -1, knows_member_epochs=False) is Error.NONE


def test_states_are_dated() -> None:
    driver = Driver()
    driver.enter("a", "foo")
    driver.pass_time(10)
    driver.enter("b", "foo")
    assert driver.consumer.stored().group.state_timestamp == TIMESTAMP_MS + 10
    driver.pass_time(10)
    driver.go_on("a", owned=held(foo=range(6)))
    assert driver.consumer.stored().group.state_timestamp == TIMESTAMP_MS + 10
    driver.converge()
    assert driver.consumer.stored().group.state_timestamp == TIMESTAMP_MS + 20


def test_a_member_in_a_state_from_the_future_begins_anew() -> None:
    """After a downgrade of the software."""
    driver = two_members()
    rows = {row.member_id: row for row in driver.store.members.values()}
    assert driver.store.group is not None
    group = replace(driver.store.group, state="Reconciling")
    driver.load(group, replace(rows["a"], state="Floating"), rows["b"])
    assert driver.state == "Reconciling"
    result = driver.heartbeat("a", 2, owned=held(foo=(0, 1, 2)))
    assert result.error is Error.FENCED_MEMBER_EPOCH
    back = driver.enter("a", "foo")
    assert (back.member_epoch, back.assignment) == (2, held(foo=(0, 1, 2)))
    assert driver.state == "Stable"
