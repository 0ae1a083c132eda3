"""Kafka to Pulsar and back, and the other way: every type of record, field by field.

A client of the one reads what one of the other has written, writes what it has read into another
topic, and there the first reads it again: nothing of what both can say has changed.
"""

from __future__ import annotations

import base64
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME
from confluent_kafka import Producer as KafkaProducer

from tests.compat.pulsar.clients import Client
from tests.compat.pulsar.conftest import WITHIN_S, Both, make_topic, of, records_of

T0 = 1_700_000_000_000
KAFKAS = ("none", "gzip", "snappy", "lz4", "zstd")
PULSARS = ("none", "zlib", "snappy", "lz4", "zstd")

# value, key, headers; each with a time of its own.
RECORDS: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]] = [
    (b"v" * 2_000, b"key", [("a", b"1"), ("b", "ü".encode())]),
    (b"", None, []),
    (None, b"tombstone", []),
    (b"\x00\xff", b"\xff\xfe", [("raw", b"\xff"), ("null", None)]),
    (b"empty key", b"", [("", b"empty name")]),
    (b"twice", "schlüssel".encode(), [("h", b"1"), ("h", b"2"), ("empty", b"")]),
]


def write_by_kafka(both: Both, topic: str, codec: str, records: list[Any]) -> None:
    producer = KafkaProducer(
        {
            "bootstrap.servers": both.gateway.bootstrap,
            "compression.type": codec,
            "linger.ms": 5_000,  # one batch, on a slow machine too; a flush does not wait
        }
    )
    for number, (value, key, headers) in enumerate(records):
        producer.produce(topic, value, key, headers=headers, timestamp=T0 + number, partition=0)
    assert producer.flush(WITHIN_S) == 0


def key_of(client: Client, key: bytes | None) -> bytes | None:
    """As the client tells it: those of Go and Python know text only, and no empty one."""
    if client.name == "java" or key is None:
        return key
    try:
        key.decode()
    except UnicodeDecodeError:
        return base64.b64encode(key)
    return key or None


def _written(key: bytes | None) -> dict[str, Any]:
    """A key as its writer would write it: text if it is some."""
    if key is None:
        return {}
    try:
        return {"key": key.decode()}
    except UnicodeDecodeError:
        return {"key_bytes": key}


PROPERTIES = [
    {"a": "1", "b": "ü"},
    {},
    {},
    {"penstock.header.0.base64.raw": "/w==", "penstock.header.1.null.null": ""},
    {"": "empty name"},
    {"penstock.header.0.text.h": "1", "h": "2", "empty": ""},
]


def test_what_kafka_writes_is_read_field_by_field(both: Both, stock: Client, topic: str) -> None:
    make_topic(both.gateway.bootstrap, topic, 1)
    consumer = stock.consumer(topic)
    for place, codec in enumerate(KAFKAS):
        write_by_kafka(both, topic, codec, RECORDS)
        found = consumer.take(len(RECORDS))
        for number, (message, (value, key, _)) in enumerate(zip(found, RECORDS, strict=True)):
            shown = (value or b"") if stock.name == "go" else value  # it cannot tell null
            assert message.value == shown, (codec, number)
            assert message.key == key_of(stock, key), (codec, number)
            assert message.event_time == T0 + number
            assert message.publish_time == T0 + len(RECORDS) - 1
            offset = place * len(RECORDS) + number
            assert message.id.entry + max(message.id.batch_index, 0) == offset
        assert [each.properties for each in found] == PROPERTIES
    consumer.close()
    assert stock.consumer(topic).nothing_comes()


@of("java")
@pytest.mark.parametrize("is_batched", [False, True])
def test_from_kafka_to_pulsar_and_back(
    both: Both, stock: Client, topic: str, is_batched: bool
) -> None:
    """Java's is the one client that reads and writes keys of bytes and no values.

    Not the last record: properties are a map there, so names that come twice lose their order.
    """
    given = RECORDS[:-1]
    make_topic(both.gateway.bootstrap, topic, 1)
    copy = f"{topic}-copy"
    reader = stock.reader(topic)
    for place, (kafkas, pulsars) in enumerate(zip(KAFKAS, PULSARS, strict=True)):
        write_by_kafka(both, topic, kafkas, given)
        again = [
            {
                "value": message.value,
                "properties": message.properties,
                "event_time": message.event_time,
                **_written(message.key),
            }
            for message in reader.take(len(given))
        ]
        stock.send(copy, *again, compression=pulsars, is_batched=is_batched, batch_delay_ms=200)
        start = place * len(given)
        found = records_of(both.gateway.bootstrap, copy, len(given), start=start)
        for number, (record, (value, key, headers)) in enumerate(zip(found, given, strict=True)):
            assert (record.value(), record.key()) == (value, key), (kafkas, number)
            assert sorted(record.headers() or [], key=str) == sorted(headers, key=str)
            assert record.timestamp() == (TIMESTAMP_CREATE_TIME, T0 + number)


@pytest.mark.parametrize("codecs", [*zip(PULSARS, KAFKAS, strict=True)], ids=lambda each: each[0])
def test_from_pulsar_to_kafka_and_back(
    both: Both, stock: Client, topic: str, codecs: tuple[str, str]
) -> None:
    make_topic(both.gateway.bootstrap, f"{topic}-copy", 1)
    sent: list[dict[str, Any]] = [
        {
            "value": b"v" * 2_000,
            "key": "schlüssel",
            "ordering_key": b"order",
            "properties": {"a": "1", "ü": "", "": "empty name"},
            "event_time": T0,
        },
        {"value": b"\x00\xff"},
        {"value": b"plain", "properties": {"p": "1"}},
    ]
    if stock.name != "go":
        sent.append({"value": None, "key": "tombstone"})
    pulsars, kafkas = codecs
    stock.send(topic, *sent, compression=pulsars, is_batched=True, batch_delay_ms=300)
    first = stock.reader(topic).take(len(sent))
    records = records_of(both.gateway.bootstrap, topic, len(sent))
    producer = KafkaProducer(
        {"bootstrap.servers": both.gateway.bootstrap, "compression.type": kafkas, "linger.ms": 200}
    )
    for record in records:
        producer.produce(
            f"{topic}-copy",
            record.value(),
            record.key(),
            headers=record.headers() or [],
            timestamp=record.timestamp()[1],
            partition=0,
        )
    assert producer.flush(WITHIN_S) == 0
    second = stock.reader(f"{topic}-copy").take(len(sent))
    for one, other in zip(first, second, strict=True):
        assert (other.value, other.key, other.ordering_key) == (
            one.value,
            one.key,
            one.ordering_key,
        )
        assert other.properties == one.properties
        # A message without a time of its own has that of its batch, which a record's time is.
        assert other.event_time == (one.event_time or one.publish_time)
