"""Records for the tests of pipelines: written in transactions and outside, read back whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Producer
from kafka import KafkaConsumer, TopicPartition

PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class Written:
    """A record to be written. partition: -1 where the key decides."""

    value: bytes
    key: bytes | None = None
    partition: int = -1
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp: int = 0


def write(bootstrap: str, topic: str, records: Iterable[Written]) -> None:
    """Outside of any transaction."""
    producer = Producer({"bootstrap.servers": bootstrap})
    _produce(producer, topic, records)
    assert producer.flush(PATIENCE_S) == 0


def write_transactions(
    bootstrap: str,
    name: str,
    transactions: Sequence[tuple[bool, Sequence[tuple[str, Written]]]],
) -> None:
    """Each is committed or not, and holds records for topics."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    producer.init_transactions(PATIENCE_S)
    for is_committed, records in transactions:
        producer.begin_transaction()
        for topic, record in records:
            _produce(producer, topic, [record])
        producer.flush(PATIENCE_S)
        if is_committed:
            producer.commit_transaction(PATIENCE_S)
        else:
            producer.abort_transaction(PATIENCE_S)


def _produce(producer: Producer, topic: str, records: Iterable[Written]) -> None:
    for record in records:
        producer.produce(
            topic,
            record.value,
            record.key,
            record.partition,
            headers=list(record.headers) or None,
            timestamp=record.timestamp,
        )


def read(bootstrap: str, topic: str, *, is_committed: bool = True) -> list[Any]:
    """kafka-python's records of all partitions, in order of partition and offset."""
    level = "read_committed" if is_committed else "read_uncommitted"
    found: list[Any] = []
    with closing(
        KafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=None,
            auto_offset_reset="earliest",
            isolation_level=level,
        )
    ) as consumer:
        numbers = consumer.partitions_for_topic(topic) or set()
        partitions = [TopicPartition(topic, number) for number in sorted(numbers)]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(each) < ends[each] for each in partitions):
            for batch in consumer.poll(timeout_ms=500).values():
                found += batch
    return sorted(found, key=lambda record: (record.partition, record.offset))
