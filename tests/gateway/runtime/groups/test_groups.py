"""Groups over the real database: what one broker answers, and when it may."""

import asyncio
import time

import pytest

from core.errors import Error, Refusal
from core.group.values import (
    DescribedConsumerGroup,
    DescribedGroup,
    GroupType,
    JoinResult,
    LeaveResult,
    LeavingMember,
    SyncResult,
)
from core.shard import shard_of
from gateway.metrics.groups import watch_groups
from gateway.metrics.registry import Metrics
from gateway.runtime.groups import loaded_groups
from gateway.runtime.groups.groups import GroupOverview, OffsetsWanted
from tests.gateway.runtime.coordinators import (
    Coordinator,
    MakeCoordinator,
    Psql,
    groups_of_shard,
    until,
)

pytestmark = pytest.mark.timeout(120)

FLUSH = "group_flush"


@pytest.fixture
async def broker(make_coordinator: MakeCoordinator) -> Coordinator:
    return await make_coordinator()


# --- one broker, all goes well ---


async def test_a_member_joins_syncs_beats_commits_and_leaves(broker: Coordinator) -> None:
    p0, p1 = await broker.create_topic("t", 2)
    joined = await broker.form("g")
    assert joined.generation_id == 1
    assert joined.leader == joined.member_id == "member"
    assert await broker.heartbeat("g", joined) is Error.NONE
    assert await broker.commit("g", {p0: 5, p1: 7}, joined) is Error.NONE
    assert await broker.offsets("g") == {p0: 5, p1: 7}
    (some,) = await broker.groups.fetch_offsets([OffsetsWanted("g", partition_ids=[p1, 999])])
    assert not isinstance(some, Error)
    assert list(some) == [p1]
    assert await broker.leave("g", "member") is Error.NONE
    assert await broker.heartbeat("g", joined) is Error.UNKNOWN_MEMBER_ID
    assert await broker.offsets("g") == {p0: 5, p1: 7}


async def test_two_members_wait_for_each_other_and_for_the_leader(broker: Coordinator) -> None:
    first = await broker.form("g", new_member_id="first")
    second_joins = broker.submit(broker.join("g", new_member_id="second"))
    await until(lambda: broker.rebalances("g"))
    assert await broker.heartbeat("g", first) is Error.REBALANCE_IN_PROGRESS
    assert not second_joins.done()
    again, second = await asyncio.gather(broker.join("g", "first"), second_joins)
    assert {each.member_id for each in again.members} == {"first", "second"}
    assert second.leader == "first"
    assert second.members == ()
    follower = broker.submit(broker.sync("g", second))
    await asyncio.sleep(0)
    leader = await broker.sync("g", again, {"first": b"1", "second": b"2"})
    assert leader.assignment == b"1"
    assert (await follower).assignment == b"2"


async def test_an_unknown_group_is_what_kafka_says_it_is(broker: Coordinator) -> None:
    groups, left = broker.groups, LeavingMember("m")
    stranger = JoinResult(Error.NONE, 1, member_id="m")
    assert (await broker.join("g", "m")).error is Error.UNKNOWN_MEMBER_ID
    assert await broker.sync("g", stranger) == SyncResult(Error.UNKNOWN_MEMBER_ID)
    assert await broker.heartbeat("g", stranger) is Error.UNKNOWN_MEMBER_ID
    assert await groups.leave("g", [left]) == LeaveResult(((left, Error.UNKNOWN_MEMBER_ID),))
    assert await broker.commit("g", {1: 1}, stranger) is Error.GROUP_ID_NOT_FOUND
    assert await broker.offsets("g") == {}
    assert await groups.delete_offsets("g", [("t", 1)]) is Error.GROUP_ID_NOT_FOUND
    assert await groups.delete_groups(["g"]) == [Error.GROUP_ID_NOT_FOUND]
    for described in (await groups.describe_classic("g"), await groups.describe_consumer("g")):
        assert described == Refusal(Error.GROUP_ID_NOT_FOUND, "Group g not found.")
    beat = await broker.consume("g", "m", 3)
    assert beat.error is Error.GROUP_ID_NOT_FOUND
    assert await groups.list_groups() == []


