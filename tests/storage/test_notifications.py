"""News through LISTEN and NOTIFY: it arrives, it is heard again after a lost connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from core.ports.log import News, StoreUnavailable
from storage.connection.pool import Database
from storage.notifications import (
    BROKERS_CHANGED,
    METADATA_CHANGED,
    PARTITIONS_CHANGED,
    PostgresChangeFeed,
)
from tests.storage.conftest import Log

Heard = list[tuple[News, list[int]]]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.002)


@asynccontextmanager
async def listening(feed: PostgresChangeFeed) -> AsyncIterator[Heard]:
    news: Heard = []

    def on_news(channel: str, ids: Sequence[int]) -> None:
        news.append((channel, list(ids)))

    task = asyncio.create_task(feed.listen(on_news))
    await until(lambda: bool(news) or task.done())
    yield news
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def feeds(log: Log) -> AsyncIterator[tuple[PostgresChangeFeed, PostgresChangeFeed]]:
    other = Database(log.url)
    feeds = PostgresChangeFeed(log.database), PostgresChangeFeed(other)
    yield feeds
    for feed in feeds:
        await feed.close()
    await other.close()


Feeds = tuple[PostgresChangeFeed, PostgresChangeFeed]


async def test_others_hear_and_one_does_not_hear_oneself(feeds: Feeds) -> None:
    here, there = feeds
    async with listening(here) as heard_here, listening(there) as heard_there:
        await here.publish(News.PARTITIONS, [1, 2**62])
        await until(lambda: len(heard_there) == 2)
        await there.publish(News.PARTITIONS, [5])
        await until(lambda: len(heard_here) == 2)
    assert heard_there == [(News.RECONNECTED, []), (News.PARTITIONS, [1, 2**62])]
    assert heard_here == [(News.RECONNECTED, []), (News.PARTITIONS, [5])]


async def test_more_than_fits_one_message(feeds: Feeds) -> None:
    here, there = feeds
    ids = [2**62 + n for n in range(2_000)]
    async with listening(there) as heard:
        await here.publish(News.PARTITIONS, ids)
        await until(lambda: sum(len(each) for _, each in heard) == len(ids))
        await here.publish(News.PARTITIONS, [])
    assert [each for _, part in heard for each in part] == ids


async def test_other_channels(log: Log, feeds: Feeds) -> None:
    async with listening(feeds[0]) as heard:
        for channel in (METADATA_CHANGED, BROKERS_CHANGED):
            log.rows(f"NOTIFY {channel}")
        # Not ours, by a person in psql: no reason to fall over.
        log.rows(f"NOTIFY {PARTITIONS_CHANGED}, 'x,7,,-'")
        await until(lambda: len(heard) == 4)
    assert heard[1:] == [(News.METADATA, []), (News.BROKERS, []), (News.PARTITIONS, [7])]


async def test_a_lost_connection_ends_listening(log: Log, feeds: Feeds) -> None:
    here, there = feeds
    news: list[str] = []
    task = asyncio.create_task(here.listen(lambda channel, _: news.append(channel)))
    await until(lambda: bool(news))
    for pid in log.backends():
        log.rows("SELECT pg_terminate_backend(%s, 5000)", pid)
    with pytest.raises(StoreUnavailable):
        await asyncio.wait_for(task, 10)
    async with listening(here) as heard:
        await there.publish(News.PARTITIONS, [3])
        await until(lambda: len(heard) == 2)
    assert heard[0] == (News.RECONNECTED, [])


async def test_a_lost_sender_is_replaced(log: Log, feeds: Feeds) -> None:
    here, there = feeds
    await here.publish(News.PARTITIONS, [1])
    for pid in log.backends():
        log.rows("SELECT pg_terminate_backend(%s, 5000)", pid)
    with pytest.raises(StoreUnavailable):
        await here.publish(News.PARTITIONS, [2])
    async with listening(there) as heard:
        await here.publish(News.PARTITIONS, [3])
        await until(lambda: len(heard) == 2)
    assert heard[1] == (News.PARTITIONS, [3])
