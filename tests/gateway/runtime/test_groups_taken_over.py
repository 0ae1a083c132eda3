"""Groups that change their coordinator: nothing is lost or goes back, and nobody waits in vain."""

import asyncio

import pytest

from core.errors import Error
from core.group.classic.group import ClassicGroup
from core.group.records import StoredGroup
from core.shard import shard_of
from tests.gateway.runtime.coordinators import (
    Coordinator,
    MakeCoordinator,
    Psql,
    groups_of_shard,
    until,
)

pytestmark = pytest.mark.timeout(180)

SESSION_S = 6.0
"""Of the brokers that fall silent here."""


async def fall_silent(broker: Coordinator) -> None:
    """No more heartbeats, until its session has ended by its own clock."""
    await broker.stop_heartbeats()
    await until(lambda: not broker.leases.is_live)


async def take_over(broker: Coordinator, group_id: str) -> None:
    """Returns once the broker has the group's shard."""

    async def taken() -> bool:
        return await broker.leases.take(shard_of(group_id)) is not None

    await until(taken)


async def test_only_the_holder_answers_for_a_group(make_coordinator: MakeCoordinator) -> None:
    one, other = await make_coordinator(), await make_coordinator()
    (p0,) = await one.create_topic("t", 1)
    joined = await one.form("g")
    assert await other.heartbeat("g", joined) is Error.NOT_COORDINATOR
    assert (await other.join("g", "member")).error is Error.NOT_COORDINATOR
    assert (await other.sync("g", joined)).error is Error.NOT_COORDINATOR
    assert await other.leave("g", "member") is Error.NOT_COORDINATOR
    assert await other.commit("g", {p0: 1}, joined) is Error.NOT_COORDINATOR
    assert await other.offsets("g") is Error.NOT_COORDINATOR
    assert await other.groups.delete_groups(["g"]) == [Error.NOT_COORDINATOR]
    assert await other.groups.delete_offsets("g", [("t", p0)]) is Error.NOT_COORDINATOR
    assert (await other.consume("g", "m")).error is Error.NOT_COORDINATOR
    for described in (
        await other.groups.describe_classic("g"),
        await other.groups.describe_consumer("g"),
    ):
        assert described.error is Error.NOT_COORDINATOR
    assert await other.groups.list_groups() == []
    for broker in (one, other):
        assert await broker.groups.find_coordinator("g") == one.cluster.this


async def test_a_broker_that_stops_hands_its_groups_over(
    make_coordinator: MakeCoordinator,
) -> None:
    one, other = await make_coordinator(), await make_coordinator()
    (p0,) = await one.create_topic("t", 1)
    joined = await one.form("g")
    assert await one.commit("g", {p0: 4}, joined) is Error.NONE
    waiting_id, *_ = groups_of_shard(shard_of("g"), 1)
    await one.form(waiting_id, new_member_id="first")
    waits = one.submit(one.join(waiting_id, new_member_id="second"))
    await until(lambda: one.rebalances(waiting_id))
    await one.groups.stop()
    assert (await waits).error is Error.NOT_COORDINATOR
    assert await one.heartbeat("g", joined) is Error.NOT_COORDINATOR
    assert await other.heartbeat("g", joined) is Error.NONE
    assert await other.commit("g", {p0: 5}, joined) is Error.NONE
    assert await other.offsets("g") == {p0: 5}
    assert await other.groups.find_coordinator("g") == other.cluster.this


