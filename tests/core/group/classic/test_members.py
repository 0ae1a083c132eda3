"""Heartbeats, sessions and LeaveGroup; offset commits and what else is asked of a group."""

import pytest

from core.errors import Error
from core.group.classic.group import ClassicGroup
from core.group.classic.state import EMPTY, PREPARING_REBALANCE, STABLE
from core.group.offsets import BY_COMMIT_TIMESTAMP, OffsetExpiration
from core.group.values import (
    NO_GENERATION,
    DescribedGroup,
    DescribedMember,
    GroupProtocol,
    GroupSettings,
    GroupType,
    LeavingMember,
)
from tests.core.group.classic.driver import (
    BEGIN,
    CLIENT,
    DELAY_MS,
    SESSION_MS,
    Driver,
    assignment,
    protocols,
    subscription,
)

UNKNOWN = Error.UNKNOWN_MEMBER_ID

# --- sessions ---


def test_a_heartbeat_renews_the_session() -> None:
    group = Driver()
    ids = group.stable()
    group.keep_alive(ids, 10 * SESSION_MS, every_ms=SESSION_MS - 1)
    assert group.group.state == STABLE


def test_a_member_without_heartbeats_is_out_and_the_others_join_again() -> None:
    group = Driver()
    leader, follower = group.stable()
    group.keep_alive([leader], SESSION_MS - 1)
    assert group.group.state == STABLE
    group.advance(1)
    assert group.group.state == PREPARING_REBALANCE
    assert group.heartbeat(follower, 1) is UNKNOWN
    assert group.joined(group.join(leader)).generation_id == 2
    assert group.note("group_members_expired") == {"members": 1, "some": [follower]}


def test_heartbeats_renew_sessions_during_a_rebalance() -> None:
    group = Driver()
    leader, follower = group.stable()
    group.join(leader)
    for _ in range(3):
        group.advance(SESSION_MS - 1)
        assert group.heartbeat(follower, 1) is Error.REBALANCE_IN_PROGRESS


def test_a_member_that_crashes_during_a_rebalance_is_not_waited_for_longer_than_its_session() -> (
    None
):
    group = Driver()
    leader, _ = group.stable()
    waiter = group.join(leader)
    group.advance(SESSION_MS)
    assert len(group.joined(waiter).members) == 1


def test_when_all_sessions_end_the_group_is_empty() -> None:
    group = Driver()
    group.stable(3)
    group.advance(SESSION_MS)
    assert group.group.state == EMPTY
    assert group.group.is_idle
    assert group.group.deadline_ms is None
    assert not group.store.members


def test_a_commit_renews_the_session() -> None:
    group = Driver()
    ids = group.stable()
    for _ in range(3):
        group.advance(SESSION_MS - 1)
        assert [group.commit(member_id, 1) for member_id in ids] == [Error.NONE, Error.NONE]
    group.advance(SESSION_MS)
    assert group.group.state == EMPTY


def test_a_refused_or_transactional_commit_renews_nothing() -> None:
    group = Driver()
    (member_id,) = group.stable(1)
    group.advance(SESSION_MS - 1)
    assert group.commit(member_id, 2) is Error.ILLEGAL_GENERATION
    refusal = group.group.commit_refusal(member_id, None, 1, group.now, is_transactional=True)
    assert refusal is Error.NONE
    group.advance(1)
    assert group.group.state == EMPTY


def test_looking_too_early_changes_nothing() -> None:
    group = Driver()
    leader, follower = group.stable()
    group.advance(SESSION_MS - 1)
    assert group.heartbeat(leader, 1) is Error.NONE
    group.expire()
    assert group.group.deadline_ms == group.now.monotonic_ms + 1
    assert group.heartbeat(follower, 1) is Error.NONE
    group.advance(1)
    assert group.group.deadline_ms == group.now.monotonic_ms + SESSION_MS - 1


def test_a_steady_heartbeat_stores_nothing() -> None:
    group = Driver()
    leader, _ = group.stable()
    group.heartbeat(leader, 1)
    assert (group.outcome.effects, group.outcome.notes) == (None, ())


