"""Rights that come and go under load, while brokers die: nothing is done for long after its right.

Two brokers, one topic that is written to and one that is read. The right to write to the one, and
to read the other, is given and taken in turn, by SQL; one broker after the other is killed, and
comes back.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final

import psycopg
import pytest
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conftest import Gateway, StartGateway, free_port

pytestmark = [pytest.mark.fault, pytest.mark.slow]
LEAST_S: Final = 20.0
"""For the right to come and go a few times."""
COUNTS_WITHIN_S: Final = 1.0
MACHINE_STALLS_S: Final = 1.0
"""Nobody can act upon a right within a time in which nobody runs."""
EAGER: Final = {"topic.metadata.refresh.interval.ms": 200, "reconnect.backoff.max.ms": 500}
WRITTEN, READ = "written", "read"
ON: Final = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"
GIVE: Final = (
    "INSERT INTO acl (principal, operation, resource_type, resource_name)"
    " VALUES ('User:ANONYMOUS', %s, 'TOPIC', %s) ON CONFLICT DO NOTHING"
)
TAKE: Final = "DELETE FROM acl WHERE operation = %s AND resource_name = %s"


@dataclass
class Ledger:
    """What was done, as (begun, ended), and when there was no right, as (taken, given)."""

    written: list[tuple[float, float]] = field(default_factory=list)
    read: list[tuple[float, float]] = field(default_factory=list)
    without: dict[str, list[tuple[float, float]]] = field(
        default_factory=lambda: {WRITTEN: [], READ: []}
    )

    def too_late(self, topic: str) -> list[float]:
        """How long after its right had gone something was begun, and done before it was back."""
        done = self.written if topic == WRITTEN else self.read
        return [
            begun - taken
            for begun, ended in done
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


def test_nothing_is_done_long_after_its_right_has_gone(
    database_url: str, start_gateway: StartGateway, seed: int, seconds: float
) -> None:
    random = Random(seed)
    ports = [free_port(), free_port()]

    def start(port: int) -> Gateway:
        return start_gateway(f"--override={ON}", database_url=database_url, port=port)

    brokers = [start(port) for port in ports]
    bootstrap = ",".join(each.bootstrap for each in brokers)
    ledger, stop = Ledger(), threading.Event()
    with psycopg.connect(database_url, autocommit=True) as connection:
        for operation in ("DESCRIBE", "CREATE"):
            connection.execute(GIVE, (operation, WRITTEN))
            connection.execute(GIVE, (operation, READ))
        connection.execute(GIVE, ("WRITE", READ))
        time.sleep(1)
        admin = AdminClient({"bootstrap.servers": bootstrap})
        for made in admin.create_topics([NewTopic(WRITTEN, 1), NewTopic(READ, 1)]).values():
            made.result(20)
        threads = [
            threading.Thread(
                target=write,
                args=(bootstrap, WRITTEN, stop, lambda *times: ledger.written.append(times)),
            ),
            threading.Thread(target=write, args=(bootstrap, READ, stop, lambda *_: None)),
            threading.Thread(
                target=read, args=(bootstrap, stop, lambda *times: ledger.read.append(times))
            ),
        ]
        for thread in threads:
            thread.start()
        end = time.monotonic() + max(seconds, LEAST_S)
        rights = {WRITTEN: "WRITE", READ: "READ"}
        while time.monotonic() < end:
            for topic, operation in rights.items():
                connection.execute(GIVE, (operation, topic))
            given = time.monotonic()
            for topic in rights:
                if ledger.without[topic]:
                    taken, _ = ledger.without[topic][-1]
                    ledger.without[topic][-1] = (taken, given)
            time.sleep(random.uniform(1.0, 2.0))
            victim = random.randrange(2)
            brokers[victim].kill()
            for topic, operation in rights.items():
                connection.execute(TAKE, (operation, topic))
                ledger.without[topic].append((time.monotonic(), float("inf")))
            brokers[victim] = start(ports[victim])
            time.sleep(random.uniform(2.5, 3.5))
    stop.set()
    for thread in threads:
        thread.join(60)
    assert len(ledger.written) > 100
    assert len(ledger.read) > 100
    for topic in (WRITTEN, READ):
        late = ledger.too_late(topic)
        assert max(late, default=0) < COUNTS_WITHIN_S + MACHINE_STALLS_S, (topic, len(late))
