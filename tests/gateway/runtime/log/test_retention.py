"""The janitor over the real database: what a round moves, deletes, seals and drops."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from uuid import uuid4

import psycopg
import pytest

from core.topic.rules import NewTopic
from core.types import Endpoint
from gateway.runtime.cluster.membership import Cluster
from gateway.runtime.log.retention import Janitor
from gateway.runtime.topics.configs import Configs
from gateway.runtime.topics.topics import Topics
from storage.brokers import ClusterStore
from storage.configs import ConfigStore
from storage.flush.segments import OpenSegment
from storage.log import retention as storage_retention
from storage.log.retention import PostgresRetentionStore
from storage.topics import TopicStore
from tests.batches import batch
from tests.gateway.runtime.conftest import Broker, MakeBroker
from tests.gateway.runtime.test_staging import Stager
from tests.storage.conftest import Log

HOUR_MS = 3_600_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Keeper:
    """A broker with its topics and its janitor."""

    def __init__(self, broker: Broker, static: dict[str, str]) -> None:
        database = broker.database
        topic_store = TopicStore(database)
        self.broker = broker
        self.cluster = Cluster(
            ClusterStore(database),
            endpoints=[Endpoint("kafka", "127.0.0.1", 9092)],
            version="test",
            session_timeout_s=30.0,
        )
        self.configs = Configs(ConfigStore(database), topic_store, 1, static)
        self.topics = Topics(topic_store, self.configs, lambda: {1})
        self.is_on_duty = True
        self.janitor = Janitor(
            PostgresRetentionStore(database, broker.segments),
            self.topics,
            self.configs,
            broker.partitions,
            lambda: self.is_on_duty,
        )

    async def topic(self, name: str, **settings: str) -> int:
        """A topic of one partition; gives the partition's id."""
        configs = tuple((key.replace("_", "."), value) for key, value in settings.items())
        await self.topics.create([NewTopic(name, 1, configs=configs)])
        topic = await self.topics.get(name)
        assert topic is not None
        return topic.partition_ids[0]

    async def append(self, name: str, *, size: int = 100, age_ms: int = 0, count: int = 1) -> None:
        topic = await self.topics.get(name)
        assert topic is not None
        each = batch(size=size, timestamp=now_ms() - age_ms)
        p = topic.partition_ids[0]
        await asyncio.gather(*(self.broker.submit(p, each, topic.config) for _ in range(count)))


@pytest.fixture
async def keeper(make_broker: MakeBroker, log: Log) -> AsyncIterator[Keeper]:
    keeper = Keeper(make_broker(), {})
    await keeper.configs.load()
    yield keeper


def start_of(log: Log, partition_id: int) -> int:
    return int(
        log.value(
            "SELECT log_start_offset FROM topic_partition WHERE partition_id = %s", partition_id
        )
    )


async def test_old_records_go_and_young_ones_stay(keeper: Keeper, log: Log) -> None:
    p = await keeper.topic("t", retention_ms=str(HOUR_MS))
    await keeper.append("t", age_ms=2 * HOUR_MS, count=3)
    await keeper.append("t", count=2)
    await keeper.janitor.clean()
    assert start_of(log, p) == 3
    assert log.value("SELECT count(*) FROM record_batch") == 2
    assert (await keeper.broker.append(p, batch())).base_offset == 5


async def test_what_is_staged_and_never_published_goes(keeper: Keeper, log: Log) -> None:
    p = await keeper.topic("t")
    stager = Stager(keeper.broker, expiration_ms=0)
    await stager.stage(uuid4(), 0, (p, batch(size=60_000)))
    await stager.publish(0)
    published_at = "UPDATE published_batch SET published_at = now() - '{} days'::interval"
    log.rows(published_at.format(29))
    await keeper.janitor.clean()
    assert log.rows("SELECT * FROM staged_batch") == []
    # Nobody points into the segment any more: it was sealed and dropped in the same round.
    assert log.rows("SELECT * FROM segment WHERE sealed_at IS NOT NULL") == []
    assert log.value("SELECT count(*) FROM published_batch") == 1
    log.rows(published_at.format(31))
    await keeper.janitor.clean()
    assert log.value("SELECT count(*) FROM published_batch") == 0


async def test_a_whole_log_can_go(keeper: Keeper, log: Log) -> None:
    p = await keeper.topic("t", retention_ms="1000")
    await keeper.append("t", age_ms=HOUR_MS, count=4)
    await keeper.janitor.clean()
    assert start_of(log, p) == 4
    assert log.rows("SELECT size_bytes, batch_count FROM topic_partition") == [(0, 0)]
    assert (await keeper.broker.append(p, batch())).base_offset == 4


async def test_what_exceeds_the_size_goes(keeper: Keeper, log: Log) -> None:
    p = await keeper.topic("t", retention_ms="-1", retention_bytes="1000")
    await keeper.append("t", size=300, count=5)
    await keeper.janitor.clean()
    assert start_of(log, p) == 1  # 1,200 bytes stay: less would be less than asked for
    await keeper.janitor.clean()
    assert start_of(log, p) == 1


@pytest.mark.parametrize(
    "settings",
    [{"retention_ms": "-1"}, {"cleanup_policy": "compact", "retention_ms": "1"}],
    ids=["no limit", "compacted"],
)
async def test_what_is_kept_stays(keeper: Keeper, log: Log, settings: dict[str, str]) -> None:
    p = await keeper.topic("t", **settings)
    await keeper.append("t", age_ms=10**9, count=3)
    await keeper.janitor.clean()
    assert start_of(log, p) == 0
    assert log.value("SELECT count(*) FROM record_batch") == 3