# --- leaving ---


def test_members_leave_together_and_each_is_answered() -> None:
    group = Driver()
    static, leader, follower = group.stable(3, instances=("i",))
    pending = group.given_id()
    answers = group.leave(
        LeavingMember(follower, None, "the consumer is being closed"),
        LeavingMember(follower),
        LeavingMember("", "i"),
        LeavingMember("nobody"),
        LeavingMember(pending),
        LeavingMember("", "k"),
        LeavingMember("", None),
    )
    assert answers == [Error.NONE, UNKNOWN, Error.NONE, UNKNOWN, Error.NONE, UNKNOWN, UNKNOWN]
    assert group.heartbeat(leader, 1) is Error.REBALANCE_IN_PROGRESS
    assert group.heartbeat(static, 1) is UNKNOWN
    assert ("group_member_left", {"member": static, "reason": "not provided"}) in group.notes
    assert group.joined(group.join(leader)).generation_id == 2


def test_the_last_member_leaves_an_empty_group_behind() -> None:
    group = Driver()
    assert group.leave(*group.stable()) == [Error.NONE, Error.NONE]
    assert group.group.state == EMPTY
    assert group.outcome.effects is not None
    assert not group.outcome.effects.lazy
    assert group.store.group is not None
    assert (group.store.group.generation_id, group.store.group.leader) == (2, None)


def test_an_id_nobody_joined_with_leaves_a_stable_group_in_peace() -> None:
    group = Driver()
    group.stable()
    assert group.leave(group.given_id()) == [Error.NONE]
    assert group.group.state == STABLE


def test_a_rebalance_completes_when_the_missing_leave() -> None:
    group = Driver()
    leader, follower = group.stable()
    pending = group.given_id()
    waiter = group.join(leader)
    group.leave(follower)
    assert waiter in group.waiting
    group.leave(pending)
    assert group.joined(waiter).generation_id == 2


def test_a_member_that_is_removed_while_it_joins_is_told_so() -> None:
    group = Driver()
    leader, _ = group.stable()
    waiter = group.join(leader)
    group.leave(leader)
    assert group.error(waiter) is UNKNOWN


# --- commits ---


def test_simple_consumers_commit_while_there_are_no_members() -> None:
    group = Driver()
    assert group.commit("", NO_GENERATION) is Error.NONE
    assert group.commit("anybody", NO_GENERATION) is Error.NONE
    assert group.commit("anybody", 0) is UNKNOWN
    group.stable()
    assert group.commit("", NO_GENERATION) is UNKNOWN
    assert group.commit("anybody", NO_GENERATION) is UNKNOWN


def test_a_member_without_its_generation_may_not_commit() -> None:
    group = Driver()
    leader, _ = group.stable(2, instances=("i",))
    assert group.commit(leader, NO_GENERATION) is Error.ILLEGAL_GENERATION
    assert group.commit("", NO_GENERATION, "i") is Error.FENCED_INSTANCE_ID


@pytest.mark.parametrize("transactional", [False, True])
def test_commits_while_members_sync(transactional: bool) -> None:
    """A transaction's commit is fenced by its producer's epoch; Kafka lets it in (KIP-447)."""
    group = Driver()
    leader, _ = group.completing()
    refusal = group.group.commit_refusal(leader, None, 1, group.now, is_transactional=transactional)
    assert refusal is (Error.NONE if transactional else Error.REBALANCE_IN_PROGRESS)
    stale = group.group.commit_refusal(leader, None, 0, group.now, is_transactional=transactional)
    assert stale is Error.ILLEGAL_GENERATION


def test_old_clients_transactional_commits_name_no_member() -> None:
    group = Driver()
    group.stable()
    refusal = group.group.commit_refusal("", None, -1, group.now, is_transactional=True)
    assert refusal is Error.NONE


# --- what else is asked ---


