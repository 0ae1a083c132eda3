"""Tenants and namespaces as rows, and backlogs as the database counts them."""

from __future__ import annotations

import pytest

from core.namespace.forms import read_policies
from core.namespace.values import Namespace, Policies, Tenant
from core.ports.backlogs import Backlog
from storage.namespaces import NamespaceStore
from storage.subscriptions.backlogs import BacklogStore
from storage.topics import TopicStore
from tests.batches import T0, batch
from tests.storage.conftest import Log

ODD = "a\0b␀0c\\\"{},𝄞'\n"
ALL = read_policies(
    {
        "message_ttl_in_seconds": 90,
        "retention_policies": {"retentionTimeInMinutes": 90, "retentionSizeInMB": -1},
        "backlog_quota_map": {
            "destination_storage": {"limitSize": 1048576, "policy": "producer_exception"},
            "message_age": {"limitTime": 10, "policy": "consumer_backlog_eviction"},
        },
        "deduplicationEnabled": True,
        "schema_compatibility_strategy": "BACKWARD",
        "is_allow_auto_update_schema": False,
        "schema_validation_enforced": True,
        "autoTopicCreationOverride": {
            "allowAutoTopicCreation": True,
            "topicType": "partitioned",
            "defaultNumPartitions": 3,
        },
        "autoSubscriptionCreationOverride": {"allowAutoSubscriptionCreation": False},
        "max_unacked_messages_per_consumer": 1,
        "max_unacked_messages_per_subscription": 2,
    }
)


@pytest.fixture
def topics(log: Log) -> TopicStore:
    return TopicStore(log.database)


@pytest.fixture
def store(log: Log) -> NamespaceStore:
    return NamespaceStore(log.database)


async def test_what_is_there_from_the_start(store: NamespaceStore) -> None:
    found = await store.read()
    assert list(found.tenants) == ["public", "pulsar"]
    assert list(found.namespaces) == [("public", "default"), ("pulsar", "system")]
    assert all(each.policies == Policies() for each in found.namespaces.values())
    assert found.tenants["public"] == Tenant("public", (), ("standalone",))


async def test_what_is_put_is_read(store: NamespaceStore, topics: TopicStore, log: Log) -> None:
    tenant, namespace = Tenant("t", (ODD, ""), (ODD,)), Namespace("t", "n", ALL)
    version = "SELECT metadata_version FROM cluster"
    before = log.value(version)
    async with topics.change("test") as change:
        await change.put_tenant(tenant)
        await change.put_namespace(namespace)
        there = await change.read_namespaces()
    assert there.tenants["t"] == tenant
    assert await store.read() == there
    assert there.namespaces["t", "n"] == namespace
    assert log.value(version) == before + 1, "all brokers are told"
    async with topics.change("test") as change:
        await change.put_namespace(Namespace("t", "n"))
        await change.put_tenant(Tenant("t"))
    found = await store.read()
    assert found.namespaces["t", "n"] == Namespace("t", "n")
    assert found.tenants["t"] == Tenant("t")
    async with topics.change("test") as change:
        await change.delete_namespace(("t", "n"))
        await change.delete_tenant("t")
    assert "t" not in (await store.read()).tenants


async def test_what_fails_changes_nothing(store: NamespaceStore, topics: TopicStore) -> None:
    before = await store.read()
    with pytest.raises(RuntimeError):
        async with topics.change("test") as change:
            await change.put_tenant(Tenant("t"))
            raise RuntimeError
    assert await store.read() == before


async def test_the_view_has_a_column_a_policy(topics: TopicStore, log: Log) -> None:
    async with topics.change("test") as change:
        await change.put_namespace(Namespace("public", "set", ALL))
    columns = (
        "message_ttl::text, retention_time, retention_size, backlog_quota_size, backlog_quota_age,"
        " deduplication, schema_compatibility_strategy, schema_auto_update,"
        " schema_validation_enforced, auto_topic_creation, auto_subscription_creation,"
        " max_unacked_per_consumer, max_unacked_per_subscription"
    )
    query = f"SELECT {columns} FROM v_namespace WHERE tenant = 'public' AND namespace = "
    assert log.rows(query + "'default'") == [(None,) * 13]
    assert log.rows(query + "'set'") == [
        (
            "00:01:30",
            "01:30:00",
            "unlimited",
            "1024 kB, producer_exception",
            "00:00:10, consumer_backlog_eviction",
            True,
            "BACKWARD",
            False,
            True,
            "partitioned, 3 partitions",
            False,
            1,
            2,
        )
    ]


# --- backlogs ---


def subscribe(log: Log, partition_id: int, name: str, mark_delete: int) -> None:
    log.rows(
        "INSERT INTO subscription (partition_id, name_key, name, mark_delete, properties)"
        " VALUES (%s, gen_random_uuid(), %s, %s, '{}') RETURNING 1",
        partition_id,
        name,
        mark_delete,
    )


async def test_backlogs(log: Log) -> None:
    one, none, done = log.new_partitions(3)
    store = BacklogStore(log.database)
    for each in (one, none, done):
        for age in range(10):
            await log.append(each, batch(2, timestamp=T0 + age * 1_000, size=100))
    subscribe(log, one, "fast", 18)
    subscribe(log, one, "slow", 7)
    subscribe(log, done, "done", 20)
    (found,) = await store.backlogs([one, none, done])
    assert found == Backlog(one, 7, 20, T0 + 3_000, 1_000)
    assert await store.backlogs([]) == []
    for enough, size in ((10_000, 700), (701, 700), (700, 700), (699, 700), (601, 700)):
        assert await store.size_of(found, enough) == size, enough
    for enough, size in ((600, 600), (101, 200), (100, 100), (1, 100), (0, 100)):
        assert await store.size_of(found, enough) == size, enough
    assert await store.first_young(found, T0 + 4_500) == 10
    assert await store.first_young(found, T0 + 60_000) == 20
    for most, end in ((10_000, 7), (700, 7), (699, 8), (600, 8), (150, 18), (100, 18), (99, 20)):
        assert await store.end_of_excess(found, most) == end, most
