"""Schemas of several brokers over one database; and what REST will ask of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from uuid import uuid4

import pytest

from core.config.values import topic_config
from core.schema.values import CompatibilityStrategy, Schema, SchemaPolicy, SchemaRefusal
from core.schema.values import SchemaType as Type
from core.topic.topic import Topic
from gateway.runtime.schemas import Schemas
from storage.connection.pool import Database
from storage.schemas import SchemaStore
from tests.core.schema.avro_schemas import data_of, record
from tests.storage.conftest import Log

STRING = Schema(Type.STRING)


def avro(*fields: object) -> Schema:
    return Schema(Type.AVRO, data_of(record(*fields)))


@pytest.fixture
async def brokers(log: Log) -> AsyncIterator[list[Schemas]]:
    """Four, each with connections of its own."""
    async with AsyncExitStack() as stack:
        made = []
        for _ in range(4):
            database = Database(log.url)
            stack.push_async_callback(database.close)
            made.append(Schemas(SchemaStore(database)))
        yield made


@pytest.fixture
def topic(log: Log) -> Topic:
    (partition,) = log.new_partitions(name="t")
    topic_id = log.value("SELECT topic_id FROM topic_partition")
    return Topic(topic_id, "t", (partition,), (0,), {}, topic_config({}, {}))


async def test_the_same_at_once_is_one_version(brokers: list[Schemas], topic: Topic) -> None:
    for number in range(5):
        fields = [(f"f{n}", "int", 0) for n in range(number)]
        wanted = [broker.register(topic, avro(*fields)) for broker in brokers * 3]
        assert await asyncio.gather(*wanted) == [number] * 12


async def test_what_excludes_each_other_is_registered_once(
    brokers: list[Schemas], topic: Topic
) -> None:
    answers = await asyncio.gather(
        *(broker.register(topic, avro(f"f{at}")) for at, broker in enumerate(brokers))
    )
    assert sorted(map(str, answers))[0] == "0"
    assert sum(isinstance(each, SchemaRefusal) for each in answers) == 3
    (head,) = await brokers[0].heads(topic)
    assert head.version == 0


async def test_what_goes_together_has_a_version_each(brokers: list[Schemas], topic: Topic) -> None:
    answers = await asyncio.gather(
        *(broker.register(topic, avro((f"f{at}", "int", 0))) for at, broker in enumerate(brokers))
    )
    assert sorted(answers) == [0, 1, 2, 3]  # type: ignore[type-var]


async def test_what_one_does_all_see(brokers: list[Schemas], topic: Topic) -> None:
    one, other, *_ = brokers
    assert await one.register(topic, STRING) == 0
    assert await other.find_version(topic, STRING) == 0
    found = await other.get(topic)
    assert found is not None
    assert found.schema == STRING
    assert await other.delete(topic) == 1
    assert await one.get(topic) is None
    assert await one.get(topic, 0) is None
    assert await one.heads(topic) == ()
    assert await one.find_version(topic, STRING) is None
    assert await one.register(topic, avro()) == 2  # no schema of old is in its way
    assert await other.delete(topic, force=True) == 3


async def test_a_test_registers_nothing(brokers: list[Schemas], topic: Topic) -> None:
    (broker, *_) = brokers
    assert await broker.refuse_incompatible(topic, avro("a")) is None
    assert await broker.heads(topic) == ()
    await broker.register(topic, avro("a"))
    assert await broker.refuse_incompatible(topic, avro("a", ("b", "int", 0))) is None
    assert await broker.refuse_incompatible(topic, avro("b")) is not None
    assert await broker.refuse_incompatible(topic, Schema(Type.AVRO, b"{")) is not None
    assert isinstance(await broker.find_version(topic, Schema(Type.AVRO, b"{")), SchemaRefusal)
    assert len(await broker.heads(topic)) == 1


async def test_transitive_means_all(brokers: list[Schemas], topic: Topic) -> None:
    (broker, *_) = brokers
    for schema in (avro(("a", "int", 0)), avro(("b", "int", 0)), avro(("b", "int", 0), "c")):
        broker.policy_of = lambda _: SchemaPolicy(CompatibilityStrategy.ALWAYS_COMPATIBLE)
        await broker.register(topic, schema)
    wanted = avro(("a", "string", ""), "c")  # goes with the last two
    for strategy, is_fine in (("BACKWARD", True), ("BACKWARD_TRANSITIVE", False)):
        policy = SchemaPolicy(CompatibilityStrategy[strategy])
        broker.policy_of = lambda _, policy=policy: policy  # type: ignore[misc]
        reads = await broker.admit_reader(topic, wanted)
        assert (await broker.refuse_incompatible(topic, wanted) is None) == is_fine
        assert (reads is None) == is_fine


async def test_a_topic_that_is_gone_gets_none(brokers: list[Schemas], topic: Topic) -> None:
    gone = Topic(uuid4(), "gone", (), (), {}, topic.config)
    (broker, *_) = brokers
    refusal = await broker.register(gone, STRING)
    assert isinstance(refusal, SchemaRefusal)
    assert "deleted" in refusal.message
    assert await broker.delete(gone) is None
