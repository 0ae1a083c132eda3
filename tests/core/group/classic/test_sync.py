"""SyncGroup: the leader's assignment, who waits for it, who is too late."""

import pytest

from core.errors import Error
from core.group.classic.state import COMPLETING_REBALANCE, PREPARING_REBALANCE, STABLE
from core.group.values import GroupSettings, SyncResult
from tests.core.group.classic.driver import (
    DELAY_MS,
    REBALANCE_MS,
    SESSION_MS,
    Driver,
    assignment,
    protocols,
)

FROM_LEADER = {"unknown": b"not asked for"}


def test_followers_wait_for_the_leader() -> None:
    group = Driver()
    leader, follower = group.completing()
    waiting = group.sync(follower, 1)
    assert waiting in group.waiting
    parts = {leader: b"for the leader", follower: b"for the follower"}
    waiter = group.sync(leader, 1, parts)
    assert group.synced(waiter) == SyncResult(
        protocol_type="consumer", protocol_name="range", assignment=b"for the leader"
    )
    assert group.synced(waiting).assignment == b"for the follower"
    assert group.group.state == STABLE


def test_who_syncs_later_gets_its_part_at_once() -> None:
    group = Driver()
    leader, follower = group.completing()
    group.sync(leader, 1, {follower: b"part"})
    assert group.synced(group.sync(follower, 1)).assignment == b"part"
    assert group.synced(group.sync(follower, 1)).assignment == b"part"


def test_whom_the_leader_left_out_gets_nothing() -> None:
    group = Driver()
    leader, follower = group.completing()
    waiting = group.sync(follower, 1)
    assert group.synced(group.sync(leader, 1, FROM_LEADER)).assignment == b""
    assert group.synced(waiting).assignment == b""
    assert group.note("group_members_without_assignment") == {
        "members": 2,
        "some": [leader, follower],
    }
    assert set(group.store.members) == {leader, follower}


def test_a_followers_assignments_do_not_count() -> None:
    group = Driver()
    leader, follower = group.completing()
    waiting = group.sync(follower, 1, {follower: b"all for me"})
    assert waiting in group.waiting
    group.sync(leader, 1, {})
    assert group.synced(waiting).assignment == b""


def test_a_stable_groups_leader_cannot_assign_again() -> None:
    group = Driver()
    leader, follower = group.stable()
    waiter = group.sync(leader, 1, {follower: b"other"})
    assert group.synced(waiter).assignment == assignment("orders", 0)
    assert group.synced(group.sync(follower, 1)).assignment == assignment("orders", 1)


