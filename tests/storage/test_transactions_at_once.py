"""Several brokers at once over the same transactions, partitions and groups: nothing deadlocks,
and what is left at the end is whole."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from random import Random

import pytest

from core.group.records import GroupEffects, OffsetEffects
from core.ports.groups import GuardedEffects
from core.ports.leases import Lease
from core.ports.log import RowLocked, StoreUnavailable, VersionMismatch
from core.shard import shard_of
from core.transaction.values import StoredTransaction, TransactionEffects, TransactionState
from storage.flush.segments import Segments
from storage.log.retention import PostgresRetentionStore
from tests.storage.conftest import Log
from tests.storage.transacting import LEASES, Broker, offset, opened, pending

BROKERS = 5
ROUNDS = 100
NAMES = [f"t-{n}" for n in range(4)]
GROUPS = [f"g-{n}" for n in range(3)]


def is_open(stored: StoredTransaction) -> bool:
    return stored.metadata.state is TransactionState.ONGOING


class Worker:
    """One broker that does this and that. Whatever has moved on in the meantime it lets be."""

    def __init__(self, broker: Broker, partitions: list[int], seed: int) -> None:
        self.broker = broker
        self.partitions = partitions
        self.random = Random(seed)
        self.retention = PostgresRetentionStore(broker.database, Segments(broker.database))
        self.succeeded: dict[str, int] = {}

    async def run(self) -> None:
        for _ in range(ROUNDS):
            work = self.random.choice(
                [self.write, self.write, self.join, self.pend, self.commit, self.end, self.tidy]
            )
            with contextlib.suppress(VersionMismatch):
                await work()
                self.succeeded[work.__name__] = self.succeeded.get(work.__name__, 0) + 1
            await self.broker.flush.rollback()

    def some(self, of: list[str]) -> list[str]:
        return self.random.sample(of, self.random.randint(1, len(of)))

    def moves(self, stored: StoredTransaction) -> bool:
        """Whether the row is to be moved on, rather than held still."""
        return not is_open(stored) or self.random.random() < 0.5

    async def write(self) -> None:
        """Batches of several transactions in one flush, which holds some and moves others."""
        partitions = self.random.sample(self.partitions, len(self.partitions))
        effects, transactions = [], []
        for name, partition_id in zip(self.some(NAMES), partitions, strict=False):
            stored = await self.broker.load(name)
            (effect,), _ = await self.broker.drafted(stored, partition_id)
            effects.append(effect)
            metadata = stored.metadata
            transactions.append(
                TransactionEffects(
                    metadata.key,
                    metadata.version,
                    opened(metadata) if self.moves(stored) else None,
                    joined=(partition_id,),
                )
            )
        await self.broker.flush.commit(effects, transactions)

    async def join(self) -> None:
        stored = await self.broker.load(self.random.choice(NAMES))
        partitions = self.random.sample(self.partitions, 3)
        await self.broker.join(stored, partitions, self.some(GROUPS), opens=not is_open(stored))

    async def pend(self) -> None:
        put = []
        for name in self.some(NAMES):
            stored = await self.broker.load(name)
            for group in self.some(GROUPS):
                offsets = [offset(p, self.random.randrange(100)) for p in self.partitions]
                put.append(pending(stored, group, *offsets, opens=self.moves(stored)))
        self.random.shuffle(put)
        await self.broker.store.put_pending(put)

    async def commit(self) -> None:
        """Commits and deletions of offsets, groups that are deleted, in one flush."""
        effects = []
        for group in self.some(GROUPS):
            lease = Lease(shard_of(group), 1)
            p, q, r, s = self.random.sample(self.partitions, 4)
            what = self.random.randrange(6)
            if what == 0:
                effects.append(GuardedEffects(lease, groups=(GroupEffects(group, deleted=True),)))
            elif what == 1:
                effects.append(GuardedEffects(lease, groups=(GroupEffects(group, forgotten=True),)))
            else:
                (known,) = await self.broker.groups.fetch_offsets([(group, [r])])
                committed = OffsetEffects(
                    group,
                    (offset(p, 1), offset(s, 1)),
                    delete=(q,),
                    expired=tuple(known.values()),
                )
                effects.append(GuardedEffects(lease, offsets=(committed,)))
        await self.broker.group_flush.commit(effects)

    async def end(self) -> None:
        await self.broker.end(*self.some(NAMES), commit=self.random.random() < 0.7)

    async def tidy(self) -> None:
        partition_id = self.random.choice(self.partitions)
        state = (await self.broker.logs.load([partition_id]))[0][partition_id]
        await self.broker.logs.advance_log_start(partition_id, state.next_offset // 2)
        await self.retention.delete_rows(partition_id)


@pytest.fixture
async def brokers(log: Log) -> AsyncIterator[list[Broker]]:
    log.rows(LEASES)
    # So that a deadlock is found before anybody gives up waiting.
    name = log.value("SELECT current_database()")
    log.rows(f"ALTER DATABASE {name} SET deadlock_timeout = '50ms'")
    brokers = [Broker(log.url) for _ in range(BROKERS)]
    yield brokers
    for broker in brokers:
        await broker.close()


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("patient_sessions")
async def test_nothing_deadlocks_and_all_is_whole(
    log: Log, brokers: list[Broker], seed: int
) -> None:
    partitions = log.new_partitions(4)
    for number, name in enumerate(NAMES):
        await brokers[0].begin(name, number + 1)
    workers = [Worker(each, partitions, seed * 100 + n) for n, each in enumerate(brokers)]
    outcomes = await asyncio.gather(*(each.run() for each in workers), return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, RowLocked | StoreUnavailable):
            assert "deadlock" not in str(outcome)
        elif outcome is not None:
            raise outcome
    assert sum(1 for each in outcomes if each is None) >= 3, outcomes
    done = {
        name: sum(each.succeeded.get(name, 0) for each in workers)
        for name in ("write", "join", "pend", "commit", "end", "tidy")
    }
    assert min(done.values()) > 5, done
    await brokers[0].flush.rollback()
    await brokers[0].end(*NAMES, commit=False)
    for table in ("transaction_partition", "transaction_participant", "pending_offset"):
        assert log.rows(f"SELECT 1 FROM {table}") == [], table
    assert log.rows("SELECT 1 FROM producer_state WHERE txn_first_offset IS NOT NULL") == []
    # No offset without its group, and each has a group's row by which it is found and expires.
    assert (
        log.rows(
            "SELECT 1 FROM committed_offset o WHERE NOT EXISTS"
            " (SELECT FROM consumer_group g WHERE g.group_key = o.group_key)"
        )
        == []
    )
    # Offsets follow each other, and every transaction's data is followed by its marker.
    assert (
        log.rows(
            "SELECT 1 FROM (SELECT base_offset, lag(last_offset) OVER (PARTITION BY partition_id"
            " ORDER BY last_offset) AS previous FROM record_batch) AS b"
            " WHERE base_offset <> previous + 1"
        )
        == []
    )
    assert (
        log.rows(
            "SELECT 1 FROM record_batch b WHERE NOT is_control AND NOT EXISTS"
            " (SELECT FROM record_batch m WHERE m.partition_id = b.partition_id AND m.is_control"
            " AND m.producer_id = b.producer_id AND m.last_offset > b.last_offset)"
        )
        == []
    )
    for partition_id in partitions:
        state = await log.state(partition_id)
        assert state.last_stable_offset == state.next_offset > 0
