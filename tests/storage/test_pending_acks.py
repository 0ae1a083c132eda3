"""Acknowledgements in transactions on real PostgreSQL: what guards them, and what ends bring."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from random import Random

import pytest

from core.ports.leases import Lease
from core.ports.log import RowLocked, StoreUnavailable, VersionMismatch
from core.ports.subscriptions import CursorWrite, GuardedWrites, NewSubscription, StoredAck
from core.ports.transactions import PendingAcks, TransactionJoin
from core.subscription.cursor import CursorEffects
from core.transaction.key import Participant
from core.transaction.values import (
    Marker,
    OpenTransaction,
    StoredTransaction,
    TransactionEffects,
    TransactionState,
)
from storage.subscriptions.store import SubscriptionStore
from storage.topics import TopicStore
from tests.keys import named
from tests.storage.conftest import Log
from tests.storage.test_transactions import World
from tests.storage.transacting import LEASES, Broker, offset, opened, pending, row_of

LEASE = Lease(7, 1)
NAMES = ("t", "u", "v", "w")


@pytest.fixture
async def world(log: Log, patient_sessions: None) -> AsyncIterator[World]:
    log.rows(LEASES)
    here, there = Broker(log.url), Broker(log.url)
    yield World(log, here, there)
    await here.close()
    await there.close()


async def subscriptions(world: World, count: int = 1) -> list[int]:
    """New ones, of one partition."""
    (partition_id,) = world.log.new_partitions()
    store = SubscriptionStore(world.log.database)
    made = [
        await store.create(LEASE, NewSubscription(partition_id, f"s-{n}", 0)) for n in range(count)
    ]
    return [each for each in made if each is not None]


def acks(
    stored: StoredTransaction,
    subscription_id: int,
    *ranges: tuple[int, int],
    up_to: int | None = None,
    lease: Lease = LEASE,
    opens: bool = False,
) -> PendingAcks:
    """Decided on the transaction as it is known."""
    metadata = stored.metadata
    of = (Participant.of_subscription(subscription_id),)
    put = opened(metadata) if opens else None
    join = TransactionJoin(metadata.key, metadata.version, put, participants=of)
    return PendingAcks(lease, join, opening(stored), subscription_id, ranges, up_to)


def opening(stored: StoredTransaction) -> OpenTransaction:
    return OpenTransaction(stored.metadata.producer_id, stored.metadata.version)


async def put(world: World, *wanted: PendingAcks) -> None:
    await world.here.store.put_pending_acks(wanted)


def rows(world: World) -> list[tuple[object, ...]]:
    """What is stored: subscription, producer, start, end, is_committed."""
    return world.rows(
        "SELECT subscription_id, producer_id, start_offset, end_offset, is_committed"
        " FROM pending_ack ORDER BY 1, 2, 3, 4"
    )


def joins(world: World) -> list[str]:
    """Ids of subscriptions in open transactions."""
    found = world.rows("SELECT name FROM transaction_participant WHERE kind = 1 ORDER BY 1")
    return [name for (name,) in found]


# Putting.


async def test_what_is_put_is_read_back(world: World) -> None:
    s, other = await subscriptions(world, 2)
    stored = await world.here.begin("t")
    await put(world, acks(stored, s, (3, 5), (9, 10), up_to=2), acks(stored, other, (0, 2**40)))
    store = SubscriptionStore(world.log.database)
    found = await store.read_pending([s, other, 10**9])
    t = opening(stored)
    single = [StoredAck(t, 3, 5, False, False), StoredAck(t, 9, 10, False, False)]
    assert sorted(found.pop(s), key=lambda each: each.start) == [
        StoredAck(t, -1, 2, True, False),
        *single,
    ]
    assert found == {other: [StoredAck(t, 0, 2**40, False, False)]}
    (partition_id,) = {p for (p,) in world.rows("SELECT partition_id FROM subscription")}
    loaded = {each.subscription_id: each.pending for each in await store.load(partition_id)}
    assert {each: len(pending) for each, pending in loaded.items()} == {s: 3, other: 1}
    assert {ack.transaction for pending in loaded.values() for ack in pending} == {t}
    assert joins(world) == sorted([str(s), str(other)])
    assert (await world.here.load("t")).participants == {
        Participant.of_subscription(s),
        Participant.of_subscription(other),
    }


async def test_the_same_again_grows_and_never_shrinks(world: World) -> None:
    (s,) = await subscriptions(world)
    stored = await world.here.begin("t")
    for ranges, up_to in (([(3, 5)], 2), ([(3, 4)], 1), ([(3, 9)], 4), ([(3, 9)], None)):
        await put(world, acks(stored, s, *ranges, up_to=up_to))
    assert rows(world) == [(s, 7, -1, 4, False), (s, 7, 3, 9, False)]
    # Also within one write, in any order.
    await put(world, acks(stored, s, (3, 20)), acks(stored, s, (3, 10)), acks(stored, s, up_to=7))
    assert rows(world) == [(s, 7, -1, 7, False), (s, 7, 3, 20, False)]


async def test_two_transactions_may_put_the_same(world: World) -> None:
    """Whether they may is decided by the subscription, under its lease; rows are the owner's."""
    (s,) = await subscriptions(world)
    one, two = await world.here.begin("t", 7), await world.here.begin("u", 8)
    await put(world, acks(one, s, (3, 5)), acks(two, s, (3, 5)))
    assert rows(world) == [(s, 7, 3, 5, False), (s, 8, 3, 5, False)]


