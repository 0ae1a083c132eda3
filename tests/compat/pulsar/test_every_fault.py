"""Brokers that are killed, and two brokers, under Java's and Go's clients.

Python's have this in test_consumers_faults.py and test_producers.py.
"""

from __future__ import annotations

import psycopg
import pytest

from compat.pulsar.drivers import Refused
from core.shard import SHARDS
from tests.compat.pulsar.clients import numbers, values
from tests.compat.pulsar.conftest import JAVA, MakeClient, records_of
from tests.conftest import Gateway, StartGateway, free_port
from tests.variants import variants

CLIENTS = [JAVA, "go"]


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize("kind", variants("Shared", "Exclusive", "Failover", "Key_Shared"))
def test_clients_outlive_a_broker_that_is_killed(
    start_gateway: StartGateway,
    database_url: str,
    make_client: MakeClient,
    topic: str,
    name: str,
    kind: str,
) -> None:
    port, kafka_port = free_port(), free_port()
    address = f"127.0.0.1:{port}"
    listen = ("--pulsar-listen", address)
    gateway = start_gateway(*listen, database_url=database_url, port=kafka_port)
    client = make_client(name, f"pulsar://{address}")
    consumer = client.consumer(topic, type=kind, is_receipted=True)
    producer = client.producer(topic, producer_name="lasting", send_timeout_ms=60_000)
    reader = client.reader(topic)
    producer.send(*numbers(20))
    assert values(consumer.take(10)) == numbers(10)  # each with its receipt
    assert values(reader.take(5)) == numbers(5)
    gateway.kill()
    start_gateway(*listen, database_url=database_url, port=kafka_port)
    # The same producer, consumer and reader go on. Nothing is missing, and what had its receipt
    # does not come again; what the client acknowledged before it was connected again does.
    producer.send(*numbers(10, 20))
    found: set[bytes | None] = set()
    while more := consumer.some(1, 30_000 if len(found) < 20 else 300, acknowledge=True):
        found.update(values(more))
    assert found == set(numbers(20, 10))
    consumer.close()
    assert client.consumer(topic, type=kind).nothing_comes()
    rest = values(reader.some(1, 30_000) + reader.some(24, 3_000))
    # Go's reader drops the one that it had in its hands (compat/pulsar/go/FINDINGS.md).
    assert rest in ([numbers(25, 5)] if name == "java" else [numbers(25, 5), numbers(24, 6)])
    stored = records_of(gateway.bootstrap, topic, 30)
    assert [each.value() for each in stored] == numbers(30)


@pytest.mark.parametrize("name", CLIENTS)
def test_of_two_brokers_each_sends_to_the_other(
    start_gateway: StartGateway, database_url: str, make_client: MakeClient, topic: str, name: str
) -> None:
    ports = [free_port(), free_port()]
    for port in ports:
        start_gateway("--pulsar-listen", f"127.0.0.1:{port}", database_url=database_url)
    clients = [make_client(name, f"pulsar://127.0.0.1:{port}") for port in ports]
    topics = [f"{topic}-{number}" for number in range(6)]
    for number, each in enumerate(topics):
        writer, taker = clients[number % 2], clients[1 - number % 2]
        consumer = taker.consumer(each, type="Shared", is_receipted=True)
        writer.send(each, *numbers(5))
        assert values(consumer.take(5)) == numbers(5)
        consumer.close()
        assert writer.consumer(each, type="Shared").nothing_comes(100)
    owners = "SELECT count(DISTINCT l.broker_id) FROM coordinator_lease l, v_topic_partition p "
    owners += "WHERE l.shard = %s + p.partition_id %% %s AND p.topic = ANY(%s)"
    with psycopg.connect(database_url) as connection:
        row = connection.execute(owners, [SHARDS, SHARDS, topics]).fetchone()
    assert row == (2,)  # else nobody was sent anywhere


FENCED = {
    "java": "ProducerFencedException",
    "go": "ProducerFenced",
    "python": "ProducerFenced",
}


@pytest.mark.parametrize("name", [JAVA, "go", "python"])
def test_one_that_was_replaced_while_its_broker_was_away_is_fenced(
    start_gateway: StartGateway, database_url: str, make_client: MakeClient, topic: str, name: str
) -> None:
    """The brokers are killed; nobody but the database knows that another had the topic for itself,
    and it has gone when the first comes again."""
    kafka_port = free_port()
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]

    def start(address: str) -> Gateway:
        return start_gateway("--pulsar-listen", address, database_url=database_url, port=kafka_port)

    broker = start(addresses[0])
    first = make_client(name, f"pulsar://{addresses[0]}").producer(
        topic, access="Exclusive", producer_name="first", send_timeout_ms=30_000
    )
    first.send(b"first")
    broker.kill()
    # It takes the other's place in the cluster, at an address that the first does not know.
    broker = start(addresses[1])
    second = make_client(name, f"pulsar://{addresses[1]}").producer(topic, access="Exclusive")
    second.send(b"second")
    second.close()
    broker.kill()
    broker = start(addresses[0])
    with pytest.raises(Refused) as refused:
        first.send(b"late")
    assert FENCED[name] in str(refused.value), refused.value
    third = make_client(name, f"pulsar://{addresses[0]}").producer(topic, access="Exclusive")
    third.send(b"third")
    stored = records_of(broker.bootstrap, topic, 3)
    assert [each.value() for each in stored] == [b"first", b"second", b"third"]
    with psycopg.connect(database_url) as connection:
        row = connection.execute("SELECT topic_epoch FROM v_topic_partition").fetchone()
    assert row == (2,)
