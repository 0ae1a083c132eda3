"""Static membership (KIP-345): restarts without a rebalance, fencing, KIP-814's static leader."""

import pytest

from core.errors import Error
from core.group.classic.state import COMPLETING_REBALANCE, PREPARING_REBALANCE, STABLE
from core.group.values import ClientIdentity, GroupSettings, JoinResult, LeavingMember, SyncResult
from tests.core.group.classic.driver import (
    DELAY_MS,
    REBALANCE_MS,
    SESSION_MS,
    Driver,
    assignment,
    protocols,
    subscription,
)


def test_a_static_follower_restarts_without_a_rebalance() -> None:
    group = Driver()
    leader, old = group.stable(2, instances=("i", "j"))
    result = group.joined(group.join(instance="j"))
    new = result.member_id
    assert result == JoinResult(
        generation_id=1,
        protocol_type="consumer",
        protocol_name="range",
        leader=leader,
        member_id=new,
    )
    assert new not in (leader, old)
    note = group.note("group_static_member_replaced")
    assert (note["group_instance_id"], note["member"], note["replaced"]) == ("j", new, old)
    synced = group.synced(group.sync(new, 1, instance="j"))
    assert synced.assignment == assignment("orders", 1)
    assert group.heartbeat(leader, 1, "i") is Error.NONE
    assert group.heartbeat(new, 1, "j") is Error.NONE


def test_the_old_id_is_fenced_whatever_it_asks() -> None:
    group = Driver()
    _, old = group.stable(2, instances=("i", "j"))
    new = group.joined(group.join(instance="j")).member_id
    fenced = Error.FENCED_INSTANCE_ID
    assert group.heartbeat(old, 1, "j") is fenced
    assert group.error(group.join(old, "j")) is fenced
    assert group.error(group.sync(old, 1, instance="j")) is fenced
    assert group.commit(old, 1, "j") is fenced
    assert group.leave(LeavingMember(old, "j")) == [fenced]
    # Without its instance id the old id is nobody's.
    assert group.heartbeat(old, 1) is Error.UNKNOWN_MEMBER_ID
    assert group.commit(old, 1) is Error.UNKNOWN_MEMBER_ID
    assert group.heartbeat(new, 1, "j") is Error.NONE


def test_an_instance_nobody_knows_is_unknown() -> None:
    group = Driver()
    leader, _ = group.stable(2, instances=("i",))
    unknown = Error.UNKNOWN_MEMBER_ID
    assert group.heartbeat(leader, 1, "k") is unknown
    assert group.commit(leader, 1, "k") is unknown
    assert group.error(group.join(leader, "k")) is unknown
    assert group.error(group.sync(leader, 1, instance="k")) is unknown
    assert group.leave(LeavingMember(leader, "k"), LeavingMember("", "k")) == [unknown, unknown]


def test_a_static_leader_that_restarts_is_to_skip_the_assignment() -> None:
    group = Driver()
    group.stable(2, instances=("i",))
    result = group.joined(group.join(instance="i"))
    assert result.skip_assignment
    assert result.leader == result.member_id
    assert [member.metadata for member in result.members] == [subscription("orders")] * 2
    assert group.synced(group.sync(result.member_id, 1)).assignment == assignment("orders", 0)


def test_before_version_nine_a_static_leader_that_restarts_takes_itself_for_a_follower() -> None:
    group = Driver()
    old, _ = group.stable(2, instances=("i",))
    result = group.joined(group.join(instance="i", version=8))
    assert not result.skip_assignment
    assert result.leader == old != result.member_id
    assert result.members == ()
    assert group.group.state == STABLE


def test_a_static_member_that_changes_the_groups_protocol_starts_a_rebalance() -> None:
    group = Driver()
    group.stable(1, instances=("i",))
    both = protocols("range", "sticky")
    first = group.joined(group.join(instance="i", offers=both))
    assert first.generation_id == 1
    group.sync(first.member_id, 1)
    second = group.joined(group.join(instance="i", offers=protocols("sticky", "range")))
    assert (second.generation_id, second.protocol_name) == (2, "sticky")
    assert not second.skip_assignment


