"""Deduplication as the stock Python client of Pulsar sees it: restarts, kills, batches, chunks."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

import psycopg
import pulsar
import pytest

from tests.compat.pulsar.conftest import WITHIN_S, Both, ClientOf, make_topic, records_of
from tests.conftest import Gateway, StartGateway, free_port
from tests.variants import variants

ON = {"penstock.deduplication.enabled": "true"}
NO_ID = -1


class Receipts:
    """What became of messages, by sequence id."""

    def __init__(self) -> None:
        self.told: dict[int, tuple[pulsar.Result, Any]] = {}
        self._lock = threading.Lock()

    def of(self, sequence_id: int) -> Any:
        """A callback for this message."""

        def note(result: pulsar.Result, message_id: Any) -> None:
            with self._lock:
                self.told[sequence_id] = result, message_id

        return note


def values(gateway: Gateway, topic: str, count: int) -> list[int]:
    return [int(each.value()) for each in records_of(gateway.bootstrap, topic, count)]


def stored(gateway: Gateway, topic: str) -> int:
    """How many records a topic's first partition has."""
    with psycopg.connect(str(gateway.database_url)) as connection:
        row = connection.execute(
            "SELECT high_watermark FROM v_topic_partition WHERE topic = %s AND partition = 0",
            [topic],
        ).fetchone()
    assert row is not None
    return int(row[0])


def test_a_producer_continues_where_it_was(both: Both, client_of: ClientOf, topic: str) -> None:
    make_topic(both.gateway.bootstrap, topic, 1, **ON)
    settings: dict[str, Any] = {"producer_name": "app", "batching_enabled": False}
    producer = client_of(both.service_url).create_producer(topic, **settings)
    assert producer.last_sequence_id() == -1
    first = [producer.send(b"%d" % number) for number in range(5)]
    assert [each.entry_id() for each in first] == list(range(5))
    assert producer.last_sequence_id() == 4
    producer.close()
    # Restarted: it is told where it was, and numbers on from there.
    producer = client_of(both.service_url).create_producer(topic, **settings)
    assert producer.last_sequence_id() == 4
    assert producer.send(b"5").entry_id() == 5
    assert producer.last_sequence_id() == 5
    # Its application numbers by itself, and begins too early.
    again = producer.send(b"again", sequence_id=3)
    assert (again.ledger_id(), again.entry_id()) == (NO_ID, NO_ID)
    assert producer.send(b"10", sequence_id=10).entry_id() == 6
    producer.close()
    producer = client_of(both.service_url).create_producer(topic, **settings)
    assert producer.last_sequence_id() == 10
    assert values(both.gateway, topic, 7) == [0, 1, 2, 3, 4, 5, 10]
    assert stored(both.gateway, topic) == 7
    with psycopg.connect(str(both.gateway.database_url)) as connection:
        found = connection.execute(
            "SELECT producer_name, last_sequence_id FROM v_named_producer WHERE topic = %s",
            [topic],
        ).fetchall()
    assert found == [("app", 10)]


def test_initial_sequence_ids_and_gaps(both: Both, client: pulsar.Client, topic: str) -> None:
    make_topic(both.gateway.bootstrap, topic, 1, **ON)
    settings: dict[str, Any] = {"producer_name": "app", "batching_enabled": False}
    producer = client.create_producer(topic, initial_sequence_id=100, **settings)
    assert producer.send(b"101").entry_id() == 0
    assert producer.send(b"500", sequence_id=500).entry_id() == 1
    producer.close()
    producer = client.create_producer(topic, initial_sequence_id=499, **settings)
    assert [producer.send(b"x").entry_id() for _ in range(2)] == [NO_ID, 2]


def test_names_are_apart_and_so_are_partitions(
    both: Both, client: pulsar.Client, topic: str
) -> None:
    make_topic(both.gateway.bootstrap, topic, 2, **ON)
    for partition in range(2):
        for name in ("one", "two"):
            producer = client.create_producer(
                f"{topic}-partition-{partition}", producer_name=name, batching_enabled=False
            )
            assert producer.last_sequence_id() == -1
            assert producer.send(b"1", sequence_id=1).entry_id() >= 0
            assert producer.send(b"1", sequence_id=1).entry_id() == NO_ID
    assert stored(both.gateway, topic) == 2


def test_without_a_name_and_without_the_setting(
    both: Both, client: pulsar.Client, topic: str
) -> None:
    make_topic(both.gateway.bootstrap, topic, 1, **ON)
    producer = client.create_producer(topic, batching_enabled=False)
    assert [producer.send(b"x", sequence_id=1).entry_id() for _ in range(2)] == [0, NO_ID]
    producer = client.create_producer(f"{topic}-off", producer_name="app", batching_enabled=False)
    assert [producer.send(b"x", sequence_id=1).entry_id() for _ in range(2)] == [0, 1]