async def test_disk_space_comes_back_while_writing_goes_on(
    keeper: Keeper, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sealed segment must not be written to any more, or it would never be empty."""

    def seals_always(segment: OpenSegment, segment_bytes: int) -> bool:
        return segment.size_bytes > 32 * 1024

    monkeypatch.setattr(storage_retention, "should_seal", seals_always)
    await keeper.topic("t", retention_ms="0", message_timestamp_before_max_ms=str(10**12))
    sizes = []
    for _ in range(6):
        await keeper.append("t", size=50_000, age_ms=1000, count=20)
        await keeper.janitor.clean()
        sizes.append(
            log.value(
                "SELECT sum(pg_total_relation_size(('record_chunk_' || segment_id)::regclass))"
                "::bigint FROM segment"
            )
        )
    assert max(sizes[2:]) < 2.5 * 10**6, sizes
    assert log.value("SELECT min(segment_id) FROM segment") > 3
    assert log.value("SELECT to_regclass('record_chunk_1')") is None


async def test_nobody_writes_to_a_sealed_segment_after_the_round(
    keeper: Keeper, log: Log, make_broker: MakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither who sealed it nor any other broker; else live batches would keep it for ever."""
    other = Keeper(make_broker(), {})
    await other.configs.load()
    await keeper.topic("t")
    await keeper.append("t")
    await other.append("t")
    first = log.value("SELECT segment_id FROM segment")
    monkeypatch.setattr(
        storage_retention, "should_seal", lambda segment, limit: segment.segment_id == first
    )
    await keeper.janitor.clean()
    await other.janitor.clean()
    await keeper.append("t")
    await other.append("t")
    segments = [s for (s,) in log.rows("SELECT segment_id FROM record_batch ORDER BY base_offset")]
    assert segments[:2] == [first, first]
    assert first not in segments[2:]
    assert len(segments) == 4


async def test_deleted_topics_leave_nothing(keeper: Keeper, log: Log) -> None:
    await keeper.topic("t")
    await keeper.append("t", count=3)
    await keeper.topics.delete(["t"])
    await keeper.janitor.clean()
    for table in ("record_batch", "producer_state", "leader_epoch", "deleted_partition"):
        assert log.value(f"SELECT count(*) FROM {table}") == 0, table


async def test_a_partition_held_by_a_stalled_broker_does_not_end_the_janitor(
    keeper: Keeper, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = await keeper.topic("t", retention_ms="1000")
    await keeper.append("t", age_ms=HOUR_MS)
    monkeypatch.setattr(keeper.configs, "broker_int", lambda name: 50)
    running = asyncio.create_task(keeper.janitor.run())
    with psycopg.connect(log.url) as other:
        other.execute("SELECT 1 FROM topic_partition FOR UPDATE")
        await asyncio.sleep(2.5)
        assert not running.done(), running.exception()
    async with asyncio.timeout(10):
        while start_of(log, p) != 1:
            await asyncio.sleep(0.05)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_only_the_broker_on_duty_does_the_round(
    keeper: Keeper, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others forget which segments are open; and whoever is on duty next goes on."""
    p = await keeper.topic("t", retention_ms="1000")
    await keeper.append("t", age_ms=HOUR_MS, count=3)
    forgotten = 0

    def forget() -> None:
        nonlocal forgotten
        forgotten += 1

    monkeypatch.setattr(keeper.broker.segments, "forget", forget)
    monkeypatch.setattr(keeper.configs, "broker_int", lambda name: 50)
    keeper.is_on_duty = False
    running = asyncio.create_task(keeper.janitor.run())
    async with asyncio.timeout(30):
        while forgotten < 3:
            await asyncio.sleep(0.01)
        assert start_of(log, p) == 0
        keeper.is_on_duty = True
        while start_of(log, p) != 3:
            await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_two_janitors_at_once(make_broker: MakeBroker, keeper: Keeper, log: Log) -> None:
    other = Keeper(make_broker(), {})
    await other.configs.load()
    ids = [await keeper.topic(f"t{n}", retention_ms="1000") for n in range(4)]
    for n in range(4):
        await keeper.append(f"t{n}", age_ms=HOUR_MS, count=20)
    await asyncio.gather(*(each.janitor.clean() for each in (keeper, other, keeper, other)))
    assert [start_of(log, p) for p in ids] == [20] * 4
    assert log.rows("SELECT DISTINCT size_bytes, batch_count FROM topic_partition") == [(0, 0)]


async def test_names_that_nobody_uses_are_forgotten(
    keeper: Keeper, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connected producers are somebody; where there is no deduplication any more, all go."""
    on = (("penstock.deduplication.enabled", "true"),)
    await keeper.topics.create([NewTopic("on", 1, configs=on), NewTopic("off", 1)])
    topics = [await keeper.topics.get(name) for name in ("on", "off")]
    p, q = [topic.partition_ids[0] for topic in topics if topic is not None]
    partitions = keeper.broker.partitions
    for partition_id, name in ((p, "gone"), (p, "idle"), (p, "late"), (q, "off")):
        await partitions.claim_name(partition_id, name)
        log.rows("UPDATE named_producer SET updated_at = now() - '7 hours'::interval")
    partitions.use_name(p, "idle", 1)
    log.rows(
        "UPDATE named_producer SET updated_at = now() - '5 hours'::interval"
        " WHERE name IN ('late', 'off')"
    )
    keeper.is_on_duty = False
    with monkeypatch.context() as patch:
        patch.setattr(keeper.configs, "broker_int", lambda name: 50)
        running = asyncio.create_task(keeper.janitor.run())
        async with asyncio.timeout(30):
            while log.value(
                "SELECT updated_at < now() - '1 hour'::interval FROM named_producer"
                " WHERE name = 'idle'"
            ):
                await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    await keeper.janitor.clean()
    assert log.rows("SELECT name FROM named_producer ORDER BY name") == [("idle",), ("late",)]
