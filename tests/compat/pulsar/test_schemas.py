"""Schemas with the stock Python client: registered, read back, evolved, refused."""

from __future__ import annotations

import json
import struct
from typing import Any

import _pulsar
import psycopg
import pulsar
import pytest
from confluent_kafka import Producer
from google.protobuf.struct_pb2 import ListValue, Struct
from pulsar.schema import (
    Array,
    AvroSchema,
    Integer,
    JsonSchema,
    Long,
    ProtobufNativeSchema,
    Record,
    String,
    StringSchema,
)

from tests.compat.pulsar.conftest import WITHIN_S, Both, ClientOf, make_topic, records_of
from tests.conftest import StartGateway, free_port

MILLIS = int(WITHIN_S * 1000)
EARLIEST = pulsar.InitialPosition.Earliest


class Crew(Record):
    pilot = String()


class Flight(Record):
    tail = String()
    delays = Array(Integer())
    crew = Crew()


class LongerFlight(Record):
    """May follow Flight, and Flight may read it: what it has besides may be null."""

    tail = String()
    delays = Array(Integer())
    crew = Crew()
    distance = Long(required_default=True)


class OtherFlight(Record):
    """May not: Flight's records have no number, and this one has to."""

    number = Integer(required=True)


FLIGHTS = [JsonSchema, AvroSchema]


class AutoConsumeSchema(pulsar.schema.Schema):  # type: ignore[misc]
    """Whatever the topic has, as bytes: Python's client has no such schema of its own."""

    def __init__(self) -> None:
        super().__init__(bytes, _pulsar.SchemaType.AUTO_CONSUME, None, "AutoConsume")

    def encode(self, obj: Any) -> Any:
        return obj

    def decode(self, data: Any) -> Any:
        return data


def subscribe(client: pulsar.Client, topic: str, schema: Any, name: str = "s") -> pulsar.Consumer:
    return client.subscribe(topic, name, schema=schema, initial_position=EARLIEST)


def receive(consumer: pulsar.Consumer) -> pulsar.Message:
    message = consumer.receive(MILLIS)
    consumer.acknowledge(message)
    return message


def version_of(message: pulsar.Message) -> int | None:
    """None: it has none. (The client gives bytes as a text, which holds for small numbers.)"""
    version = message.schema_version()
    return struct.unpack(">q", version.encode("latin-1"))[0] if version else None


def stored(both: Both, topic: str) -> list[tuple[Any, ...]]:
    """What a person with psql sees."""
    with psycopg.connect(both.gateway.database_url) as connection:
        query = "SELECT version, type, definition FROM v_schema WHERE topic = %s AND state = 'live'"
        return connection.execute(query, [topic]).fetchall()


def test_strings(both: Both, client: pulsar.Client, topic: str) -> None:
    consumer = subscribe(client, topic, StringSchema())
    producer = client.create_producer(topic, schema=StringSchema())
    producer.send("flüge")
    message = receive(consumer)
    assert (message.value(), version_of(message)) == ("flüge", 0)
    assert [row[:2] for row in stored(both, topic)] == [(0, "STRING")]
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=JsonSchema(Flight))
    with pytest.raises(pulsar.IncompatibleSchema):
        subscribe(client, topic, JsonSchema(Flight), "other")
    assert records_of(both.gateway.bootstrap, topic, 1)[0].value() == "flüge".encode()


@pytest.mark.parametrize("schema", FLIGHTS)
def test_records(both: Both, client: pulsar.Client, topic: str, schema: Any) -> None:
    consumer = subscribe(client, topic, schema(Flight))
    producer = client.create_producer(topic, schema=schema(Flight))
    flight = Flight(tail="N123", delays=[3, -1], crew=Crew(pilot="ö"))
    producer.send(flight)
    producer.send(Flight())
    message = receive(consumer)
    assert version_of(message) == 0
    value = message.value()
    assert (value.tail, value.delays, value.crew.pilot) == ("N123", [3, -1], "ö")
    assert receive(consumer).value().tail is None
    kind = schema.__name__.removesuffix("Schema").upper()
    ((version, stored_kind, definition),) = stored(both, topic)
    assert (version, stored_kind) == (0, kind)
    assert json.loads(definition) == Flight.schema()