def test_a_static_member_with_other_metadata_restarts_without_a_rebalance() -> None:
    """As Kafka's: only the choice of the protocol counts."""
    group = Driver()
    group.stable(2, instances=("i",))
    offers = protocols("range", topics=("bills",))
    assert group.joined(group.join(instance="i", offers=offers)).generation_id == 1


def test_a_static_member_with_too_much_metadata_starts_a_rebalance() -> None:
    """What it brings is stored with an assignment only, which is refused then."""
    group = Driver(GroupSettings(initial_rebalance_delay_ms=DELAY_MS, max_metadata_bytes=200))
    _, other = group.stable(2, instances=("i",))
    offers = protocols("range", topics=("a name that is long",) * 10)
    restarted = group.join(instance="i", offers=offers)
    assert group.group.state == PREPARING_REBALANCE
    group.join(other)
    new = group.joined(restarted).member_id
    assert group.joined(restarted).generation_id == 2
    assert group.error(group.sync(new, 2, {new: bytes(100)})) is Error.UNKNOWN_SERVER_ERROR
    assert group.store.members[new].protocols != offers


def test_a_restarted_static_member_has_its_new_timeouts_and_client() -> None:
    group = Driver()
    group.stable(1, instances=("i",))
    client = ClientIdentity("other", "/10.0.0.9")
    member_id = group.joined(group.join(instance="i", session_ms=20_000, client=client)).member_id
    group.sync(member_id, 1)
    assert group.group.describe().members[0].client == client
    group.advance(19_999)
    assert group.heartbeat(member_id, 1) is Error.NONE


def test_a_static_member_restarts_while_members_join() -> None:
    group = Driver()
    static, dynamic = group.stable(2, instances=("i",))
    waiting = group.join(static, "i")
    restarted = group.join(instance="i")
    assert group.joined(waiting) == JoinResult(Error.FENCED_INSTANCE_ID, member_id=static)
    assert restarted in group.waiting
    group.join(dynamic)
    assert group.joined(restarted).generation_id == 2
    assert group.joined(restarted).leader == group.joined(restarted).member_id


def test_a_static_member_restarts_while_members_sync() -> None:
    group = Driver()
    _, old = group.completing(2, instances=("i", "j"))
    waiting = group.sync(old, 1, instance="j")
    restarted = group.join(instance="j")
    assert group.synced(waiting) == SyncResult(Error.FENCED_INSTANCE_ID)
    assert restarted in group.waiting
    assert group.group.state == PREPARING_REBALANCE


def test_a_lone_static_member_restarts_while_it_should_sync() -> None:
    group = Driver()
    group.completing(1, instances=("i",))
    assert group.joined(group.join(instance="i")).generation_id == 2
    assert group.group.state == COMPLETING_REBALANCE


def test_a_restarted_static_member_must_sync_as_the_old_one_had_to() -> None:
    group = Driver()
    leader, old = group.completing(2, instances=("i", "j"))
    group.sync(leader, 1, {})
    new = group.joined(group.join(instance="j")).member_id
    group.keep_alive([leader, new], REBALANCE_MS - 1)
    assert group.heartbeat(new, 1) is Error.NONE
    group.advance(1)
    assert group.heartbeat(new, 1) is Error.UNKNOWN_MEMBER_ID
    assert group.note("group_members_have_not_synced") == {"members": 1, "some": [new]}
    assert group.note("group_rebalance_started")["reason"] == "1 members have not synced in time"
    assert old != new


def test_once_a_restarted_static_member_has_synced_nothing_is_missing() -> None:
    group = Driver()
    leader, _ = group.completing(2, instances=("i", "j"))
    group.sync(leader, 1, {})
    new = group.joined(group.join(instance="j")).member_id
    group.sync(new, 1)
    group.keep_alive([leader, new], 2 * REBALANCE_MS)
    assert group.group.state == STABLE


def test_a_static_member_keeps_its_place_while_its_session_lasts() -> None:
    group = Driver()
    leader, _ = group.stable(2, instances=("i", "j"))
    group.keep_alive([leader], SESSION_MS - 1)
    assert group.heartbeat(leader, 1) is Error.NONE
    group.advance(1)
    assert group.heartbeat(leader, 1) is Error.REBALANCE_IN_PROGRESS


