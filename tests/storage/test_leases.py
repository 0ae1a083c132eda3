"""Leases on real PostgreSQL: who gets them, and every race between acquiring, renewing, writing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from core.group.records import GroupEffects, GroupRow
from core.ports.groups import GuardedEffects
from core.ports.leases import Lease
from core.ports.log import CommitUnknown, RowLocked, StoreUnavailable, VersionMismatch
from core.ports.topics import BrokerRegistration
from core.shard import shard_of
from core.types import Endpoint
from storage import brokers as broker_statements
from storage import leases as lease_statements
from storage.brokers import ClusterStore
from storage.connection.pool import Database
from storage.flush.groups import HOLD_LEASES, GroupFlush
from storage.groups.store import GroupStore
from storage.leases import LeaseStore

G = "g"
SHARD = shard_of(G)


@dataclass
class Coordinator:
    """A broker's stores, on connections of its own."""

    database: Database
    registration: BrokerRegistration
    broker_id: int = -1
    leases: LeaseStore = field(init=False)
    cluster: ClusterStore = field(init=False)
    groups: GroupStore = field(init=False)
    flush: GroupFlush = field(init=False)

    def __post_init__(self) -> None:
        self.leases = LeaseStore(self.database)
        self.cluster = ClusterStore(self.database)
        self.groups = GroupStore(self.database)
        self.flush = self.groups.open_flush()

    @property
    def incarnation(self) -> UUID:
        return self.registration.incarnation

    async def acquire(self, shard: int = SHARD) -> Lease | int:
        return await self.leases.acquire(shard, self.broker_id, self.incarnation)

    async def heartbeat(self) -> tuple[Lease, ...]:
        return (await self.cluster.heartbeat(self.broker_id, self.incarnation)).leases

    async def leave(self) -> None:
        await self.cluster.leave(self.broker_id, self.incarnation)

    async def write(self, generation: int, state: str) -> None:
        """Writes the group's row, as decided under a generation of its lease."""
        effects = GroupEffects(G, GroupRow(G, "classic", state=state))
        await self.flush.commit([GuardedEffects(Lease(SHARD, generation), groups=(effects,))])

    async def state(self) -> str | None:
        """What the group's row says."""
        stored = await self.groups.load_group(G)
        return stored.group.state if stored else None


@dataclass
class Brokers:
    """Brokers over one database, and a person with psql beside them."""

    url: str
    psql: psycopg.Connection[Any]
    all: list[Coordinator] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)

    async def start(self, port: int, session_timeout_s: float = 30.0) -> Coordinator:
        """Registers a process at a port, as another incarnation where there was one."""
        registration = BrokerRegistration(
            None, uuid4(), (Endpoint("kafka", "h", port),), None, "test", session_timeout_s
        )
        broker = Coordinator(Database(self.url), registration)
        self.all.append(broker)
        broker.broker_id = await broker.cluster.register(registration)
        return broker

    def begin(self) -> Transaction:
        """A transaction of nobody's in particular."""
        self.transactions.append(Transaction(self.url))
        return self.transactions[-1]

    def end_session(self, broker: Coordinator) -> None:
        """As if it had not been heard of for a while."""
        self.psql.execute(
            "UPDATE broker SET heartbeat_at = clock_timestamp() - interval '1 hour'"
            " WHERE broker_id = %s",
            [broker.broker_id],
        )

    async def when_waiting(self, work: Awaitable[Any]) -> asyncio.Future[Any]:
        """Starts some work, and returns when one session more waits for a lock."""
        waiting = asyncio.ensure_future(work)
        while not self.psql.execute(
            "SELECT FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event_type = 'Lock'"
        ).fetchall():
            assert not waiting.done(), "it was to wait"
            await asyncio.sleep(0.01)
        return waiting

    async def when_quiet(self) -> None:
        """Returns when no other session is at work."""
        while self.psql.execute(
            "SELECT FROM pg_stat_activity WHERE datname = current_database()"
            " AND backend_type = 'client backend' AND state = 'active' AND pid <> pg_backend_pid()"
        ).fetchall():
            await asyncio.sleep(0.01)