@pytest.mark.parametrize("schema", FLIGHTS)
def test_evolution(both: Both, client: pulsar.Client, topic: str, schema: Any) -> None:
    old = client.create_producer(topic, schema=schema(Flight))
    old.send(Flight(tail="old"))
    new = client.create_producer(topic, schema=schema(LongerFlight))
    new.send(LongerFlight(tail="new", distance=7))
    again = client.create_producer(topic, schema=schema(Flight))
    again.send(Flight(tail="again"))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=schema(OtherFlight))
    with pytest.raises(pulsar.IncompatibleSchema):
        subscribe(client, topic, schema(OtherFlight))
    assert [row[0] for row in stored(both, topic)] == [0, 1]
    consumer = subscribe(client, topic, schema(LongerFlight))
    messages = [receive(consumer) for _ in range(3)]
    assert [version_of(each) for each in messages] == [0, 1, 0]
    found = [(each.value().tail, each.value().distance) for each in messages]
    assert found == [("old", None), ("new", 7), ("again", None)]
    if schema is AvroSchema:  # JSON's client takes no field that it does not know
        narrow = subscribe(client, topic, schema(Flight), "narrow")
        assert [receive(narrow).value().tail for _ in range(3)] == ["old", "new", "again"]


def test_whatever_the_topic_has(both: Both, client: pulsar.Client, topic: str) -> None:
    consumer = subscribe(client, topic, AutoConsumeSchema())
    assert stored(both, topic) == []
    producer = client.create_producer(topic, schema=AvroSchema(Flight))
    producer.send(Flight(tail="N123"))
    message = receive(consumer)
    assert version_of(message) == 0
    assert message.data() == AvroSchema(Flight).encode(Flight(tail="N123"))
    assert [row[:2] for row in stored(both, topic)] == [(0, "AVRO")]


def test_bytes_go_anywhere(both: Both, client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic, schema=StringSchema()).send("text")
    client.create_producer(topic).send(b"bytes")
    consumer = subscribe(client, topic, pulsar.schema.BytesSchema())
    messages = [receive(consumer) for _ in range(2)]
    assert [(each.value(), version_of(each)) for each in messages] == [
        (b"text", 0),
        (b"bytes", None),
    ]


def test_what_kafka_has_written_is_read_by_a_schema(
    both: Both, client: pulsar.Client, topic: str
) -> None:
    make_topic(both.gateway.bootstrap, topic, 1)
    producer = Producer({"bootstrap.servers": both.gateway.bootstrap})
    producer.produce(topic, b'{"tail": "N123"}')
    assert producer.flush(WITHIN_S) == 0
    message = receive(subscribe(client, topic, JsonSchema(Flight)))
    assert (message.value().tail, version_of(message)) == ("N123", None)


def test_all_partitions_have_one(both: Both, client: pulsar.Client, topic: str) -> None:
    make_topic(both.gateway.bootstrap, topic, 3)
    consumer = subscribe(client, topic, AvroSchema(Flight))
    producer = client.create_producer(topic, schema=AvroSchema(Flight))
    for number in range(9):
        producer.send(Flight(tail=str(number)), partition_key=str(number))
    messages = [receive(consumer) for _ in range(9)]
    assert {version_of(each) for each in messages} == {0}
    assert {each.value().tail for each in messages} == set(map(str, range(9)))
    assert len(stored(both, topic)) == 1


def test_a_protobuf_message_keeps_its_name(both: Both, client: pulsar.Client, topic: str) -> None:
    schema = ProtobufNativeSchema(Struct)
    consumer = subscribe(client, topic, schema)
    producer = client.create_producer(topic, schema=schema)
    sent = Struct()
    sent.update({"a": 1.0})
    producer.send(sent)
    message = receive(consumer)
    assert (message.value(), version_of(message)) == (sent, 0)
    assert [row[:2] for row in stored(both, topic)] == [(0, "PROTOBUF_NATIVE")]
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=ProtobufNativeSchema(ListValue))


def test_a_restart_forgets_nothing(
    start_gateway: StartGateway, client_of: ClientOf, database_url: str, topic: str
) -> None:
    port = free_port()
    listen = ("--pulsar-listen", f"127.0.0.1:{port}")
    url = f"pulsar://127.0.0.1:{port}"
    gateway = start_gateway(*listen, database_url=database_url)
    client = client_of(url)
    client.create_producer(topic, schema=AvroSchema(Flight)).send(Flight(tail="before"))
    client.close()
    gateway.stop()
    start_gateway(*listen, database_url=database_url)
    client = client_of(url)
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=AvroSchema(OtherFlight))
    client.create_producer(topic, schema=AvroSchema(LongerFlight)).send(LongerFlight(distance=1))
    consumer = subscribe(client, topic, AvroSchema(LongerFlight))
    assert [version_of(receive(consumer)) for _ in range(2)] == [0, 1]
