"""Rights that come and go under load, while brokers die: nothing is done for long after its right.

Two brokers, and of Kafka's clients and of Pulsar's each a topic that they write to and one that
they read. The rights to write to the one, and to read the other, are given and taken in turn, by
SQL; one broker after the other is killed, and comes back.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final

import psycopg
import pulsar
import pytest
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

from tests.conftest import Gateway, StartGateway, free_port
from tests.faults.conftest import create_topic

pytestmark = [pytest.mark.fault, pytest.mark.slow]
LEAST_S: Final = 20.0
"""For the right to come and go a few times."""
ENOUGH: Final = 100
MORE_S: Final = 70.0
"""For so much to be done on a busy machine."""
COUNTS_WITHIN_S: Final = 1.0
MACHINE_STALLS_S: Final = 1.0
"""Nobody can act upon a right within a time in which nobody runs."""
EAGER: Final = {"topic.metadata.refresh.interval.ms": 200, "reconnect.backoff.max.ms": 500}
WRITTEN, READ = "written", "read"
WRITTEN_BY_PULSAR, READ_BY_PULSAR = "written-by-pulsar", "read-by-pulsar"
RIGHTS: Final = {
    WRITTEN: "WRITE",
    READ: "READ",
    WRITTEN_BY_PULSAR: "WRITE",
    READ_BY_PULSAR: "READ",
}
"""Those that come and go."""
ON: Final = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"
GIVE: Final = (
    "INSERT INTO acl (principal, operation, resource_type, resource_name)"
    " VALUES ('User:ANONYMOUS', %s, 'TOPIC', %s) ON CONFLICT DO NOTHING"
)
TAKE: Final = "DELETE FROM acl WHERE operation = %s AND resource_name = %s"


@dataclass
class Ledger:
    """What was done, as (begun, ended), and when there was no right, as (taken, given)."""

    done: dict[str, list[tuple[float, float]]] = field(
        default_factory=lambda: {topic: [] for topic in RIGHTS}
    )
    without: dict[str, list[tuple[float, float]]] = field(
        default_factory=lambda: {topic: [] for topic in RIGHTS}
    )

    def note(self, topic: str) -> Callable[[float, float], None]:
        return lambda begun, ended: self.done[topic].append((begun, ended))

    def too_late(self, topic: str) -> list[float]:
        """How long after its right had gone something was begun, and done before it was back."""
        return [
            begun - taken
            for begun, ended in self.done[topic]
            for taken, given in self.without[topic]
            if taken < begun and ended < given
        ]


def write(bootstrap: str, topic: str, stop: threading.Event, done: Callable[..., None]) -> None:
    """A record each few milliseconds; its value is when it was sent."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0, "retries": 1_000, **EAGER}
    )

    def note(begun: float) -> Callable[[object, Message], None]:
        return lambda error, _: done(begun, time.monotonic()) if error is None else None

    while not stop.is_set():
        begun = time.monotonic()
        with contextlib.suppress(KafkaException):  # it knows of the last refusal
            producer.produce(topic, str(begun).encode(), on_delivery=note(begun))
        producer.poll(0)
        time.sleep(0.005)
    producer.flush(20)


