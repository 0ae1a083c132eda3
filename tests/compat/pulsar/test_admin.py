"""Pulsar's REST by its stock admin classes, `PulsarAdmin` of Java, over real sockets."""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
import subprocess
import threading
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pulsar
import pytest
from confluent_kafka import Producer as KafkaProducer
from pulsar import CompressionType, ConsumerType, InitialPosition

from compat.pulsar.drivers import Call, Refused
from tests.compat.pulsar.administering import Admin
from tests.compat.pulsar.conftest import WITHIN_S, Both, ClientOf, make_topic
from tests.conftest import Gateway, StartGateway, free_port

pytestmark = pytest.mark.java

WITHIN_MS = 30_000
DEFAULT = "persistent://public/default/"


def send(client: pulsar.Client, topic: str, values: list[bytes], **settings: Any) -> list[Any]:
    """One by one, unless `settings` say otherwise; gives the ids."""
    producer = client.create_producer(topic, **{"batching_enabled": False, **settings})
    ids: list[Any] = []
    for value in values:
        producer.send_async(value, lambda _, found: ids.append(found))
    producer.flush()
    producer.close()
    return ids


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def receive(consumer: Any, count: int) -> list[bytes]:
    """Receives and acknowledges."""
    found = []
    for _ in range(count):
        message = consumer.receive(WITHIN_MS)
        consumer.acknowledge(message)
        found.append(message.data())
    return found


def data(messages: list[dict[str, Any]]) -> list[bytes]:
    return [base64.b64decode(each["data"]) for each in messages]


def id_of(message_id: Any) -> str:
    return f"{message_id.ledger_id()}:{message_id.entry_id()}:{message_id.partition()}"


def eventually(get: Callable[[], Any], wanted: Any) -> None:
    deadline = time.monotonic() + WITHIN_S
    while (found := get()) != wanted:
        assert time.monotonic() < deadline, f"{found!r} is not {wanted!r}"
        time.sleep(0.05)


def refusal(act: Callable[..., Any], *arguments: Any) -> tuple[str, int]:
    with pytest.raises(Refused) as raised:
        act(*arguments)
    return raised.value.name, raised.value.status


NOT_FOUND = ("NotFoundException", 404)
CONFLICT = ("ConflictException", 409)
PRECONDITION_FAILED = ("PreconditionFailedException", 412)


# --- topics ---


def test_plain_topics(admin: Admin, client: pulsar.Client, topic: str) -> None:
    admin.topics("createNonPartitionedTopic", topic)
    assert refusal(admin.topics, "createNonPartitionedTopic", topic) == CONFLICT
    assert admin.topics("getPartitionedTopicMetadata", topic)["partitions"] == 0
    assert DEFAULT + topic in admin.topics("getList", "public/default")
    assert DEFAULT + topic not in admin.topics("getPartitionedTopicList", "public/default")

    consumer = client.subscribe(topic, "s")
    assert refusal(admin.topics, "delete", topic) == PRECONDITION_FAILED
    consumer.close()
    producer = client.create_producer(topic)
    assert refusal(admin.topics, "delete", topic, False) == PRECONDITION_FAILED
    producer.close()
    admin.topics("delete", topic)
    assert refusal(admin.topics, "delete", topic) == NOT_FOUND
    assert DEFAULT + topic not in admin.topics("getList", "public/default")


def test_force_deletes_a_topic_in_use(
    admin: Admin, both: Both, client_of: ClientOf, topic: str
) -> None:
    client = client_of(both.service_url, operation_timeout_seconds=5)
    consumer = client.subscribe(topic, "s")
    (sent,) = send(client, topic, [b"1"])
    assert refusal(admin.topics, "delete", topic, False) == PRECONDITION_FAILED
    admin.topics("delete", topic, True)

    def ledgers() -> list[int]:
        """Of a topic that the consumer has made anew, if it was fast."""
        try:
            return [each["ledgerId"] for each in admin.topics("getInternalStats", topic)["ledgers"]]
        except Refused as refused:
            assert refused.status == 404
            return []

    assert sent.ledger_id() not in ledgers()
    consumer.close()


def test_partitioned_topics(admin: Admin, client: pulsar.Client, topic: str) -> None:
    admin.topics("createPartitionedTopic", topic, 3)
    assert refusal(admin.topics, "createPartitionedTopic", topic, 3) == CONFLICT
    assert refusal(admin.topics, "createNonPartitionedTopic", topic) == CONFLICT
    assert admin.topics("getPartitionedTopicMetadata", topic)["partitions"] == 3
    assert DEFAULT + topic in admin.topics("getPartitionedTopicList", "public/default")
    mine = {each for each in admin.topics("getList", "public/default") if topic in each}
    assert mine == {f"{DEFAULT}{topic}-partition-{number}" for number in range(3)}

    admin.topics("updatePartitionedTopic", topic, 5)
    assert admin.topics("getPartitionedTopicMetadata", topic)["partitions"] == 5
    assert len(client.get_topic_partitions(topic)) == 5
    assert refusal(admin.topics, "updatePartitionedTopic", topic, 4)[1] in (406, 409, 422)
    admin.topics("createMissedPartitions", topic)

    consumer = client.subscribe(topic, "s")
    assert refusal(admin.topics, "deletePartitionedTopic", topic) == PRECONDITION_FAILED
    consumer.close()
    admin.topics("deletePartitionedTopic", topic)
    assert refusal(admin.topics, "deletePartitionedTopic", topic) == NOT_FOUND
    assert refusal(admin.topics, "getPartitionedTopicMetadata", topic) == NOT_FOUND


