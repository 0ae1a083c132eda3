"""Namespaces and their policies, by what commands are answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from core.config.rules import ConfigAlteration, ConfigOperation, ConfigResource
from core.errors import Error
from core.namespace.values import (
    AutoTopicCreation,
    BacklogQuota,
    QuotaPolicy,
    QuotaType,
    Retention,
    Tenant,
    TopicType,
)
from core.schema.values import CompatibilityStrategy, SchemaPolicy
from core.topic.rules import NewTopic
from gateway.pulsar.commands import CommandType, ServerError, SubType
from gateway.pulsar.commands_pb2 import (
    CommandAck,
    CommandFlow,
    CommandGetTopicsOfNamespace,
    CommandLookupTopic,
    CommandPartitionedTopicMetadata,
    CommandProducer,
    CommandSubscribe,
    CommandWatchTopicList,
)
from gateway.runtime.cluster.news import NewsReader
from gateway.runtime.runtime import Runtime
from tests.gateway.pulsar.conftest import Broker
from tests.gateway.pulsar.conversing import T0, WITHIN_S, Conversation, entry_of

TOPIC = "persistent://a/b/t"
LOG_TOPIC = "pulsar.a.b.t"
HOLD, FAIL = QuotaPolicy.PRODUCER_REQUEST_HOLD, QuotaPolicy.PRODUCER_EXCEPTION
EVICT = QuotaPolicy.CONSUMER_BACKLOG_EVICTION
SIZE, AGE = QuotaType.DESTINATION_STORAGE, QuotaType.MESSAGE_AGE
FAILED = 1
EARLIEST = 1


async def make_namespace(broker: Broker, **policies: Any) -> None:
    namespaces = broker.runtime.namespaces
    assert await namespaces.put_tenant(Tenant("a"), is_new=True) is None
    assert await namespaces.create("a", "b") is None
    if policies:
        await change(broker, **policies)


async def change(broker: Broker, **policies: Any) -> None:
    assert await broker.runtime.namespaces.change("a", "b", **policies) is None


async def metadata(client: Conversation, topic: str = TOPIC) -> Any:
    command = CommandPartitionedTopicMetadata(topic=topic)
    return await client.ask(command, CommandType.PARTITIONED_METADATA_RESPONSE)


async def lookup(client: Conversation, topic: str = TOPIC) -> Any:
    return await client.ask(CommandLookupTopic(topic=topic), CommandType.LOOKUP_RESPONSE)


async def refused(client: Conversation, wanted: Any) -> tuple[ServerError, str]:
    answer = await client.ask(wanted, CommandType.ERROR)
    return ServerError(answer.error), answer.message


def producer(**more: Any) -> CommandProducer:
    return CommandProducer(**{"topic": TOPIC, "producer_id": 0, **more})


def subscribing(**more: Any) -> CommandSubscribe:
    wanted = {"topic": TOPIC, "subscription": "s", "sub_type": SubType.SHARED, "consumer_id": 1}
    return CommandSubscribe(**(wanted | {"initial_position": EARLIEST} | more))


async def subscribe(client: Conversation, permits: int = 0, **more: Any) -> None:
    await client.ask(subscribing(**more), CommandType.SUCCESS)
    if permits:
        client.say(CommandFlow(consumer_id=more.get("consumer_id", 1), message_permits=permits))


async def send(client: Conversation, count: int, size: int = 10, **metadata: Any) -> None:
    for _ in range(count):
        client.send(entry_of(b"x" * size, **metadata))
        await client.hear(CommandType.SEND_RECEIPT)


def now_ms(broker: Broker) -> int:
    return broker.front_end.services.clock()


async def partition_of(broker: Broker) -> int:
    topic = await broker.runtime.topics.get(LOG_TOPIC)
    assert topic is not None
    return topic.partition_ids[0]


def marks(url: str) -> dict[str, int]:
    with psycopg.connect(url) as psql:
        return dict(psql.execute("SELECT name, mark_delete FROM subscription").fetchall())


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not condition():
            await asyncio.sleep(0.02)


# --- existence ---


@pytest.mark.parametrize("has_tenant", [False, True])
async def test_nothing_is_made_in_a_namespace_that_is_not_there(
    broker: Broker, has_tenant: bool
) -> None:
    """Answers as Pulsar 4.2.4 gave them."""
    if has_tenant:
        await broker.runtime.namespaces.put_tenant(Tenant("a"), is_new=True)
    client = await broker.client()
    told = await metadata(client)
    assert (told.response, told.error) == (FAILED, ServerError.TOPIC_NOT_FOUND)
    assert told.message == "Namespace not found"
    found = await lookup(client)
    assert (found.error, found.message) == (ServerError.TOPIC_NOT_FOUND, "Namespace not found")
    for wanted in (producer(), subscribing()):
        code, message = await refused(client, wanted)
        assert (code, "look" in message) == (ServerError.SERVICE_NOT_READY, True)
    code, message = await refused(client, subscribing(force_topic_creation=False))
    assert (code, message) == (ServerError.TOPIC_NOT_FOUND, f"Topic {TOPIC} does not exist")
    listed = await client.ask(
        CommandGetTopicsOfNamespace(namespace="a/b"),
        CommandType.GET_TOPICS_OF_NAMESPACE_RESPONSE,
    )
    assert list(listed.topics) == []
    wanted = CommandWatchTopicList(namespace="a/b", watcher_id=1, topics_pattern="")
    watched = await client.ask(wanted, CommandType.WATCH_TOPIC_LIST_SUCCESS)
    assert list(watched.topic) == []
    assert await broker.runtime.topics.all() == ()


async def test_a_topic_that_is_there_is_reached(broker: Broker) -> None:
    """Kafka's clients may have made it, and ask for no namespace."""
    await broker.runtime.topics.create([NewTopic(LOG_TOPIC, 1)])
    client = await broker.client()
    assert (await metadata(client)).partitions == 0
    assert (await lookup(client)).broker_service_url
    await client.produce_to(TOPIC)
    await send(client, 1)
    await subscribe(client, permits=1)
    await client.hear(CommandType.MESSAGE)


