"""A process that copies a topic in transactions, until it is killed: consume, transform, produce.

    python -m tests.compat.copier CLIENT BOOTSTRAP SOURCE TARGET GROUP TRANSACTIONAL_ID

It leaves by itself only with an error, as an application does that is started again, or where it
hangs: librdkafka and kafka-python may wait for ever when brokers are lost (compat/*/FINDINGS.md).
Knows clients; must not know how often it has been started.
"""

from __future__ import annotations

import faulthandler
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.compat.clients import (
    AIOKafka,
    Client,
    Confluent,
    EventLoop,
    Java,
    KafkaPython,
    java_shell,
)

HANGS_AFTER_S = 20.0
DOTTED = {"session.timeout.ms": 1500, "max.poll.interval.ms": 20_000}
UNDERSCORED = {name.replace(".", "_"): value for name, value in DOTTED.items()}


@contextmanager
def client_named(name: str, bootstrap: str) -> Iterator[Client]:
    match name:
        case AIOKafka.name:
            yield AIOKafka(bootstrap, EventLoop())
        case Java.name:
            with java_shell(own_session=False) as shell:
                yield Java(bootstrap, shell)
        case Confluent.name:
            yield Confluent(bootstrap)
        case KafkaPython.name:
            yield KafkaPython(bootstrap)


def transformed(value: bytes) -> str:
    return f"copy of {value.decode()}"


def copy(client: Client, source: str, target: str, group: str, transactional_id: str) -> None:
    producer = client.producer(transactional_id, timeout_ms=10_000)
    settings = DOTTED if client.name in (Confluent.name, Java.name) else UNDERSCORED
    reader = client.reader(source, None, group=group, **settings)
    while True:
        faulthandler.dump_traceback_later(HANGS_AFTER_S, exit=True)
        records = reader.poll(0.2)
        if not records:
            continue
        producer.begin()
        for record in records:
            producer.send(target, transformed(record.value), partition=record.partition)
        ends = {record.partition: record.offset + 1 for record in records}
        producer.send_offsets(source, ends, reader.member())
        producer.commit()


if __name__ == "__main__":
    _, name, bootstrap, *rest = sys.argv
    with client_named(name, bootstrap) as client:
        copy(client, *rest)
