"""News between brokers over the real database: how soon, how few, and what if it is lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from core.config.values import topic_config
from core.types import Endpoint
from gateway.compose import cluster_of, configs_of, wire
from gateway.runtime.cluster import news
from gateway.runtime.cluster.news import NewsReader
from gateway.runtime.flush import flusher
from gateway.runtime.log.partitions import Want
from storage.connection.pool import Database
from storage.notifications import METADATA_CHANGED
from tests.batches import batch, payload_of
from tests.storage.conftest import Log

MUCH = 10**9
STATIC = {
    "penstock.broker.session.timeout.ms": "30000",
    "penstock.tail.cache.bytes": str(2**20),
}


class Broker:
    """Partitions with news of the others, as `gateway.compose` puts them together."""

    def __init__(self, url: str, port: int) -> None:
        self.database = Database(url)
        endpoint = Endpoint("kafka", "127.0.0.1", port)
        self.cluster = cluster_of(self.database, STATIC, endpoints=[endpoint])
        runtime = wire(self.database, self.cluster, configs_of(self.database, STATIC))
        self.feed, self.announcer = runtime.feed, runtime.announcer
        self.flusher, self.partitions = runtime.flusher, runtime.partitions
        self.metadata_news = 0
        self.ended_acks: list[int] = []
        self.news = NewsReader(
            self.feed,
            self.partitions,
            self.cluster,
            self.announcer,
            self._on_metadata,
            self.ended_acks.extend,
        )
        self.tasks: list[asyncio.Task[None]] = []

    def _on_metadata(self) -> None:
        self.metadata_news += 1

    def run(self, *works: Coroutine[Any, Any, None]) -> None:
        self.tasks += [asyncio.create_task(work) for work in works]

    async def start(self) -> None:
        await self.cluster.join()
        self.flusher.start()
        self.run(self.announcer.run(), self.news.listen(), self.news.run())
        await until(lambda: self.metadata_news > 0)  # it listens

    async def stop(self) -> None:
        await self.flusher.close()
        await self.partitions.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.feed.close()
        await self.database.close()

    async def append(self, partition_id: int) -> None:
        each = batch()
        await self.partitions.append(partition_id, topic_config({}, {}), each, payload_of(each))

    async def wait_for_more(self, partition_id: int, timeout_s: float) -> float:
        """Sleeps like a long poll; gives the moment it woke."""
        wants = [Want(partition_id, 0, MUCH)]
        seen = await self.partitions.read(wants, MUCH)
        wants = [Want(partition_id, seen[0].state.next_offset if seen[0].state else 0, MUCH)]
        await self.partitions.wait_for_more(wants, seen, timeout_s)
        return time.monotonic()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.002)


async def that_waits(broker: Broker, partition_id: int) -> asyncio.Task[float]:
    """A reader; one that late news of what it has read already lets go on is begun again."""
    while True:
        waiting = asyncio.create_task(broker.wait_for_more(partition_id, 30))
        while not waiting.done():
            if partition_id in broker.partitions.watched():
                return waiting
            await asyncio.sleep(0.002)


def led_by_each(two: list[Broker], log: Log) -> tuple[int, int]:
    """A partition that the first leads, and one of the second."""
    here = two[0].cluster
    ids = log.new_partitions(20)
    led = [p for p in ids if here.leader_of(p) == here.broker_id]
    return led[0], next(p for p in ids if p not in led)


def told_to(log: Log) -> list[str]:
    """What is told of partitions from now on; run a query to hear it."""
    told: list[str] = []
    log.psql.add_notify_handler(lambda notice: told.append(notice.payload))
    log.rows("LISTEN penstock_partition")
    return told


async def until_told(told: list[str], log: Log, payload: str | None = None) -> None:
    """Until anything is told, or this."""
    async with asyncio.timeout(60):
        while not told if payload is None else payload not in told:
            await asyncio.sleep(0.05)
            log.rows("SELECT 1")


@pytest.fixture
async def two(database_url: str) -> AsyncIterator[list[Broker]]:
    brokers = [Broker(database_url, 9000 + n) for n in range(2)]
    for each in brokers:
        await each.start()
    for each in brokers:
        await each.cluster.heartbeat()
    assert not any(each.cluster.is_alone for each in brokers)
    yield brokers
    for each in brokers:
        await each.stop()


async def test_ends_of_transactions_with_acknowledgements_are_told(two: list[Broker]) -> None:
    here, there = two
    here.announcer.announce_ended([7, 3])
    await until(lambda: there.ended_acks == [3, 7])
    assert here.ended_acks == []


async def test_a_reader_at_another_broker_wakes_by_the_news(two: list[Broker], log: Log) -> None:
    here, there = two
    (p,) = log.new_partitions()
    delays = []
    for _ in range(10):
        waiting = await that_waits(there, p)
        await here.append(p)
        appended = time.monotonic()
        delays.append(await waiting - appended)
    # The median, well before it would look by itself: the machine has other things to do, too.
    assert sorted(delays)[5] < news.LOOK_AGAIN_S / 4, delays


async def test_a_leader_tells_in_bulk_and_others_at_once(two: list[Broker], log: Log) -> None:
    """Nobody waits elsewhere for what the leader's own readers are told here."""
    here, _ = two
    led, of_another = led_by_each(two, log)
    told = told_to(log)
    started = time.monotonic()
    for _ in range(20):
        await here.append(led)
        await asyncio.sleep(0.01)  # else all are one message in any case
    await asyncio.sleep(2 * news.PATIENT_S)
    log.rows("SELECT 1")
    assert told
    assert set(told) == {str(led)}
    assert len(told) <= (time.monotonic() - started) / news.PATIENT_S
    del told[:]
    here.announcer.announce([led, of_another])
    assert here.announcer._patient == {led}
    await until_told(told, log, str(of_another))  # alone: not with what is told in bulk