async def test_a_namespace_that_goes_meanwhile_gets_no_topic(broker: Broker) -> None:
    await make_namespace(broker)
    client = await broker.client()
    assert (await lookup(client)).broker_service_url
    namespaces = broker.runtime.namespaces
    invalidate, namespaces.invalidate = namespaces.invalidate, lambda: None  # type: ignore[method-assign]
    await namespaces.ensure_loaded()
    assert await namespaces.delete("a", "b") is None  # this broker does not know of it yet
    assert (await refused(client, producer()))[0] is ServerError.TOPIC_NOT_FOUND
    namespaces.invalidate = invalidate  # type: ignore[method-assign]
    assert await broker.runtime.topics.all() == ()


async def test_deleting(broker: Broker) -> None:
    await make_namespace(broker)
    namespaces = broker.runtime.namespaces
    client = await broker.client()
    await client.produce_to(TOPIC)
    await broker.runtime.topics.create([NewTopic("pulsar.a.c.t", 1), NewTopic("t", 1)])
    for refusal, error in (
        (await namespaces.delete("a", "b"), Error.NON_EMPTY_GROUP),
        (await namespaces.delete("a", "x", force=True), Error.RESOURCE_NOT_FOUND),
        (await namespaces.delete_tenant("a"), Error.NON_EMPTY_GROUP),
        (await namespaces.delete_tenant("x"), Error.RESOURCE_NOT_FOUND),
        (await namespaces.create("a", "b"), Error.TOPIC_ALREADY_EXISTS),
        (await namespaces.create("x", "b"), Error.RESOURCE_NOT_FOUND),
        (await namespaces.create("a", "b/c"), Error.INVALID_CONFIG),
        (await namespaces.put_tenant(Tenant("a"), is_new=True), Error.TOPIC_ALREADY_EXISTS),
        (await namespaces.put_tenant(Tenant("x"), is_new=False), Error.RESOURCE_NOT_FOUND),
        (await namespaces.change("a", "x", message_ttl_s=1), Error.RESOURCE_NOT_FOUND),
        (await namespaces.change("a", "b", message_ttl_s=-1), Error.INVALID_CONFIG),
    ):
        assert refusal is not None and refusal.error is error, refusal
    assert await namespaces.of_tenant("a") == ["b"]
    assert await namespaces.of_tenant("x") is None
    assert await namespaces.tenants() == ["a", "public", "pulsar"]
    assert await namespaces.delete("a", "b", force=True) is None
    assert await namespaces.get("a", "b") is None
    assert [each.name for each in await broker.runtime.topics.all()] == ["pulsar.a.c.t", "t"]
    assert await namespaces.delete_tenant("a") is None
    assert await namespaces.tenant("a") is None