def test_an_instance_leaves_by_its_name_alone() -> None:
    group = Driver()
    leader, _ = group.stable(2, instances=("i", "j"))
    assert group.leave(LeavingMember("", "j", "kafka-consumer-groups")) == [Error.NONE]
    assert group.note("group_member_left")["reason"] == "kafka-consumer-groups"
    assert group.note("group_rebalance_started")["reason"] == "1 members have left"
    assert group.heartbeat(leader, 1, "i") is Error.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize("during", ["stable", "joining", "syncing"])
def test_no_crash_brings_the_old_id_back(during: str) -> None:
    """Kafka stores the new id only in a stable group; then a crash would fence the new one."""
    group = Driver()
    leader, old, dynamic = group.stable(3, instances=("i", "j"))
    if during != "stable":
        group.join(leader, "i", offers=protocols("range", "x"))
    if during == "syncing":
        group.join(old, "j")
        group.join(dynamic)
    new_token = group.join(instance="j")
    new = next(m for m in group.group.members if m.startswith("j"))
    assert (new_token in group.answers) == (during == "stable")
    later = group.reloaded()
    assert later.heartbeat(old, 1, "j") is Error.FENCED_INSTANCE_ID
    assert later.commit(old, 1) is Error.UNKNOWN_MEMBER_ID
    assert later.heartbeat(new, 1, "j") is Error.NONE
    assert later.synced(later.sync(new, 1)).assignment == assignment("orders", 1)


def test_nor_does_it_where_the_old_id_was_out_already() -> None:
    group = Driver()
    leader, old = group.stable(2, instances=("i", "j"))
    group.keep_alive([leader], SESSION_MS)
    assert group.heartbeat(old, 1, "j") is Error.UNKNOWN_MEMBER_ID
    waiter = group.join(instance="j")
    group.join(leader, "i")
    new = group.joined(waiter).member_id
    later = group.reloaded()
    assert later.heartbeat(old, 1, "j") is Error.FENCED_INSTANCE_ID
    # It was told of a generation that was never stored.
    assert later.error(later.sync(new, 2, instance="j")) is Error.ILLEGAL_GENERATION
    assert later.joined(later.join(new, "j")).generation_id == 1
    assert later.synced(later.sync(new, 1)).assignment == assignment("orders", 1)


def test_a_restart_during_a_rebalance_keeps_the_lead_through_a_crash() -> None:
    group = Driver()
    leader, follower = group.stable(2, instances=("i",))
    group.join(follower, offers=protocols("range", "x"))
    assert group.joined(group.join(instance="i", offers=protocols("range", "x"))).leader != leader
    later = group.reloaded()
    assert later.group.stored().group.leader == group.group.stored().group.leader
    assert next(iter(later.group.members)) == follower


def test_what_a_restarted_member_says_is_stored() -> None:
    group = Driver()
    group.stable(2, instances=("i", "j"))
    offers = protocols("range", "x", topics=("bills",))
    member_id = group.joined(group.join(instance="j", offers=offers, session_ms=20_000)).member_id
    row = group.store.members[member_id]
    assert (row.session_timeout_ms, row.subscribed_topic_names) == (20_000, ("bills",))
    assert [name for name, _ in row.protocols] == ["range", "x"]
    assert row.assigned == {"orders": (1,)}


def test_a_restarted_member_has_a_whole_session() -> None:
    group = Driver()
    leader, _ = group.stable(2, instances=("i", "j"))
    group.keep_alive([leader], SESSION_MS - 1)
    group.join(instance="j")
    group.keep_alive([leader], SESSION_MS - 1)
    assert group.group.state == STABLE


def test_a_restarted_leader_is_leader_after_a_crash() -> None:
    group = Driver()
    old, _ = group.stable(2, instances=("i",))
    new = group.joined(group.join(instance="i")).member_id
    later = group.reloaded()
    assert later.join(new) in later.waiting  # only the leader's starts a rebalance
    assert old not in later.group.members
