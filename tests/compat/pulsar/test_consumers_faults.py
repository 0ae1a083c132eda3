"""Brokers that stop, are killed, or come again, under Pulsar's consumers."""

from __future__ import annotations

import time

import pulsar
import pytest
from pulsar import ConsumerType

from tests.compat.pulsar.conftest import ClientOf
from tests.compat.pulsar.test_consumers import nothing_comes, numbers, send, take
from tests.conftest import StartGateway, free_port

TYPES = [ConsumerType.Exclusive, ConsumerType.Shared, ConsumerType.KeyShared]


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("is_killed", [False, True])
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