def test_a_topic_with_one_partition(
    admin: Admin, both: Both, client: pulsar.Client, topic: str
) -> None:
    admin.topics("createPartitionedTopic", topic, 1)
    assert admin.topics("getPartitionedTopicMetadata", topic)["partitions"] == 1
    assert client.get_topic_partitions(topic) == [f"{DEFAULT}{topic}-partition-0"]
    assert [each for each in admin.topics("getList", "public/default") if topic in each] == [
        f"{DEFAULT}{topic}-partition-0"
    ]
    assert DEFAULT + topic in admin.topics("getPartitionedTopicList", "public/default")

    # A client writes to the partition, by the name of the whole; Kafka's know no difference.
    (sent,) = send(client, topic, [b"pulsar"])
    assert sent.partition() == 0
    kafka = KafkaProducer({"bootstrap.servers": both.gateway.bootstrap})
    kafka.produce(topic, b"kafka", partition=0)
    assert kafka.flush(WITHIN_S) == 0
    consumer = client.subscribe(topic, "s", initial_position=InitialPosition.Earliest)
    assert receive(consumer, 2) == [b"pulsar", b"kafka"]
    assert list(admin.topics("getPartitionedStats", topic, True)["partitions"]) == [
        f"{DEFAULT}{topic}-partition-0"
    ]
    assert list(admin.topics("getStats", f"{topic}-partition-0")["subscriptions"]) == ["s"]
    consumer.close()
    assert refusal(admin.topics, "delete", topic) == PRECONDITION_FAILED
    admin.topics("updatePartitionedTopic", topic, 2)
    admin.topics("deletePartitionedTopic", topic)
    assert refusal(admin.topics, "getPartitionedTopicMetadata", topic) == NOT_FOUND


def test_kafka_makes_a_topic_with_one_partition(
    admin: Admin, both: Both, client: pulsar.Client, topic: str
) -> None:
    make_topic(both.gateway.bootstrap, topic, 1, **{"penstock.pulsar.partitioned": "true"})
    assert client.get_topic_partitions(topic) == [f"{DEFAULT}{topic}-partition-0"]
    make_topic(both.gateway.bootstrap, f"{topic}-plain", 1)
    assert client.get_topic_partitions(f"{topic}-plain") == [f"{DEFAULT}{topic}-plain"]
    mine = admin.topics("getPartitionedTopicList", "public/default")
    assert DEFAULT + topic in mine
    assert f"{DEFAULT}{topic}-plain" not in mine


def make_namespace(admin: Admin, topic: str) -> str:
    """A tenant that no other test has, with a namespace."""
    tenant = f"acme-{topic}"
    admin.tenants("createTenant", tenant, {"adminRoles": [], "allowedClusters": ["standalone"]})
    admin.namespaces("createNamespace", f"{tenant}/app")
    return f"{tenant}/app"


def test_tenants_namespaces_and_their_policies(
    admin: Admin, client: pulsar.Client, topic: str
) -> None:
    name = f"acme-{topic}/app"
    assert refusal(admin.namespaces, "createNamespace", name)[1] == 404
    with pytest.raises(pulsar.TopicNotFound):
        client.create_producer(f"{name}/t")
    make_namespace(admin, topic)
    tenant = name.partition("/")[0]
    assert tenant in admin.tenants("getTenants")
    assert admin.namespaces("getNamespaces", tenant) == [name]
    assert refusal(admin.namespaces, "createNamespace", name)[1] == 409

    retention = {"retentionTimeInMinutes": 10, "retentionSizeInMB": 20}
    admin.namespaces("setRetention", name, retention)
    assert admin.namespaces("getRetention", name) == retention
    admin.namespaces("setNamespaceMessageTTL", name, 77)
    assert admin.namespaces("getNamespaceMessageTTL", name) == 77
    admin.namespaces("setDeduplicationStatus", name, True)
    assert admin.namespaces("getDeduplicationStatus", name) is True
    admin.namespaces("setSchemaCompatibilityStrategy", name, "BACKWARD")
    assert admin.namespaces("getSchemaCompatibilityStrategy", name) == "BACKWARD"
    policies = admin.namespaces("getPolicies", name)
    assert policies["message_ttl_in_seconds"] == 77
    assert refusal(admin.namespaces, "setCompactionThreshold", name, 1)[1] == 501

    send(client, f"{name}/t", [b"1"])
    assert admin.topics("getStats", f"{name}/t")["deduplicationStatus"] == "Enabled"
    assert refusal(admin.namespaces, "deleteNamespace", name)[1] == 409
    admin.topics("delete", f"{name}/t", True)
    admin.namespaces("deleteNamespace", name)
    admin.tenants("deleteTenant", tenant)
    assert tenant not in admin.tenants("getTenants")