@pytest.mark.parametrize("lease", [Lease(7, 2), Lease(7, 0), Lease(199, 1)])
async def test_another_lease_leaves_nothing(world: World, lease: Lease) -> None:
    (s,) = await subscriptions(world)
    stored = await world.here.begin("t")
    with pytest.raises(VersionMismatch):
        await put(world, acks(stored, s, (0, 1)), acks(stored, s, (1, 2), lease=lease))
    assert (rows(world), joins(world)) == ([], [])
    await put(world, acks(stored, s, (0, 1)))  # the session takes the next
    assert len(rows(world)) == 1


@pytest.mark.parametrize("delta", [-1, 1, 2**40])
@pytest.mark.parametrize("opens", [False, True])
async def test_another_version_leaves_nothing(world: World, delta: int, opens: bool) -> None:
    (s,) = await subscriptions(world)
    stored = await world.here.begin("t")
    fine = await world.here.begin("u", 8)
    metadata = replace(stored.metadata, version=stored.metadata.version + delta)
    wrong = replace(stored, metadata=metadata)
    with pytest.raises(VersionMismatch):
        await put(world, acks(fine, s, (5, 6)), acks(wrong, s, (0, 1), opens=opens))
    assert (rows(world), joins(world)) == ([], [])
    assert await world.here.load("t") == stored


async def test_a_transaction_or_a_subscription_that_is_not_there(world: World) -> None:
    (s,) = await subscriptions(world)
    stored = await world.here.begin("t")
    nobody = StoredTransaction(row_of("nobody", 9, version=1))
    for wanted in (acks(nobody, s, (0, 1)), acks(stored, s + 1, (0, 1))):
        with pytest.raises(VersionMismatch):
            await put(world, acks(stored, s, (2, 3)), wanted)
        assert (rows(world), joins(world)) == ([], [])


# Ending.


@pytest.mark.parametrize("commit", [True, False])
async def test_an_end_reaches_all_its_subscriptions(world: World, commit: bool) -> None:
    one, two, three = await subscriptions(world, 3)
    stored = await world.here.begin("t", 7)
    other = await world.here.begin("u", 8)
    await put(world, acks(stored, one, (0, 1), (4, 5)), acks(stored, two, up_to=3))
    await put(world, acks(other, one, (2, 3)), acks(other, three, (0, 1)))
    assert await world.there.end("t", commit=commit)
    ended = [(one, 7, 0, 1, True), (one, 7, 4, 5, True), (two, 7, -1, 3, True)] if commit else []
    left = [(one, 8, 2, 3, False), (three, 8, 0, 1, False)]
    assert rows(world) == sorted([*ended, *left])
    assert joins(world) == sorted([str(one), str(three)])
    # Nothing is put after it.
    with pytest.raises(VersionMismatch):
        await put(world, acks(stored, one, (9, 10)))