async def test_other_brokers_hear_of_it(make_broker: Any) -> None:
    first, second = [await make_broker() for _ in range(2)]
    runtime: Runtime = second.runtime
    news = NewsReader(
        runtime.feed,
        runtime.partitions,
        runtime.cluster,
        runtime.announcer,
        runtime.on_metadata,
        lambda ids: None,
    )
    tasks = [asyncio.create_task(news.listen()), asyncio.create_task(news.run())]
    try:
        await make_namespace(first)
        ttl = 0
        async with asyncio.timeout(WITHIN_S):
            while True:  # news of before it listens are lost
                ttl += 1
                await change(first, message_ttl_s=ttl)
                await asyncio.sleep(0.05)
                found = await runtime.namespaces.get("a", "b")
                if found is not None and found.policies.message_ttl_s == ttl and ttl > 1:
                    break
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await runtime.feed.close()


# --- making topics and subscriptions ---


async def test_topics_are_made_as_the_namespace_has_it(broker: Broker) -> None:
    await make_namespace(broker, auto_topic_creation=AutoTopicCreation(False))
    client = await broker.client()
    told = await metadata(client)
    assert (told.response, told.error) == (FAILED, ServerError.TOPIC_NOT_FOUND)
    for wanted in (producer(), subscribing()):
        assert (await refused(client, wanted))[0] is ServerError.TOPIC_NOT_FOUND
    assert (await lookup(client)).broker_service_url, "as in Pulsar"
    await change(broker, auto_topic_creation=AutoTopicCreation(True, TopicType.PARTITIONED, 3))
    without = CommandPartitionedTopicMetadata(topic=TOPIC, metadata_auto_creation_enabled=False)
    told = await client.ask(without, CommandType.PARTITIONED_METADATA_RESPONSE)
    assert told.error == ServerError.TOPIC_NOT_FOUND
    assert (await metadata(client)).partitions == 3
    await client.produce_to(f"{TOPIC}-partition-2")
    await change(broker, auto_topic_creation=None)
    assert (await metadata(client, f"{TOPIC}-plain")).partitions == 0
    topics = await broker.runtime.topics.all()
    assert [(each.name, len(each.partition_ids)) for each in topics] == [(LOG_TOPIC, 3)]


async def test_a_namespace_allows_what_the_broker_does_not(make_broker: Any) -> None:
    broker = await make_broker({"auto.create.topics.enable": "false"})
    await make_namespace(broker)
    client = await broker.client()
    assert (await refused(client, producer()))[0] is ServerError.TOPIC_NOT_FOUND
    wanted = AutoTopicCreation(True, TopicType.NON_PARTITIONED)
    await change(broker, auto_topic_creation=wanted)
    await client.produce_to(TOPIC)


async def test_subscriptions_are_made_as_the_namespace_has_it(broker: Broker) -> None:
    await make_namespace(broker)
    client = await broker.client()
    await subscribe(client, consumer_id=1)
    await change(broker, allows_auto_subscription=False)
    await subscribe(client, consumer_id=2)  # it is there
    code, message = await refused(client, subscribing(subscription="new", consumer_id=3))
    assert (code, message) == (ServerError.SUBSCRIPTION_NOT_FOUND, "Subscription does not exist")
    await subscribe(client, subscription="reader", consumer_id=4, durable=False)
    code, message = await refused(client, producer(initial_subscription_name="new"))
    assert (code, "not allowed" in message) == (ServerError.NOT_ALLOWED_ERROR, True)
    await client.produce_to(TOPIC, initial_subscription_name="s")
    await change(broker, allows_auto_subscription=None)
    await subscribe(client, subscription="new", consumer_id=5)


