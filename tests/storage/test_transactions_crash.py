"""The database killed right after an answer: what was to be durable is, and what was not tears
nothing. A server of the test's own, whose WAL writer sleeps, so that a crash does lose joins."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from core.ports.leases import Lease
from core.ports.log import VersionMismatch
from core.ports.subscriptions import NewSubscription
from core.ports.transactions import PendingAcks, TransactionJoin
from core.transaction.draft import TransactionDraft
from core.transaction.key import Participant
from core.transaction.values import (
    OpenTransaction,
    ProducerIdAndEpoch,
    StoredTransaction,
    TransactionEffects,
    TransactionState,
    TransactionVersion,
)
from storage.connection.client_text import key_of
from storage.server.embedded import EmbeddedPostgres
from storage.subscriptions.store import SubscriptionStore
from tests.conftest import SMALL_POSTGRES
from tests.keys import groups, named
from tests.storage.transacting import LEASES, Broker, offset, opened, row_of

pytestmark = pytest.mark.fault
LEASE = Lease(7, 1)


@dataclass
class Crashing:
    """A server that can be killed, and a broker that outlives it."""

    server: EmbeddedPostgres
    broker: Broker

    def rows(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.server.url, autocommit=True) as psql:
            cursor = psql.execute(query.encode(), parameters)
            return cursor.fetchall() if cursor.description else []

    def new_partitions(self, count: int) -> list[int]:
        self.rows("INSERT INTO topic (topic_id, name) VALUES (%s, 't')", topic_id := uuid4())
        return [
            partition_id
            for (partition_id,) in self.rows(
                "INSERT INTO topic_partition (topic_id, partition)"
                " SELECT %s, n FROM generate_series(1, %s) AS n RETURNING partition_id",
                topic_id,
                count,
            )
        ]

    async def crash(self) -> None:
        """The server is killed and comes back; every session of the broker is lost."""
        self.server.kill()
        self.server.start()
        await self.broker.close()
        self.broker = Broker(self.server.url)

    async def subscribe(self, partition_id: int) -> int:
        store = SubscriptionStore(self.broker.database)
        made = await store.create(LEASE, NewSubscription(partition_id, "s", 0))
        assert made is not None
        return made

    async def acknowledge(
        self, stored: StoredTransaction, subscription_id: int, *ranges: tuple[int, int]
    ) -> None:
        of = (Participant.of_subscription(subscription_id),)
        join = TransactionJoin(stored.metadata.key, stored.metadata.version, participants=of)
        transaction = OpenTransaction(stored.metadata.producer_id, stored.metadata.version)
        wanted = PendingAcks(LEASE, join, transaction, subscription_id, ranges)
        await self.broker.store.put_pending_acks([wanted])

    def acks(self) -> list[tuple[Any, ...]]:
        """What is stored: start, end, is_committed."""
        query = "SELECT start_offset, end_offset, is_committed FROM pending_ack ORDER BY 1"
        return self.rows(query)

    def joined(self) -> list[int]:
        return [
            i for (i,) in self.rows("SELECT partition_id FROM transaction_partition ORDER BY 1")
        ]


@pytest.fixture
def own_postgres(migrated_dir: Path) -> Iterator[EmbeddedPostgres]:
    quiet = {"wal_writer_delay": "10s", "wal_writer_flush_after": "64MB", "autovacuum": "off"}
    with EmbeddedPostgres(migrated_dir, settings={**SMALL_POSTGRES, **quiet}) as server:
        yield server


@pytest.fixture
async def crashing(own_postgres: EmbeddedPostgres) -> AsyncIterator[Crashing]:
    world = Crashing(own_postgres, Broker(own_postgres.url))
    world.rows(LEASES)
    yield world
    await world.broker.close()


def decide_append(stored: StoredTransaction, partition_id: int, *, is_first: bool) -> Any:
    """What a broker decides on a batch that is written where it believes to have joined."""
    draft = TransactionDraft(stored.metadata.key, stored, is_fresh=False)
    metadata = stored.metadata
    draft.prepare_append(
        partition_id,
        ProducerIdAndEpoch(metadata.producer_id, metadata.producer_epoch),
        TransactionVersion.V1,
        1,
        is_first=is_first,
    )
    return draft.effects()


async def test_a_lost_opening_is_a_clean_refusal(crashing: Crashing) -> None:
    (p,) = crashing.new_partitions(1)
    await crashing.broker.put(TransactionEffects(named("t"), 0, row_of("t")))
    before = await crashing.broker.load("t")
    version = await crashing.broker.join(before, (p,), opens=True)
    answered = await crashing.broker.load("t")  # what a broker remembers of it
    assert (answered.metadata.version, answered.partitions) == (version, {p})
    await crashing.crash()
    assert await crashing.broker.load("t") == before  # it was asynchronous indeed
    # What stands on it is refused, and neither is there anything to be committed.
    with pytest.raises(VersionMismatch):
        await crashing.broker.append(answered, p)
    with pytest.raises(VersionMismatch):
        await crashing.broker.pend(answered, "g", offset(p, 1))
    assert await crashing.broker.end("t") is False
    # Nor does it fit once the row has moved on, by the client itself or by a successor.
    await crashing.broker.put(TransactionEffects(named("t"), before.metadata.version, row_of("t")))
    with pytest.raises(VersionMismatch):
        await crashing.broker.append(answered, p)
    stored = await crashing.broker.load("t")
    assert await crashing.broker.join(stored, (p,), opens=True) != version
    with pytest.raises(VersionMismatch):
        await crashing.broker.append(answered, p)


async def test_a_lost_join_is_made_good_by_the_first_batch(crashing: Crashing) -> None:
    p, q = crashing.new_partitions(2)
    stored = await crashing.broker.begin("t", partitions=(p,))
    await crashing.broker.append(stored, p)
    await crashing.broker.join(stored, (q,))
    answered = await crashing.broker.load("t")
    await crashing.crash()
    assert crashing.joined() == [p]
    # The broker still believes in the join: its first batch there writes it again.
    effects, _ = await crashing.broker.drafted(answered, q)
    held = decide_append(answered, q, is_first=True)
    await crashing.broker.flush.commit(effects, [held])
    assert crashing.joined() == [p, q]
    assert await crashing.broker.end("t")
    # Its end misses nothing.
    markers = crashing.rows("SELECT partition_id FROM record_batch WHERE is_control ORDER BY 1")
    assert markers == [(p,), (q,)]
    assert crashing.rows("SELECT 1 FROM producer_state WHERE txn_first_offset IS NOT NULL") == []


async def test_a_join_is_as_durable_as_what_is_written_after_it(crashing: Crashing) -> None:
    p, q = crashing.new_partitions(2)
    await crashing.broker.put(TransactionEffects(named("t"), 0, row_of("t")))
    await crashing.broker.join(await crashing.broker.load("t"), (p,), opens=True)
    stored = await crashing.broker.load("t")
    await crashing.broker.join(stored, (q,), ("h",))
    await crashing.broker.append(stored, p)  # a second one need not write the join again
    await crashing.crash()
    found = await crashing.broker.load("t")
    assert found.metadata == stored.metadata
    assert (found.partitions, found.participants) == ({p, q}, groups("h"))


@pytest.mark.parametrize("opens", [True, False])
async def test_pending_offsets_are_durable_with_their_transaction(
    crashing: Crashing, opens: bool
) -> None:
    (p,) = crashing.new_partitions(1)
    await crashing.broker.put(TransactionEffects(named("t"), 0, row_of("t")))
    if not opens:  # V1, by AddOffsetsToTxn
        await crashing.broker.join(await crashing.broker.load("t"), (), ("g",), opens=True)
    await crashing.broker.pend(await crashing.broker.load("t"), "g", offset(p, 5), opens=opens)
    await crashing.crash()
    found = await crashing.broker.load("t")
    assert (found.metadata.state, found.participants) == (TransactionState.ONGOING, groups("g"))
    assert await crashing.broker.store.pending_partitions(["g"]) == [{p}]
    assert await crashing.broker.end("t")
    assert await crashing.broker.offsets("g") == {p: 5}


async def test_pending_acknowledgements_are_durable_with_their_transaction(
    crashing: Crashing,
) -> None:
    """Also where the transaction itself began without waiting for the disk."""
    p, q = crashing.new_partitions(2)
    s = await crashing.subscribe(p)
    (opened_at,) = await crashing.broker.store.join(
        [TransactionJoin(named("t"), 0, opened(row_of("t")))]
    )
    stored = await crashing.broker.load("t")
    assert stored.metadata.version == opened_at
    await crashing.acknowledge(stored, s, (0, 2), (5, 6))
    await crashing.broker.join(stored, (q,))  # this one does not reach the disk
    await crashing.crash()
    found = await crashing.broker.load("t")
    assert found.metadata == stored.metadata
    assert found.participants == {Participant.of_subscription(s)}
    assert (crashing.joined(), crashing.acks()) == ([], [(0, 2, False), (5, 6, False)])
    assert await crashing.broker.end("t")
    assert crashing.acks() == [(0, 2, True), (5, 6, True)]


async def test_a_transaction_that_a_crash_has_lost_acknowledges_nothing(crashing: Crashing) -> None:
    (p,) = crashing.new_partitions(1)
    s = await crashing.subscribe(p)
    opening = TransactionJoin(named("t"), 0, opened(row_of("t")))
    await crashing.broker.store.join([opening])
    answered = await crashing.broker.load("t")
    await crashing.crash()
    assert await crashing.broker.find("t") is None  # it was asynchronous indeed
    with pytest.raises(VersionMismatch):
        await crashing.acknowledge(answered, s, (0, 1))
    assert await crashing.broker.end("t") is False
    # Nor does its version fit the next that is begun under that key.
    await crashing.broker.store.join([opening])
    if (await crashing.broker.load("t")).metadata.version != answered.metadata.version:
        with pytest.raises(VersionMismatch):
            await crashing.acknowledge(answered, s, (0, 1))
    assert crashing.acks() == []


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
async def test_an_end_is_durable_with_all_it_brings(crashing: Crashing, commit: bool) -> None:
    p, q = crashing.new_partitions(2)
    s = await crashing.subscribe(p)
    stored = await crashing.broker.begin("t", partitions=(p, q))
    await crashing.broker.append(stored, p, q)
    await crashing.broker.pend(stored, "g", offset(p, 5))
    await crashing.acknowledge(stored, s, (0, 1))
    assert await crashing.broker.end("t", commit=commit)
    await crashing.crash()
    done = TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT
    found = await crashing.broker.load("t")
    assert (found.metadata.state, found.partitions, found.participants) == (
        done,
        frozenset(),
        frozenset(),
    )
    assert await crashing.broker.offsets("g") == ({p: 5} if commit else {})
    assert crashing.acks() == ([(0, 1, True)] if commit else [])
    states, _, _ = await crashing.broker.logs.load([p, q])
    assert [(each.next_offset, each.last_stable_offset) for each in states.values()] == [(2, 2)] * 2
    aborted = await crashing.broker.logs.aborted([(p, 0, 9), (q, 0, 9)])
    assert [len(each) for each in aborted] == ([0, 0] if commit else [1, 1])


async def test_killed_in_the_middle_it_is_wholly_open(crashing: Crashing) -> None:
    p, q = crashing.new_partitions(2)
    s = await crashing.subscribe(p)
    stored = await crashing.broker.begin("t", partitions=(p, q))
    await crashing.broker.append(stored, p, q)
    await crashing.broker.pend(stored, "g", offset(p, 5))
    await crashing.acknowledge(stored, s, (0, 1))
    stored = await crashing.broker.load("t")
    torn = psycopg.connect(crashing.server.url)
    # As far as an end gets before its commit.
    torn.execute("SELECT FROM transaction_state FOR NO KEY UPDATE")
    torn.execute("UPDATE transaction_state SET state = 'CompleteCommit', version = version + 1")
    torn.execute("UPDATE producer_state SET txn_first_offset = NULL")
    torn.execute("DELETE FROM pending_offset")
    torn.execute("UPDATE pending_ack SET is_committed = true")
    torn.execute("DELETE FROM transaction_participant")
    torn.execute("DELETE FROM transaction_partition")
    await crashing.crash()
    torn.close()
    assert await crashing.broker.load("t") == stored
    key = UUID(bytes=key_of("g"))
    assert crashing.rows("SELECT group_key FROM pending_offset") == [(key,)]
    assert crashing.acks() == [(0, 1, False)]
    assert await crashing.broker.end("t")
    assert await crashing.broker.offsets("g") == {p: 5}
    assert crashing.acks() == [(0, 1, True)]