def read(bootstrap: str, stop: threading.Event, done: Callable[[float, float], None]) -> None:
    """From the log's beginning on."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "nobody",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 100,
            "fetch.error.backoff.ms": 20,
            **EAGER,
        }
    )
    consumer.assign([TopicPartition(READ, 0, 0)])
    while not stop.is_set():
        found = consumer.poll(0.1)
        if found is not None and found.error() is None:
            value = found.value()
            assert value is not None
            done(float(value), time.monotonic())
    consumer.close()


def pulsar_client(urls: str) -> pulsar.Client:
    silent = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
    return pulsar.Client(
        urls, operation_timeout_seconds=2, connection_timeout_ms=1_000, logger=silent
    )


def write_by_pulsar(urls: str, stop: threading.Event, done: Callable[..., None]) -> None:
    """The same; a producer that was closed is made anew."""
    client = pulsar_client(urls)
    while not stop.is_set():
        with contextlib.suppress(pulsar.PulsarException):
            producer = client.create_producer(WRITTEN_BY_PULSAR, send_timeout_millis=2_000)
            while not stop.is_set():
                begun = time.monotonic()
                producer.send(str(begun).encode())
                done(begun, time.monotonic())
                time.sleep(0.005)
        time.sleep(0.05)
    client.close()


def read_by_pulsar(urls: str, stop: threading.Event, done: Callable[..., None]) -> None:
    """By a subscription; what comes again is read again."""
    client = pulsar_client(urls)
    while not stop.is_set():
        with contextlib.suppress(pulsar.PulsarException):
            consumer = client.subscribe(
                READ_BY_PULSAR, "s", initial_position=pulsar.InitialPosition.Earliest
            )
            while not stop.is_set():
                with contextlib.suppress(pulsar.Timeout):
                    found = consumer.receive(200)
                    done(float(found.data()), time.monotonic())
                    consumer.acknowledge(found)
        time.sleep(0.05)
    client.close()


def test_nothing_is_done_long_after_its_right_has_gone(
    database_url: str, start_gateway: StartGateway, seed: int, seconds: float
) -> None:
    random = Random(seed)
    ports = [(free_port(), free_port()) for _ in range(2)]

    def start(place: tuple[int, int]) -> Gateway:
        port, pulsar_port = place
        return start_gateway(
            f"--override={ON}",
            *("--pulsar-listen", f"127.0.0.1:{pulsar_port}"),
            database_url=database_url,
            port=port,
        )

    brokers = [start(each) for each in ports]
    bootstrap = ",".join(each.bootstrap for each in brokers)
    urls = "pulsar://" + ",".join(f"127.0.0.1:{each}" for _, each in ports)
    ledger, stop = Ledger(), threading.Event()
    with psycopg.connect(database_url, autocommit=True) as connection:
        for topic in RIGHTS:
            for operation in ("DESCRIBE", "CREATE"):
                connection.execute(GIVE, (operation, topic))
        for topic in (READ, READ_BY_PULSAR):
            connection.execute(GIVE, ("WRITE", topic))
        for topic in RIGHTS:
            create_topic(bootstrap, topic, 1)  # again, until the rights are known
        work: list[tuple[Callable[..., None], tuple[object, ...]]] = [
            (write, (bootstrap, WRITTEN, stop, ledger.note(WRITTEN))),
            (write, (bootstrap, READ, stop, lambda *_: None)),
            (write, (bootstrap, READ_BY_PULSAR, stop, lambda *_: None)),
            (read, (bootstrap, stop, ledger.note(READ))),
            (write_by_pulsar, (urls, stop, ledger.note(WRITTEN_BY_PULSAR))),
            (read_by_pulsar, (urls, stop, ledger.note(READ_BY_PULSAR))),
        ]
        threads = [threading.Thread(target=target, args=args) for target, args in work]
        for thread in threads:
            thread.start()
        end = time.monotonic() + max(seconds, LEAST_S)
        give_up = time.monotonic() + max(seconds, LEAST_S) + MORE_S
        while time.monotonic() < end or (
            min(map(len, ledger.done.values())) <= ENOUGH and time.monotonic() < give_up
        ):
            for topic, operation in RIGHTS.items():
                if ledger.without[topic]:  # from before it is given on it may be used
                    taken, _ = ledger.without[topic][-1]
                    ledger.without[topic][-1] = (taken, time.monotonic())
                connection.execute(GIVE, (operation, topic))
            time.sleep(random.uniform(1.5, 2.5))
            victim = random.randrange(2)
            brokers[victim].kill()
            for topic, operation in RIGHTS.items():
                connection.execute(TAKE, (operation, topic))
                ledger.without[topic].append((time.monotonic(), float("inf")))
            brokers[victim] = start(ports[victim])
            time.sleep(random.uniform(2.5, 3.5))
    stop.set()
    for thread in threads:
        thread.join(60)
    for topic in RIGHTS:
        assert len(ledger.done[topic]) > ENOUGH, topic
        late = ledger.too_late(topic)
        assert max(late, default=0) < COUNTS_WITHIN_S + MACHINE_STALLS_S, (topic, len(late))
