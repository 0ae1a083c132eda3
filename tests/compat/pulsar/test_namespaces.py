"""Tenants, namespaces and policies: set by REST, felt by the stock Python client of Pulsar."""

from __future__ import annotations

import contextlib
import json
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pulsar
import pytest
from pulsar.schema import JsonSchema, Record, String

from tests.compat.pulsar.conftest import WITHIN_S, ClientOf
from tests.conftest import Gateway, free_port, gateways
from tests.databases import Copies

MILLIS = int(WITHIN_S * 1000)
EARLIEST = pulsar.InitialPosition.Earliest
BEHIND = "SELECT 1 FROM v_subscription_backlog WHERE topic = %s AND backlog > 0"
OFTEN = {
    "penstock.message.expiry.check.interval.ms": 200,
    "penstock.backlog.quota.check.interval.ms": 200,
    "log.retention.check.interval.ms": 300,
}


@dataclass
class Cluster:
    """A broker whose jobs run often, and its REST."""

    gateway: Gateway
    service_url: str
    web: str

    def rest(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.web}/admin/v2{path}", data, method=method)
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=WITHIN_S) as answer:
                whole = answer.read()
                return answer.status, json.loads(whole) if whole else None
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())["reason"]

    def change(self, namespace: str, policy: str, body: Any, method: str = "POST") -> None:
        assert self.rest(method, f"/namespaces/{namespace}/{policy}", body) == (204, None)

    def rows(self, query: str, *parameters: Any) -> list[Any]:
        with psycopg.connect(str(self.gateway.database_url)) as connection:
            return connection.execute(query, parameters).fetchall()

    def backlog(self, subscription: str) -> int:
        query = "SELECT backlog FROM v_subscription_backlog WHERE subscription = %s"
        ((found,),) = self.rows(query, subscription)
        return int(found)