async def test_a_silent_coordinator_answers_nothing_and_its_groups_go_on(
    make_coordinator: MakeCoordinator,
) -> None:
    one = await make_coordinator(session_timeout_s=SESSION_S)
    other = await make_coordinator()
    (p0,) = await one.create_topic("t", 1)
    joined = await one.form("g", session_timeout_ms=60_000)
    assert await one.commit("g", {p0: 4}, joined) is Error.NONE
    waiting_id, *_ = groups_of_shard(shard_of("g"), 1)
    await one.form(waiting_id, new_member_id="first", rebalance_timeout_ms=300_000)
    waits = one.submit(one.join(waiting_id, new_member_id="second", rebalance_timeout_ms=300_000))
    await until(lambda: one.rebalances(waiting_id))

    await fall_silent(one)
    assert (await waits).error is Error.NOT_COORDINATOR  # not after five minutes
    before = one.queries.copy()
    assert await one.heartbeat("g", joined) is Error.NOT_COORDINATOR
    assert await one.commit("g", {p0: 99}, joined) is Error.NOT_COORDINATOR
    assert await one.offsets("g") is Error.NOT_COORDINATOR
    assert one.queries == before

    await take_over(other, "g")
    loads = other.queries["load_shard"]
    beats = [other.heartbeat("g", joined) for _ in range(50)]
    assert set(await asyncio.gather(*beats)) == {Error.NONE}
    assert other.queries["load_shard"] - loads <= 1
    assert await other.offsets("g") == {p0: 4}

    one.start_heartbeats()
    await until(lambda: one.leases.is_live)
    assert await one.heartbeat("g", joined) is Error.NOT_COORDINATOR
    assert await one.commit("g", {p0: 99}, joined) is Error.NOT_COORDINATOR
    assert await other.offsets("g") == {p0: 4}


@pytest.mark.usefixtures("patient_sessions")
async def test_what_was_decided_before_a_take_over_is_neither_answered_nor_stored(
    make_coordinator: MakeCoordinator, psql: Psql
) -> None:
    """A commit decided by an owner whose lease is being taken away while it is written."""
    one = await make_coordinator(session_timeout_s=SESSION_S)
    other = await make_coordinator()
    (p0,) = await one.create_topic("t", 1)
    joined = await one.form("g")
    assert await one.commit("g", {p0: 4}, joined) is Error.NONE
    await one.stop_heartbeats()
    psql.rows("BEGIN")
    psql.rows("UPDATE coordinator_lease SET generation = generation + 1")
    late = one.submit(one.commit("g", {p0: 99}, joined))
    await asyncio.sleep(0.1)
    assert not late.done()
    psql.rows("COMMIT")
    assert await late is Error.NOT_COORDINATOR
    await take_over(other, "g")
    assert await other.offsets("g") == {p0: 4}
    assert await other.heartbeat("g", joined) is Error.NONE


async def test_a_commit_of_unknown_outcome_cannot_come_in_later(
    make_coordinator: MakeCoordinator, psql: Psql, database_url: str
) -> None:
    broker = await make_coordinator()
    (p0,) = await broker.create_topic("t", 1)
    joined = await broker.form("g")
    before = broker.leases.held(shard_of("g"))
    assert before is not None
    watcher = Psql(database_url)
    psql.hold_lease("g")
    late = broker.submit(broker.commit("g", {p0: 99}, joined))
    waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    waiting += " AND datname = current_database()"
    await until(lambda: bool(watcher.rows(waiting)))
    watcher.rows(f"SELECT pg_terminate_backend(pid) FROM ({waiting}) AS w")
    assert await late is Error.COORDINATOR_NOT_AVAILABLE
    psql.let_go()
    assert await broker.heartbeat("g", joined) is Error.NONE
    after = broker.leases.held(shard_of("g"))
    assert after is not None
    assert after.generation > before.generation
    assert await broker.offsets("g") == {}
    watcher.connection.close()


async def test_a_consumer_group_goes_on_where_it_was(make_coordinator: MakeCoordinator) -> None:
    one, other = await make_coordinator(), await make_coordinator()
    await one.create_topic("t", 4)
    first = await one.consume("g", "a", subscribed_topic_names=("t",))
    assert first.assignment is not None
    (partitions,) = first.assignment.values()
    assert partitions == (0, 1, 2, 3)
    await one.groups.stop()
    steady = await other.consume("g", "a", first.member_epoch)
    assert steady.error is Error.NONE
    assert steady.member_epoch == first.member_epoch
    assert steady.assignment is None