# --- what yields to the topic, and overrides the broker ---


async def test_deduplication_is_the_topics_the_namespaces_the_brokers(make_broker: Any) -> None:
    broker = await make_broker({"penstock.broker.deduplication.enabled": "true"})
    await make_namespace(broker)
    client = await broker.client()

    async def is_stored_once(number: int) -> bool:
        await client.produce_to(TOPIC, producer_id=number, producer_name=f"p{number}")
        for _ in range(2):
            client.send(entry_of(sequence_id=5), producer_id=number, sequence_id=5)
            receipt = await client.hear(CommandType.SEND_RECEIPT)
        return bool(receipt.message_id.entry_id == 2**64 - 1)

    assert await is_stored_once(1)
    await change(broker, is_deduplicated=False)
    assert not await is_stored_once(2)
    await change(broker, is_deduplicated=True)
    assert await is_stored_once(3)
    resource = ConfigResource(2, LOG_TOPIC)
    operation = ConfigOperation("penstock.deduplication.enabled", 0, "false")
    altered = ConfigAlteration(resource, (operation,))
    assert await broker.runtime.configs.alter([altered], validate_only=False) == [None]
    assert not await is_stored_once(4)


async def test_schemas(broker: Broker) -> None:
    await make_namespace(
        broker,
        compatibility_strategy=CompatibilityStrategy.BACKWARD,
        allows_schema_auto_update=False,
        is_schema_enforced=True,
    )
    client = await broker.client()
    await client.produce_to(TOPIC)
    topic = await broker.runtime.topics.get(LOG_TOPIC)
    assert topic is not None
    policy = broker.runtime.schemas.policy_of(topic)
    assert policy == SchemaPolicy(CompatibilityStrategy.BACKWARD, False, True)


async def test_a_consumer_gets_no_more_than_it_may_have_unacknowledged(make_broker: Any) -> None:
    broker = await make_broker({"penstock.max.unacked.messages.per.consumer": "4"})
    await make_namespace(broker)
    client = await broker.client()
    await client.produce_to(TOPIC)
    await send(client, 20)
    await subscribe(client, permits=20)
    ids = [(await client.hear(CommandType.MESSAGE)).message_id for _ in range(4)]
    await asyncio.sleep(0.1)
    assert not client.transport.commands
    await change(broker, max_unacked_per_consumer=6)
    await broker.runtime.upkeep.apply_limits()
    client.say(CommandAck(consumer_id=1, ack_type=0, message_id=ids))
    for _ in range(6):
        await client.hear(CommandType.MESSAGE)
    await asyncio.sleep(0.1)
    assert not client.transport.commands
    other = await broker.client()
    await change(broker, max_unacked_per_consumer=None, max_unacked_per_subscription=2)
    await subscribe(other, permits=20, subscription="other")
    for _ in range(2):
        await other.hear(CommandType.MESSAGE)
    await asyncio.sleep(0.1)
    assert not other.transport.commands


# --- what expires ---


async def test_messages_expire_for_all_subscriptions(
    broker: Broker, make_broker: Any, database_url: str
) -> None:
    await make_namespace(broker)
    client = await broker.client()
    await client.produce_to(TOPIC)
    await subscribe(client, subscription="loaded", consumer_id=1)
    await subscribe(client, subscription="left", consumer_id=2)
    await send(client, 4, publish_time=T0)
    await send(client, 3, publish_time=now_ms(broker))
    upkeep = broker.runtime.upkeep
    await upkeep.expire()
    assert marks(database_url) == {"loaded": 0, "left": 0}
    await change(broker, message_ttl_s=3600)
    owned = await broker.runtime.subscriptions.find(await partition_of(broker))
    assert owned is not None
    owned.drop()  # now none is in memory
    await upkeep.expire()
    await until(lambda: marks(database_url) == {"loaded": 4, "left": 4})
    other = await broker.client()
    await subscribe(other, permits=100, subscription="loaded")
    found = [(await other.hear(CommandType.MESSAGE)).message_id.entry_id for _ in range(3)]
    assert found == [4, 5, 6]


