"""A process that copies a topic in transactions, until it is killed: consume, transform, produce.

    python -m tests.compat.copier CLIENT BOOTSTRAP SOURCE TARGET GROUP TRANSACTIONAL_ID

It leaves by itself only with an error, as an application does that is started again. Knows clients;
must not know how often it has been started.
"""

from __future__ import annotations

import sys

from tests.compat.transactions import AIOKafka, Client, Confluent, EventLoop, KafkaPython

DOTTED = {"session.timeout.ms": 1500, "max.poll.interval.ms": 20_000}
UNDERSCORED = {name.replace(".", "_"): value for name, value in DOTTED.items()}


def client_named(name: str, bootstrap: str) -> Client:
    if name == AIOKafka.name:
        return AIOKafka(bootstrap, EventLoop())
    return {Confluent.name: Confluent, KafkaPython.name: KafkaPython}[name](bootstrap)


def transformed(value: bytes) -> str:
    return f"copy of {value.decode()}"


def copy(client: Client, source: str, target: str, group: str, transactional_id: str) -> None:
    producer = client.producer(transactional_id, timeout_ms=10_000)
    settings = DOTTED if client.name == Confluent.name else UNDERSCORED
    reader = client.reader(source, None, group=group, **settings)
    while True:
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
    copy(client_named(name, bootstrap), *rest)
