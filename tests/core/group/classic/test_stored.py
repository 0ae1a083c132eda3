"""What of a classic group is stored, when, and what another broker makes of it."""

from dataclasses import replace

import pytest

from core.errors import Error
from core.group.classic.group import ClassicGroup
from core.group.classic.rebalance import SHOWN_EVERY_MS
from core.group.classic.state import (
    COMPLETING_REBALANCE,
    EMPTY,
    PREPARING_REBALANCE,
    STABLE,
)
from core.group.records import GroupRow, MemberRow, StoredGroup
from core.group.values import GroupProtocol, GroupSettings, SyncResult
from tests.core.group.classic.driver import (
    BEGIN,
    DELAY_MS,
    REBALANCE_MS,
    SESSION_MS,
    Driver,
    assignment,
    protocols,
    subscription,
)

# --- what is durable ---


def test_a_generation_is_stored_when_its_leader_syncs() -> None:
    group = Driver()
    leader, follower = group.completing(2, instances=("i",))
    assert group.store.members == {}
    group.sync(leader, 1, {follower: assignment("orders", 1, 0)})
    effects = group.outcome.effects
    assert effects is not None
    assert not effects.lazy
    assert effects.group == GroupRow(
        "g",
        "classic",
        protocol_type="consumer",
        protocol_name="range",
        leader=leader,
        generation_id=1,
        state="Stable",
        state_timestamp=group.now.timestamp_ms,
    )
    assert effects.put_members == (
        MemberRow(
            leader,
            "classic",
            group_instance_id="i",
            client_id="client",
            client_host="/127.0.0.1",
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            protocols=(("range", subscription("orders")),),
            subscribed_topic_names=("orders",),
        ),
        MemberRow(
            follower,
            "classic",
            client_id="client",
            client_host="/127.0.0.1",
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            protocols=(("range", subscription("orders")),),
            assignment=assignment("orders", 1, 0),
            subscribed_topic_names=("orders",),
            assigned={"orders": (0, 1)},
        ),
    )


def test_only_what_has_changed_is_written() -> None:
    group = Driver()
    leader, follower, third = group.stable(3)
    group.leave(third)
    group.join(leader)
    group.join(follower)
    parts = {leader: assignment("orders", 0), follower: assignment("orders", 1, 2)}
    group.sync(leader, 2, parts)
    effects = group.outcome.effects
    assert effects is not None
    assert [row.member_id for row in effects.put_members] == [follower]
    assert effects.delete_members == (third,)
    assert StoredGroup(group.store.stored().group, tuple(group.store.members.values())) == (
        group.group.stored()
    )


def test_members_of_other_kinds_of_groups_have_nothing_for_people_to_read() -> None:
    group = Driver()
    offers = (GroupProtocol("default", b"\0\1"),)
    waiter = group.join(version=0, protocol_type="connect", offers=offers)
    group.advance(DELAY_MS)
    member_id = group.joined(waiter).member_id
    group.sync(member_id, 1, {member_id: b"\0\2"})
    row = group.store.members[member_id]
    assert (row.assignment, row.assigned, row.subscribed_topic_names) == (b"\0\2", {}, ())


# --- what psql sees ---


def shown(group: Driver) -> tuple[str, tuple[str, ...]]:
    assert group.store.group is not None
    return group.store.group.state, group.store.group.waiting_for


def test_psql_sees_a_rebalance_and_whom_it_waits_for() -> None:
    group = Driver()
    ids = leader, second, third = group.stable(3)
    group.join(leader)
    effects = group.outcome.effects
    assert effects is not None
    assert effects.lazy
    assert shown(group) == (PREPARING_REBALANCE, (second, third))
    pending = group.given_id()
    group.join(second)
    assert shown(group) == (PREPARING_REBALANCE, (second, third)), "not for every member"
    group.keep_alive([third], SHOWN_EVERY_MS)
    assert shown(group) == (PREPARING_REBALANCE, (third, pending))
    group.join(third)
    group.leave(pending)
    assert shown(group) == (COMPLETING_REBALANCE, tuple(sorted(ids)))
    group.sync(second, 2)
    group.advance(SHOWN_EVERY_MS)
    assert shown(group) == (COMPLETING_REBALANCE, tuple(sorted([leader, third])))
    group.sync(leader, 2)
    assert shown(group) == (STABLE, ())


def test_what_psql_sees_keeps_the_stored_generation() -> None:
    """Else a crash would give members an assignment of a generation they never had."""
    group = Driver()
    leader, follower = group.stable()
    group.join(leader)
    group.join(follower)
    assert shown(group)[0] == COMPLETING_REBALANCE
    assert group.store.group is not None
    assert group.store.group.generation_id == 1
    assert set(group.store.members) == {leader, follower}


def test_a_rebalance_that_waits_for_the_same_members_writes_nothing_more() -> None:
    group = Driver()
    leader, follower = group.stable()
    group.join(leader)
    for _ in range(5):
        group.advance(SHOWN_EVERY_MS)
        assert group.outcome.effects is None
        group.heartbeat(follower, 1)


