"""JoinGroup: ids, the first rebalance and later ones, protocols, leaders, sizes, deadlines."""

from dataclasses import replace

import pytest

from core.errors import Error
from core.group.classic.group import NEW_MEMBER_JOIN_TIMEOUT_MS
from core.group.classic.rebalance import MAX_GENERATION
from core.group.classic.state import (
    COMPLETING_REBALANCE,
    EMPTY,
    PREPARING_REBALANCE,
    STABLE,
)
from core.group.records import GroupRow
from core.group.values import GroupSettings, JoinedMember, JoinResult
from tests.core.group.classic.driver import (
    DELAY_MS,
    REBALANCE_MS,
    SESSION_MS,
    Driver,
    protocols,
    subscription,
)

ONE_SECOND = 1_000


def settings(**changes: int) -> GroupSettings:
    return GroupSettings(**{"initial_rebalance_delay_ms": DELAY_MS, **changes})


# --- ids ---


def test_a_new_member_is_given_an_id_first() -> None:
    group = Driver()
    assert group.joined(group.join()) == JoinResult(Error.MEMBER_ID_REQUIRED, member_id="m-1")
    assert group.group.state == EMPTY
    waiter = group.join("m-1")
    assert group.group.state == PREPARING_REBALANCE
    group.advance(DELAY_MS)
    assert group.joined(waiter) == JoinResult(
        generation_id=1,
        protocol_type="consumer",
        protocol_name="range",
        leader="m-1",
        member_id="m-1",
        members=(JoinedMember("m-1", None, subscription("orders")),),
    )


def test_before_version_four_a_member_joins_without_an_id() -> None:
    group = Driver()
    waiter = group.join(version=3)
    group.advance(DELAY_MS)
    assert group.joined(waiter).member_id == "m-1"


def test_a_static_member_joins_without_an_id() -> None:
    group = Driver()
    waiter = group.join(instance="i")
    group.advance(DELAY_MS)
    assert group.joined(waiter).members == (JoinedMember("i-1", "i", subscription("orders")),)


def test_an_id_that_nobody_joins_with_is_forgotten() -> None:
    group = Driver()
    member_id = group.given_id(session_ms=7_000)
    assert not group.group.is_idle
    group.advance(6_999)
    assert not group.group.is_idle
    group.advance(1)
    assert group.group.is_idle
    assert group.error(group.join(member_id)) is Error.UNKNOWN_MEMBER_ID
    assert group.note("group_pending_members_expired") == {"members": 1, "some": [member_id]}


def test_a_rebalance_waits_for_who_was_given_an_id_but_not_longer_than_its_session() -> None:
    group = Driver()
    leader, follower = group.stable()
    group.given_id(session_ms=6_000)
    waiters = [group.join(leader), group.join(follower)]
    group.advance(5_999)
    assert group.group.state == PREPARING_REBALANCE
    group.advance(1)
    assert [group.joined(waiter).generation_id for waiter in waiters] == [2, 2]


def test_a_pending_id_that_comes_with_an_instance_id_is_unknown() -> None:
    group = Driver()
    member_id = group.given_id()
    assert group.error(group.join(member_id, "i")) is Error.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("session_ms", [-1, 0, 5_999, 1_800_001])
def test_session_timeouts_have_limits(session_ms: int) -> None:
    group = Driver()
    refused = JoinResult(Error.INVALID_SESSION_TIMEOUT, member_id="x")
    assert group.joined(group.join("x", session_ms=session_ms)) == refused
    assert group.group.is_idle


@pytest.mark.parametrize("session_ms", [6_000, 1_800_000])
def test_session_timeouts_at_the_limits(session_ms: int) -> None:
    group = Driver()
    assert group.error(group.join(session_ms=session_ms)) is Error.MEMBER_ID_REQUIRED


# --- the first rebalance ---