@pytest.mark.parametrize("group_id", ["", "a\0b"])
async def test_what_is_no_group_id_is_refused(broker: Coordinator, group_id: str) -> None:
    stranger = JoinResult(Error.NONE, 1, member_id="m")
    assert (await broker.join(group_id)).error is Error.INVALID_GROUP_ID
    assert (await broker.sync(group_id, stranger)).error is Error.INVALID_GROUP_ID
    assert await broker.heartbeat(group_id, stranger) is Error.INVALID_GROUP_ID
    assert await broker.leave(group_id, "m") is Error.INVALID_GROUP_ID
    assert await broker.groups.delete_offsets(group_id, []) is Error.INVALID_GROUP_ID
    wanted = Error.INVALID_GROUP_ID if group_id else Error.INVALID_REQUEST
    assert (await broker.consume(group_id, "m")).error is wanted


async def test_old_clients_commit_for_the_group_without_a_name(broker: Coordinator) -> None:
    (p0,) = await broker.create_topic("t", 1)
    assert await broker.commit("", {p0: 3}) is Error.NONE
    assert await broker.offsets("") == {p0: 3}
    assert isinstance(await broker.groups.describe_classic(""), DescribedGroup)


async def test_a_simple_consumer_commits_without_a_group(broker: Coordinator) -> None:
    (p0,) = await broker.create_topic("t", 1)
    assert await broker.commit("simple", {p0: 3}) is Error.NONE
    assert await broker.groups.list_groups() == [
        GroupOverview("simple", "", "Empty", GroupType.CLASSIC)
    ]
    await broker.form("real")
    assert await broker.commit("real", {p0: 9}) is Error.UNKNOWN_MEMBER_ID
    assert await broker.offsets("real") == {}


async def test_groups_are_described_listed_and_deleted(broker: Coordinator) -> None:
    (p0,) = await broker.create_topic("t", 1)
    joined = await broker.form("classic")
    await broker.consume("new", "m", subscribed_topic_names=("t",))
    await broker.commit("simple", {p0: 3})
    listed = await broker.groups.list_groups()
    assert not isinstance(listed, Error)
    assert sorted(listed, key=lambda each: each.group_id) == [
        GroupOverview("classic", "consumer", "Stable", GroupType.CLASSIC),
        GroupOverview("new", "consumer", "Stable", GroupType.CONSUMER),
        GroupOverview("simple", "", "Empty", GroupType.CLASSIC),
    ]
    described = await broker.groups.describe_classic("classic")
    assert isinstance(described, DescribedGroup)
    assert [each.member_id for each in described.members] == ["member"]
    assert described.members[0].assignment == b"all"
    consumers = await broker.groups.describe_consumer("new")
    assert isinstance(consumers, DescribedConsumerGroup)
    assert [each.member_id for each in consumers.members] == ["m"]
    assert await broker.groups.describe_classic("new") == Refusal(
        Error.GROUP_ID_NOT_FOUND, "Group new is not a classic group."
    )
    assert await broker.groups.describe_consumer("classic") == Refusal(
        Error.GROUP_ID_NOT_FOUND, "Group classic is not a consumer group."
    )
    answers = await broker.groups.delete_groups(["classic", "new", "simple", "none"])
    assert answers == [
        Error.NON_EMPTY_GROUP,
        Error.NON_EMPTY_GROUP,
        Error.NONE,
        Error.GROUP_ID_NOT_FOUND,
    ]
    assert await broker.offsets("simple") == {}
    await broker.leave("classic", joined.member_id)
    assert await broker.groups.delete_groups(["classic"]) == [Error.NONE]
    assert [each.group_id for each in await overviews(broker)] == ["new"]


async def overviews(broker: Coordinator) -> list[GroupOverview]:
    listed = await broker.groups.list_groups()
    assert not isinstance(listed, Error)
    return sorted(listed, key=lambda each: each.group_id)


