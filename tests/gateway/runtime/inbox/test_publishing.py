"""Publishing what applications have committed: in order, whole, once, whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import psycopg
import pytest

from core.inbox.bite import DELETED, TERMINATED
from core.staging import publication
from core.topic.rules import NewTopic
from gateway.runtime.inbox import inbox
from gateway.runtime.topics.topics import PartitionIncrease
from storage import inbox as stored
from storage.server.embedded import EmbeddedPostgres
from tests.gateway.runtime.flush.test_flusher import own_postgres
from tests.gateway.runtime.inbox.conftest import (
    MakePublisher,
    Publisher,
    Session,
    partitions_of,
    position,
    produce,
    published,
    until_published,
)
from tests.storage.conftest import Log, open_log

__all__ = ["own_postgres"]

Sessions = Callable[[], Session]


@pytest.fixture(autouse=True)
async def topic(publisher: Publisher) -> None:
    """`t` with one partition."""
    await publisher.topics.create([NewTopic("t")])


def is_staged(log: Log) -> bool:
    """Whether anything lies staged."""
    found: bool = log.value("SELECT EXISTS (SELECT FROM staged_token)")
    return found


async def test_transactions_come_in_the_order_of_their_commits(
    publisher: Publisher, log: Log, sessions: Sessions
) -> None:
    one, two = sessions(), sessions()
    produce(one, "3")
    produce(two, "1", "2")
    two.commit()
    produce(one, "4")
    await publisher.publish()
    assert await published(publisher, log) == ["1", "2"]
    one.commit()
    await publisher.publish()
    assert await published(publisher, log) == ["1", "2", "3", "4"]
    assert (publisher.inbox.published, publisher.inbox.refused) == (4, 0)


async def test_a_bite_is_one_commit_in_all_its_partitions(
    publisher: Publisher, log: Log, session: Session
) -> None:
    await publisher.topics.create([NewTopic("many", 5)])
    for n in range(20):
        produce(session, str(n), topic="many", key=str(n))
    session.commit()
    before = position(log)[0]
    await publisher.publish()
    assert position(log)[0] == before + 1
    assert sorted(await published(publisher, log, "many"), key=int) == [str(n) for n in range(20)]
    commits = (
        "SELECT count(DISTINCT b.xmin::text), count(DISTINCT partition_id) FROM record_batch b"
    )
    assert log.rows(commits)[0][0] == 1


async def test_a_deleted_topic_takes_its_records_along(
    publisher: Publisher, log: Log, session: Session
) -> None:
    await publisher.topics.create([NewTopic("gone", 2)])
    produce(session, "1")
    produce(session, "xx", "yy", topic="gone")
    session.execute("SELECT penstock.produce('gone', 'k', 'zz', NULL, 1)")
    produce(session, "2")
    session.commit()
    await publisher.topics.delete(["gone"], [])
    await publisher.publish()
    assert await published(publisher, log) == ["1", "2"]
    refused = log.rows("SELECT topic, partition, records, bytes, reason FROM v_inbox_refused")
    assert sorted(refused, key=str) == [
        ("gone", 1, 1, 3, DELETED),
        ("gone", None, 2, 6, DELETED),
    ]
    assert (publisher.inbox.published, publisher.inbox.refused) == (2, 3)
    assert log.rows("SELECT * FROM v_inbox") == []


async def test_a_topic_deleted_behind_the_brokers_back_is_left_out_in_the_flush(
    publisher: Publisher, log: Log, session: Session
) -> None:
    await publisher.topics.create([NewTopic("gone")])
    produce(session, "known", topic="gone")
    session.commit()
    await publisher.publish()
    produce(session, "1", topic="gone")
    produce(session, "2")
    session.commit()
    log.rows("DELETE FROM topic WHERE name = 'gone'")
    await publisher.publish()
    assert await published(publisher, log) == ["2"]
    assert log.rows("SELECT topic, records, reason FROM v_inbox_refused") == [("gone", 1, DELETED)]


@pytest.mark.parametrize("bite_records", [2_000, 2])
async def test_a_terminated_topic_takes_nothing_and_holds_up_nobody(
    publisher: Publisher,
    log: Log,
    session: Session,
    monkeypatch: pytest.MonkeyPatch,
    bite_records: int,
) -> None:
    """In a bite, and in a transaction that is staged."""
    monkeypatch.setattr(inbox, "BITE_RECORDS", bite_records)
    await publisher.topics.create([NewTopic("ended")])
    (partition_id,) = partitions_of(log, "ended")
    produce(session, "before", topic="ended")
    session.commit()
    await publisher.publish()
    await publisher.broker.partitions.terminate(partition_id)
    produce(session, "1", "2")
    produce(session, "x", "y", topic="ended")
    session.commit()
    produce(session, "3")
    session.commit()
    await publisher.publish()
    assert await published(publisher, log) == ["1", "2", "3"]
    assert await published(publisher, log, "ended") == ["before"]
    reason = TERMINATED
    assert log.rows("SELECT topic, partition, records, reason FROM v_inbox_refused") == [
        ("ended", 0, 2, reason)
    ]
    assert (publisher.inbox.published, publisher.inbox.refused) == (4, 2)
    assert not is_staged(log)


async def test_a_partition_added_a_moment_ago_is_found(
    publisher: Publisher, make_publisher: MakePublisher, log: Log, session: Session
) -> None:
    produce(session, "0")
    session.commit()
    await publisher.publish()
    other = make_publisher()
    assert await other.topics.create_partitions([PartitionIncrease("t", 3)]) == {"t": None}
    session.execute("SELECT penstock.produce('t', 'k', '1', NULL, 2)")
    session.commit()
    await publisher.publish()
    assert await published(publisher, log) == ["0", "1"]


async def test_a_transaction_larger_than_a_bite_is_published_whole(
    publisher: Publisher, log: Log, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "BITE_RECORDS", 10)
    monkeypatch.setattr(inbox, "PAGE_RECORDS", 7)
    produce(session, "before")
    session.commit()
    produce(session, *(f"large {n:02}" for n in range(40)))
    session.commit()
    produce(session, "behind")
    session.commit()
    await publisher.publish()
    large = [f"large {n:02}" for n in range(40)]
    assert await published(publisher, log) == ["before", *large, "behind"]
    assert publisher.inbox.published == 42
    commits = log.rows(
        "SELECT last_offset - base_offset + 1, xmin::text FROM record_batch ORDER BY base_offset"
    )
    assert [count for count, _ in commits] == [1, *[7] * 5, 5, 1]
    assert len({xmin for _, xmin in commits[1:-1]}) == 1
    assert not is_staged(log)


async def test_a_transaction_of_more_batches_than_a_query_may_publish_blocks_nobody(
    publisher: Publisher, log: Log, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publication, "MAX_BATCHES", 2)
    monkeypatch.setattr(inbox, "BITE_RECORDS", 4)
    monkeypatch.setattr(inbox, "PAGE_RECORDS", 3)
    large = [str(n) for n in range(9)]
    produce(session, *large)
    session.commit()
    produce(session, "behind")
    session.commit()
    async with asyncio.timeout(30):
        await publisher.publish()
    assert await published(publisher, log) == [*large, "behind"]


async def test_staged_pieces_go_where_the_transaction_is_not_published(
    publisher: Publisher,
    make_publisher: MakePublisher,
    log: Log,
    session: Session,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inbox, "BITE_RECORDS", 10)
    other = make_publisher()
    produce(session, *map(str, range(15)))
    session.commit()
    stage = publisher.staging.stage

    def overtaken(*of: Any, **settings: Any) -> Any:
        asyncio.get_running_loop().create_task(other.publish())
        return stage(*of, **settings)

    monkeypatch.setattr(publisher.staging, "stage", overtaken)
    publish = publisher.broker.flusher.publish

    async def publish_later(*of: Any) -> Any:
        async with asyncio.timeout(30):
            while position(log)[0] == 0:
                await asyncio.sleep(0.01)
        return await publish(*of)

    monkeypatch.setattr(publisher.broker.flusher, "publish", publish_later)
    await publisher.publish()
    assert await published(publisher, log) == [str(n) for n in range(15)]
    assert not is_staged(log)


@pytest.fixture
def small_crowds(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than ten transactions are a crowd."""
    for name in (b"look", b"look_in_order"):
        text = stored.STATEMENTS[name].replace("1001", "11").replace("1000", "10")
        assert text != stored.STATEMENTS[name]
        monkeypatch.setitem(stored.STATEMENTS, name, text)  # type: ignore[arg-type]