def test_the_first_rebalance_waits_for_others() -> None:
    group = Driver()
    waiters = group.preparing(3)
    group.advance(DELAY_MS - 1)
    assert group.waiting == set(waiters)
    # Members have come after the first one: the delay begins once more.
    group.advance(1 + DELAY_MS - 1)
    assert group.waiting == set(waiters)
    group.advance(1)
    assert [group.joined(waiter).generation_id for waiter in waiters] == [1, 1, 1]
    leader = group.joined(waiters[0]).leader
    assert [len(group.joined(waiter).members) for waiter in waiters] == [3, 0, 0]
    assert group.joined(waiters[0]).member_id == leader


def test_the_first_delay_is_prolonged_up_to_the_rebalance_timeout_and_no_longer() -> None:
    group = Driver()
    first = group.join(group.given_id(rebalance_ms=10_000), rebalance_ms=10_000)
    for second in range(9):
        group.advance(ONE_SECOND)
        group.join(group.given_id())
        assert first in group.waiting, second
    group.advance(ONE_SECOND - 1)
    assert first in group.waiting
    group.advance(1)
    assert len(group.joined(first).members) == 10


def test_a_delay_longer_than_the_rebalance_timeout_is_kept_once() -> None:
    group = Driver()
    first = group.join(group.given_id(), rebalance_ms=ONE_SECOND)
    group.advance(ONE_SECOND)
    group.join(group.given_id(), rebalance_ms=ONE_SECOND)
    group.advance(DELAY_MS - ONE_SECOND)
    assert group.joined(first).generation_id == 1


def test_without_a_delay_the_first_member_is_answered_at_once() -> None:
    group = Driver(settings(initial_rebalance_delay_ms=0))
    assert group.joined(group.join(group.given_id())).generation_id == 1


def test_members_that_leave_during_the_first_delay_leave_an_empty_group() -> None:
    group = Driver()
    (waiter,) = group.preparing(1)
    assert group.leave("m-1") == [Error.NONE]
    assert group.error(waiter) is Error.UNKNOWN_MEMBER_ID
    group.advance(DELAY_MS)
    assert group.group.state == EMPTY
    assert group.store.group is not None
    assert (group.store.group.state, group.store.group.generation_id) == ("Empty", 1)


# --- later rebalances ---


def test_a_later_rebalance_completes_when_all_have_joined() -> None:
    group = Driver()
    leader, follower = group.stable()
    newcomer = group.join(group.given_id())
    assert group.group.state == PREPARING_REBALANCE
    rejoined = group.join(follower)
    assert group.waiting == {newcomer, rejoined}
    last = group.join(leader)
    assert not group.waiting
    assert len(group.joined(last).members) == 3
    assert group.joined(newcomer).generation_id == 2


def test_who_does_not_join_in_time_is_out() -> None:
    group = Driver()
    leader, follower = group.stable()
    newcomer = group.join(group.given_id())
    group.keep_alive([leader, follower], REBALANCE_MS - 1)
    assert newcomer in group.waiting
    assert group.heartbeat(leader, 1) is Error.REBALANCE_IN_PROGRESS
    group.advance(1)
    assert group.joined(newcomer).leader == group.joined(newcomer).member_id
    assert group.note("group_members_have_not_joined") == {"members": 2, "some": [leader, follower]}
    assert group.heartbeat(leader, 1) is Error.UNKNOWN_MEMBER_ID
    assert group.error(group.join(leader)) is Error.UNKNOWN_MEMBER_ID


def test_the_rebalance_timeout_is_that_of_the_most_patient_member() -> None:
    group = Driver()
    hasty, patient = group.given_id(), group.given_id()
    group.join(hasty, rebalance_ms=8_000)
    group.join(patient, rebalance_ms=20_000)
    group.advance(2 * DELAY_MS)
    group.sync_all([hasty, patient])
    rejoined = group.join(hasty, rebalance_ms=8_000, offers=protocols("range", "sticky"))
    group.keep_alive([patient], 19_999)
    assert rejoined in group.waiting
    group.advance(1)
    assert group.joined(rejoined).generation_id == 2


def test_a_short_rebalance_timeout_is_kept() -> None:
    group = Driver()
    (leader,) = group.completing(1)
    group.join(leader, rebalance_ms=300, offers=protocols("range", "x"))
    group.sync_all([leader])
    member_id = group.given_id()
    group.advance(500)
    newcomer = group.join(member_id, rebalance_ms=300)
    group.advance(299)
    assert newcomer in group.waiting
    group.advance(1)
    assert len(group.joined(newcomer).members) == 1