async def test_offsets_of_topics_that_are_read_are_not_deleted(broker: Coordinator) -> None:
    (p0,) = await broker.create_topic("read", 1)
    (p1,) = await broker.create_topic("unread", 1)
    beat = await broker.consume("g", "m", subscribed_topic_names=("read",))
    offsets = [(p0, 1), (p1, 2)]
    for at, offset in offsets:
        rows = [loaded_offset(at, offset)]
        assert (
            await broker.groups.commit_offsets("g", "m", None, beat.member_epoch, rows)
            is Error.NONE
        )
    assert await broker.groups.delete_offsets("g", [("read", p0), ("unread", p1)]) == {
        p0: Error.GROUP_SUBSCRIBED_TO_TOPIC,
        p1: Error.NONE,
    }
    assert await broker.offsets("g") == {p0: 1}


def loaded_offset(partition_id: int, offset: int):
    from core.group.records import CommittedOffset

    return CommittedOffset(partition_id, offset, -1, "", 1_000)


# --- the database and the answers ---


async def test_steady_heartbeats_do_not_ask_the_database(
    make_coordinator: MakeCoordinator,
) -> None:
    broker = await make_coordinator(heartbeats=False, watches=False)
    await broker.create_topic("t", 1)
    joined = await broker.form("g")
    beat = await broker.consume("new", "m", subscribed_topic_names=("t",))
    before = broker.queries.copy()
    for _ in range(100):
        assert await broker.heartbeat("g", joined) is Error.NONE
        steady = await broker.consume("new", "m", beat.member_epoch)
        assert steady.error is Error.NONE
        assert steady.assignment is None
    assert broker.queries == before


async def test_commits_of_many_connections_share_a_flush(
    make_coordinator: MakeCoordinator,
) -> None:
    broker = await make_coordinator(watches=False)
    partitions = await broker.create_topic("t", 64)
    ids = [f"g{number}" for number in range(64)]
    await asyncio.gather(*(broker.commit(each, {partitions[0]: 1}) for each in ids))
    before = broker.queries[FLUSH]
    for round_ in range(3):
        commits = (
            broker.commit(each, {partition: round_})
            for each, partition in zip(ids, partitions, strict=True)
        )
        assert set(await asyncio.gather(*commits)) == {Error.NONE}
    assert broker.queries[FLUSH] - before <= 9


@pytest.mark.usefixtures("patient_sessions")
async def test_nothing_is_answered_before_it_is_stored(broker: Coordinator, psql: Psql) -> None:
    (p0,) = await broker.create_topic("t", 1)
    joined = await broker.join("g")
    psql.hold_lease("g")
    synced = broker.submit(broker.sync("g", joined, {"member": b"all"}))
    await asyncio.sleep(0.1)
    later = [
        broker.submit(broker.heartbeat("g", joined)),
        broker.submit(broker.commit("g", {p0: 1}, joined)),
        broker.submit(broker.groups.describe_classic("g")),
        broker.submit(broker.groups.list_groups()),
    ]
    await asyncio.sleep(0.2)
    assert not any(task.done() for task in [synced, *later])
    psql.let_go()
    assert (await synced).assignment == b"all"
    beat, committed, described, listed = await asyncio.gather(*later)
    assert (beat, committed) == (Error.NONE, Error.NONE)
    assert described.state == "Stable"
    assert [each.state for each in listed] == ["Stable"]


async def test_a_group_that_cannot_be_stored_is_dropped_and_read_again(
    broker: Coordinator, psql: Psql
) -> None:
    joined = await broker.form("g")
    psql.hold_lease("g")
    left = broker.submit(broker.leave("g", "member"))
    await asyncio.sleep(0.1)
    beat = broker.submit(broker.heartbeat("g", joined))
    # Locks are waited for for a second.
    assert await left is Error.COORDINATOR_NOT_AVAILABLE
    assert await beat is Error.COORDINATOR_NOT_AVAILABLE
    psql.let_go()
    assert await broker.heartbeat("g", joined) is Error.NONE  # it has not left after all