def test_a_stable_group_is_described_with_what_members_said_and_got() -> None:
    group = Driver()
    leader, follower = group.stable(2, instances=("i",))
    assert group.group.describe() == DescribedGroup(
        "Stable",
        "consumer",
        "range",
        (
            DescribedMember(leader, "i", CLIENT, subscription("orders"), assignment("orders", 0)),
            DescribedMember(
                follower, None, CLIENT, subscription("orders"), assignment("orders", 1)
            ),
        ),
    )


def test_a_rebalancing_group_is_described_without_protocol() -> None:
    group = Driver()
    (leader,) = group.completing(1)
    described = group.group.describe()
    assert (described.state, described.protocol_name) == ("CompletingRebalance", "")
    assert described.members == (DescribedMember(leader, None, CLIENT, b"", b""),)


def test_subscriptions_of_consumers() -> None:
    group = Driver()
    assert not group.group.is_subscribed_to("orders")
    group.stable()
    assert group.group.is_subscribed_to("orders")
    assert not group.group.is_subscribed_to("bills")
    group.leave(*group.group.members)
    assert not group.group.is_subscribed_to("orders")


def test_consumers_that_cannot_be_understood_are_subscribed_to_everything() -> None:
    group = Driver()
    waiter = group.join(version=0, offers=(GroupProtocol("range", b"\xff"),))
    group.advance(DELAY_MS)
    group.sync(group.joined(waiter).member_id, 1)
    assert group.group.is_subscribed_to("anything")
    assert group.group.offset_expiration() is None


def test_groups_that_are_not_consumers_are_subscribed_to_nothing() -> None:
    group = Driver()
    group.join(version=0, protocol_type="connect", offers=protocols("range"))
    group.advance(DELAY_MS)
    assert not group.group.is_subscribed_to("orders")
    assert group.group.delete_offsets_refusal() is Error.NON_EMPTY_GROUP


def test_when_offsets_may_expire() -> None:
    group = Driver()
    assert group.group.offset_expiration() == BY_COMMIT_TIMESTAMP
    ids = group.completing()
    assert group.group.offset_expiration() is None
    group.sync_all(ids)
    assert group.group.offset_expiration() == BY_COMMIT_TIMESTAMP
    group.join(ids[0])
    assert group.group.offset_expiration() is None
    group.leave(*ids)
    since = BEGIN.timestamp_ms + 2 * DELAY_MS
    assert group.group.offset_expiration() == OffsetExpiration(since)
    assert group.reloaded().group.offset_expiration() == OffsetExpiration(since)


def test_only_an_empty_group_is_deleted() -> None:
    group = Driver()
    group.completing()
    assert group.group.delete_refusal() is Error.NON_EMPTY_GROUP
    group.leave(*group.group.members)
    assert group.group.delete_refusal() is Error.NONE
    group.take(group.group.delete(group.now))
    assert group.store.group is None
    assert group.group.delete_refusal() is Error.GROUP_ID_NOT_FOUND


def test_who_waits_is_told_when_the_group_is_unloaded() -> None:
    group = Driver()
    leader, follower = group.stable()
    joining = group.join(leader)
    group.take(group.group.unload(Error.NOT_COORDINATOR, group.now))
    assert group.error(joining) is Error.NOT_COORDINATOR
    assert group.outcome.effects is None
    other = Driver()
    leader, follower = other.completing()
    syncing = other.sync(follower, 1)
    other.take(other.group.unload(Error.NOT_COORDINATOR, other.now))
    assert other.error(syncing) is Error.NOT_COORDINATOR
    assert other.group.deadline_ms is None


def test_a_rebalance_for_somebody_elses_reason() -> None:
    group = Driver()
    leader, _ = group.stable()
    group.take(group.group.prepare_rebalance("downgraded", group.now))
    assert group.heartbeat(leader, 1) is Error.REBALANCE_IN_PROGRESS
    assert group.note("group_rebalance_started")["reason"] == "downgraded"


def test_type_and_settings() -> None:
    group = ClassicGroup.create("g", GroupSettings(), BEGIN)
    group.settings = GroupSettings(max_size=1)
    assert group.type is GroupType.CLASSIC
    assert group.protocol_type == ""
    assert group.is_empty
