"""Short ways to drive confluent-kafka (librdkafka) in a test: produce, assign, read, admin.

Knows the client only. Consumers are assigned, never subscribed: groups are not needed to read.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

WAIT = 20.0  # seconds until something that must happen is taken for lost


def producer(bootstrap: str, **config: Any) -> Producer:
    """A producer; `acks="all"` is written with underscores for dots: `linger_ms=0`."""
    return Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, **_dotted(config)})


@contextmanager
def consumer(bootstrap: str, **config: Any) -> Iterator[Consumer]:
    """A consumer that commits nothing. librdkafka wants a group.id even if it is never used."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "unused",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        **_dotted(config),
    }
    opened = Consumer(settings)
    try:
        yield opened
    finally:
        opened.close()


def _dotted(config: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("_", "."): value for name, value in config.items()}


def send(client: Producer, records: Iterable[dict[str, Any]]) -> list[Message | KafkaError]:
    """Produce each record (keywords of `Producer.produce`); what was delivered, or the errors."""
    reports: list[Message | KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        reports.append(error or message)

    count = 0
    for record in records:
        client.produce(on_delivery=delivered, **record)
        count += 1
    assert client.flush(WAIT) == 0
    assert len(reports) == count
    return reports


def send_all(client: Producer, records: Iterable[dict[str, Any]]) -> list[Message]:
    """`send`, where no record may fail."""
    reports = send(client, records)
    failed = [report for report in reports if isinstance(report, KafkaError)]
    assert not failed
    return [report for report in reports if isinstance(report, Message)]


def wait_for_errors(client: AdminClient, errors: list[KafkaError], seconds: float = 30.0) -> None:
    """Polls until the client's `error_cb` has put something into `errors`: a call that failed may
    have been over before the client had connected at all."""
    deadline = time.monotonic() + seconds
    while not errors:
        assert time.monotonic() < deadline, f"no error in {seconds} s"
        client.poll(0.2)


def read_message(client: Consumer, seconds: float = WAIT) -> Message:
    """The next record; anything but a record or an end of partition is a failure."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        message = client.poll(0.5)
        if message is None:
            continue
        if message.error() and message.error().code() == KafkaError._PARTITION_EOF:
            continue
        assert message.error() is None, message.error()
        return message
    raise TimeoutError(f"no record in {seconds} s")


def read_to_end(client: Consumer, partitions: int = 1, seconds: float = WAIT) -> list[Message]:
    """Every record up to the end of each of the assigned `partitions`."""
    records: list[Message] = []
    ended: set[tuple[str, int]] = set()
    deadline = time.monotonic() + seconds
    while len(ended) < partitions:
        assert time.monotonic() < deadline, f"{len(records)} records, {len(ended)} ends"
        message = client.poll(0.5)
        if message is None:
            continue
        if message.error() is None:
            records.append(message)
        else:
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            ended.add((message.topic(), message.partition()))
    return records


def read_topic(bootstrap: str, topic: str, partitions: int = 1, **config: Any) -> list[Message]:
    """Every record of `topic` from its beginning, by partition in offset order."""
    with consumer(bootstrap, **config) as client:
        client.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(partitions)])
        found = read_to_end(client, partitions)
    return sorted(found, key=lambda message: (message.partition(), message.offset()))