def test_batches(both: Both, client: pulsar.Client, topic: str) -> None:
    make_topic(both.gateway.bootstrap, topic, 1, **ON)
    for is_again in (False, True):
        producer = client.create_producer(
            topic, producer_name="app", batching_max_publish_delay_ms=100, batching_max_messages=10
        )
        receipts = Receipts()
        for number in range(1, 31):  # to this client 0 is none
            producer.send_async(b"%d" % number, receipts.of(number), sequence_id=number)
        producer.flush()
        assert {result for result, _ in receipts.told.values()} == {pulsar.Result.Ok}
        entries = {each.entry_id() for _, each in receipts.told.values()}
        assert (entries == {NO_ID}) == is_again
        producer.close()
    assert values(both.gateway, topic, 30) == list(range(1, 31))
    assert stored(both.gateway, topic) == 30
    producer = client.create_producer(topic, producer_name="app")
    assert producer.last_sequence_id() == 30


def test_chunks(both: Both, client: pulsar.Client, topic: str) -> None:
    make_topic(both.gateway.bootstrap, topic, 1, **ON, **{"max.message.bytes": "6000000"})
    whole = bytes(range(256)) * 50_000  # 12.8 MB
    consumer = client.subscribe(topic, "s")
    settings: dict[str, Any] = {"batching_enabled": False, "chunking_enabled": True}
    producer = client.create_producer(topic, producer_name="app", **settings)
    producer.send(whole, sequence_id=3)
    count = stored(both.gateway, topic)
    assert count >= 3
    producer.send(whole, sequence_id=3)
    assert stored(both.gateway, topic) == count
    producer.send(b"small", sequence_id=4)
    assert consumer.receive(30_000).data() == whole
    assert consumer.receive(30_000).data() == b"small"
    producer.close()
    assert client.create_producer(topic, producer_name="app").last_sequence_id() == 4


@pytest.mark.parametrize("end", variants("kill", "stop"))
@pytest.mark.parametrize("batched", [False, True])
def test_a_broker_that_ends_stores_nothing_twice(
    start_gateway: StartGateway,
    client_of: ClientOf,
    database_url: str,
    topic: str,
    end: str,
    batched: bool,
) -> None:
    """The client sends again by itself all that it has no receipt of."""
    port, pulsar_port = free_port(), free_port()
    listen = ("--pulsar-listen", f"127.0.0.1:{pulsar_port}")
    gateway = start_gateway(*listen, database_url=database_url, port=port)
    make_topic(gateway.bootstrap, topic, 1, **ON)
    client = client_of(f"pulsar://127.0.0.1:{pulsar_port}", operation_timeout_seconds=60)
    producer = client.create_producer(
        topic,
        producer_name="app",
        batching_enabled=batched,
        batching_max_messages=7,
        batching_max_publish_delay_ms=1,
        send_timeout_millis=60_000,
        block_if_queue_full=True,
        max_pending_messages=200,
    )
    receipts = Receipts()
    for number in range(1_200):
        producer.send_async(b"%d" % number, receipts.of(number))
        if number in {400, 800}:
            getattr(gateway, end)()
            gateway = start_gateway(*listen, database_url=database_url, port=port)
    producer.flush()
    assert sorted(receipts.told) == list(range(1_200))
    assert {result for result, _ in receipts.told.values()} == {pulsar.Result.Ok}
    assert stored(gateway, topic) == 1_200
    assert values(gateway, topic, 1_200) == list(range(1_200))


def test_an_application_that_ends_with_its_broker_goes_on_where_it_was(
    start_gateway: StartGateway, client_of: ClientOf, database_url: str, topic: str
) -> None:
    """It has kept what it sent, has no receipts of the last ones, and sends those again."""
    port, pulsar_port = free_port(), free_port()
    listen = ("--pulsar-listen", f"127.0.0.1:{pulsar_port}")
    gateway = start_gateway(*listen, database_url=database_url, port=port)
    make_topic(gateway.bootstrap, topic, 1, **ON)
    following = 0
    while following < 600:
        client = client_of(f"pulsar://127.0.0.1:{pulsar_port}")
        producer = client.create_producer(topic, producer_name="app", batching_enabled=False)
        told = producer.last_sequence_id()
        assert told >= following - 1, "a receipt was not true"
        receipts = Receipts()
        begin = max(0, following - 30)  # more than it has to
        for number in range(begin, begin + 200):
            producer.send_async(b"%d" % number, receipts.of(number), sequence_id=number)
        gateway.kill()
        with contextlib.suppress(pulsar.NotConnected):  # it says so, at times, and is closed
            client.close()
        confirmed = [n for n, (result, _) in receipts.told.items() if result == pulsar.Result.Ok]
        following = max([following, *(n + 1 for n in confirmed)])
        gateway = start_gateway(*listen, database_url=database_url, port=port)
        if not confirmed:  # it was killed too soon: at least some progress each time
            client = client_of(f"pulsar://127.0.0.1:{pulsar_port}")
            producer = client.create_producer(topic, producer_name="app", batching_enabled=False)
            for number in range(following, following + 50):
                producer.send(b"%d" % number, sequence_id=number)
            following += 50
            client.close()
    count = stored(gateway, topic)
    assert count >= following
    assert values(gateway, topic, count) == list(range(count))