@pytest.mark.usefixtures("patient_sessions")
async def test_a_group_is_deleted_between_two_commits(broker: Coordinator, psql: Psql) -> None:
    """Whatever waits for the next flush together, what came first is done first."""
    p0, p1 = await broker.create_topic("t", 2)
    assert await broker.commit("g", {p0: 1}) is Error.NONE
    psql.hold_lease("g")
    asked = []
    for work in (
        broker.commit("g", {p0: 2}),
        broker.commit("g", {p0: 3}),
        broker.groups.delete_groups(["g"]),
        broker.commit("g", {p1: 4}),
    ):
        asked.append(broker.submit(work))
        await asyncio.sleep(0.05)
    psql.let_go()
    assert await asyncio.gather(*asked) == [Error.NONE, Error.NONE, [Error.NONE], Error.NONE]
    assert await broker.offsets("g") == {p1: 4}
    assert [each.group_id for each in await overviews(broker)] == ["g"]


async def test_only_the_group_at_fault_fails(make_coordinator: MakeCoordinator, psql: Psql) -> None:
    broker = await make_coordinator(watches=False)
    (p0,) = await broker.create_topic("t", 1)
    psql.rows("ALTER TABLE committed_offset ADD CHECK (committed_offset <> 666)")
    same = groups_of_shard(3, 3)
    ids = [*same, *groups_of_shard(4, 3)]
    await asyncio.gather(*(broker.commit(each, {p0: 1}) for each in ids))
    commits = [broker.commit(each, {p0: 666 if each == same[1] else 5}) for each in ids]
    answers = dict(zip(ids, await asyncio.gather(*commits), strict=True))
    assert answers.pop(same[1]) is Error.UNKNOWN_SERVER_ERROR
    assert set(answers.values()) == {Error.NONE}
    assert await broker.offsets(same[1]) == {p0: 1}
    assert await broker.offsets(same[2]) == {p0: 5}


async def test_a_shard_that_another_has_taken_fails_alone(
    make_coordinator: MakeCoordinator, psql: Psql
) -> None:
    """The guard: whatever this broker believes, its writes do not get in any more."""
    broker = await make_coordinator(heartbeats=False, watches=False)
    (p0,) = await broker.create_topic("t", 1)
    (lost,), (kept,) = groups_of_shard(3, 1), groups_of_shard(4, 1)
    await asyncio.gather(*(broker.commit(each, {p0: 1}) for each in (lost, kept)))
    psql.rows("UPDATE coordinator_lease SET generation = generation + 1 WHERE shard = 3")
    commits = (broker.commit(lost, {p0: 5}), broker.commit(kept, {p0: 5}))
    assert await asyncio.gather(*commits) == [Error.NOT_COORDINATOR, Error.NONE]
    assert broker.leases.held(3) is None
    assert await broker.offsets(kept) == {p0: 5}
    assert await broker.offsets(lost) == {p0: 1}  # taken again: the row says it is this broker's


async def test_members_of_a_dropped_group_are_watched_all_the_same(
    broker: Coordinator, psql: Psql
) -> None:
    """Nobody asks for it any more; still its members' sessions end."""
    joined = await broker.form("g", session_timeout_ms=3_000)
    psql.hold_lease("g")
    assert await broker.leave("g", "member") is Error.COORDINATOR_NOT_AVAILABLE
    psql.let_go()
    await until(lambda: psql.rows("SELECT state FROM consumer_group") == [("Empty",)])
    assert psql.rows("SELECT * FROM group_member") == []
    assert await broker.heartbeat("g", joined) is Error.UNKNOWN_MEMBER_ID