async def test_only_the_broker_that_dispatches_sees_to_it(
    make_broker: Any, database_url: str
) -> None:
    first, second = [await make_broker() for _ in range(2)]
    for each in (first, second, first):
        await each.runtime.cluster.heartbeat()
    await make_namespace(first, message_ttl_s=1)
    client = await first.client()
    await client.produce_to(TOPIC)
    await subscribe(client)
    await send(client, 2, publish_time=T0)
    second.runtime.on_metadata()
    quota = BacklogQuota(EVICT, 1)
    assert await first.runtime.namespaces.change_quota("a", "b", SIZE, quota) is None
    await second.runtime.upkeep.expire()
    await second.runtime.upkeep.hold_to_quotas()
    assert second.runtime.subscriptions.owned == []
    assert marks(database_url) == {"s": 0}
    await first.runtime.subscriptions.stop()
    await first.runtime.leases.release()
    await first.runtime.cluster.leave()
    second.runtime.on_metadata()
    await second.runtime.upkeep.expire()
    await until(lambda: marks(database_url) == {"s": 2})


async def test_an_open_transaction_is_not_passed(broker: Broker, database_url: str) -> None:
    """What it writes is new to subscriptions once it has ended, however old it is."""
    await make_namespace(broker, message_ttl_s=1)
    client = await broker.client()
    await client.produce_to(TOPIC)
    await subscribe(client)
    await send(client, 2, publish_time=T0)
    partition_id = await partition_of(broker)
    with psycopg.connect(database_url, autocommit=True) as psql:
        psql.execute(
            "INSERT INTO producer_state (partition_id, producer_id, producer_epoch, last_timestamp,"
            " last_sequences, last_offsets, offset_deltas, timestamps, txn_first_offset)"
            " VALUES (%s, 1, 0, 0, '{}', '{}', '{}', '{}', 1)",
            (partition_id,),
        )
    broker.runtime.partitions.forget_everything()
    broker.runtime.flusher.forget_everything()
    await broker.runtime.upkeep.expire()
    await until(lambda: marks(database_url) == {"s": 1})


# --- quotas ---


@pytest.mark.parametrize(
    ("kind", "quota", "code"),
    [
        (SIZE, BacklogQuota(HOLD, 400), ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_ERROR),
        (SIZE, BacklogQuota(FAIL, 400), ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_EXCEPTION),
        (AGE, BacklogQuota(FAIL, 0, 60), ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_EXCEPTION),
    ],
)
async def test_a_large_or_old_backlog_keeps_producers_out(
    broker: Broker, database_url: str, kind: QuotaType, quota: BacklogQuota, code: ServerError
) -> None:
    await make_namespace(broker)
    assert await broker.runtime.namespaces.change_quota("a", "b", kind, quota) is None
    client, consumer = await broker.client(), await broker.client()
    await client.produce_to(TOPIC)
    await subscribe(consumer)
    upkeep = broker.runtime.upkeep
    if kind is SIZE:
        await upkeep.hold_to_quotas()
        await send(client, 1, 100, publish_time=T0)
        await upkeep.hold_to_quotas()  # not yet
        await send(client, 3, 100, publish_time=T0)
    else:
        await send(client, 1, publish_time=now_ms(broker))
        await upkeep.hold_to_quotas()  # not yet
        with psycopg.connect(database_url, autocommit=True) as psql:
            psql.execute("UPDATE record_batch SET max_timestamp = %s", (T0,))
    await upkeep.hold_to_quotas()
    closed = await client.hear(CommandType.CLOSE_PRODUCER)
    assert closed.producer_id == 0
    told, message = await refused(client, producer(producer_id=1))
    assert (told, "backlog quota exceeded" in message) == (code, True)
    owned = await broker.runtime.subscriptions.find(await partition_of(broker))
    assert owned is not None
    await owned.expire_for_all(2**62)
    await until(lambda: marks(database_url)["s"] > 0)
    await client.produce_to(TOPIC, producer_id=1)
    await send_to(client, 1)


async def send_to(client: Conversation, producer_id: int) -> None:
    client.send(entry_of(), producer_id=producer_id)
    await client.hear(CommandType.SEND_RECEIPT)


