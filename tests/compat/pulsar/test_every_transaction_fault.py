"""Java's and Go's transactions over brokers that are killed, that join, and of which one ends what
the other dispatches."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass

import pytest

from gateway.pulsar.commands_pb2 import CommandLookupTopic
from gateway.pulsar.transactions import COORDINATORS
from tests.compat.pulsar.clients import Client, Consumer, Message, Transaction, numbers, values
from tests.compat.pulsar.conftest import JAVA, MakeClient
from tests.compat.pulsar.raw import RawClient
from tests.conftest import Gateway, StartGateway, free_port

NAMES = pytest.mark.parametrize("name", [JAVA, "go"])


@NAMES
def test_a_transaction_outlives_its_broker(
    start_gateway: StartGateway, database_url: str, make_client: MakeClient, topic: str, name: str
) -> None:
    """Killed with one open: the client comes again, and goes on with the same id."""
    port, kafka_port = free_port(), free_port()
    address = f"127.0.0.1:{port}"
    listen = ("--pulsar-listen", address)
    gateway = start_gateway(*listen, database_url=database_url, port=kafka_port)
    client = make_client(name, f"pulsar://{address}", has_transactions=True)
    sink = f"{topic}-sink"
    client.send(topic, *numbers(6))
    consumer = client.consumer(topic, type="Shared", is_earliest=True)
    producer = client.producer(sink, send_timeout_ms=0)
    found = consumer.take(6, acknowledge=False)
    kept, dropped = client.begin(), client.begin()
    # It ends by its time, whatever becomes of the broker.
    forgotten = client.begin(ttl_ms=10_000)
    for place, transaction in enumerate((kept, dropped, forgotten)):
        producer.send(b"before %d" % place, transaction=transaction)
        consumer.acknowledge(found[place], transaction=transaction)
    gateway.kill()
    start_gateway(*listen, database_url=database_url, port=kafka_port)
    come: dict[bytes | None, Message] = {}
    receive(consumer, come, numbers(3, 3))
    for place, transaction in ((b"3", kept), (b"4", dropped)):
        producer.send(b"after " + place, transaction=transaction)
        consumer.acknowledge(come.pop(place), transaction=transaction)
    kept.commit()
    dropped.abort()
    # What was dropped; what was forgotten, if it has not come before.
    receive(consumer, come, [b"1", b"2", b"4", b"5"])
    assert sorted(come) == [b"1", b"2", b"4", b"5"]
    consumer.acknowledge(*come.values())
    assert values(client.reader(sink).rest()) == [b"before 0", b"after 3"]
    consumer.close()
    assert client.consumer(topic, type="Shared").nothing_comes()
    assert client.begin().id[1] > max(each.id[1] for each in (kept, dropped, forgotten))


def receive(
    consumer: Consumer, come: dict[bytes | None, Message], wanted: Collection[bytes]
) -> None:
    """Puts what comes to what has come, by value, until all that is wanted is there."""
    while not set(wanted) <= come.keys():
        (message,) = consumer.take(1, acknowledge=False)
        come[message.value] = message


@dataclass(frozen=True, slots=True)
class Two:
    """Two brokers. ports: of Pulsar."""

    gateways: list[Gateway]
    ports: list[int]

    @property
    def url(self) -> str:
        return "pulsar://" + ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def owner(self, topic: str) -> int:
        """Which of them a topic's clients are sent to."""
        with RawClient(self.ports[1]) as raw:
            found = raw.ask(CommandLookupTopic(topic=topic, request_id=1))
            return self.ports.index(int(found.broker_service_url.rpartition(":")[2]))

    def coordinator(self, transaction: Transaction) -> int:
        name = f"persistent://pulsar/system/{COORDINATORS}-partition-{transaction.id[0]}"
        return self.owner(name)


def begun_at(two: Two, client: Client, broker: int) -> Transaction:
    """A transaction whose coordinator is that broker's."""
    for _ in range(32):
        transaction = client.begin()
        if two.coordinator(transaction) == broker:
            return transaction
        transaction.abort()
    raise AssertionError(f"all coordinators are at broker {1 - broker}")


@NAMES
def test_of_two_brokers_one_coordinates_what_the_other_dispatches(
    start_gateway: StartGateway, database_url: str, make_client: MakeClient, topic: str, name: str
) -> None:
    ports = [free_port(), free_port()]
    started = [
        start_gateway("--pulsar-listen", f"127.0.0.1:{port}", database_url=database_url)
        for port in ports
    ]
    two = Two(started, ports)
    client = make_client(name, two.url, has_transactions=True)
    # A topic that is not there yet is whose it is asked for.
    make_client(name, f"pulsar://127.0.0.1:{ports[1]}").producer(topic).close()
    full_name = f"persistent://public/default/{topic}"
    assert two.owner(full_name) == 1
    producer = client.producer(topic, send_timeout_ms=0)
    producer.send(*numbers(4))
    consumer = client.consumer(topic, type="Shared", is_earliest=True)
    found = consumer.take(4, acknowledge=False)
    # The one ends them, the other hears of it, and sooner than by looking once a second.
    aborted, committed = (begun_at(two, client, 0) for _ in range(2))
    consumer.acknowledge(*found[:2], transaction=aborted)
    producer.send(b"dropped", transaction=aborted)
    consumer.acknowledge(*found[2:], transaction=committed)
    producer.send(b"4", transaction=committed)
    begun = time.monotonic()
    aborted.abort()
    again = consumer.take(2, acknowledge=False)
    assert (sorted(values(again)), consumer.nothing_comes(50)) == (numbers(2), True)
    committed.commit()
    assert values(consumer.take(1)) == [b"4"]
    assert time.monotonic() - begun < 30
    # The one is killed: the other coordinates what it had.
    open_one = begun_at(two, client, 0)
    producer.send(b"5", transaction=open_one)
    consumer.acknowledge(*again, transaction=open_one)
    assert two.owner(full_name) == 1
    two.gateways[0].kill()
    producer.send(b"6", transaction=open_one)
    open_one.commit()
    assert values(consumer.take(2)) == numbers(2, 5)
    consumer.close()
    assert client.consumer(topic, type="Shared").nothing_comes()


@NAMES
def test_coordinators_move_to_a_broker_that_joins(
    start_gateway: StartGateway, database_url: str, make_client: MakeClient, topic: str, name: str
) -> None:
    """With transactions open; clients go on with them, and begin others at every coordinator."""
    ports = [free_port(), free_port()]
    first = start_gateway("--pulsar-listen", f"127.0.0.1:{ports[0]}", database_url=database_url)
    two = Two([first], ports)
    client = make_client(name, f"pulsar://127.0.0.1:{ports[0]}", has_transactions=True)
    producer = client.producer(topic, send_timeout_ms=0)
    transactions = [client.begin() for _ in range(16)]
    assert {each.id[0] for each in transactions} == set(range(16))
    for each in transactions[:8]:
        producer.send(b"%d" % each.id[0], transaction=each)
    start_gateway("--pulsar-listen", f"127.0.0.1:{ports[1]}", database_url=database_url)
    assert {two.coordinator(each) for each in transactions} == {0, 1}
    time.sleep(1.1)  # until the first has heard of it
    for each in transactions[8:]:
        producer.send(b"%d" % each.id[0], transaction=each)
    for each in transactions:
        each.commit()
    assert sorted(values(client.reader(topic).rest()), key=lambda v: int(v or b"")) == numbers(16)
    for _ in range(16):
        client.begin().commit()