def test_a_leader_that_does_not_sync_is_out_and_the_others_join_again() -> None:
    group = Driver()
    leader, follower = group.completing()
    waiting = group.sync(follower, 1)
    for _ in range(REBALANCE_MS // DELAY_MS - 1):
        group.advance(DELAY_MS)
        assert group.heartbeat(leader, 1) is Error.NONE
    group.advance(DELAY_MS - 1)
    assert waiting in group.waiting
    group.advance(1)
    assert group.synced(waiting) == SyncResult(Error.REBALANCE_IN_PROGRESS)
    assert group.heartbeat(leader, 1) is Error.UNKNOWN_MEMBER_ID
    assert group.heartbeat(follower, 1) is Error.REBALANCE_IN_PROGRESS
    assert group.joined(group.join(follower)).leader == follower


def test_a_leader_that_is_gone_ends_the_waiting_earlier() -> None:
    group = Driver()
    leader, follower = group.completing()
    waiting = group.sync(follower, 1)
    group.advance(SESSION_MS)
    assert group.error(waiting) is Error.REBALANCE_IN_PROGRESS
    assert group.heartbeat(leader, 1) is Error.UNKNOWN_MEMBER_ID
    # Who waited has a session again.
    group.advance(SESSION_MS - 1)
    assert group.heartbeat(follower, 1) is Error.REBALANCE_IN_PROGRESS


def test_a_short_rebalance_timeout_is_kept_for_syncs() -> None:
    group = Driver()
    leader, follower = group.stable()
    group.join(leader, rebalance_ms=500)
    group.expire()  # from here on it need not be looked after soon
    group.join(follower, rebalance_ms=500)
    waiting = group.sync(follower, 2)
    group.advance(499)
    assert waiting in group.waiting
    group.advance(1)
    assert group.error(waiting) is Error.REBALANCE_IN_PROGRESS
    assert leader not in group.group.members


def test_what_members_had_is_not_shown_once_they_were_asked_to_sync() -> None:
    group = Driver()
    leader, follower = group.stable()
    group.join(leader)
    assert [each.assignment for each in group.group.describe().members] == [
        assignment("orders", 0),
        assignment("orders", 1),
    ]
    group.join(follower)
    group.join(follower, offers=protocols("range", "x"))
    assert group.group.state == PREPARING_REBALANCE
    assert [each.assignment for each in group.group.describe().members] == [b"", b""]


def test_a_follower_that_does_not_sync_is_out_of_the_stable_group() -> None:
    group = Driver()
    leader, follower = group.completing()
    group.sync(leader, 1, {})
    group.keep_alive([leader, follower], REBALANCE_MS - 1)
    assert group.heartbeat(follower, 1) is Error.NONE
    group.advance(1)
    assert group.group.state == PREPARING_REBALANCE
    assert group.heartbeat(follower, 1) is Error.UNKNOWN_MEMBER_ID


def test_once_all_have_synced_nobody_is_missing() -> None:
    group = Driver()
    ids = group.stable(3)
    group.keep_alive(ids, 2 * REBALANCE_MS)
    assert group.group.state == STABLE


def test_the_same_member_syncs_twice_and_the_earlier_request_is_answered() -> None:
    group = Driver()
    leader, follower = group.completing()
    first, second = group.sync(follower, 1), group.sync(follower, 1)
    assert group.synced(first) == SyncResult(Error.REBALANCE_IN_PROGRESS)
    group.sync(leader, 1, {follower: b"part"})
    assert group.synced(second).assignment == b"part"


def test_a_member_that_is_removed_while_it_waits_is_told_so() -> None:
    group = Driver()
    _, follower = group.completing()
    waiting = group.sync(follower, 1)
    group.leave(follower)
    assert group.synced(waiting) == SyncResult(Error.UNKNOWN_MEMBER_ID)


@pytest.mark.parametrize("state", ["completing", "stable"])
def test_another_generation_is_illegal(state: str) -> None:
    group = Driver()
    ids = group.completing() if state == "completing" else group.stable()
    for generation in (-1, 0, 2):
        for member_id in ids:
            refused = group.synced(group.sync(member_id, generation))
            assert refused == SyncResult(Error.ILLEGAL_GENERATION)


@pytest.mark.parametrize(
    ("protocol_type", "protocol_name", "error"),
    [
        ("consumer", "range", Error.NONE),
        (None, None, Error.NONE),
        ("connect", "range", Error.INCONSISTENT_GROUP_PROTOCOL),
        ("consumer", "sticky", Error.INCONSISTENT_GROUP_PROTOCOL),
        ("connect", None, Error.INCONSISTENT_GROUP_PROTOCOL),
        (None, "sticky", Error.INCONSISTENT_GROUP_PROTOCOL),
        ("", "", Error.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_the_protocol_must_be_the_groups(
    protocol_type: str | None, protocol_name: str | None, error: Error
) -> None:
    group = Driver()
    _, follower = group.stable()
    waiter = group.sync(follower, 1, protocol_type=protocol_type, protocol_name=protocol_name)
    assert group.error(waiter) is error


def test_before_the_first_generation_there_is_no_protocol_to_compare() -> None:
    group = Driver()
    group.preparing(1)
    waiter = group.sync("m-1", 0, protocol_type="consumer", protocol_name="anything")
    assert group.error(waiter) is Error.REBALANCE_IN_PROGRESS


def test_an_assignment_that_is_too_large_is_refused_and_everybody_joins_again() -> None:
    group = Driver()
    leader, follower = group.completing()
    waiting = group.sync(follower, 1)
    waiter = group.sync(leader, 1, {leader: b"", follower: bytes(50_000_000)})
    assert group.synced(waiter) == SyncResult(Error.UNKNOWN_SERVER_ERROR)
    assert group.synced(waiting) == SyncResult(Error.UNKNOWN_SERVER_ERROR)
    note = group.note("group_assignment_too_large")
    assert isinstance(note["bytes"], int) and note["bytes"] > 50_000_000
    assert note["leader"] == leader
    assert group.group.state == PREPARING_REBALANCE
    waiters = [group.join(follower), group.join(leader)]
    assert [group.joined(waiter).generation_id for waiter in waiters] == [2, 2]
    assert not group.store.members


def test_metadata_and_assignment_count_together() -> None:
    settings = GroupSettings(initial_rebalance_delay_ms=DELAY_MS, max_metadata_bytes=100)
    group = Driver(settings)
    (leader,) = group.completing(1)
    used = sum(len(p.name) + len(p.metadata) for p in group.group.members[leader].protocols)
    group.sync(leader, 1, {leader: bytes(101 - used)})
    assert group.group.state == PREPARING_REBALANCE
    group.join(leader)
    group.sync(leader, 2, {leader: bytes(100 - used)})
    assert group.group.state == STABLE


def test_bytes_that_are_no_consumers_assignment_are_passed_on_as_they_are() -> None:
    group = Driver()
    (leader,) = group.completing(1)
    assert group.synced(group.sync(leader, 1, {leader: b"\xff"})).assignment == b"\xff"
    assert group.store.members[leader].assigned == {}
    assert group.group.state != COMPLETING_REBALANCE