def test_all_members_gone_while_one_was_given_an_id_leaves_an_empty_group_at_once() -> None:
    group = Driver()
    ids = group.stable()
    group.given_id()
    assert group.leave(*ids) == [Error.NONE, Error.NONE]
    assert group.group.state == EMPTY
    assert not group.group.is_idle


def test_a_new_member_that_waits_too_long_is_told_to_come_again() -> None:
    hour = 3_600_000
    group = Driver()
    waiters = group.preparing(1)
    group.advance(DELAY_MS)
    leader = group.joined(waiters[0]).member_id
    group.sync_all([leader])
    group.join(leader, rebalance_ms=hour)
    group.sync_all([leader])
    newcomer = group.join(group.given_id())
    group.keep_alive([leader], NEW_MEMBER_JOIN_TIMEOUT_MS - 1)
    assert newcomer in group.waiting
    group.advance(1)
    assert group.joined(newcomer) == JoinResult(Error.UNKNOWN_MEMBER_ID)


def test_a_member_that_joins_and_vanishes_is_out_after_its_session() -> None:
    group = Driver()
    leader, vanished = group.completing()
    group.sync(leader, 1, {})
    group.keep_alive([leader], SESSION_MS)
    assert group.heartbeat(vanished, 1) is Error.UNKNOWN_MEMBER_ID
    assert group.heartbeat(leader, 1) is Error.REBALANCE_IN_PROGRESS


def test_who_waits_for_a_join_is_not_expired_however_long_it_takes() -> None:
    group = Driver()
    leader, follower = group.stable()
    rejoined = group.join(leader)
    group.keep_alive([follower], REBALANCE_MS - 1)
    assert rejoined in group.waiting
    group.join(follower)
    assert group.joined(rejoined).generation_id == 2
    group.advance(SESSION_MS - 1)
    assert group.heartbeat(leader, 2) is Error.NONE


def test_the_same_member_joins_twice_and_the_earlier_request_is_answered() -> None:
    group = Driver()
    leader, follower = group.stable()
    first = group.join(follower, offers=protocols("range", "sticky"))
    second = group.join(follower, offers=protocols("range", "sticky"))
    assert group.joined(first) == JoinResult(Error.REBALANCE_IN_PROGRESS, member_id=follower)
    assert second in group.waiting
    group.join(leader)
    assert group.joined(second).generation_id == 2


def test_two_requests_of_a_new_member_are_both_answered() -> None:
    group = Driver()
    member_id = group.given_id()
    first, second = group.join(member_id), group.join(member_id)
    group.advance(2 * DELAY_MS)
    assert group.error(first) is Error.REBALANCE_IN_PROGRESS
    assert group.joined(second).member_id == member_id


# --- joining again ---


def test_a_follower_without_news_is_told_the_generation_again() -> None:
    group = Driver()
    leader, follower = group.stable()
    again = JoinResult(
        generation_id=1,
        protocol_type="consumer",
        protocol_name="range",
        leader=leader,
        member_id=follower,
    )
    assert group.joined(group.join(follower)) == again
    assert group.group.state == STABLE


def test_the_leader_starts_a_rebalance_by_joining() -> None:
    group = Driver()
    leader, _ = group.stable()
    waiter = group.join(leader, reason="topic orders has more partitions")
    assert waiter in group.waiting
    assert "topic orders has more partitions" in str(group.note("group_rebalance_started"))


def test_other_metadata_starts_a_rebalance() -> None:
    group = Driver()
    _, follower = group.stable()
    waiter = group.join(follower, offers=protocols("range", topics=("orders", "bills")))
    assert waiter in group.waiting
    assert group.group.state == PREPARING_REBALANCE


def test_while_members_sync_the_same_join_is_answered_again() -> None:
    group = Driver()
    leader, follower = group.completing()
    assert len(group.joined(group.join(leader)).members) == 2
    assert group.joined(group.join(follower)).members == ()
    assert group.group.state == COMPLETING_REBALANCE