def test_names_of_other_namespaces_and_odd_ones(
    admin: Admin, client: pulsar.Client, topic: str
) -> None:
    made = make_namespace(admin, topic)
    for name in (f"{made}/{topic}", f"{made}/{topic} ü%2F+&?#", f"public/default/{topic}:a b"):
        admin.topics("createNonPartitionedTopic", f"persistent://{name}")
        namespace = name.rpartition("/")[0]
        assert f"persistent://{name}" in admin.topics("getList", namespace)
        send(client, f"persistent://{name}", [b"1"])
        assert admin.topics("getStats", f"persistent://{name}")["msgInCounter"] == 1
        admin.topics("delete", f"persistent://{name}", True)
        assert f"persistent://{name}" not in admin.topics("getList", namespace)


def test_unload_under_load(admin: Admin, both: Both, client_of: ClientOf, topic: str) -> None:
    writer, reader = client_of(both.service_url), client_of(both.service_url)
    consumer = reader.subscribe(topic, "s", ConsumerType.Shared)
    producer = writer.create_producer(topic, batching_enabled=False)
    sent: list[int] = []
    is_over = threading.Event()

    def write() -> None:
        while not is_over.is_set():
            producer.send(b"%d" % len(sent))
            sent.append(len(sent))

    thread = threading.Thread(target=write)
    thread.start()
    try:
        got: list[int] = []
        for round_ in range(3):
            eventually(lambda: len(sent) > 50 * (round_ + 1), True)  # noqa: B023
            admin.topics("unload", topic)
    finally:
        is_over.set()
        thread.join(WITHIN_S)
    assert not thread.is_alive()

    def backlog_once_received() -> int:
        with contextlib.suppress(pulsar.Timeout):
            while True:
                message = consumer.receive(500)
                got.append(int(message.data()))
                consumer.acknowledge(message)
        count: int = admin.topics("getStats", topic)["subscriptions"]["s"]["msgBacklog"]
        return count

    # An acknowledgement may be lost with its connection's consumer: then the message comes again.
    eventually(backlog_once_received, 0)
    assert sorted(set(got)) == sent


