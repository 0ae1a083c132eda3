"""What psql shows of transactions: who writes, what is open, what that holds back, what is lag."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from psycopg.rows import dict_row

from core.transaction.values import TransactionEffects, TransactionVersion
from tests.batches import batch
from tests.keys import named
from tests.storage.conftest import Log
from tests.storage.transacting import LEASES, Broker, offset, row_of

G = "flights-to-lake"


@dataclass
class Watched:
    """A log, a broker that writes transactions to it, and psql."""

    log: Log
    broker: Broker

    def dicts(self, query: str) -> list[dict[str, Any]]:
        """Rows by column name."""
        cursor = self.log.psql.cursor(row_factory=dict_row)
        return cursor.execute(query.encode()).fetchall()

    def lag(self) -> list[Any]:
        """(committed offset, lag) of the group, by partition."""
        return self.log.rows("SELECT committed_offset, lag FROM v_group_lag ORDER BY partition")

    def partition(self) -> list[Any]:
        """(log start, last stable offset, high watermark) by partition."""
        return self.log.rows(
            "SELECT log_start_offset, last_stable_offset, high_watermark FROM v_topic_partition"
            " ORDER BY topic, partition"
        )

    async def commit(self, partition_id: int, value: int) -> None:
        await self.broker.commit_offsets(G, offset(partition_id, value))

    def buffers(self, view: str) -> int:
        """Pages that a look at a view touches."""
        (plan,) = self.log.value(
            f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) SELECT * FROM {view}"
        )
        touched: int = plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"]
        return touched


@pytest.fixture
async def watched(log: Log) -> AsyncIterator[Watched]:
    log.rows(LEASES)
    broker = Broker(log.url)
    yield Watched(log, broker)
    await broker.close()


async def test_a_transaction_can_be_read(watched: Watched) -> None:
    flights = watched.log.new_partitions(4, name="flights")
    (taxis,) = watched.log.new_partitions(1, name="taxis")
    (gone,) = watched.log.new_partitions(1, name="gone")
    stored = await watched.broker.begin(
        "t",
        7,
        (*flights[:3], taxis, gone),
        timeout_ms=60_000,
        client_id="writer-1",
        client_host="/10.0.0.1",
        owner="User:alice",
        transaction_version=TransactionVersion.V2,
        coordinator_epoch=3,
    )
    await watched.broker.pend(stored, G, offset(flights[0], 1), offset(taxis, 2))
    await watched.broker.join(stored, (), ("another",))
    await watched.broker.put(TransactionEffects(named("idle"), 0, row_of("idle", 8)))
    watched.log.rows("DELETE FROM topic WHERE name = 'gone'")
    idle, found = watched.dicts("SELECT * FROM v_transaction")
    assert timedelta() <= found.pop("age") < timedelta(seconds=60)
    assert timedelta() < found.pop("timeout_left") <= timedelta(seconds=60)
    assert found.pop("started_at") <= found.pop("changed_at")
    assert found == {
        "transactional_id": "t",
        "state": "Ongoing",
        "producer_id": 7,
        "producer_epoch": 0,
        "version": "V2",
        "timeout": timedelta(seconds=60),
        "partitions": "flights 0-2; taxis 0",
        "groups": "another (0); flights-to-lake (2)",
        "subscriptions": None,
        "protocol": "Kafka",
        "client_id": "writer-1",
        "client_host": "/10.0.0.1",
        "owner": "User:alice",
        "coordinator_epoch": 3,
    }
    assert idle.pop("changed_at") is not None
    nothing = ("age", "timeout_left", "partitions", "groups", "client_id", "client_host")
    assert [idle[name] for name in (*nothing, "owner", "started_at")] == [None] * 8
    assert (idle["transactional_id"], idle["state"], idle["version"]) == ("idle", "Empty", "V1")


async def test_which_transaction_holds_back_what(watched: Watched) -> None:
    p, q, r = watched.log.new_partitions(3, name="flights")
    await watched.log.append(p, batch(5))
    older = await watched.broker.begin("older", 7, (p, q), timeout_ms=90_000, client_id="c")
    await watched.broker.append(older, p, q)
    younger = await watched.broker.begin("younger", 8, (p, r))
    await watched.broker.append(younger, p)
    await watched.log.append(p, batch(10))
    ended = await watched.broker.begin("ended", 9, (p,))
    await watched.broker.append(ended, p)
    await watched.broker.end("ended")
    # r has joined, but nothing is written there: nothing is held back.
    first, second = watched.dicts("SELECT * FROM v_open_transaction_blocking ORDER BY partition")
    assert timedelta() <= first.pop("age") < timedelta(seconds=60)
    assert timedelta(seconds=30) < first.pop("timeout_left") <= timedelta(seconds=90)
    assert first.pop("since") == watched.log.value(
        "SELECT started_at FROM v_transaction WHERE transactional_id = 'older'"
    )
    assert first == {
        "topic": "flights",
        "partition": 0,
        "transactional_id": "older",
        "state": "Ongoing",
        "producer_id": 7,
        "producer_epoch": 0,
        "last_stable_offset": 5,
        "high_watermark": 19,
        "records_waiting": 13,  # a marker is no record
        "transactions_behind": 1,
        "client_id": "c",
        "client_host": None,
        "protocol": "Kafka",
    }
    assert (second["partition"], second["records_waiting"]) == (1, 1)
    assert watched.partition() == [(0, 5, 19), (0, 0, 1), (0, 0, 0)]
    # The log start may pass it; it holds back what is left.
    await watched.log.store.advance_log_start(p, 12)
    query = "SELECT last_stable_offset, records_waiting FROM v_open_transaction_blocking"
    assert watched.log.rows(query + " WHERE partition = 0") == [(12, 6)]
    assert watched.partition()[0] == (12, 12, 19)
    await watched.broker.end("older")
    left = "SELECT transactional_id, partition FROM v_open_transaction_blocking"
    assert watched.log.rows(left) == [("younger", 0)]
    await watched.broker.end("younger")
    assert watched.log.rows(left) == []
    assert [stable == end for _, stable, end in watched.partition()] == [True] * 3


async def test_what_nobody_will_end_is_called_hanging(watched: Watched) -> None:
    (p,) = watched.log.new_partitions()
    await watched.log.append(p, batch(producer=5, epoch=0, sequence=0, transactional=True))
    query = "SELECT state, transactional_id, timeout_left FROM v_open_transaction_blocking"
    assert watched.log.rows(query) == [("hanging", None, None)]
    # Its producer has a transaction open, without this partition.
    await watched.broker.begin("t", 5)
    assert watched.log.rows(query) == [("hanging", None, None)]


async def test_producers_and_what_they_aborted(watched: Watched) -> None:
    (p,) = watched.log.new_partitions(1, name="flights")
    await watched.log.append(p, batch(2, producer=5, epoch=3, sequence=0))
    stored = await watched.broker.begin("t", 7, (p,))
    await watched.broker.append(stored, p)
    await watched.broker.append(stored, p)
    query = (
        "SELECT producer_id, transactional_id, open_from_offset, coordinator_epoch"
        " FROM v_producer_state ORDER BY producer_id"
    )
    assert watched.log.rows(query) == [(5, None, None, None), (7, "t", 2, None)]
    assert watched.dicts("SELECT * FROM v_aborted_transaction") == []
    await watched.broker.end("t", commit=False)
    assert watched.log.rows(query) == [(5, None, None, None), (7, "t", None, 0)]
    (found,) = watched.dicts("SELECT * FROM v_aborted_transaction")
    assert found.pop("aborted_at") is not None
    assert found == {
        "topic": "flights",
        "partition": 0,
        "producer_id": 7,
        "first_offset": 2,
        "last_offset": 4,
        "transactional_id": "t",
    }
    await watched.log.store.advance_log_start(p, 5)
    assert watched.dicts("SELECT * FROM v_aborted_transaction") == []


async def test_lag_is_what_a_reader_of_committed_data_has_yet_to_read(watched: Watched) -> None:
    (p,) = watched.log.new_partitions()
    await watched.log.append(p, batch(3))  # 0-2
    for name, producer_id in (("a", 7), ("b", 8)):
        await watched.broker.begin(name, producer_id, (p,))
    a, b = [await watched.broker.load(name) for name in ("a", "b")]
    await watched.broker.append(a, p)  # 3
    await watched.broker.append(b, p)  # 4
    await watched.broker.append(a, p)  # 5
    await watched.log.append(p, batch(2))  # 6-7
    await watched.commit(p, 0)
    assert watched.lag() == [(0, 3)]  # up to the last stable offset
    await watched.broker.end("a", commit=False)  # 8
    assert watched.lag() == [(0, 3)]  # b is open from 4 on, and 3 is aborted
    await watched.broker.end("b")  # 9
    await watched.log.append(p, batch())  # 10
    # Left: 0-2, 4, 6-7, 10.
    for value, lag in {0: 7, 3: 4, 4: 4, 5: 3, 6: 3, 8: 1, 9: 1, 10: 1, 11: 0}.items():
        await watched.commit(p, value)
        assert watched.lag() == [(value, lag)]
    await watched.log.store.advance_log_start(p, 5)
    await watched.commit(p, 0)
    assert watched.lag() == [(0, 3)]


async def test_who_is_beyond_the_last_stable_offset_has_no_lag(watched: Watched) -> None:
    (p,) = watched.log.new_partitions()
    stored = await watched.broker.begin("t", 7, (p,))
    await watched.broker.append(stored, p)
    await watched.log.append(p, batch(5))
    await watched.commit(p, 4)  # a reader of everything
    assert watched.lag() == [(4, 0)]


async def test_large_aborted_stretches_are_not_counted(watched: Watched) -> None:
    """A view that holds a snapshot for long does harm; they count as unread then."""
    p, q = watched.log.new_partitions(2)
    watched.log.rows(
        "INSERT INTO record_batch SELECT partition_id, n, n, n, 0, 1, 70, 0, 0, 7, n, 0, 2, true,"
        " n IN (100, 39999) FROM unnest(%s::bigint[]) AS partition_id, generate_series(0, 39999) n",
        [p, q],
    )
    watched.log.rows("UPDATE topic_partition SET next_offset = 40000")
    watched.log.rows("INSERT INTO aborted_transaction VALUES (%s, 100, 7, 90)", p)
    watched.log.rows("INSERT INTO aborted_transaction VALUES (%s, 39999, 7, 90)", q)
    await watched.commit(p, 0)
    await watched.commit(q, 0)
    assert watched.lag() == [(0, 39_988), (0, 39_998)]
    await watched.commit(q, 39_000)
    assert watched.lag() == [(0, 39_988), (39_000, 0)]
    await watched.commit(q, 0)
    watched.log.rows("VACUUM ANALYZE")
    assert watched.buffers("v_group_lag") < 200  # of some 800 that the batches take


async def test_views_look_at_what_is_open_alone(watched: Watched) -> None:
    partitions = watched.log.new_partitions(20)
    watched.log.rows(
        "INSERT INTO producer_state SELECT p, n, 0, 1, '{0}', '{0}', '{0}', '{1}', now(), NULL, -1"
        " FROM unnest(%s::bigint[]) AS p, generate_series(1, 2000) AS n",
        partitions,
    )
    stored = await watched.broker.begin("t", 5000, partitions[:2])
    await watched.broker.append(stored, *partitions[:2])
    watched.log.rows("VACUUM ANALYZE")
    for view in ("v_open_transaction_blocking", "v_topic_partition"):
        assert watched.buffers(view) < 150, view  # of some 600
    assert len(watched.dicts("SELECT * FROM v_open_transaction_blocking")) == 2