async def test_a_backlog_is_evicted(broker: Broker, database_url: str) -> None:
    await make_namespace(broker)
    client = await broker.client()
    await client.produce_to(TOPIC)
    await subscribe(client, subscription="slow", consumer_id=1)
    await subscribe(client, subscription="slower", consumer_id=2)
    await send(client, 10, 100, publish_time=now_ms(broker))
    size = len(entry_of(b"x" * 100, publish_time=now_ms(broker)))
    namespaces, upkeep = broker.runtime.namespaces, broker.runtime.upkeep
    quota = BacklogQuota(EVICT, 5 * size)
    assert await namespaces.change_quota("a", "b", SIZE, quota) is None
    await upkeep.hold_to_quotas()
    # Nine tenths of the quota are left at most: four entries.
    await until(lambda: marks(database_url) == {"slow": 6, "slower": 6})
    await send(client, 1)  # nobody was closed
    assert await namespaces.change_quota("a", "b", SIZE, None) is None
    assert await namespaces.change_quota("a", "b", AGE, BacklogQuota(EVICT, 0, 60)) is None
    await upkeep.hold_to_quotas()
    assert marks(database_url) == {"slow": 6, "slower": 6}
    with psycopg.connect(database_url, autocommit=True) as psql:
        psql.execute(
            "UPDATE record_batch SET max_timestamp = %(at)s, running_max_timestamp = %(at)s"
            " WHERE base_offset < 8",
            {"at": T0},
        )
    await upkeep.hold_to_quotas()
    await until(lambda: marks(database_url) == {"slow": 8, "slower": 8})


# --- retention ---


async def log_start(broker: Broker) -> int:
    partition_id = await partition_of(broker)
    await broker.runtime.janitor.clean()
    state = (await broker.runtime.partitions.refresh([partition_id]))[partition_id]
    return state.log_start_offset


async def test_what_all_have_acknowledged_goes(broker: Broker, database_url: str) -> None:
    await make_namespace(broker)
    client = await broker.client()
    await client.produce_to(TOPIC)
    await subscribe(client, permits=100, subscription="one", consumer_id=1)
    await subscribe(client, subscription="two", consumer_id=2)
    for number in range(6):
        # Not older than Kafka's retention.ms has it.
        await send(client, 1, 100, publish_time=now_ms(broker) - (5 - number) * 3_600_000)
        message = await client.hear(CommandType.MESSAGE)
        client.say(CommandAck(consumer_id=1, ack_type=0, message_id=[message.message_id]))
    await until(lambda: marks(database_url) == {"one": 6, "two": 0})
    assert await log_start(broker) == 0, "no retention is set"
    await change(broker, retention=Retention(0, 0))
    assert await log_start(broker) == 0, "one has not acknowledged"
    owned = await broker.runtime.subscriptions.find(await partition_of(broker))
    assert owned is not None
    await owned.expire_for_all(5)
    await until(lambda: marks(database_url) == {"one": 6, "two": 5})
    await change(broker, retention=Retention(-1, -1))
    assert await log_start(broker) == 0
    await change(broker, retention=Retention(150, -1))
    assert await log_start(broker) == 3
    await change(broker, retention=Retention(-1, 1))
    assert await log_start(broker) == 3, "it is smaller than that"
    await change(broker, retention=Retention(0, 0))
    assert await log_start(broker) == 5


async def test_kafkas_topics_keep_what_kafkas_settings_keep(broker: Broker) -> None:
    await broker.runtime.topics.create([NewTopic(LOG_TOPIC, 1)])
    await make_namespace(broker, retention=Retention(0, 0))
    client = await broker.client()
    await client.produce_to(TOPIC)
    await send(client, 3, publish_time=now_ms(broker))
    assert await log_start(broker) == 0
    operation = ConfigOperation("penstock.pulsar.retention", 0, "true")
    altered = ConfigAlteration(ConfigResource(2, LOG_TOPIC), (operation,))
    assert await broker.runtime.configs.alter([altered], validate_only=False) == [None]
    assert await log_start(broker) == 3, "there is no subscription that wants it"