def test_truncate(admin: Admin, client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    send(client, topic, numbers(5))
    assert receive(consumer, 1) == [b"0"]
    consumer.close()
    admin.topics("truncate", topic)
    assert admin.topics("getStats", topic)["subscriptions"]["s"]["msgBacklog"] == 0
    consumer = client.subscribe(topic, "s")
    send(client, topic, [b"later"])
    assert receive(consumer, 1) == [b"later"]


# --- termination ---


def test_terminated_topics(java: Call, admin: Admin, both: Both, topic: str) -> None:
    client = java("client", url=both.service_url)
    try:
        producer = java("producer", client=client, topic=topic)
        consumer = java("consumer", client=client, topic=topic, subscription="s")
        reader = java("reader", client=client, topic=topic)
        sent = [java("send", producer=producer, value=str(number)) for number in range(3)]
        assert data([java("receive", of=consumer)]) == [b"0"]
        last = admin.topics("terminateTopic", topic)
        assert last.split(":")[:2] == sent[-1].split(":")[:2]
        assert admin.topics("terminateTopic", topic) == last  # again, as it was
        assert not java("has_reached_end", of=consumer)
        with pytest.raises(Refused) as refused:
            java("send", producer=producer, value="late")
        assert refused.value.name == "TopicTerminatedException"
        with pytest.raises(Refused) as refused:
            java("producer", client=client, topic=topic)
        assert refused.value.name == "TopicTerminatedException"
        kafka = KafkaProducer({"bootstrap.servers": both.gateway.bootstrap})
        errors: list[Any] = []
        kafka.produce(topic, b"late", on_delivery=lambda error, _: errors.append(error.name()))
        assert kafka.flush(WITHIN_S) == 0
        assert errors == ["POLICY_VIOLATION"]

        # Who has had, and acknowledged, all of it is told; also who comes after that.
        assert data([java("receive", of=consumer) for _ in range(2)]) == [b"1", b"2"]
        assert data([java("receive", of=reader) for _ in range(3)]) == numbers(3)
        for each in (consumer, reader):
            eventually(lambda: java("has_reached_end", of=each), True)  # noqa: B023 - called at once
        java("close", what=consumer)
        later = java("consumer", client=client, topic=topic, subscription="s")
        eventually(lambda: java("has_reached_end", of=later), True)
        assert java("receive", of=later, within_ms=200) is None
    finally:
        java("close", what=client)


def test_terminated_partitions(admin: Admin, client: pulsar.Client, topic: str) -> None:
    admin.topics("createPartitionedTopic", topic, 2)
    (sent,) = send(client, f"{topic}-partition-1", [b"1"])
    with pytest.raises(Refused) as refused:
        admin.topics("terminateTopic", topic)
    assert refused.value.status == 405
    ids = admin.topics("terminatePartitionedTopic", topic)
    assert ids["1"].split(":")[:2] == id_of(sent).split(":")[:2]
    assert ids["0"].split(":")[1] == "-1"
    for partition in range(2):
        with pytest.raises(pulsar.PulsarException):
            client.create_producer(f"{topic}-partition-{partition}").send(b"late")


def test_nothing_follows_the_id_that_was_answered(
    java: Call, start_gateway: StartGateway, database_url: str, topic: str
) -> None:
    """While Kafka's producers write, to partitions of two brokers."""
    ports = [(free_port(), free_port()) for _ in range(2)]
    gateways = [
        start_gateway(
            *("--pulsar-listen", f"127.0.0.1:{port}", "--http-listen", f"127.0.0.1:{http}"),
            database_url=database_url,
        )
        for port, http in ports
    ]
    admin = Admin(java, f"http://127.0.0.1:{ports[0][1]}")
    make_topic(gateways[0].bootstrap, topic, 4)
    stored: dict[int, list[int]] = defaultdict(list)
    refused: set[str] = set()
    is_over = threading.Event()

    def told(error: Any, message: Any) -> None:
        if error is None:
            stored[message.partition()].append(message.offset())
        else:
            refused.add(error.name())

    def write(bootstrap: str) -> None:
        producer = KafkaProducer(
            {"bootstrap.servers": bootstrap, "linger.ms": 1, "enable.idempotence": True}
        )
        while not is_over.is_set():
            for partition in range(4):
                producer.produce(topic, b"x", partition=partition, on_delivery=told)
            producer.poll(0.001)
        producer.flush(WITHIN_S)

    threads = [threading.Thread(target=write, args=(each.bootstrap,)) for each in gateways]
    for thread in threads:
        thread.start()
    last: dict[int, int] = {}
    try:
        eventually(lambda: all(len(stored[each]) > 100 for each in range(4)), True)
        for partition in range(4):
            answered = admin.topics("terminateTopic", f"{topic}-partition-{partition}")
            last[partition] = int(answered.split(":")[1])
            time.sleep(0.1)
    finally:
        is_over.set()
        for thread in threads:
            thread.join(WITHIN_S)
    assert refused == {"POLICY_VIOLATION"}
    with psycopg.connect(database_url) as connection:
        ends = connection.execute(
            "SELECT partition, high_watermark, terminated_offset FROM v_topic_partition "
            "WHERE topic = %s",
            (topic,),
        ).fetchall()
    assert {partition: end - 1 for partition, end, _ in ends} == last
    assert all(end == terminated for _, end, terminated in ends)
    for partition, offsets in stored.items():
        assert max(offsets) <= last[partition]
        assert len(set(offsets)) == len(offsets)
    admin.close()


# --- stats ---


def test_stats_are_true(admin: Admin, client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(
        topic, "s", ConsumerType.Shared, consumer_name="c", receiver_queue_size=4
    )
    producer = client.create_producer(topic, producer_name="p", batching_enabled=False)
    for value in numbers(10):
        producer.send(value)
    taken = [consumer.receive(WITHIN_MS) for _ in range(3)]
    consumer.acknowledge(taken[1])
    client.subscribe(topic, "idle", initial_position=InitialPosition.Earliest).close()

    def subscription() -> dict[str, Any]:
        return admin.topics("getStats", topic)["subscriptions"]["s"]

    eventually(lambda: subscription()["nonContiguousDeletedMessagesRanges"], 1)
    stats = admin.topics("getStats", topic)
    assert stats["msgInCounter"] == 10
    assert stats["storageSize"] > 0
    assert stats["deduplicationStatus"] == "Disabled"
    (publisher,) = stats["publishers"]
    assert publisher["producerName"] == "p"
    assert publisher["accessMode"] == "Shared"
    assert publisher["address"].startswith("/127.0.0.1:") or "127.0.0.1:" in publisher["address"]
    assert publisher["connectedSince"]
    assert publisher["clientVersion"]
    assert set(stats["subscriptions"]) == {"s", "idle"}
    shared = stats["subscriptions"]["s"]
    assert shared["type"] == "Shared"
    assert shared["msgBacklog"] == 9
    assert shared["durable"] is True
    (one,) = shared["consumers"]
    assert one["consumerName"] == "c"
    assert one["blockedConsumerOnUnackedMsgs"] is False
    assert one["unackedMessages"] == shared["unackedMessages"]
    assert 2 <= one["unackedMessages"] <= 9
    idle = stats["subscriptions"]["idle"]
    assert (idle["msgBacklog"], idle["consumers"]) == (10, [])
    consumer.close()
    eventually(lambda: subscription()["consumers"], [])
    assert subscription()["unackedMessages"] == 0
    assert subscription()["msgBacklog"] == 9
    producer.close()
    eventually(lambda: admin.topics("getStats", topic)["publishers"], [])
    assert refusal(admin.topics, "getStats", f"{topic}-not-there") == NOT_FOUND


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (ConsumerType.Exclusive, "Exclusive"),
        (ConsumerType.Failover, "Failover"),
        (ConsumerType.KeyShared, "Key_Shared"),
    ],
)
def test_types_of_subscriptions(
    admin: Admin, client: pulsar.Client, topic: str, kind: ConsumerType, name: str
) -> None:
    consumer = client.subscribe(topic, "s", kind, consumer_name="first")
    found = admin.topics("getStats", topic)["subscriptions"]["s"]
    assert found["type"] == name
    if kind is not ConsumerType.KeyShared:
        assert found["activeConsumerName"] == "first"
    consumer.close()
    assert admin.topics("getStats", topic)["subscriptions"]["s"]["type"] == name