@pytest.fixture(scope="module")
def cluster(
    copies: Copies, template_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    native, web = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    overrides = [f"--override={name}={value}" for name, value in OFTEN.items()]
    with (
        copies.taken(template_database) as url,
        gateways(tmp_path_factory.mktemp("namespaces")) as start,
    ):
        gateway = start(
            "--pulsar-listen", native, "--http-listen", web, *overrides, database_url=url
        )
        made = Cluster(gateway, f"pulsar://{native}", f"http://{web}")
        allowed = {"allowedClusters": ["standalone"]}
        assert made.rest("PUT", "/tenants/acme", allowed) == (204, None)
        yield made


@pytest.fixture
def namespace(cluster: Cluster) -> str:
    """A namespace of the test's own."""
    name = f"acme/n{uuid.uuid4().hex[:10]}"
    assert cluster.rest("PUT", f"/namespaces/{name}") == (204, None)
    return name


@pytest.fixture
def client(cluster: Cluster, client_of: ClientOf) -> pulsar.Client:
    return client_of(cluster.service_url, operation_timeout_seconds=10)


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_no_topic_without_its_namespace(
    cluster: Cluster, client: pulsar.Client, namespace: str
) -> None:
    for missing in ("acme/nowhere", "nobody/nowhere"):
        topic = f"persistent://{missing}/t"
        with pytest.raises(pulsar.TopicNotFound):
            client.create_producer(topic)
        with pytest.raises(pulsar.TopicNotFound):
            client.subscribe(topic, "s")
    client.create_producer(f"persistent://{namespace}/t").send(b"x")
    path = f"/namespaces/{namespace}"
    assert cluster.rest("DELETE", path) == (409, "Cannot delete non empty namespace")
    assert cluster.rest("DELETE", f"{path}?force=true") == (204, None)
    with pytest.raises(pulsar.TopicNotFound):
        client.create_producer(f"persistent://{namespace}/t")


def test_topics_are_made_with_partitions(
    cluster: Cluster, client: pulsar.Client, namespace: str
) -> None:
    wanted = {"allowAutoTopicCreation": True, "topicType": "partitioned"}
    cluster.change(namespace, "autoTopicCreation", {**wanted, "defaultNumPartitions": 3})
    topic = f"persistent://{namespace}/t"
    client.create_producer(topic)
    assert len(client.get_topic_partitions(topic)) == 3
    cluster.change(namespace, "autoTopicCreation", {"allowAutoTopicCreation": False})
    with pytest.raises(pulsar.TopicNotFound):
        client.create_producer(f"persistent://{namespace}/other")


def test_subscriptions_are_not_made(cluster: Cluster, client_of: ClientOf, namespace: str) -> None:
    impatient = client_of(cluster.service_url, operation_timeout_seconds=2)
    client = client_of(cluster.service_url, operation_timeout_seconds=30)
    topic = f"persistent://{namespace}/t"
    client.create_producer(topic)
    cluster.change(namespace, "autoSubscriptionCreation", {"allowAutoSubscriptionCreation": False})
    with pytest.raises(pulsar.Timeout):  # SubscriptionNotFound, which this client asks again
        impatient.subscribe(topic, "s")
    client.create_reader(topic, pulsar.MessageId.earliest)
    cluster.change(namespace, "autoSubscriptionCreation", None, "DELETE")
    client.subscribe(topic, "s")


def test_deduplication(cluster: Cluster, client: pulsar.Client, namespace: str) -> None:
    cluster.change(namespace, "deduplication", True)
    producer = client.create_producer(f"persistent://{namespace}/t", producer_name="p")
    assert producer.send(b"x", sequence_id=5).entry_id() == 0
    assert producer.send(b"x", sequence_id=5).entry_id() == -1
    cluster.change(namespace, "deduplication", False)
    producer.close()
    producer = client.create_producer(f"persistent://{namespace}/t", producer_name="p")
    assert producer.send(b"x", sequence_id=5).entry_id() == 1


class Small(Record):
    a = String()


class Larger(Record):
    a = String()
    b = String(required=True)


def test_schemas(cluster: Cluster, client: pulsar.Client, namespace: str) -> None:
    topic = f"persistent://{namespace}/t"
    client.create_producer(topic, schema=JsonSchema(Small))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=JsonSchema(Larger))
    cluster.change(namespace, "schemaCompatibilityStrategy", "FORWARD", "PUT")
    client.create_producer(topic, schema=JsonSchema(Larger))
    cluster.change(namespace, "schemaValidationEnforced", True)
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic)
    cluster.change(namespace, "isAllowAutoUpdateSchema", False)
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(f"{topic}2", schema=JsonSchema(Small))


@pytest.mark.parametrize(
    "policy", ["maxUnackedMessagesPerConsumer", "maxUnackedMessagesPerSubscription"]
)
def test_no_more_than_may_be_unacknowledged(
    cluster: Cluster, client: pulsar.Client, namespace: str, policy: str
) -> None:
    cluster.change(namespace, policy, 4)
    topic = f"persistent://{namespace}/t"
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic, batching_enabled=False)
    for _ in range(10):
        producer.send(b"x")
    received = [consumer.receive(MILLIS) for _ in range(4)]
    with pytest.raises(pulsar.Timeout):
        consumer.receive(300)
    for message in received:
        consumer.acknowledge(message)
    for _ in range(4):
        consumer.receive(MILLIS)
    # A consumer that is there feels a change at once.
    cluster.change(namespace, policy, 100)
    consumer.redeliver_unacknowledged_messages()
    assert len({consumer.receive(MILLIS).message_id().entry_id() for _ in range(6)}) == 6


def test_messages_expire(cluster: Cluster, client: pulsar.Client, namespace: str) -> None:
    topic, name = f"persistent://{namespace}/t", f"s-{uuid.uuid4()}"
    client.subscribe(topic, name, initial_position=EARLIEST).close()
    producer = client.create_producer(topic)
    for _ in range(5):
        producer.send(b"x")
    assert cluster.backlog(name) == 5
    cluster.change(namespace, "messageTTL", 1)
    until(lambda: cluster.backlog(name) == 0)
    cluster.change(namespace, "messageTTL", None, "DELETE")
    producer.send(b"new")
    consumer = client.subscribe(topic, name)
    assert consumer.receive(MILLIS).data() == b"new"