@pytest.mark.usefixtures("small_crowds")
@pytest.mark.parametrize("bite_records", [2_000, 7])
async def test_a_crowd_is_published_in_order_bite_by_bite(
    publisher: Publisher,
    log: Log,
    sessions: Sessions,
    monkeypatch: pytest.MonkeyPatch,
    bite_records: int,
) -> None:
    monkeypatch.setattr(inbox, "BITE_RECORDS", bite_records)
    session, dawdler = sessions(), sessions()
    produce(dawdler, "last 1")
    log.rows("UPDATE sql_door SET slot = 2")
    produce(dawdler, "last 2")
    expected = []
    for n in range(50):
        log.rows("UPDATE sql_door SET slot = %s", n % 3)
        produce(session, f"{n:02} 1")
        if n % 5 == 0:  # in two slots
            log.rows("UPDATE sql_door SET slot = %s", (n + 1) % 3)
        produce(session, f"{n:02} 2")
        expected += [f"{n:02} 1", f"{n:02} 2"]
        session.commit()
    while not await published(publisher, log):
        assert await publisher.inbox._publish_next()
    shown = log.rows("SELECT topic, transactions, records FROM v_inbox")
    done = await published(publisher, log)
    assert 0 < len(done) < 100
    assert shown == [("t", 50 - len(done) // 2, 100 - len(done))]
    assert position(log)[2] is not None
    produce(session, "comes meanwhile")
    session.commit()
    dawdler.commit()
    await publisher.publish()
    assert await published(publisher, log) == [*expected, "comes meanwhile", "last 1", "last 2"]
    assert position(log)[2] is None


async def test_two_at_once_publish_each_record_once(
    publisher: Publisher, make_publisher: MakePublisher, log: Log, sessions: Sessions
) -> None:
    other = make_publisher()
    writers = [sessions() for _ in range(3)]

    def write() -> None:
        for n in range(150):
            for name, session in zip("abc", writers, strict=True):
                produce(session, f"{name} {n:03}")
                session.commit()

    async def publish(by: Publisher) -> None:
        while not written.done():
            await by.publish()
        await by.publish()

    written = asyncio.ensure_future(asyncio.to_thread(write))
    async with asyncio.timeout(60):
        await asyncio.gather(publish(publisher), publish(other))
    found = await published(publisher, log)
    assert sorted(found) == sorted(f"{name} {n:03}" for name in "abc" for n in range(150))
    for name in "abc":
        of_one = [value for value in found if value[0] == name]
        assert of_one == sorted(of_one)


async def test_a_position_overtaken_publishes_nothing(
    publisher: Publisher, make_publisher: MakePublisher, log: Log, session: Session
) -> None:
    other = make_publisher()
    await publisher.publish()
    publisher.inbox._position = await publisher.store.position()
    produce(session, "1")
    session.commit()
    await other.publish()
    await publisher.inbox._publish_next()
    assert await published(publisher, log) == ["1"]
    produce(session, "2")
    session.commit()
    await publisher.publish()
    assert await published(publisher, log) == ["1", "2"]


async def test_another_history_in_the_middle_of_a_look_is_noticed(
    publisher: Publisher, log: Log, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = publisher.store.look

    async def forgetting(*of: Any, **limits: Any) -> Any:
        monkeypatch.setattr(publisher.store, "look", look)
        found = await look(*of, **limits)
        publisher.inbox.forget_everything()
        return found

    monkeypatch.setattr(publisher.store, "look", forgetting)
    produce(session, "1")
    session.commit()
    await publisher.publish()
    assert await published(publisher, log) == ["1"]


@pytest.fixture
async def own_log(own_postgres: EmbeddedPostgres) -> AsyncIterator[Log]:
    async for each in open_log(own_postgres.url):
        yield each


async def test_a_database_goes_and_comes_back(
    own_postgres: EmbeddedPostgres,
    make_publisher: MakePublisher,
) -> None:
    publisher = make_publisher(own_postgres.url)
    await publisher.topics.create([NewTopic("t")])

    def commit(value: str) -> None:
        with psycopg.connect(own_postgres.url) as session:
            produce(session, value)

    async with publisher.running():
        await asyncio.to_thread(commit, "1")
        publisher.inbox.wake()
        async for log in open_log(own_postgres.url):
            await until_published(publisher, log, 1)
        await asyncio.to_thread(own_postgres.stop, "immediate")
        await asyncio.sleep(0.5)
        await asyncio.to_thread(own_postgres.start)
        await asyncio.to_thread(commit, "2")
        async for log in open_log(own_postgres.url):
            assert await until_published(publisher, log, 2) == ["1", "2"]
