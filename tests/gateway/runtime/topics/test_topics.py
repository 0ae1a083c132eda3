"""The cache of topics: quick where it knows, sure where it does not."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from core.config.rules import ConfigAlteration, ConfigOperation, ConfigResource
from core.errors import Refusal
from core.ports.topics import StoredTopic, TopicRow
from core.topic.rules import NewTopic
from gateway.runtime.topics.configs import Configs
from gateway.runtime.topics.topics import CreatedTopic, PartitionIncrease, Topics
from storage.configs import ConfigStore
from storage.connection.pool import Database
from storage.topics import TopicStore

ALL_BROKERS = ConfigResource(4, "")


class Side:
    """One broker's topics. queries: how often each query was sent."""

    def __init__(self, database_url: str, broker_id: int) -> None:
        self.queries: Counter[str] = Counter()
        self.database = Database(database_url, observe=lambda name, _: self.queries.update([name]))
        self.store = TopicStore(self.database)
        self.configs = Configs(ConfigStore(self.database), self.store, broker_id, {})
        self.topics = Topics(self.store, self.configs, lambda: {1, 2})


@pytest.fixture
async def here(database_url: str) -> AsyncIterator[Side]:
    side = Side(database_url, 1)
    yield side
    await side.database.close()


@pytest.fixture
async def there(database_url: str) -> AsyncIterator[Side]:
    side = Side(database_url, 2)
    yield side
    await side.database.close()


async def test_known_topic_is_answered_from_memory(here: Side) -> None:
    await here.topics.create([NewTopic("t")])
    assert here.topics.cached("t") is None
    topic = await here.topics.get("t")
    assert topic is not None
    sent = here.queries.copy()
    assert await here.topics.get("t") is topic
    assert (await here.topics.get_many_by_id([topic.topic_id])) == {topic.topic_id: topic}
    assert here.topics.cached("t") is here.topics.cached_by_id(topic.topic_id) is topic
    assert here.queries == sent


async def test_unknown_topic_is_looked_for_each_time(here: Side, there: Side) -> None:
    assert await here.topics.get("t") is None
    await there.topics.create([NewTopic("t")])
    topic = await here.topics.get("t")
    assert topic is not None
    assert await here.topics.get_many_by_id([uuid4()]) == {}


async def test_many_who_miss_at_once_share_a_read(here: Side) -> None:
    await here.topics.create([NewTopic(f"t{number}") for number in range(50)])
    found = await asyncio.gather(*(here.topics.get(f"t{n % 50}") for n in range(500)))
    assert all(found)
    assert here.queries["find_topics"] <= 2


async def test_names_no_topic_can_have_are_not_sent_to_the_database(here: Side) -> None:
    assert await here.topics.get("nul\0") is None
    assert await here.topics.get("x" * 40_000) is None
    assert await here.topics.get("half \ud800") is None
    assert here.queries["find_topics"] == 0


async def test_names_that_kafka_forbids_are_found(here: Side) -> None:
    name = "tenant/namespace/one topic"
    async with here.store.change("create_topics") as change:
        await change.create_topics([TopicRow(uuid4(), name, False, 1, {})])
    topic = await here.topics.get(name)
    assert topic is not None
    assert await here.topics.create_partitions([PartitionIncrease(name, 2)]) == {name: None}
    [deleted] = await here.topics.delete([name])
    assert deleted.refusal is None


async def test_deletion_elsewhere_is_seen_after_the_news(here: Side, there: Side) -> None:
    await here.topics.create([NewTopic("t")])
    assert await here.topics.get("t")
    await there.topics.delete(["t"])
    here.topics.invalidate()
    assert await here.topics.get("t") is None


async def test_all_is_read_only_when_something_changed(here: Side, there: Side) -> None:
    await here.topics.create([NewTopic("t")])
    first = await here.topics.all()
    assert await here.topics.all() is first
    await there.topics.create([NewTopic("u")])
    assert [topic.name for topic in await here.topics.all()] == ["t", "u"]


async def test_what_was_read_before_the_news_is_not_kept(
    here: Side, there: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    await here.topics.create([NewTopic("t", configs=(("retention.ms", "1"),))])
    read = here.store.find_topics

    async def slow_read(names: list[str]) -> dict[str, StoredTopic]:
        found = await read(names)
        change = ConfigAlteration(
            ConfigResource(2, "t"), (ConfigOperation("retention.ms", 0, "2"),)
        )
        assert await there.configs.alter([change], validate_only=False) == [None]
        here.topics.invalidate()
        return found

    with monkeypatch.context() as patch:
        patch.setattr(here.store, "find_topics", slow_read)
        before = await here.topics.get("t")
    after = await here.topics.get("t")
    assert before is not None
    assert after is not None
    assert (before.config.retention_ms, after.config.retention_ms) == (1, 2)


async def test_brokers_default_reaches_topics_that_say_nothing(here: Side, there: Side) -> None:
    await here.topics.create([NewTopic("t"), NewTopic("own", configs=(("retention.ms", "5"),))])
    assert {topic.config.retention_ms for topic in await here.topics.all()} == {604_800_000, 5}
    change = ConfigAlteration(ALL_BROKERS, (ConfigOperation("log.retention.ms", 0, "7"),))
    assert await there.configs.alter([change], validate_only=False) == [None]
    here.topics.invalidate()
    assert {topic.config.retention_ms for topic in await here.topics.all()} == {7, 5}
    topic = await here.topics.get("t")
    assert topic is not None
    assert topic.config.retention_ms == 7


async def test_all_that_can_be_created_is_and_the_rest_refused(here: Side) -> None:
    results = await here.topics.create([NewTopic("a"), NewTopic("b", 0), NewTopic("c", 2, 2)])
    assert [type(results[name]) for name in "abc"] == [CreatedTopic, Refusal, CreatedTopic]
    assert [topic.name for topic in await here.topics.all()] == ["a", "c"]


async def test_brokers_adding_partitions_at_once_do_not_add_twice(here: Side, there: Side) -> None:
    await here.topics.create([NewTopic("t", 1)])
    results = await asyncio.gather(
        *(side.topics.create_partitions([PartitionIncrease("t", 4)]) for side in (here, there))
    )
    assert sorted(result["t"] is None for result in results) == [False, True]
    topic = await here.topics.get("t")
    assert topic is not None
    assert len(topic.partition_ids) == 4


async def test_creating_and_deleting_at_once_leaves_a_whole_topic_or_none(
    here: Side, there: Side
) -> None:
    for _ in range(5):
        await asyncio.gather(
            here.topics.create([NewTopic("t", 3)]),
            there.topics.delete(["t"]),
            here.topics.delete(["t"]),
            there.topics.create([NewTopic("t", 3)]),
        )
        here.topics.invalidate()
        topic = await here.topics.get("t")
        assert topic is None or len(topic.partition_ids) == 3