def test_psql_is_not_told_of_thousands() -> None:
    group = Driver()
    ids = group.stable(150)
    group.join(ids[0])
    assert len(shown(group)[1]) == 100


# --- another broker ---


def test_a_stable_group_goes_on_at_another_broker() -> None:
    group = Driver()
    leader, follower = group.stable(2, instances=("i",))
    later = group.reloaded()
    assert later.group.stored() == group.group.stored()
    assert later.group.describe() == group.group.describe()
    assert later.heartbeat(leader, 1, "i") is Error.NONE
    assert later.commit(follower, 1) is Error.NONE
    assert later.synced(later.sync(follower, 1)).assignment == assignment("orders", 1)
    # A follower that joins again changes nothing, a leader does.
    assert later.joined(later.join(follower)).generation_id == 1
    assert later.join(leader, "i") in later.waiting
    later.join(follower)
    assert later.group.generation_id == 2


def test_sessions_begin_anew_at_another_broker() -> None:
    group = Driver()
    leader, follower = group.stable()
    group.advance(SESSION_MS - 1)
    later = group.reloaded()
    later.advance(SESSION_MS - 1)
    assert later.heartbeat(leader, 1) is Error.NONE
    later.advance(1)
    assert later.heartbeat(follower, 1) is Error.UNKNOWN_MEMBER_ID


def test_a_rebalance_that_was_cut_off_leaves_the_generation_before() -> None:
    group = Driver()
    leader, follower = group.stable()
    group.join(group.given_id())
    group.join(leader)
    group.join(follower)
    assert group.group.state == COMPLETING_REBALANCE
    later = group.reloaded()
    assert later.group.state == STABLE
    assert later.heartbeat(leader, 1) is Error.NONE
    # Who was told the generation that nobody stored joins again.
    assert later.synced(later.sync(leader, 2)) == SyncResult(Error.ILLEGAL_GENERATION)
    assert later.commit(follower, 2) is Error.ILLEGAL_GENERATION
    later.advance(0)
    assert shown(later) == (STABLE, ())


def test_a_first_rebalance_that_was_cut_off_leaves_an_empty_group() -> None:
    group = Driver()
    (member_id, *_) = group.completing()
    later = group.reloaded()
    assert later.group.state == EMPTY
    assert later.group.is_idle
    assert later.error(later.join(member_id)) is Error.UNKNOWN_MEMBER_ID
    later.advance(0)
    assert shown(later) == (EMPTY, ())


def test_an_empty_group_keeps_its_generation_at_another_broker() -> None:
    group = Driver()
    group.leave(*group.stable())
    later = group.reloaded()
    assert later.group.state == EMPTY
    assert later.group.protocol_type == "consumer"
    (member_id,) = later.completing(1)
    assert later.group.generation_id == 3
    assert member_id not in later.store.members


def test_more_members_than_allowed_are_asked_to_join_again() -> None:
    group = Driver()
    ids = group.stable(3)
    group.settings = GroupSettings(max_size=2)
    later = group.reloaded()
    assert later.group.state == PREPARING_REBALANCE
    later.advance(0)
    assert shown(later) == (PREPARING_REBALANCE, tuple(later.group.members))
    assert later.heartbeat(ids[0], 1) is Error.REBALANCE_IN_PROGRESS
    assert later.commit(ids[0], 1) is Error.NONE
    waiters = [later.join(member_id) for member_id in ids]
    assert later.error(waiters[2]) is Error.GROUP_MAX_SIZE_REACHED
    assert [later.joined(waiter).generation_id for waiter in waiters[:2]] == [2, 2]


@pytest.mark.parametrize("leader", [None, "somebody else"])
def test_a_stored_leader_that_is_no_member_has_a_successor(leader: str | None) -> None:
    group = Driver()
    ids = group.stable()
    stored = group.store.stored()
    row = replace(stored.group, leader=leader, protocol_name=None)
    loaded = ClassicGroup.load(replace(stored, group=row), group.settings, BEGIN)
    assert loaded.stored().group.leader in ids
    assert loaded.stored().group.protocol_name == "range"


def test_an_empty_group_of_the_other_protocol_goes_on_as_a_classic_one() -> None:
    group = Driver()
    row = GroupRow("g", "consumer", "consumer", generation_id=9, assignment_epoch=9)
    group.group = ClassicGroup.load(StoredGroup(row), group.settings, group.now)
    assert group.group.is_idle
    (member_id,) = group.stable(1)
    assert group.store.group is not None
    assert (group.store.group.protocol, group.store.group.generation_id) == ("classic", 10)
    assert group.store.group.assignment_epoch == -1
    assert set(group.store.members) == {member_id}


def test_rows_as_they_would_be_written_now_show_members_that_have_just_come() -> None:
    group = Driver()
    leader, _ = group.stable()
    group.join(leader, offers=protocols("range", "x"))
    newcomer = group.given_id()
    group.join(newcomer)
    rows = {row.member_id: row for row in group.group.stored().members}
    assert rows[newcomer].assignment == b""
    assert [name for name, _ in rows[leader].protocols] == ["range", "x"]
    assert rows[leader].assignment == assignment("orders", 0)
