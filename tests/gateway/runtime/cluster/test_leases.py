"""Leases of shards: who has one, for how long by whose clock, and who comes next."""

import asyncio
from uuid import uuid4

import psycopg
import pytest

from core.leadership import choose_leader
from core.ports.leases import Lease
from core.ports.log import StoreUnavailable
from core.shard import SHARDS, shard_of_partition
from tests.gateway.runtime.coordinators import MakeCoordinator, Psql, until

pytestmark = pytest.mark.timeout(120)


async def test_a_free_lease_is_taken_and_then_it_is_nobody_elses(
    make_coordinator: MakeCoordinator,
) -> None:
    one, other = await make_coordinator(), await make_coordinator()
    lease = await one.leases.take(7)
    assert lease is not None
    assert one.leases.held(7) == lease
    assert one.leases.is_valid(lease)
    assert await other.leases.take(7) is None
    assert other.leases.held(7) is None
    for broker in (one, other):
        assert await broker.leases.find(7) == one.cluster.this


async def test_a_free_shard_is_the_brokers_that_the_hash_gives_it(
    make_coordinator: MakeCoordinator,
) -> None:
    one, other = await make_coordinator(), await make_coordinator()
    live = {each.cluster.broker_id: each.cluster.this for each in (one, other)}
    for shard in range(SHARDS):
        chosen = choose_leader(shard, live)
        assert chosen is not None
        for broker in (one, other):
            assert await broker.leases.find(shard) == live[chosen]


async def test_nobody_is_sent_to_a_broker_that_has_just_gone(
    make_coordinator: MakeCoordinator,
) -> None:
    one = await make_coordinator(heartbeats=False)
    other = await make_coordinator(heartbeats=False)
    await one.cluster.heartbeat()
    await other.cluster.leave()
    assert len(one.cluster.live) == 2
    for shard in range(SHARDS):
        assert await one.leases.find(shard) == one.cluster.this


async def test_who_asks_at_once_shares_one_question(make_coordinator: MakeCoordinator) -> None:
    broker = await make_coordinator(watches=False)
    leases = await asyncio.gather(*(broker.leases.take(1) for _ in range(100)))
    assert len(set(leases)) == 1
    assert leases[0] is not None
    assert broker.queries["acquire_lease"] == 1


async def test_one_who_gives_up_does_not_take_it_from_the_others(
    make_coordinator: MakeCoordinator,
) -> None:
    broker = await make_coordinator(watches=False)
    first = asyncio.create_task(broker.leases.take(1))
    second = asyncio.create_task(broker.leases.take(1))
    await asyncio.sleep(0)
    first.cancel()
    assert await second is not None


async def test_each_time_it_is_taken_the_generation_rises(
    make_coordinator: MakeCoordinator,
) -> None:
    broker = await make_coordinator(watches=False)
    first = await broker.leases.take(1)
    assert first is not None
    broker.leases.give_up(first)
    assert not broker.leases.is_valid(first)
    second = await broker.leases.take(1)
    assert second is not None
    assert second.generation > first.generation
    broker.leases.give_up(first)  # that one has gone already
    assert broker.leases.is_valid(second)


async def test_heartbeats_under_way_take_nothing_away(make_coordinator: MakeCoordinator) -> None:
    broker = await make_coordinator(watches=False)
    for shard in range(SHARDS):
        beat = asyncio.create_task(broker.cluster.heartbeat())
        lease = await broker.leases.take(shard)
        await beat
        assert lease is not None
        assert broker.leases.is_valid(lease)
    await broker.cluster.heartbeat()
    assert len(broker.leases.shards) == SHARDS


async def test_a_silent_holder_stops_believing_before_others_begin(
    make_coordinator: MakeCoordinator,
) -> None:
    one = await make_coordinator(session_timeout_s=3.0)
    other = await make_coordinator(watches=False)
    lost: list[Lease] = []
    lease = await one.leases.take(7)
    assert lease is not None
    one.leases.on_lost(lost.append)
    await one.stop_heartbeats()
    taken: Lease | None = None
    async with asyncio.timeout(60):
        while taken is None:
            taken = await other.leases.take(7)
            assert taken is None or not one.leases.is_valid(lease)
            await asyncio.sleep(0.01)
    assert taken.generation > lease.generation
    await until(lambda: lost == [lease])  # also those who wait are told
    assert await one.leases.take(7) is None  # it does not even ask

    await one.cluster.heartbeat()
    assert one.leases.is_live
    assert one.leases.held(7) is None
    assert await one.leases.take(7) is None
    assert await one.leases.find(7) == other.cluster.this


async def test_after_a_lapse_nobody_has_noticed_leases_are_taken_anew(
    make_coordinator: MakeCoordinator,
) -> None:
    """What was on its way to the database before may not come in after groups were read again."""
    broker = await make_coordinator(session_timeout_s=3.0)
    before = await broker.leases.take(7)
    assert before is not None
    await broker.stop_heartbeats()
    await until(lambda: not broker.leases.is_valid(before))
    broker.start_heartbeats()
    await until(lambda: broker.leases.held(7) is not None)  # unasked
    after = broker.leases.held(7)
    assert after is not None
    assert after.generation > before.generation