@pytest.mark.parametrize(
    ("policy", "error"),
    [
        ("producer_request_hold", pulsar.ProducerBlockedQuotaExceededError),
        ("producer_exception", pulsar.ProducerBlockedQuotaExceededException),
    ],
)
def test_a_backlog_keeps_producers_out(
    cluster: Cluster,
    client: pulsar.Client,
    namespace: str,
    policy: str,
    error: type[Exception],
) -> None:
    """As Pulsar 4.2.4 was seen to do it."""
    topic = f"persistent://{namespace}/t"
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(topic, send_timeout_millis=10_000, batching_enabled=False)
    cluster.change(namespace, "backlogQuota", {"limitSize": 2_000, "policy": policy})
    sent = 0
    # It is closed, and cannot come again; by the second policy its client is told at once.
    with pytest.raises((pulsar.Timeout, error)):
        while True:
            producer.send(b"x" * 500)
            sent += 1
    assert sent >= 4
    with pytest.raises(error):
        client.create_producer(topic)
    # More than was confirmed, maybe: the last one may be stored whose time was over.
    received = 0
    deadline = time.monotonic() + WITHIN_S
    while cluster.rows(BEHIND, f"pulsar.acme.{namespace.split('/')[1]}.t"):
        assert time.monotonic() < deadline
        with contextlib.suppress(pulsar.Timeout):
            consumer.acknowledge(consumer.receive(200))
            received += 1
    assert received >= sent
    other = client.create_producer(topic)
    assert other.send(b"x").entry_id() >= sent


def test_a_backlog_is_evicted(cluster: Cluster, client: pulsar.Client, namespace: str) -> None:
    topic, name = f"persistent://{namespace}/t", f"s-{uuid.uuid4()}"
    client.subscribe(topic, name, initial_position=EARLIEST).close()
    producer = client.create_producer(topic, batching_enabled=False)
    quota = {"limitSize": 2_000, "policy": "consumer_backlog_eviction"}
    cluster.change(namespace, "backlogQuota", quota)
    for _ in range(10):
        producer.send(b"x" * 500)
    until(lambda: cluster.backlog(name) == 3)  # of 2,000 bytes nine tenths
    cluster.change(namespace, "backlogQuota", None, "DELETE")
    age = {"limitTime": 1, "policy": "consumer_backlog_eviction"}
    cluster.change(namespace, "backlogQuota?backlogQuotaType=message_age", age)
    until(lambda: cluster.backlog(name) == 0)
    producer.send(b"x")


def test_what_all_have_acknowledged_goes(
    cluster: Cluster, client: pulsar.Client, namespace: str
) -> None:
    topic = f"persistent://{namespace}/t"
    one, two = [client.subscribe(topic, each, initial_position=EARLIEST) for each in "ab"]
    producer = client.create_producer(topic, batching_enabled=False)
    for _ in range(5):
        producer.send(b"x")
    for consumer, count in ((one, 5), (two, 3)):
        for _ in range(count):
            consumer.acknowledge(consumer.receive(MILLIS))
    tenant, name = namespace.split("/")
    query = "SELECT log_start_offset FROM v_topic_partition WHERE topic = %s"
    log_topic = f"pulsar.{tenant}.{name}.t"
    time.sleep(0.7)
    assert cluster.rows(query, log_topic) == [(0,)]
    none = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    cluster.change(namespace, "retention", none)
    until(lambda: cluster.rows(query, log_topic) == [(3,)])
    shown = "SELECT retention_time FROM v_namespace WHERE namespace = %s"
    assert cluster.rows(shown, name) == [("00:00:00",)]
