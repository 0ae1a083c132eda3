"""Reads topics whole, with confluent-kafka. Must not know what was written."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from confluent_kafka import TIMESTAMP_CREATE_TIME, Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

READ_WITHIN_S = 60.0


@dataclass(frozen=True, order=True)
class Record:
    """A record as a client sees it. timestamp: milliseconds."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...] = ()


def partitions_of(bootstrap: str, topic: str) -> int:
    metadata = AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic, timeout=20)
    return len(metadata.topics[topic].partitions)


def read_topic(bootstrap: str, topic: str) -> list[Record]:
    """All that is committed now, by partition and offset; no offset may be missing."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "nobody",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "auto.offset.reset": "error",
    }
    consumer = Consumer(settings)
    try:
        places = [TopicPartition(topic, each, 0) for each in range(partitions_of(bootstrap, topic))]
        ends = [consumer.get_watermark_offsets(place, timeout=20)[1] for place in places]
        consumer.assign(places)
        found: list[Record] = []
        deadline = time.monotonic() + READ_WITHIN_S
        while len(found) < sum(ends) and time.monotonic() < deadline:
            for message in consumer.consume(10_000, 0.5):
                assert not message.error(), message.error()
                kind, timestamp = message.timestamp()
                assert kind == TIMESTAMP_CREATE_TIME
                headers = tuple(message.headers() or ())
                found.append(
                    Record(
                        message.partition(),
                        message.offset(),
                        message.key(),
                        message.value(),
                        timestamp,
                        headers,
                    )
                )
    finally:
        consumer.close()
    found.sort(key=lambda record: (record.partition, record.offset))
    for place, end in zip(places, ends, strict=True):
        offsets = [record.offset for record in found if record.partition == place.partition]
        assert offsets == list(range(end)), f"partition {place.partition}"
    return found


def values_of(records: Sequence[Record]) -> list[str]:
    """The values as text, sorted."""
    return sorted(record.value.decode() if record.value is not None else "" for record in records)