class Transaction:
    """A transaction that is open for as long as a test wants, with statements as they are sent."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url)
        self._cursor = psycopg.RawCursor(self._connection)

    def run(self, statement: str, *parameters: Any) -> None:
        self._cursor.execute(statement.encode(), parameters)

    def acquire(self, shard: int, broker: Coordinator) -> None:
        """All that `LeaseStore.acquire` sends, without the end."""
        own = (broker.broker_id, broker.incarnation)
        self.run(lease_statements.FIRST_LEASE, shard, *own)
        self.run(lease_statements.LOCK_LEASE, shard)
        self.run(lease_statements.LOCK_HOLDER, shard)
        self.run(lease_statements.ACQUIRE, shard, *own)

    def commit(self) -> None:
        self._connection.commit()
        self._connection.close()

    def rollback(self) -> None:
        self._connection.close()


@pytest.fixture
async def brokers(any_url: str) -> AsyncIterator[Brokers]:
    with psycopg.connect(any_url, autocommit=True) as psql:
        brokers = Brokers(any_url, psql)
        yield brokers
        for transaction in brokers.transactions:
            transaction.rollback()
        for each in brokers.all:
            await each.database.close()


async def test_a_free_shard_is_taken_and_a_held_one_names_its_holder(brokers: Brokers) -> None:
    one, two = await brokers.start(1), await brokers.start(2)
    assert await one.leases.free() == []
    assert await one.acquire(7) == Lease(7, 1)
    assert await two.acquire(7) == one.broker_id
    assert await two.acquire(8) == Lease(8, 1)
    assert await two.leases.holders([7, 8, 9]) == {7: one.broker_id, 8: two.broker_id}
    assert await one.heartbeat() == (Lease(7, 1),)
    assert await two.heartbeat() == (Lease(8, 1),)
    assert await one.leases.free() == []


async def test_a_generation_rises_whenever_it_is_acquired(brokers: Brokers) -> None:
    one, two = await brokers.start(1), await brokers.start(2)
    assert [await one.acquire() for _ in range(3)] == [Lease(SHARD, n) for n in (1, 2, 3)]
    assert await two.acquire() == one.broker_id
    await one.leave()
    assert await two.acquire() == Lease(SHARD, 4)
    # What was decided before it was acquired again is not written after it was read.
    await two.write(4, "Stable")
    assert await two.acquire() == Lease(SHARD, 5)
    with pytest.raises(VersionMismatch):
        await two.write(4, "Dead")
    await two.write(5, "Empty")
    assert await two.state() == "Empty"


async def test_of_brokers_that_ask_at_once_one_gets_it(brokers: Brokers) -> None:
    asking = [await brokers.start(port) for port in range(1, 5)]
    for shard in range(15):
        answers = await asyncio.gather(*(each.acquire(shard) for each in asking))
        assert answers.count(Lease(shard, 1)) == 1
        winner = asking[answers.index(Lease(shard, 1))]
        assert answers.count(winner.broker_id) == len(asking) - 1


async def test_who_comes_second_waits_and_sees_who_was_first(brokers: Brokers) -> None:
    one, two, three = [await brokers.start(port) for port in (1, 2, 3)]
    first = brokers.begin()
    first.acquire(SHARD, one)
    acquiring = await brokers.when_waiting(two.acquire())
    first.commit()
    assert await acquiring == one.broker_id
    brokers.end_session(one)
    second = brokers.begin()
    second.acquire(SHARD, two)
    acquiring = await brokers.when_waiting(three.acquire())
    second.commit()
    assert await acquiring == two.broker_id
    assert await two.heartbeat() == (Lease(SHARD, 2),)


async def test_a_dead_holders_shards_are_each_taken_once(brokers: Brokers) -> None:
    dead, *others = [await brokers.start(port) for port in range(1, 4)]
    shards = range(10)
    for shard in shards:
        await dead.acquire(shard)
    brokers.end_session(dead)
    assert await others[0].leases.free() == list(shards)
    answers = await asyncio.gather(*(each.acquire(n) for n in shards for each in others))
    assert sorted(a.shard for a in answers if isinstance(a, Lease)) == list(shards)
    assert {a.generation for a in answers if isinstance(a, Lease)} == {2}
    assert await others[0].leases.free() == []


async def test_who_would_take_a_lease_waits_for_a_renewal_and_sees_it(brokers: Brokers) -> None:
    one, two = await brokers.start(1), await brokers.start(2)
    await one.acquire()
    brokers.end_session(one)
    renewal = brokers.begin()
    renewal.run(broker_statements.RENEW, one.broker_id, one.incarnation)
    acquiring = await brokers.when_waiting(two.acquire())
    renewal.commit()
    assert await acquiring == one.broker_id
    assert await one.heartbeat() == (Lease(SHARD, 1),)


async def test_a_renewal_waits_for_who_takes_the_lease_and_sees_it_gone(brokers: Brokers) -> None:
    one, two = await brokers.start(1), await brokers.start(2)
    await one.acquire()
    await one.acquire(SHARD ^ 1)
    brokers.end_session(one)
    taking = brokers.begin()
    taking.acquire(SHARD, two)
    renewing = await brokers.when_waiting(one.heartbeat())
    taking.commit()
    assert await renewing == (Lease(SHARD ^ 1, 1),)
    assert await two.heartbeat() == (Lease(SHARD, 2),)
    assert await one.acquire() == two.broker_id


async def test_a_renewal_that_was_late_but_not_too_late_keeps_its_leases(brokers: Brokers) -> None:
    one, two = await brokers.start(1), await brokers.start(2)
    await one.acquire()
    brokers.end_session(one)
    assert await two.leases.holders([SHARD]) == {}
    assert await two.leases.free() == [SHARD]
    # Nobody took it: it is still its own, and what it knows is still all there is.
    assert await one.heartbeat() == (Lease(SHARD, 1),)
    await one.write(1, "Stable")
    assert await two.acquire() == one.broker_id


async def test_who_comes_back_too_late_has_lost_it(brokers: Brokers) -> None:
    one, two = await brokers.start(1), await brokers.start(2)
    await one.acquire()
    brokers.end_session(one)
    assert await two.acquire() == Lease(SHARD, 2)
    assert await one.heartbeat() == ()
    with pytest.raises(VersionMismatch):
        await one.write(1, "Stable")
    assert await one.acquire() == two.broker_id
    assert await two.state() is None


async def test_who_has_no_session_gets_no_lease(brokers: Brokers) -> None:
    one, two = await brokers.start(1), await brokers.start(2)
    await two.acquire(1)
    brokers.end_session(one)
    with pytest.raises(StoreUnavailable, match="own session has run out"):
        await one.acquire(0)
    assert await one.acquire(1) == two.broker_id
    brokers.end_session(two)
    for each in (one, two):
        with pytest.raises(StoreUnavailable, match="own session has run out"):
            await each.acquire(1)
    await one.heartbeat()
    assert await one.acquire(0) == Lease(0, 1)
    assert await one.acquire(1) == Lease(1, 2)


@pytest.mark.parametrize("takes_over", [True, False], ids=["committed", "rolled back"])
async def test_a_flush_waits_for_who_takes_the_lease(brokers: Brokers, takes_over: bool) -> None:
    one, two = await brokers.start(1), await brokers.start(2)
    await one.acquire()
    brokers.end_session(one)
    taking = brokers.begin()
    taking.acquire(SHARD, two)
    writing = await brokers.when_waiting(one.write(1, "Stable"))
    if takes_over:
        taking.commit()
        with pytest.raises(VersionMismatch):
            await writing
        assert await two.state() is None
    else:
        taking.rollback()
        await writing
        assert await two.state() == "Stable"


async def test_who_takes_a_lease_waits_for_a_flush_and_reads_it(brokers: Brokers) -> None:
    one, two = await brokers.start(1), await brokers.start(2)
    await one.acquire()
    brokers.end_session(one)
    writing = brokers.begin()
    writing.run(HOLD_LEASES, [SHARD], [1])
    writing.run(
        "INSERT INTO consumer_group VALUES ($1, 'g', $2, 'classic', '', NULL, NULL, 0, -1, 'Dead',"
        " 0, '{}', 0)",
        UUID("cd0aa985-6147-b6c5-b4ff-2b7dfee5da20"),
        SHARD,
    )
    acquiring = await brokers.when_waiting(two.acquire())
    writing.commit()
    assert await acquiring == Lease(SHARD, 2)
    assert await two.state() == "Dead"


async def test_flushes_of_one_lease_do_not_wait_for_each_other(brokers: Brokers) -> None:
    one = await brokers.start(1)
    await one.acquire()
    other = brokers.begin()
    other.run(HOLD_LEASES, [SHARD], [1])
    await one.write(1, "Stable")
    other.rollback()


async def test_who_leaves_is_succeeded_at_once(brokers: Brokers) -> None:
    one, two = await brokers.start(1), await brokers.start(2)
    await one.acquire()
    await one.leave()
    assert await two.leases.holders([SHARD]) == {}
    assert await two.leases.free() == [SHARD]
    assert await two.acquire() == Lease(SHARD, 2)


async def test_released_leases_are_free_at_once_and_keep_their_generation(brokers: Brokers) -> None:
    one, two = await brokers.start(1), await brokers.start(2)
    for shard in (3, 4):
        await one.acquire(shard)
    await two.acquire(5)
    await one.leases.release(one.broker_id, one.incarnation)
    assert await one.heartbeat() == ()
    assert await two.heartbeat() == (Lease(5, 1),)
    assert await two.leases.free() == [3, 4]
    assert await two.leases.holders(range(64)) == {5: two.broker_id}
    assert await two.acquire(3) == Lease(3, 2)
    assert await one.acquire(4) == Lease(4, 2)


async def test_in_another_history_a_holder_keeps_its_leases_and_takes_them_again(
    brokers: Brokers,
) -> None:
    """As long as it may act from memory, nobody else gets them."""
    one, two = await brokers.start(1), await brokers.start(2)
    await one.acquire()
    brokers.psql.execute(
        "CREATE OR REPLACE FUNCTION penstock.current_history(OUT system_identifier bigint,"
        " OUT timeline integer) LANGUAGE sql AS $$ SELECT 77::bigint, 9 $$"
    )
    await (await two.database.connect()).close()
    assert await two.acquire() == one.broker_id
    with pytest.raises(VersionMismatch):
        await one.write(1, "Stable")
    assert await one.acquire() == Lease(SHARD, 1_000_002)
    brokers.end_session(one)
    assert await two.acquire() == Lease(SHARD, 1_000_003)


async def test_another_incarnation_of_the_same_broker_starts_without_leases(
    brokers: Brokers,
) -> None:
    killed = await brokers.start(1)
    await killed.acquire()
    again = await brokers.start(1)
    assert again.broker_id == killed.broker_id
    assert await again.leases.free() == [SHARD]
    assert await again.heartbeat() == ()
    heartbeat = await killed.cluster.heartbeat(killed.broker_id, killed.incarnation)
    assert not heartbeat.is_registered
    assert heartbeat.leases == ()
    with pytest.raises(StoreUnavailable):
        await killed.acquire()
    assert await again.acquire() == Lease(SHARD, 2)
    with pytest.raises(VersionMismatch):
        await killed.write(1, "Stable")
    await again.write(2, "Stable")


async def test_a_lease_that_stays_locked_is_unavailable(brokers: Brokers) -> None:
    one, two = await brokers.start(1), await brokers.start(2)
    await one.acquire()
    brokers.end_session(one)
    stalled = brokers.begin()
    stalled.acquire(SHARD, two)
    with pytest.raises(StoreUnavailable):
        await two.acquire()
    with pytest.raises(StoreUnavailable):
        await one.heartbeat()
    with pytest.raises(RowLocked):
        await one.write(1, "Stable")
    stalled.rollback()
    assert await one.heartbeat() == (Lease(SHARD, 1),)
    await one.write(1, "Stable")
    assert await two.acquire() == one.broker_id


async def test_a_write_whose_outcome_is_unknown_is_settled_by_acquiring_again(
    brokers: Brokers,
) -> None:
    one = await brokers.start(1)
    await one.acquire()
    await one.write(1, "Stable")
    blocker = brokers.begin()
    blocker.run("SELECT FROM consumer_group FOR UPDATE")
    writing = await brokers.when_waiting(one.write(1, "Dead"))
    await one.flush.close()  # the connection is lost; its backend may not have noticed
    with pytest.raises(CommitUnknown):
        await writing
    blocker.rollback()
    acquired = await one.acquire()
    assert isinstance(acquired, Lease)
    seen = await one.state()
    with pytest.raises(VersionMismatch):
        await one.write(1, "Empty")
    await one.write(acquired.generation, "Stable" if seen == "Dead" else "Dead")
    assert await one.state() != seen


async def test_sessions_that_ended_while_idle_are_opened_anew(brokers: Brokers) -> None:
    one = await brokers.start(1)
    await one.acquire()
    await one.heartbeat()
    await one.write(1, "Stable")
    brokers.psql.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    assert await one.heartbeat() == (Lease(SHARD, 1),)
    assert await one.acquire() == Lease(SHARD, 2)
    await one.write(2, "Empty")
    assert await one.state() == "Empty"


async def test_a_call_that_is_cancelled_does_not_spoil_the_next(brokers: Brokers) -> None:
    one, two = await brokers.start(1), await brokers.start(2)
    await one.acquire()
    other = brokers.begin()
    other.acquire(SHARD, one)
    writing = await brokers.when_waiting(one.write(1, "Stable"))
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    other.rollback()
    # What it had begun goes on in the database, until it finds that nobody is there.
    await brokers.when_quiet()
    await one.write(1, "Empty")
    assert await two.state() == "Empty"