def test_switched_on_while_a_producer_is_there(
    both: Both, client: pulsar.Client, topic: str
) -> None:
    from confluent_kafka.admin import (
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        ResourceType,
    )

    make_topic(both.gateway.bootstrap, topic, 1)
    producer = client.create_producer(topic, producer_name="app", batching_enabled=False)
    assert [producer.send(b"x", sequence_id=7).entry_id() for _ in range(2)] == [0, 1]
    (name,) = ON
    entry = ConfigEntry(name, "true", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": both.gateway.bootstrap})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(WITHIN_S)
    # Some may be taken in before the broker has looked.
    for number in range(8, 100):
        found = [producer.send(b"x", sequence_id=number).entry_id() for _ in range(2)]
        if found[1] == NO_ID:
            break
    assert found == [stored(both.gateway, topic) - 1, NO_ID]
    assert producer.send(b"x", sequence_id=number + 1).entry_id() == found[0] + 1
    assert producer.send(b"x", sequence_id=number + 1).entry_id() == NO_ID


@pytest.mark.parametrize("end", variants("kill", "stop"))
def test_of_two_brokers_one_ends(
    start_gateway: StartGateway, client_of: ClientOf, database_url: str, topic: str, end: str
) -> None:
    """Some of the partitions move to the other broker, in the middle of the sending."""
    ports = [free_port(), free_port()]
    gateways = [
        start_gateway("--pulsar-listen", f"127.0.0.1:{port}", database_url=database_url)
        for port in ports
    ]
    make_topic(gateways[1].bootstrap, topic, 6, **ON)
    url = "pulsar://" + ",".join(f"127.0.0.1:{port}" for port in ports)
    client = client_of(url, operation_timeout_seconds=60)
    producers = [
        client.create_producer(
            f"{topic}-partition-{partition}",
            producer_name="app",
            batching_max_messages=5,
            batching_max_publish_delay_ms=1,
            send_timeout_millis=60_000,
            block_if_queue_full=True,
        )
        for partition in range(6)
    ]
    receipts = [Receipts() for _ in producers]
    for number in range(300):
        for producer, each in zip(producers, receipts, strict=True):
            producer.send_async(b"%d" % number, each.of(number))
        if number == 150:
            getattr(gateways[0], end)()
    for producer in producers:
        producer.flush()
    for partition, each in enumerate(receipts):
        assert {result for result, _ in each.told.values()} == {pulsar.Result.Ok}
        records = records_of(gateways[1].bootstrap, topic, 300, partition)
        assert [int(record.value()) for record in records] == list(range(300))
    with psycopg.connect(database_url) as connection:
        ends = connection.execute(
            "SELECT DISTINCT high_watermark FROM v_topic_partition WHERE topic = %s", [topic]
        )
        assert ends.fetchall() == [(300,)]


def test_a_broker_that_was_stopped_stores_nothing_late(
    start_gateway: StartGateway, client_of: ClientOf, database_url: str, topic: str
) -> None:
    """Its application was restarted at the other one meanwhile, and went on from what it was told:
    a message of before would take the place of another."""
    ports = [free_port(), free_port()]
    first = start_gateway("--pulsar-listen", f"127.0.0.1:{ports[0]}", database_url=database_url)
    make_topic(first.bootstrap, topic, 1, **ON)
    settings: dict[str, Any] = {"producer_name": "app", "batching_enabled": False}
    producer = client_of(f"pulsar://127.0.0.1:{ports[0]}").create_producer(topic, **settings)
    for number in range(10):
        producer.send(b"%d" % number)
    second = start_gateway("--pulsar-listen", f"127.0.0.1:{ports[1]}", database_url=database_url)
    receipts = Receipts()
    first.pause()
    try:
        for number in range(10, 40):
            producer.send_async(b"%d" % -number, receipts.of(number))
        other = client_of(f"pulsar://127.0.0.1:{ports[1]}", connection_timeout_ms=2_000)
        deadline = time.monotonic() + 60
        while True:
            try:  # while the other's session lasts, it is named, and does not answer
                restarted = other.create_producer(topic, **settings)
                break
            except pulsar.PulsarException:
                assert time.monotonic() < deadline
        assert restarted.last_sequence_id() == 9
        first.resume()
        for number in range(10, 30):
            assert restarted.send(b"%d" % number).entry_id() == number
            time.sleep(0.02)
    finally:
        first.resume()
    assert values(second, topic, 30) == list(range(30))
    assert stored(second, topic) == 30
    assert not [n for n, (result, _) in receipts.told.items() if result == pulsar.Result.Ok]