async def test_a_lease_that_the_database_gave_away_is_noticed(
    make_coordinator: MakeCoordinator, psql: Psql
) -> None:
    """A clock that stood still, a session ended from outside: the next heartbeat tells."""
    one = await make_coordinator(heartbeats=False, watches=False)
    other = await make_coordinator(watches=False)
    lease = await one.leases.take(7)
    assert lease is not None
    psql.rows(
        "UPDATE broker SET heartbeat_at = heartbeat_at - interval '1 hour' WHERE broker_id = %s",
        one.cluster.broker_id,
    )
    assert await other.leases.take(7) is not None
    await one.cluster.heartbeat()
    assert not one.leases.is_valid(lease)


async def test_who_has_left_holds_nothing(make_coordinator: MakeCoordinator) -> None:
    one, other = await make_coordinator(), await make_coordinator()
    lease = await one.leases.take(7)
    assert lease is not None
    await one.cluster.leave()
    assert not one.leases.is_valid(lease)
    assert await other.leases.take(7) is not None
    await one.cluster.heartbeat()
    assert not one.leases.is_live


async def test_shards_of_a_broker_that_has_gone_go_on_elsewhere(
    make_coordinator: MakeCoordinator,
) -> None:
    one = await make_coordinator(session_timeout_s=3.0)
    others = [await make_coordinator(), await make_coordinator()]
    for shard in range(20):
        assert await one.leases.take(shard) is not None
    await one.stop_heartbeats()
    await until(lambda: sum(len(each.leases.shards) for each in others) == 20)
    held = [set(each.leases.shards) for each in others]
    assert held[0] | held[1] == set(range(20))
    assert held[0]
    assert held[1]


async def test_who_stops_leaves_at_once(make_coordinator: MakeCoordinator) -> None:
    one, other = await make_coordinator(), await make_coordinator()
    assert await one.leases.take(7) is not None
    await one.leases.release()
    assert not one.leases.is_live
    assert await other.leases.take(7) is not None
    assert await one.leases.take(8) is None


async def test_a_broker_alone_does_not_look_for_free_shards_again_and_again(
    make_coordinator: MakeCoordinator,
) -> None:
    broker = await make_coordinator()
    beats = broker.queries["heartbeat"]
    await until(lambda: broker.queries["heartbeat"] > beats + 5)
    assert broker.queries["free_leases"] <= 1


async def test_a_restarted_broker_takes_what_it_had(
    make_coordinator: MakeCoordinator, database_url: str
) -> None:
    with psycopg.connect(database_url, autocommit=True) as psql:
        psql.execute("INSERT INTO coordinator_lease VALUES (5, 1, %s, 8)", [uuid4()])
    broker = await make_coordinator()
    await until(lambda: broker.leases.held(5) is not None)
    assert broker.leases.held(5) == Lease(5, 9)


PARTITIONS = range(10_000, 10_000 + SHARDS)


async def test_partitions_are_for_brokers_that_can_dispatch(
    make_coordinator: MakeCoordinator,
) -> None:
    groups_only = await make_coordinator()
    fit = [await make_coordinator(dispatches=True) for _ in range(2)]
    await groups_only.cluster.heartbeat()
    chosen = set()
    for partition in PARTITIONS:
        shard = shard_of_partition(partition)
        assert await groups_only.leases.take(shard) is None
        (found,) = {(await each.leases.find(shard)).broker_id for each in (groups_only, *fit)}
        chosen.add(found)
    assert chosen == {each.cluster.broker_id for each in fit}
    # Groups are for all of them.
    assert await groups_only.leases.take(partition % SHARDS) is not None
    for each in fit:
        assert await each.leases.find(partition % SHARDS) == groups_only.cluster.this


async def test_while_no_broker_can_dispatch_one_that_cannot_has_partitions(
    make_coordinator: MakeCoordinator,
) -> None:
    groups_only = await make_coordinator()
    shards = [shard_of_partition(each) for each in PARTITIONS]
    for shard in (*shards, 7):
        assert await groups_only.leases.take(shard) is not None
    lost: list[Lease] = []
    groups_only.leases.on_lost(lost.append)
    assert groups_only.leases.shards == (7,)
    fit = await make_coordinator(dispatches=True)
    await until(lambda: all(map(fit.leases.held, shards)))  # unasked
    assert {each.shard for each in lost} == set(shards)
    assert groups_only.leases.shards == (7,)
    for broker in (groups_only, fit):
        assert await broker.leases.find(shards[0]) == fit.cluster.this
    await fit.leases.release()
    await fit.cluster.leave()
    await until(lambda: all(map(groups_only.leases.held, shards)))


async def test_what_was_not_freed_in_time_is_freed_later(
    make_coordinator: MakeCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups_only = await make_coordinator(watches=False, heartbeats=False)
    shard = shard_of_partition(0)
    assert await groups_only.leases.take(shard) is not None
    fit = await make_coordinator(dispatches=True)
    await groups_only.cluster.heartbeat()
    store = groups_only.leases._store

    async def away(*_: object) -> None:
        raise StoreUnavailable("gone")

    with monkeypatch.context() as patched:
        patched.setattr(store, "release", away)
        with pytest.raises(StoreUnavailable):
            await groups_only.leases.claim()
    assert groups_only.leases.held(shard) is None
    assert await fit.leases.take(shard) is None
    await groups_only.cluster.heartbeat()
    await groups_only.leases.claim()
    assert await fit.leases.take(shard) is not None