async def test_commits_and_aborts_in_one_flush(world: World) -> None:
    one, two = await subscriptions(world, 2)
    began = [await world.here.begin(name, 7 + n) for n, name in enumerate(NAMES)]
    for n, stored in enumerate(began):
        await put(world, acks(stored, one, (n, n + 1)), acks(stored, two, (n, n + 1)))
    await world.here.pend(await world.here.load("t"), "g", offset(1, 5))
    ended = []
    for n, name in enumerate(NAMES):
        stored = await world.here.load(name)
        marker = Marker(7 + n, 0, is_commit=n % 2 == 0, coordinator_epoch=0)
        state = TransactionState.COMPLETE_COMMIT if n % 2 == 0 else TransactionState.COMPLETE_ABORT
        ended.append(
            TransactionEffects(
                named(name),
                stored.metadata.version,
                replace(stored.metadata, state=state, started_at=-1),
                marker=marker,
                participants=stored.participants,
            )
        )
    await world.here.put(*ended)
    committed = [(s, 7 + n, n, n + 1, True) for s in (one, two) for n in (0, 2)]
    assert rows(world) == sorted(committed)
    assert joins(world) == []
    assert await world.here.offsets("g") == {1: 5}


async def test_an_end_that_has_missed_a_subscription_is_decided_again(world: World) -> None:
    """A decision on memory: another broker has put something since, which moves no version."""
    (s,) = await subscriptions(world)
    stored = await world.here.begin("t")
    await put(world, acks(stored, s, (0, 1)))
    metadata = stored.metadata
    done = replace(metadata, state=TransactionState.COMPLETE_COMMIT, started_at=-1)
    missing = TransactionEffects(
        metadata.key, metadata.version, done, marker=Marker(7, 0, True, 0), participants=frozenset()
    )
    with pytest.raises(VersionMismatch):
        await world.there.put(missing)
    assert rows(world) == [(s, 7, 0, 1, False)]
    assert joins(world) == [str(s)]


async def test_what_is_committed_is_neither_committed_nor_dropped_again(world: World) -> None:
    """Kafka's keys are used again, with the same producer: nothing of an earlier transaction that
    no cursor has taken in yet is touched by a later one, which may have the same offsets."""
    (s,) = await subscriptions(world)
    first = await world.here.begin("t")
    await put(world, acks(first, s, (0, 1)))
    assert await world.here.end("t")
    await world.here.reopen(await world.here.load("t"))
    again = await world.here.load("t")
    await put(world, acks(again, s, (0, 9), (12, 13)))
    assert rows(world) == [(s, 7, 0, 1, True), (s, 7, 0, 9, False), (s, 7, 12, 13, False)]
    assert await world.here.end("t", commit=False)
    assert rows(world) == [(s, 7, 0, 1, True)]
    await world.here.reopen(await world.here.load("t"))
    last = await world.here.load("t")
    await put(world, acks(last, s, (0, 2)))
    assert await world.here.end("t")
    # Each is forgotten for itself: the cursor has not taken in the last one yet.
    await take_in(world, s, 1, opening(first))
    assert rows(world) == [(s, 7, 0, 2, True)]
    await take_in(world, s, 2, opening(last))
    assert rows(world) == []


async def test_the_same_end_twice_finds_nothing_to_do(world: World) -> None:
    (s,) = await subscriptions(world)
    await put(world, acks(await world.here.begin("t"), s, (0, 1)))
    assert await world.here.end("t")
    first = world.rows("SELECT *, xmin::text FROM pending_ack")
    assert await world.there.end("t") is False
    assert await world.here.end("t", commit=False) is False
    assert world.rows("SELECT *, xmin::text FROM pending_ack") == first


# The cursor takes them in.


async def take_in(
    world: World,
    subscription_id: int,
    mark_delete: int,
    *transactions: OpenTransaction,
    lease: Lease = LEASE,
) -> None:
    flush = SubscriptionStore(world.log.database).open_flush()
    write = CursorWrite(subscription_id, CursorEffects(mark_delete), taken_in=transactions)
    try:
        await flush.commit([GuardedWrites(lease, (write,))])
    finally:
        await flush.close()


async def test_a_cursor_takes_in_what_is_committed_and_nothing_else(world: World) -> None:
    one, two = await subscriptions(world, 2)
    began = [await world.here.begin(name, 7 + n) for n, name in enumerate("tu")]
    for n, stored in enumerate(began):
        await put(world, acks(stored, one, (n, n + 1)), acks(stored, two, (n, n + 1)))
    assert await world.here.end("t")
    await take_in(world, one, 1, *map(opening, began))
    assert rows(world) == [(one, 8, 1, 2, False), (two, 7, 0, 1, True), (two, 8, 1, 2, False)]
    with pytest.raises(VersionMismatch):
        await take_in(world, two, 1, opening(began[0]), lease=Lease(7, 2))
    assert len(rows(world)) == 3