def test_while_members_sync_other_metadata_start_again() -> None:
    group = Driver()
    leader, follower = group.completing()
    waiting_sync = group.sync(follower, 1)
    group.join(leader, offers=protocols("range", "sticky"))
    assert group.error(waiting_sync) is Error.REBALANCE_IN_PROGRESS
    assert group.group.state == PREPARING_REBALANCE


# --- protocols ---


def test_the_protocol_most_members_like_best_is_chosen_of_those_all_have() -> None:
    group = Driver()
    offers = [protocols("only-a", "x", "y"), protocols("y", "x"), protocols("y", "x", "only-c")]
    waiters = [group.join(group.given_id(offers=each), offers=each) for each in offers]
    group.advance(2 * DELAY_MS)
    assert {group.joined(waiter).protocol_name for waiter in waiters} == {"y"}


def test_a_member_without_a_common_protocol_is_refused() -> None:
    group = Driver()
    group.stable()
    for offers in (protocols("sticky"), ()):
        assert group.error(group.join(offers=offers)) is Error.INCONSISTENT_GROUP_PROTOCOL
    refused = group.joined(group.join(protocol_type="connect"))
    assert refused == JoinResult(Error.INCONSISTENT_GROUP_PROTOCOL)


@pytest.mark.parametrize(("protocol_type", "names"), [("", ("range",)), ("consumer", ()), ("", ())])
def test_the_first_member_must_offer_something(protocol_type: str, names: tuple[str, ...]) -> None:
    group = Driver()
    waiter = group.join(protocol_type=protocol_type, offers=protocols(*names))
    assert group.error(waiter) is Error.INCONSISTENT_GROUP_PROTOCOL
    assert group.group.is_idle


def test_a_known_member_that_offers_nothing_in_common_is_refused() -> None:
    group = Driver()
    leader, _ = group.stable()
    refused = JoinResult(Error.INCONSISTENT_GROUP_PROTOCOL, member_id=leader)
    assert group.joined(group.join(leader, offers=protocols("sticky"))) == refused


def test_a_protocol_named_twice_counts_once() -> None:
    group = Driver()
    waiters = [
        group.join(group.given_id(), offers=protocols("range", "range")),
        group.join(group.given_id(), offers=protocols("range")),
    ]
    group.advance(2 * DELAY_MS)
    assert group.joined(waiters[1]).protocol_name == "range"


def test_members_move_to_another_protocol_one_after_the_other() -> None:
    """As an upgrade from range to cooperative-sticky goes: both, then the new one alone."""
    group = Driver()
    ids = group.stable()
    for offers in (protocols("sticky", "range"), protocols("sticky")):
        for member_id in ids:
            group.join(member_id, offers=offers)
        leader = group.joined(group.join(ids[0], offers=offers)).leader
        group.sync_all([leader, *(member_id for member_id in ids if member_id != leader)])
    assert group.group.protocol_name == "sticky"


def test_an_empty_group_takes_any_protocol_type() -> None:
    group = Driver()
    group.leave(*group.stable())
    waiter = group.join(group.given_id(protocol_type="connect"), protocol_type="connect")
    group.advance(DELAY_MS)
    assert group.joined(waiter).protocol_type == "connect"


# --- leaders ---


def test_a_leader_that_has_left_has_a_successor() -> None:
    group = Driver()
    leader, second, third = group.stable(3)
    group.leave(leader)
    waiters = [group.join(third), group.join(second)]
    assert group.joined(waiters[0]).leader == second
    assert len(group.joined(waiters[1]).members) == 2


def test_a_static_leader_that_does_not_join_loses_the_lead_but_stays() -> None:
    group = Driver()
    leader, follower = group.stable(2, instances=("i",))
    waiter = group.join(follower, offers=protocols("range", "x"))
    group.keep_alive([leader], REBALANCE_MS)
    assert group.joined(waiter).leader == follower
    assert [member.member_id for member in group.joined(waiter).members] == [leader, follower]