async def test_members_nobody_hears_of_are_removed_by_the_next_coordinator(
    make_coordinator: MakeCoordinator, psql: Psql
) -> None:
    one, other = await make_coordinator(), await make_coordinator()
    ids = ("g", "h", "i")
    for group_id in ids:
        await one.form(group_id, session_timeout_ms=5_000)
    await one.groups.stop()
    await one.cluster.leave()
    await one.stop_heartbeats()
    await until(lambda: {shard_of(each) for each in ids} <= set(other.leases.shards))
    states = "SELECT DISTINCT state FROM consumer_group"
    await until(lambda: psql.rows(states) == [("Empty",)])


async def test_a_group_that_cannot_be_loaded_costs_no_other(
    make_coordinator: MakeCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = await make_coordinator(), await make_coordinator()
    good, bad = groups_of_shard(5, 2)
    joined = {each: await one.form(each) for each in (good, bad)}
    load = ClassicGroup.load

    def load_but_one(stored: StoredGroup, *arguments: object) -> object:
        assert stored.group.group_id != bad, "a bug"
        return load(stored, *arguments)

    monkeypatch.setattr(ClassicGroup, "load", load_but_one)
    await one.groups.stop()
    assert await other.heartbeat(good, joined[good]) is Error.NONE
    with pytest.raises(AssertionError, match="a bug"):
        await other.heartbeat(bad, joined[bad])
    assert await other.heartbeat(good, joined[good]) is Error.NONE


async def test_another_history_of_the_database_drops_everything(
    make_coordinator: MakeCoordinator,
) -> None:
    broker = await make_coordinator()
    await broker.form("g", new_member_id="first")
    waits = broker.submit(broker.join("g", new_member_id="second"))
    await until(lambda: broker.rebalances("g"))
    broker.groups.forget_everything()
    assert (await waits).error is Error.NOT_COORDINATOR
    assert broker.groups._loaded.snapshot() == []
    await until(lambda: broker.leases.is_live)
    again = await broker.join("g", "first")
    assert again.error is Error.NONE


async def test_commits_survive_one_take_over_after_the_other(
    make_coordinator: MakeCoordinator,
) -> None:
    """Two brokers fall silent by turns under load: what was acknowledged stays, and never goes
    back, whoever is asked."""
    brokers = [await make_coordinator(session_timeout_s=1.0) for _ in range(2)]
    partitions = await brokers[0].create_topic("t", 8)
    acknowledged = dict.fromkeys(range(8), 0)
    ends = asyncio.Event()

    async def commit(number: int) -> None:
        next_offset, at = 1, 0
        while not ends.is_set():
            error = await brokers[at].commit(f"g{number}", {partitions[number]: next_offset})
            if error is Error.NONE:
                acknowledged[number] = next_offset
                next_offset += 1
            else:
                at = 1 - at
            await asyncio.sleep(0.01)

    async def look(number: int) -> None:
        seen = 0
        while not ends.is_set():
            for broker in brokers:
                lower = acknowledged[number]
                found = await broker.offsets(f"g{number}")
                if isinstance(found, Error):
                    continue
                offset = found.get(partitions[number], 0)
                assert offset >= lower
                assert offset >= seen
                seen = offset
            await asyncio.sleep(0.05)

    work = [asyncio.create_task(each(number)) for number in range(8) for each in (commit, look)]
    try:
        for turn in range(4):
            before = dict(acknowledged)
            silent = brokers[turn % 2]
            await fall_silent(silent)
            await until(lambda: all(acknowledged[each] > before[each] for each in range(8)))  # noqa: B023
            silent.start_heartbeats()
            await until(lambda: silent.leases.is_live)  # noqa: B023
    finally:
        ends.set()
        await asyncio.gather(*work)
    assert all(task.exception() is None for task in work)