# Races.


async def test_a_put_that_waits_for_an_end_is_refused(world: World) -> None:
    (s,) = await subscriptions(world)
    stored = await world.here.begin("t")
    end = "UPDATE transaction_state SET version = version + 1, state = 'CompleteCommit'"
    with pytest.raises(VersionMismatch):
        await world.held_up(put(world, acks(stored, s, (0, 1))), end)
    assert (rows(world), joins(world)) == ([], [])


async def test_a_put_that_waits_for_an_end_that_fails_goes_on(world: World) -> None:
    (s,) = await subscriptions(world)
    stored = await world.here.begin("t")
    end = "UPDATE transaction_state SET version = version + 1"
    await world.held_up(put(world, acks(stored, s, (0, 1))), end, commits=False)
    assert rows(world) == [(s, 7, 0, 1, False)]


async def test_an_end_that_waits_for_a_put_has_it(world: World) -> None:
    (s,) = await subscriptions(world)
    stored = await world.here.begin("t")
    async with contextlib.AsyncExitStack() as stack:
        psql = stack.enter_context(world.psql())
        psql.execute("SELECT FROM subscription FOR UPDATE")  # there the put stops, half done
        putting = asyncio.ensure_future(put(world, acks(stored, s, (0, 1))))
        await world.waits(putting)
        ending = asyncio.ensure_future(world.there.end("t"))
        await asyncio.sleep(0.1)
        assert not ending.done()
    await putting
    assert await ending
    assert rows(world) == [(s, 7, 0, 1, True)]


async def test_a_put_that_waits_for_another_lease_is_refused(world: World) -> None:
    (s,) = await subscriptions(world)
    stored = await world.here.begin("t")
    work = put(world, acks(stored, s, (0, 1)))
    with pytest.raises(VersionMismatch):
        await world.held_up(work, "UPDATE coordinator_lease SET generation = 2 WHERE shard = 7")
    assert (rows(world), joins(world)) == ([], [])


async def unsubscribe(world: World, subscription_id: int) -> None:
    await SubscriptionStore(world.log.database).delete(LEASE, subscription_id)


async def delete_topic(world: World, _: int) -> None:
    ids = [topic_id for (topic_id,) in world.rows("SELECT topic_id FROM topic")]
    async with TopicStore(world.log.database).change("delete_topics") as change:
        await change.delete_topics(ids)


DELETIONS = pytest.mark.parametrize("delete", [unsubscribe, delete_topic])
Deletion = Callable[[World, int], Awaitable[None]]


@DELETIONS
async def test_what_is_deleted_takes_pending_ones_along(world: World, delete: Deletion) -> None:
    (s,) = await subscriptions(world)
    for n, name in enumerate(NAMES[:2]):
        await put(world, acks(await world.here.begin(name, 7 + n), s, (n, n + 1)))
    assert await world.here.end("t")
    await delete(world, s)
    assert rows(world) == []
    # It holds up neither end, and nothing is put for it.
    with pytest.raises(VersionMismatch):
        await put(world, acks(await world.here.load("u"), s, (5, 6)))
    assert await world.here.end("u")
    assert (rows(world), joins(world)) == ([], [])


@DELETIONS
async def test_a_put_that_waits_for_a_deletion_is_refused(world: World, delete: Deletion) -> None:
    (s,) = await subscriptions(world)
    stored = await world.here.begin("t")
    with world.psql() as other:
        other.execute("SELECT FROM subscription FOR UPDATE")
        deleting = asyncio.ensure_future(delete(world, s))
        await asyncio.sleep(0.1)
        putting = asyncio.ensure_future(put(world, acks(stored, s, (0, 1))))
        await asyncio.sleep(0.1)
        assert not putting.done()
        assert not deleting.done()
    await deleting
    # Whoever was first: there is nothing of it any more.
    with contextlib.suppress(VersionMismatch):
        await putting
    assert rows(world) == []
    assert await world.here.end("t")
    assert joins(world) == []


# Many at once.