async def test_a_member_that_vanishes_is_removed_when_its_session_ends(
    broker: Coordinator, psql: Psql
) -> None:
    joined = await broker.form("g", session_timeout_ms=2_000)
    await broker.create_topic("t", 1)
    for _ in range(12):  # heartbeats keep it
        assert await broker.heartbeat("g", joined) is Error.NONE
        await asyncio.sleep(0.2)
    await until(lambda: psql.rows("SELECT state FROM consumer_group") == [("Empty",)])
    assert await broker.heartbeat("g", joined) is Error.UNKNOWN_MEMBER_ID


async def test_what_came_while_the_process_stood_still_counts(broker: Coordinator) -> None:
    """The timer is late, and so is the heartbeat that lay in the socket: it is read first."""
    joined = await broker.form("g", session_timeout_ms=2_000)
    time.sleep(3)  # nothing of this process goes on, as if it were stopped
    for _ in range(5):
        await asyncio.sleep(0)  # timers fire
    assert await broker.heartbeat("g", joined) is Error.NONE


async def test_a_join_whose_client_has_gone_holds_nobody_up(broker: Coordinator) -> None:
    first = await broker.form("g", new_member_id="first")
    joins = broker.submit(broker.join("g", new_member_id="second", session_timeout_ms=3_000))
    await until(lambda: broker.rebalances("g"))
    joins.cancel()
    again = await broker.join("g", "first")
    assert {each.member_id for each in again.members} == {"first", "second"}
    assert (await broker.sync("g", again, {"first": b"1"})).error is Error.NONE
    await until(lambda: broker.rebalances("g"))  # its session has ended
    again = await broker.join("g", "first")
    assert [each.member_id for each in again.members] == ["first"]
    assert first.member_id == "first"


async def test_an_unfinished_rebalance_ends_by_itself(broker: Coordinator) -> None:
    """Whoever does not come is left out, and whoever waits is answered."""
    await broker.form("g", new_member_id="first", rebalance_timeout_ms=400)
    joined = await broker.join("g", new_member_id="second", rebalance_timeout_ms=400)
    assert joined.error is Error.NONE
    assert [each.member_id for each in joined.members] == ["second"]


async def test_an_assignment_of_many_megabytes(broker: Coordinator, psql: Psql) -> None:
    joined = await broker.join("g")
    assignment = b"x" * 12_000_000
    synced = await broker.sync("g", joined, {"member": assignment})
    assert synced.assignment == assignment
    stored = psql.rows("SELECT length(assignment) FROM group_member")
    assert stored == [(12_000_000,)]


async def test_idle_groups_do_not_fill_the_memory(
    make_coordinator: MakeCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaded_groups, "IDLE_KEPT", 10)
    broker = await make_coordinator()
    (p0,) = await broker.create_topic("t", 1)
    await broker.form("busy")
    for number in range(50):
        assert await broker.commit(f"g{number}", {p0: number}) is Error.NONE
        assert await broker.offsets(f"unknown{number}") == {}
    loaded = broker.groups._loaded.snapshot()
    assert len(loaded) <= 12
    assert "busy" in {each.group_id for each in loaded}
    assert await broker.commit("g0", {p0: 100}) is Error.NONE
    assert await broker.offsets("g0") == {p0: 100}