def test_partitioned_stats_are_added_up(admin: Admin, client: pulsar.Client, topic: str) -> None:
    admin.topics("createPartitionedTopic", topic, 2)
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, consumer_name="c")
    for partition, count in ((0, 3), (1, 4)):
        send(client, f"{topic}-partition-{partition}", numbers(count))
    whole = admin.topics("getPartitionedStats", topic, True)
    assert whole["metadata"]["partitions"] == 2
    assert whole["msgInCounter"] == 7
    assert whole["subscriptions"]["s"]["msgBacklog"] == 7
    each = whole["partitions"]
    assert [each[f"{DEFAULT}{topic}-partition-{n}"]["msgInCounter"] for n in (0, 1)] == [3, 4]
    assert admin.topics("getPartitionedStats", topic, False)["partitions"] == {}
    assert refusal(admin.topics, "getPartitionedStats", f"{topic}-partition-0", True) == NOT_FOUND
    inside = admin.topics("getPartitionedInternalStats", topic)
    assert [
        inside["partitions"][f"{DEFAULT}{topic}-partition-{n}"]["numberOfEntries"] for n in (0, 1)
    ] == [3, 4]
    consumer.close()


def test_internal_stats(admin: Admin, client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    ids = send(client, topic, numbers(4))
    ledger = ids[0].ledger_id()
    messages = [consumer.receive(WITHIN_MS) for _ in range(4)]
    for acknowledged in (0, 2):
        consumer.acknowledge(messages[acknowledged])

    def cursor() -> dict[str, Any]:
        return admin.topics("getInternalStats", topic)["cursors"]["s"]

    eventually(lambda: cursor()["totalNonContiguousDeletedMessagesRange"], 1)
    assert cursor()["markDeletePosition"] == f"{ledger}:0"
    assert cursor()["readPosition"] == f"{ledger}:4"
    found = admin.topics("getInternalStats", topic)
    assert found["lastConfirmedEntry"] == f"{ledger}:3"
    assert found["numberOfEntries"] == found["entriesAddedCounter"] == 4
    assert [each["ledgerId"] for each in found["ledgers"]] == [ledger]
    consumer.close()


# --- subscriptions ---


def test_subscriptions_begin_where_they_are_told(
    admin: Admin, client: pulsar.Client, topic: str
) -> None:
    ids = send(client, topic, numbers(4))
    admin.topics("createSubscription", topic, "first", "earliest")
    admin.topics("createSubscription", topic, "last", "latest")
    admin.topics("createSubscription", topic, "third", id_of(ids[2]))
    assert refusal(admin.topics, "createSubscription", topic, "first", "latest") == CONFLICT
    assert admin.topics("getSubscriptions", topic) == ["first", "last", "third"]
    send(client, topic, [b"new"])
    for name, wanted in (
        ("first", [*numbers(4), b"new"]),
        ("last", [b"new"]),
        ("third", [b"2", b"3", b"new"]),
    ):
        consumer = client.subscribe(topic, name)
        assert receive(consumer, len(wanted)) == wanted
        if name == "first":
            assert refusal(admin.topics, "deleteSubscription", topic, name) == PRECONDITION_FAILED
            admin.topics("deleteSubscription", topic, name, True)
        else:
            consumer.close()
            admin.topics("deleteSubscription", topic, name)
    assert refusal(admin.topics, "deleteSubscription", topic, "last") == NOT_FOUND


def test_properties_of_subscriptions(admin: Admin, topic: str) -> None:
    admin.topics("createNonPartitionedTopic", topic)
    properties = {"team": "blue", "ü": "ö"}
    admin.topics("createSubscription", topic, "s", "latest", False, properties)
    found = admin.topics("getStats", topic)["subscriptions"]["s"]
    assert found["subscriptionProperties"] == properties
    assert admin.topics("getSubscriptionProperties", topic, "s") == properties


def test_skip_and_expire(admin: Admin, client: pulsar.Client, topic: str) -> None:
    admin.topics("createNonPartitionedTopic", topic)
    admin.topics("createSubscription", topic, "s", "latest")
    ids = send(client, topic, numbers(6))

    def backlog(name: str = "s") -> int:
        count: int = admin.topics("getStats", topic)["subscriptions"][name]["msgBacklog"]
        return count

    admin.topics("skipMessages", topic, "s", 2)
    assert backlog() == 4
    (next_one,) = admin.topics("peekMessages", topic, "s", 1)
    assert data([next_one]) == [b"2"]
    admin.topics("expireMessages", topic, "s", id_of(ids[3]), False)
    assert backlog() == 2
    admin.topics("expireMessages", topic, "s", 3600)  # none is so old
    assert backlog() == 2
    time.sleep(1.1)
    admin.topics("createSubscription", topic, "other", "earliest")
    admin.topics("expireMessages", topic, "s", 1)
    assert (backlog(), backlog("other")) == (0, 6)
    admin.topics("expireMessagesForAllSubscriptions", topic, 1)
    assert backlog("other") == 0
    send(client, topic, numbers(3))
    admin.topics("skipAllMessages", topic, "s")
    assert (backlog(), backlog("other")) == (0, 3)
    assert refusal(admin.topics, "skipAllMessages", topic, "nobody") == NOT_FOUND
    assert refusal(admin.topics, "skipMessages", topic, "nobody", 1) == NOT_FOUND


def test_reset_by_time_and_by_id(admin: Admin, client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    ids = send(client, topic, numbers(3))
    time.sleep(0.05)
    between = time.time_ns() // 1_000_000
    time.sleep(0.05)
    send(client, topic, [b"3", b"4"])
    assert receive(consumer, 5) == numbers(5)
    admin.topics("resetCursor", topic, "s", between)  # and the consumer comes again by itself
    assert receive(consumer, 2) == [b"3", b"4"]
    admin.topics("resetCursor", topic, "s", id_of(ids[1]))
    assert receive(consumer, 4) == numbers(5)[1:]
    admin.topics("resetCursor", topic, "s", id_of(ids[1]), True)
    assert receive(consumer, 3) == numbers(5)[2:]
    admin.topics("resetCursor", topic, "s", "earliest")
    assert receive(consumer, 5) == numbers(5)
    admin.topics("resetCursor", topic, "s", "latest")
    send(client, topic, [b"5"])
    assert receive(consumer, 1) == [b"5"]
    assert refusal(admin.topics, "resetCursor", topic, "nobody", between) == NOT_FOUND


# --- messages ---


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Paths of a public and a private key, for encryption."""
    folder = tmp_path_factory.mktemp("keys")
    public, private = folder / "public.pem", folder / "private.pem"
    for command in (
        f"openssl genrsa -out {private} 2048",
        f"openssl rsa -in {private} -pubout -out {public}",
    ):
        subprocess.run(command.split(), capture_output=True, check=True)
    return str(public), str(private)


COMPRESSIONS = [
    CompressionType.NONE,
    CompressionType.LZ4,
    CompressionType.ZLib,
    CompressionType.ZSTD,
    CompressionType.SNAPPY,
]


@pytest.mark.parametrize("compression", COMPRESSIONS, ids=lambda each: each.name)
@pytest.mark.parametrize("is_batched", [False, True], ids=["single", "batch"])
def test_messages_are_looked_into(
    admin: Admin, client: pulsar.Client, topic: str, compression: Any, is_batched: bool
) -> None:
    admin.topics("createNonPartitionedTopic", topic)
    admin.topics("createSubscription", topic, "s", "latest")
    producer = client.create_producer(
        topic,
        producer_name="p",
        compression_type=compression,
        batching_enabled=is_batched,
        batching_max_publish_delay_ms=60_000,  # one batch: nothing ends it but the flush
    )
    ids: list[Any] = []
    for number in range(3):
        producer.send_async(
            b"value %d " % number * 20,
            lambda _, found: ids.append(found),
            properties={"number": str(number), "text": "a:b, c ü"},
            partition_key=f"key {number}",
            event_timestamp=1_700_000_000_123,
        )
    producer.flush()
    producer.close()

    messages = admin.topics("peekMessages", topic, "s", 3)
    assert data(messages) == [b"value %d " % number * 20 for number in range(3)]
    for number, each in enumerate(messages):
        # Java's class keeps the properties of a whole batch in one map: the last message's.
        wanted = {"number": "2" if is_batched else str(number), "text": "a:b, c ü"}
        assert {key: each["properties"][key] for key in wanted} == wanted
        assert each["id"].startswith(f"{ids[0].ledger_id()}:")
        if not is_batched:
            assert each["key"] == f"key {number}"
            assert each["event_time"] == 1_700_000_000_123
            assert (each["producer"], each["sequence_id"]) == ("p", number)
        assert abs(each["publish_time"] - time.time() * 1000) < 600_000

    ledger, entry = ids[0].ledger_id(), ids[0].entry_id()
    found = admin.topics("getMessagesById", topic, ledger, entry)
    assert data(found)[0] == b"value 0 " * 20
    assert len(found) == (3 if is_batched else 1)
    assert base64.b64decode(admin.topics("getMessageById", topic, ledger, entry)["data"]) == (
        b"value 0 " * 20
    )
    assert data([admin.topics("examineMessage", topic, "earliest", 1)]) == [b"value 0 " * 20]
    last = admin.topics("examineMessage", topic, "latest", 1)
    if not is_batched:
        assert data([last]) == [b"value 2 " * 20]
        assert data([admin.topics("examineMessage", topic, "latest", 2)]) == [b"value 1 " * 20]
    assert refusal(admin.topics, "getMessageById", topic, ledger, 1000) == NOT_FOUND
    wanted_last = f"{id_of(ids[-1])}" + (f":{ids[-1].batch_index()}" if is_batched else "")
    assert admin.topics("getLastMessageId", topic) == wanted_last


def test_chunks_are_looked_into(admin: Admin, client: pulsar.Client, topic: str) -> None:
    admin.topics("createNonPartitionedTopic", topic)
    admin.topics("createSubscription", topic, "s", "latest")
    value = bytes(range(256)) * 30_000
    producer = client.create_producer(topic, chunking_enabled=True, batching_enabled=False)
    producer.send(value)
    producer.close()
    chunks = data(admin.topics("peekMessages", topic, "s", 2))
    assert b"".join(chunks) == value


def test_encrypted_messages_are_looked_into(
    admin: Admin, client: pulsar.Client, topic: str, keys: tuple[str, str]
) -> None:
    admin.topics("createNonPartitionedTopic", topic)
    admin.topics("createSubscription", topic, "s", "latest")
    producer = client.create_producer(
        topic,
        batching_enabled=False,
        encryption_key="key",
        crypto_key_reader=pulsar.CryptoKeyReader(*keys),
    )
    producer.send(b"secret", properties={"a": "b"})
    producer.close()
    (found,) = admin.topics("peekMessages", topic, "s", 1)
    assert base64.b64decode(found["data"]) != b"secret"
    assert found["properties"]["a"] == "b"


def test_kafkas_records_are_looked_into(
    admin: Admin, both: Both, client: pulsar.Client, topic: str
) -> None:
    make_topic(both.gateway.bootstrap, topic, 1)
    admin.topics("createSubscription", topic, "s", "latest")
    kafka = KafkaProducer(
        {"bootstrap.servers": both.gateway.bootstrap, "compression.type": "lz4", "linger.ms": 5000}
    )
    for number in range(3):
        kafka.produce(topic, b"%d" % number, b"key", headers={"h": b"x"}, partition=0)
    assert kafka.flush(WITHIN_S) == 0
    messages = admin.topics("peekMessages", topic, "s", 3)
    assert data(messages) == numbers(3)
    assert [each["key"] for each in messages] == ["key"] * 3
    assert [each["properties"]["h"] for each in messages] == ["x"] * 3
    assert admin.topics("getLastMessageId", topic).split(":")[3:] in ([], ["2"])


def test_ids_by_time(admin: Admin, client: pulsar.Client, topic: str) -> None:
    ids = send(client, topic, [b"0"])
    time.sleep(0.05)
    between = time.time_ns() // 1_000_000
    time.sleep(0.05)
    ids += send(client, topic, [b"1"])
    assert admin.topics("getMessageIdByTimestamp", topic, 0) == id_of(ids[0])
    assert admin.topics("getMessageIdByTimestamp", topic, between) == id_of(ids[1])
    admin.topics("createNonPartitionedTopic", f"{topic}-empty")
    assert admin.topics("getLastMessageId", f"{topic}-empty").startswith("-1:-1")


# --- schemas ---


def test_schemas(admin: Admin, client: pulsar.Client, topic: str) -> None:
    admin.topics("createNonPartitionedTopic", topic)

    def avro(*fields: dict[str, Any]) -> dict[str, Any]:
        schema = {"type": "record", "name": "R", "fields": list(fields)}
        return {"name": topic, "type": "AVRO", "schema": json.dumps(schema)}

    first = avro({"name": "a", "type": "string"})
    second = avro(
        {"name": "a", "type": "string"},
        {"name": "b", "type": ["null", "int"], "default": None},
    )
    bad = avro({"name": "a", "type": "string"}, {"name": "c", "type": "int"})
    assert refusal(admin.schemas, "getSchemaInfo", topic) == NOT_FOUND
    admin.schemas("createSchema", topic, first)
    assert json.loads(admin.schemas("getSchemaInfo", topic)["schema"]) == json.loads(
        first["schema"]
    )
    assert admin.schemas("getSchemaInfo", topic)["type"] == "AVRO"
    assert refusal(admin.schemas, "createSchema", topic, bad)[1] == 409
    admin.schemas("createSchema", topic, second)
    assert admin.schemas("getSchemaInfoWithVersion", topic)["version"] == 1
    assert json.loads(admin.schemas("getSchemaInfo", topic, 0)["schema"]) == json.loads(
        first["schema"]
    )
    assert len(admin.schemas("getAllSchemas", topic)) == 2
    assert admin.schemas("getVersionBySchema", topic, _payload(first)) == 0
    assert admin.schemas("getVersionBySchema", topic, _payload(second)) == 1
    assert admin.schemas("testCompatibility", topic, _payload(second))["compatibility"] is True
    assert admin.schemas("testCompatibility", topic, _payload(bad))["compatibility"] is False
    admin.schemas("deleteSchema", topic)
    assert refusal(admin.schemas, "getSchemaInfo", topic) == NOT_FOUND


def _payload(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": schema["type"], "schema": schema["schema"], "properties": {}}


# --- brokers and lookups ---


def test_brokers_and_clusters(admin: Admin, both: Both) -> None:
    assert admin.clusters("getClusters") == ["standalone"]
    found = admin.clusters("getCluster", "standalone")
    assert found["serviceUrl"] == both.http_url
    assert found["brokerServiceUrl"] == both.service_url
    assert refusal(admin.clusters, "getCluster", "elsewhere") == NOT_FOUND
    here = f"127.0.0.1:{both.http_port}"
    assert admin.brokers("getActiveBrokers") == [here]
    assert admin.brokers("getActiveBrokers", "standalone") == [here]
    assert admin.brokers("getLeaderBroker")["serviceUrl"] == both.http_url
    admin.brokers("healthcheck")
    assert admin.brokers("getVersion").startswith("Penstock ")


def test_lookups(admin: Admin, both: Both, topic: str) -> None:
    admin.topics("createPartitionedTopic", topic, 2)
    assert admin.lookups("lookupTopic", f"{topic}-partition-0") == both.service_url
    assert admin.lookups("lookupPartitionedTopic", DEFAULT + topic) == {
        f"{DEFAULT}{topic}-partition-{n}": both.service_url for n in (0, 1)
    }
    assert admin.lookups("getBundleRange", topic) == "0x00000000_0xffffffff"


def test_what_is_not_served_is_said_so(admin: Admin, topic: str) -> None:
    admin.topics("createNonPartitionedTopic", topic)
    with pytest.raises(Refused, match="Penstock does not serve this") as raised:
        admin.topics("triggerCompaction", topic)
    assert raised.value.status == 501


# --- clients by HTTP ---


def test_java_clients_look_up_by_http(java: Call, both: Both, admin: Admin, topic: str) -> None:
    admin.topics("createPartitionedTopic", topic, 2)
    client = java("client", url=both.http_url)
    try:
        assert len(java("partitions", client=client, topic=topic)) == 2
        for name in (topic, f"{topic}-new"):  # one that is there, and one that is made
            producer = java("producer", client=client, topic=name)
            consumer = java("consumer", client=client, topic=name, subscription="s")
            java("send", producer=producer, value="hello")
            assert data([java("receive", of=consumer)]) == [b"hello"]
    finally:
        java("close", what=client)


def test_python_clients_look_up_by_http(
    both: Both, client_of: ClientOf, admin: Admin, topic: str
) -> None:
    client = client_of(both.http_url)
    admin.topics("createPartitionedTopic", topic, 2)
    assert len(client.get_topic_partitions(topic)) == 2
    consumer = client.subscribe(topic, "s")
    send(client, topic, numbers(4))
    assert sorted(receive(consumer, 4)) == numbers(4)
    consumer.close()


# --- two brokers ---


@pytest.fixture(params=["http", "https"])
def two(
    request: pytest.FixtureRequest,
    start_gateway: StartGateway,
    database_url: str,
    certificate: Path,
) -> Iterator[tuple[list[Gateway], list[str], Path | None]]:
    """Two brokers, their addresses for HTTP, and what is to be trusted."""
    is_tls = request.param == "https"
    urls, gateways = [], []
    for _ in range(2):
        port, http = free_port(), free_port()
        arguments = ["--pulsar-listen", f"127.0.0.1:{port}", "--http-listen", f"127.0.0.1:{http}"]
        if is_tls:
            arguments += ["--tls-cert", str(certificate), "--tls-key", str(certificate)]
            arguments += ["--pulsar-advertise", f"localhost:{port}"]
            arguments += ["--http-advertise", f"localhost:{http}"]
        gateways.append(start_gateway(*arguments, database_url=database_url, wait=not is_tls))
        host = "localhost" if is_tls else "127.0.0.1"
        urls.append(f"{request.param}://{host}:{http}")
    for gateway, url in zip(gateways, urls, strict=True):
        eventually(lambda: _sees(gateway, url, certificate), 2)  # noqa: B023 - called at once
    yield gateways, urls, certificate.with_suffix(".crt") if is_tls else None


def _sees(gateway: Gateway, url: str, certificate: Path) -> int:
    """How many brokers a broker knows; 0 while it starts."""
    assert gateway.process.poll() is None, gateway.log()
    trusted = ssl.create_default_context(cafile=certificate.with_suffix(".crt"))
    trusted.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        with urllib.request.urlopen(f"{url}/health", context=trusted, timeout=10) as answer:
            return len(json.load(answer)["brokers"])
    except OSError:
        return 0


def test_two_brokers_answer_as_one(
    java: Call, two: tuple[list[Gateway], list[str], Path | None], topic: str
) -> None:
    _, urls, trust = two
    admins = [Admin(java, url, trust) for url in urls]
    admins[0].topics("createPartitionedTopic", topic, 8)
    owners = set(admins[0].lookups("lookupPartitionedTopic", topic).values())
    assert len(owners) == 2, "both have some of eight"
    for number, each in enumerate(admins):
        # Of one partition: the client is sent to the other broker. Of all: the broker asks it.
        for partition in range(8):
            name = f"{topic}-partition-{partition}"
            each.topics("createSubscription", name, f"of {number}", "earliest")
            assert f"of {number}" in each.topics("getStats", name)["subscriptions"]
            pending = each.transactions("getPendingAckStats", name, f"of {number}", False)
            assert pending["ongoingTxnSize"] == 0
        each.topics("createSubscription", topic, f"all of {number}", "latest")
        whole = each.topics("getPartitionedStats", topic, True)
        assert len(whole["partitions"]) == 8
        for found in whole["partitions"].values():
            assert {f"of {number}", f"all of {number}"} <= set(found["subscriptions"])
        each.topics("skipAllMessages", topic, f"of {number}")
        each.topics("unload", topic)
        each.topics("deleteSubscription", topic, f"of {number}")
        assert f"of {number}" not in each.topics("getSubscriptions", topic)
    admins[1].topics("deletePartitionedTopic", topic)

    def is_gone_for_the_other_too() -> bool:  # once it has heard of it
        try:
            admins[0].topics("getPartitionedTopicMetadata", topic)
        except Refused as refused:
            return (refused.name, refused.status) == NOT_FOUND
        return False

    eventually(is_gone_for_the_other_too, True)
    for each in admins:
        each.close()