class Worker:
    """One broker that does this and that. Whatever has moved on in the meantime it lets be."""

    def __init__(self, broker: Broker, partition_id: int, seed: int) -> None:
        self.broker = broker
        self.partition_id = partition_id
        self.random = Random(seed)
        self.store = SubscriptionStore(broker.database)
        self.flush = self.store.open_flush()
        self.succeeded: dict[str, int] = {}

    async def run(self, rounds: int) -> None:
        work = [self.put, self.put, self.put, self.end, self.take_in, self.make, self.unsubscribe]
        for _ in range(rounds):
            each = self.random.choice([*work, self.put_offsets])
            with contextlib.suppress(VersionMismatch):
                await each()
                self.succeeded[each.__name__] = self.succeeded.get(each.__name__, 0) + 1
            await self.broker.flush.rollback()
        await self.flush.close()

    def some(self, of: Sequence[str]) -> list[str]:
        return self.random.sample(of, self.random.randint(1, len(of)))

    async def ids(self) -> list[int]:
        return sorted(each.subscription_id for each in await self.store.load(self.partition_id))

    async def put(self) -> None:
        wanted = []
        for name in self.some(NAMES):
            stored = await self.broker.load(name)
            if stored.metadata.state is not TransactionState.ONGOING:
                await self.broker.reopen(stored)
                stored = await self.broker.load(name)
            for subscription_id in await self.ids():
                starts = self.random.sample(range(60), 5)
                ranges = [(start, start + 1) for start in starts]
                wanted.append(acks(stored, subscription_id, *ranges, up_to=3))
        if wanted:
            self.random.shuffle(wanted)
            await self.broker.store.put_pending_acks(wanted)

    async def put_offsets(self) -> None:
        """A transaction of Kafka's may have both."""
        wanted = []
        for name in self.some(NAMES):
            stored = await self.broker.load(name)
            opens = stored.metadata.state is not TransactionState.ONGOING
            wanted.append(pending(stored, "g", offset(self.partition_id, 1), opens=opens))
        await self.broker.store.put_pending(wanted)

    async def end(self) -> None:
        await self.broker.end(*self.some(NAMES), commit=self.random.random() < 0.6)

    async def take_in(self) -> None:
        loaded = await self.store.load(self.partition_id)
        writes = tuple(
            CursorWrite(
                each.subscription_id,
                CursorEffects(each.cursor.mark_delete),
                taken_in=tuple({ack.transaction for ack in each.pending if ack.is_committed}),
            )
            for each in loaded
        )
        await self.flush.commit([GuardedWrites(LEASE, writes)])

    async def make(self) -> None:
        name = f"s-{self.random.randrange(10**9)}"
        await self.store.create(LEASE, NewSubscription(self.partition_id, name, 0))

    async def unsubscribe(self) -> None:
        if ids := await self.ids():
            await self.store.delete(LEASE, self.random.choice(ids))


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.timeout(120)
@pytest.mark.usefixtures("patient_sessions")
async def test_nothing_deadlocks_and_nothing_is_left(log: Log, seed: int) -> None:
    log.rows(LEASES)
    name = log.value("SELECT current_database()")
    log.rows(f"ALTER DATABASE {name} SET deadlock_timeout = '50ms'")
    (partition_id,) = log.new_partitions()
    brokers = [Broker(log.url) for _ in range(4)]
    try:
        for number, each in enumerate(NAMES):
            await brokers[0].begin(each, number + 1)
        workers = [Worker(each, partition_id, seed * 100 + n) for n, each in enumerate(brokers)]
        outcomes = await asyncio.gather(
            *(each.run(100) for each in workers), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, RowLocked | StoreUnavailable):
                assert "deadlock" not in str(outcome)
            if outcome is not None:
                raise outcome
        done = done_by(workers)
        assert min(done.values()) > 5, done
        await brokers[0].flush.rollback()
        await brokers[0].end(*NAMES, commit=False)
        # What is left is committed, and of subscriptions that are there.
        assert log.rows("SELECT 1 FROM pending_ack WHERE NOT is_committed") == []
        orphans = (
            "SELECT 1 FROM pending_ack a WHERE NOT EXISTS"
            " (SELECT FROM subscription s WHERE s.subscription_id = a.subscription_id)"
        )
        assert log.rows(orphans) == []
        assert log.rows("SELECT 1 FROM transaction_participant") == []
    finally:
        for broker in brokers:
            await broker.close()


def done_by(workers: Collection[Worker]) -> dict[str, int]:
    names = ("put", "put_offsets", "end", "take_in", "make", "unsubscribe")
    return {each: sum(worker.succeeded.get(each, 0) for worker in workers) for each in names}
