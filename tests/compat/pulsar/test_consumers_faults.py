"""Brokers that stop, are killed, or come again, under Pulsar's consumers."""

from __future__ import annotations

import time

import psycopg
import pulsar
import pytest
from confluent_kafka import Consumer, TopicPartition
from pulsar import ConsumerType

from core.shard import SHARDS, shard_of
from tests.compat.pulsar.clients import eventually
from tests.compat.pulsar.conftest import ClientOf, make_topic
from tests.compat.pulsar.test_consumers import nothing_comes, numbers, send, take
from tests.conftest import StartGateway, free_port
from tests.variants import variants

TYPES = [ConsumerType.Exclusive, ConsumerType.Shared, ConsumerType.KeyShared]


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("is_killed", variants(True, False))
def test_a_broker_that_comes_again_has_the_position(
    start_gateway: StartGateway,
    database_url: str,
    client_of: ClientOf,
    topic: str,
    kind: ConsumerType,
    is_killed: bool,
) -> None:
    port, kafka_port = free_port(), free_port()
    address = f"127.0.0.1:{port}"
    gateway = start_gateway("--pulsar-listen", address, database_url=database_url, port=kafka_port)
    client = client_of(f"pulsar://{address}")
    consumer = client.subscribe(topic, "s", kind)
    send(client, topic, numbers(100), batching_enabled=False)
    assert take(consumer, 40) == numbers(40)
    # With a receipt: closing waits until all that was acknowledged is stored.
    consumer.close()
    consumer = client.subscribe(topic, "s", kind)
    if is_killed:
        gateway.kill()
    else:
        assert gateway.stop() == 0
    start_gateway("--pulsar-listen", address, database_url=database_url, port=kafka_port)
    # What the client acknowledges before it has connected again is lost, and comes again.
    found = set()
    while True:
        try:
            message = consumer.receive(5_000)
        except pulsar.Timeout:
            if len(found) >= 60:
                break
            continue
        found.add(message.data())
        consumer.acknowledge(message)
    assert found == set(numbers(60, 40))
    consumer.close()
    assert nothing_comes(client.subscribe(topic, "s", kind))


@pytest.mark.parametrize("ends", ["kill", "stop"])
def test_of_two_brokers_one_ends(
    start_gateway: StartGateway,
    database_url: str,
    client_of: ClientOf,
    topic: str,
    ends: str,
) -> None:
    ports = [free_port(), free_port()]
    gateways = [
        start_gateway("--pulsar-listen", f"127.0.0.1:{port}", database_url=database_url)
        for port in ports
    ]
    url = "pulsar://" + ",".join(f"127.0.0.1:{port}" for port in ports)
    client = client_of(url)
    topics = [f"{topic}-{number}" for number in range(6)]
    consumers = [client.subscribe(each, "s", ConsumerType.Shared) for each in topics]
    for each, consumer in zip(topics, consumers, strict=True):
        send(client, each, numbers(20), batching_enabled=False)
        assert take(consumer, 20) == numbers(20)
        consumer.close()  # all is stored now
    consumers = [client.subscribe(each, "s", ConsumerType.Shared) for each in topics]
    if ends == "kill":
        gateways[0].kill()
    else:
        gateways[0].stop()
    started = time.monotonic()
    producers = [client.create_producer(each, batching_enabled=False) for each in topics]
    for producer in producers:
        producer.send(b"after")
    for consumer in consumers:
        message = consumer.receive(60_000)
        assert message.data() == b"after"
        consumer.acknowledge(message)
    assert time.monotonic() - started < 60
    for consumer in consumers:
        with pytest.raises(pulsar.Timeout):
            consumer.receive(200)


def test_a_broker_that_was_stopped_delivers_nothing_when_it_goes_on(
    start_gateway: StartGateway, database_url: str, client_of: ClientOf, topic: str
) -> None:
    ports = [free_port(), free_port()]
    first = start_gateway("--pulsar-listen", f"127.0.0.1:{ports[0]}", database_url=database_url)
    client = client_of(f"pulsar://127.0.0.1:{ports[0]}")
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    send(client, topic, numbers(10), batching_enabled=False)
    messages = [consumer.receive(30_000) for _ in range(10)]
    for message in messages[:5]:
        consumer.acknowledge(message)
    # Until it is stored, though nobody is told.
    assert eventually(lambda: _backlog(database_url, topic) == 5)
    start_gateway("--pulsar-listen", f"127.0.0.1:{ports[1]}", database_url=database_url)
    first.pause()
    try:
        other = client_of(f"pulsar://127.0.0.1:{ports[1]}", connection_timeout_ms=2_000)
        deadline = time.monotonic() + 60
        while True:
            try:  # while the other's session lasts, it is named, and does not answer
                taker = other.subscribe(topic, "s", ConsumerType.Shared)
                break
            except (pulsar.ConnectError, pulsar.Timeout):
                assert time.monotonic() < deadline
        assert take(taker, 5) == numbers(5, 5)
        taker.close()
        taker = other.subscribe(topic, "s", ConsumerType.Shared)
    finally:
        first.resume()
    for message in messages[5:]:
        consumer.acknowledge(message)
    send(other, topic, [b"new"])
    found = []
    for each in (consumer, taker) * 5:
        try:
            message = each.receive(1_000)
        except pulsar.Timeout:
            continue
        found.append(message.data())
        each.acknowledge(message)
    assert found == [b"new"]


def _backlog(database_url: str, topic: str) -> int | None:
    query = "SELECT sum(backlog) FROM v_subscription_backlog WHERE topic = %s"
    with psycopg.connect(database_url) as connection:
        (found,) = connection.execute(query, [topic]).fetchone()  # type: ignore[misc]
    return None if found is None else int(found)


def test_a_broker_without_pulsar_came_first(
    start_gateway: StartGateway, database_url: str, client_of: ClientOf, topic: str
) -> None:
    """It coordinates groups, the one among them whose shard has the number of the partition's; and
    goes on with it. Pulsar's clients have the topic at the broker that they can reach."""
    first = start_gateway(database_url=database_url)
    make_topic(first.bootstrap, topic, 1)
    with psycopg.connect(database_url) as connection:
        row = connection.execute("SELECT partition_id FROM v_topic_partition").fetchone()
    assert row is not None
    group = next(
        name
        for name in (f"group-{number}" for number in range(10_000))
        if shard_of(name) == row[0] % SHARDS
    )
    kafka = Consumer({"bootstrap.servers": first.bootstrap, "group.id": group})
    kafka.commit(offsets=[TopicPartition(topic, 0, 7)], asynchronous=False)
    port = free_port()
    # No other listens for Pulsar: clients go on by the address that they have.
    told = ("--pulsar-advertise", "broker.invalid:6650")
    start_gateway("--pulsar-listen", f"127.0.0.1:{port}", *told, database_url=database_url)
    client = client_of(f"pulsar://127.0.0.1:{port}")
    consumer = client.subscribe(topic, "s")
    send(client, topic, numbers(10))
    assert take(consumer, 10) == numbers(10)
    with psycopg.connect(database_url) as connection:
        rows = connection.execute(
            "SELECT kind, coordinator = %s FROM v_coordinator_lease ORDER BY kind",
            [first.bootstrap],
        ).fetchall()
    assert rows == [("groups", True), ("partitions", False)]
    kafka.commit(offsets=[TopicPartition(topic, 0, 8)], asynchronous=False)
    (committed,) = kafka.committed([TopicPartition(topic, 0)], 30)
    assert committed.offset == 8
    kafka.close()