async def test_a_bug_in_a_group_does_not_go_on_with_half_an_event(
    broker: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined = await broker.form("g")
    (loaded,) = broker.groups._loaded.snapshot()

    def half(*_: object) -> None:
        assert loaded.group is not None
        loaded.group._rebalance.generation_id = 99  # type: ignore[union-attr]
        raise AssertionError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(type(loaded.group), "heartbeat", half)
        with pytest.raises(AssertionError, match="a bug"):
            await broker.heartbeat("g", joined)
    assert await broker.heartbeat("g", joined) is Error.NONE


# --- expiry ---


async def test_old_offsets_go_and_then_their_group(broker: Coordinator, psql: Psql) -> None:
    day = 24 * 3600 * 1000
    p0, p1 = await broker.create_topic("t", 2)
    (doomed,) = await broker.create_topic("doomed", 1)
    await broker.commit("old", {p0: 1}, timestamp=1 * day)
    await broker.commit("mixed", {p0: 1}, timestamp=1 * day)
    await broker.commit("mixed", {p1: 1}, timestamp=5 * day)
    await broker.commit("gone", {doomed: 1}, timestamp=8 * day)
    joined = await broker.form("busy", protocols=[("range", subscription("t"))])
    await broker.commit("busy", {p0: 1}, joined, timestamp=1 * day)
    await broker.topics.delete(["doomed"])
    await broker.groups.expire_offsets(9 * day)
    assert await broker.offsets("mixed") == {p1: 1}
    assert await broker.offsets("busy") == {p0: 1}
    assert [each.group_id for each in await overviews(broker)] == ["busy", "mixed"]
    assert psql.rows("SELECT count(*) FROM committed_offset") == [(2,)]
    assert broker.groups.offsets_expired == 3
    assert await broker.commit("old", {p0: 2}, timestamp=9 * day) is Error.NONE
    assert [each.group_id for each in await overviews(broker)] == ["busy", "mixed", "old"]


def subscription(*topics: str) -> bytes:
    """A subscription as consumers write it, version 0."""
    names = b"".join(len(each).to_bytes(2, "big") + each.encode() for each in topics)
    return b"\0\0" + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff"


async def test_a_group_that_is_about_to_have_members_is_not_forgotten(
    make_coordinator: MakeCoordinator,
) -> None:
    broker = await make_coordinator({"group.initial.rebalance.delay.ms": "1500"})
    joined = await broker.form("g", new_member_id="first")
    await broker.leave("g", joined.member_id)
    joins = broker.submit(broker.join("g", new_member_id="second"))
    await until(lambda: broker.rebalances("g"))
    await broker.groups.expire_offsets(10**15)
    assert (await joins).error is Error.NONE
    assert (await broker.sync("g", await joins, {"second": b"all"})).error is Error.NONE


async def test_whoever_asks_for_an_unknown_group_just_as_it_was_looked_up(
    broker: Coordinator,
) -> None:
    """Somebody asks in every turn of the loop, so in the one in which the look-up has ended but
    nobody has been told: it may not take a read that is over for one that is under way."""
    for number in range(40):

        def ask(group: str = f"nobody-{number}") -> asyncio.Task[Error]:
            return asyncio.create_task(broker.groups.heartbeat(group, "member", None, 1))

        asking = [ask()]
        while not asking[0].done():
            asking.append(ask())
            await asyncio.sleep(0)
        assert set(await asyncio.gather(*asking)) == {Error.UNKNOWN_MEMBER_ID}


# --- metrics ---


async def test_groups_are_counted_under_kafkas_names(broker: Coordinator) -> None:
    (p0,) = await broker.create_topic("t", 1)
    metrics = Metrics()
    watch_groups(metrics, broker.groups, broker.leases)
    await broker.form("classic")
    await broker.consume("new", "m", subscribed_topic_names=("t",))
    await broker.commit("simple", {p0: 1})

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(name, labels)

    server = "kafka_server_group_coordinator_metrics"
    assert value(f"{server}_group_count", protocol="classic") == 2
    assert value(f"{server}_group_count", protocol="consumer") == 1
    assert value(f"{server}_consumer_group_count", state="stable") == 1
    assert value(f"{server}_consumer_group_count", state="assigning") == 0
    assert value("kafka_coordinator_group_groupmetadatamanager_numgroups") == 2
    assert value("kafka_coordinator_group_groupmetadatamanager_numgroupsstable") == 1
    assert value("kafka_coordinator_group_groupmetadatamanager_numgroupsempty") == 1
    assert value(f"{server}_group_completed_rebalance_count") == 1
    assert value(f"{server}_consumer_group_rebalance_count") == 1
    assert value(f"{server}_offset_commit_count") == 1
    assert value(f"{server}_offset_expiration_count") == 0
    shards = {shard_of(each) for each in ("classic", "new", "simple")}
    assert value("penstock_coordinator_leases") == len(shards)