def test_if_only_static_members_are_left_and_none_joins_the_rebalance_is_tried_again() -> None:
    group = Driver()
    first, second, dynamic = group.stable(3, instances=("i", "j"))
    group.leave(dynamic)
    group.keep_alive([first, second], REBALANCE_MS)
    assert group.group.state == PREPARING_REBALANCE
    waiter = group.join(first, "i")
    group.keep_alive([second], REBALANCE_MS)
    assert group.joined(waiter).generation_id == 2


@pytest.mark.parametrize("rebalance_ms", [0, -1])
def test_without_any_patience_nobody_is_busy_waiting(rebalance_ms: int) -> None:
    group = Driver()
    group.stable(3, instances=("i", "j"))
    for member_id, row in group.store.members.items():
        group.store.members[member_id] = replace(row, rebalance_timeout_ms=rebalance_ms)
    later = group.reloaded()
    dynamic = next(member_id for member_id in later.group.members if member_id.startswith("m"))
    later.leave(dynamic)
    later.advance(0)  # the driver's: `expire` has something to do later only
    assert later.group.state == PREPARING_REBALANCE
    later.advance(SESSION_MS)
    assert later.group.state == EMPTY


# --- sizes ---


def test_a_full_group_refuses_new_members() -> None:
    group = Driver(settings(max_size=2))
    leader, _ = group.stable()
    full = JoinResult(Error.GROUP_MAX_SIZE_REACHED)
    assert group.joined(group.join()) == full
    assert group.joined(group.join(instance="i")) == full
    group.join(leader)
    assert group.group.state == PREPARING_REBALANCE


def test_while_members_join_the_first_to_come_stay() -> None:
    group = Driver(settings(max_size=2))
    leader, follower = group.stable()
    group.join(leader)
    newcomer = group.join(group.given_id())
    refused = group.join(follower)
    assert group.joined(refused) == JoinResult(Error.GROUP_MAX_SIZE_REACHED)
    # The refused member is out, so that all others have joined.
    assert group.joined(newcomer).generation_id == 2
    assert group.heartbeat(follower, 1) is Error.UNKNOWN_MEMBER_ID


def test_who_has_joined_may_join_again_in_a_full_group() -> None:
    group = Driver(settings(max_size=2))
    waiters = group.preparing(2)
    again = group.join("m-1")
    group.advance(2 * DELAY_MS)
    assert group.error(waiters[0]) is Error.REBALANCE_IN_PROGRESS
    assert group.joined(again).generation_id == 1


def test_a_static_member_may_restart_in_a_full_group() -> None:
    group = Driver(settings(max_size=2))
    group.stable(2, instances=("i",))
    assert group.error(group.join(instance="i")) is Error.NONE


def test_a_static_members_old_id_has_no_place_in_a_full_group() -> None:
    group = Driver(settings(max_size=2))
    old, _ = group.stable(2, instances=("i",))
    new = group.joined(group.join(instance="i")).member_id
    assert group.error(group.join(old, "i")) is Error.GROUP_MAX_SIZE_REACHED
    assert group.heartbeat(new, 1, "i") is Error.NONE


# --- generations ---


def test_after_the_last_generation_comes_the_first() -> None:
    group = Driver()
    group.stable()
    assert group.store.group is not None
    row = group.store.group
    group.store.group = GroupRow(
        "g", "classic", "consumer", row.protocol_name, row.leader, MAX_GENERATION, state="Stable"
    )
    later = group.reloaded()
    leader, follower = later.store.members
    assert later.heartbeat(leader, MAX_GENERATION) is Error.NONE
    later.join(leader, offers=protocols("range", "x"))
    waiter = later.join(follower, offers=protocols("range", "x"))
    assert later.joined(waiter).generation_id == 1


def test_reasons_are_noted_and_cut() -> None:
    group = Driver()
    group.join(instance="i", reason="need to re-join " + "x" * 300)
    reason = group.note("group_member_added")["reason"]
    assert isinstance(reason, str)
    assert reason.startswith("need to re-join x")
    assert len(reason) == 255
    group.join(group.given_id())
    assert group.note("group_member_added")["reason"] == "not provided"