async def test_a_leader_tells_at_once_where_others_wait(two: list[Broker], log: Log) -> None:
    here, there = two
    led, _ = led_by_each(two, log)
    waiting = asyncio.create_task(there.wait_for_more(led, 60))
    # It says so each second.
    await until(lambda: led in here.announcer._watched_until)
    assert not waiting.done()
    await here.append(led)
    assert here.announcer._patient == set()
    await waiting
    # Known a while longer; one that was noted before it was known is told then.
    here.announcer._watched_until.clear()
    told = told_to(log)
    here.announcer.announce([led])
    assert here.announcer._patient == {led}
    here.announcer.on_watched([led])
    assert here.announcer._patient == set()
    await until_told(told, log)
    assert set(told) == {str(led)}


async def test_what_is_lost_is_made_up_for_while_others_send_news(
    two: list[Broker], log: Log
) -> None:
    """News comes all the time, so the reader never has a quiet second."""
    here, there = two
    p, other = log.new_partitions(2)
    waiting = asyncio.create_task(there.wait_for_more(p, 120))
    await until(lambda: p in there.partitions.watched())
    log.rows("UPDATE topic_partition SET next_offset = 4 WHERE partition_id = %s", p)
    started = time.monotonic()
    while not waiting.done() and time.monotonic() < started + 30:
        await here.append(other)
        await asyncio.sleep(0.02)
    assert await waiting < started + 29


async def test_what_two_write_at_once_is_read_again_only_when_asked_for(
    two: list[Broker], log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their flushes read it anyway, under the lock; readers must not see what it was before."""
    monkeypatch.setattr(flusher, "CONTENDED_FOR_S", 60.0)
    here, there = two
    _, p = led_by_each(two, log)
    wants = [Want(p, 0, MUCH)]
    for _ in range(3):
        await here.append(p)
        await there.append(p)
    assert there.flusher.is_contended(p)
    seen = await there.partitions.read(wants, MUCH)
    await here.append(p)
    await until(lambda: p in there.partitions._behind)
    known = there.flusher.logs[p].state
    started = time.monotonic()
    await there.partitions.wait_for_more(wants, seen, 30)
    assert time.monotonic() < started + 20
    (found,) = await there.partitions.read(wants, MUCH)
    assert found.state is not None
    assert found.state.next_offset > known.next_offset
    # News of what is known by now may come late: they are forgotten with the next read.
    async with asyncio.timeout(30):
        while p in there.partitions._behind:
            await there.partitions.read(wants, MUCH)


async def test_lost_news_are_made_up_for(two: list[Broker], log: Log) -> None:
    _, there = two
    (p,) = log.new_partitions()
    waiting = asyncio.create_task(there.wait_for_more(p, 120))
    await until(lambda: p in there.partitions.watched())
    started = time.monotonic()
    log.rows("UPDATE topic_partition SET next_offset = 4")  # nobody says so
    assert await waiting - started < 60


async def test_a_lost_connection_is_made_again_and_everything_looked_at(
    two: list[Broker], log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(news, "RECONNECT_S", 0.01)
    _, there = two
    before = there.metadata_news
    for pid in log.backends("query LIKE 'LISTEN%%'"):
        log.rows("SELECT pg_terminate_backend(%s, 5000)", pid)
    await until(lambda: there.metadata_news > before)
    log.rows(f"NOTIFY {METADATA_CHANGED}")
    await until(lambda: there.metadata_news > before + 1)


async def test_a_broker_alone_tells_nobody(database_url: str, log: Log) -> None:
    broker = Broker(database_url, 9000)
    await broker.start()
    (p,) = log.new_partitions()
    told: list[str] = []
    log.psql.add_notify_handler(lambda notice: told.append(notice.payload))
    log.rows("LISTEN penstock_partition")
    await broker.append(p)
    await asyncio.sleep(0.1)
    log.rows("SELECT 1")
    assert told == []
    await broker.stop()


async def test_changes_close_together_travel_as_one_message(two: list[Broker], log: Log) -> None:
    here, there = two
    ids = [p for p in log.new_partitions(20) if here.cluster.leader_of(p) == here.cluster.broker_id]
    told = told_to(log)
    for _ in range(50):
        there.announcer.announce(ids)
    await until_told(told, log)
    await asyncio.sleep(0.1)
    log.rows("SELECT 1")
    assert told == [",".join(map(str, sorted(ids)))]
