"""Schemas and encryption: what one of the clients writes each of the others reads."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.compat.pulsar.clients import Client, refusal, values
from tests.compat.pulsar.conftest import JAVA, Both, MakeClient, of, records_of

# As Java makes it of its class: text and lists may be null, and are so by default.
DELAYS = {"type": "array", "items": "int"}
DEFINITION = json.dumps(
    {
        "type": "record",
        "name": "Flight",
        "fields": [
            {
                "name": "delays",
                "type": ["null", {"type": "array", "items": "int"}],
                "default": None,
            },
            {"name": "distance", "type": "long"},
            {"name": "tail", "type": ["null", "string"], "default": None},
        ],
    }
)
FLIGHT = {"tail": "N123", "delays": [3, -1], "distance": 4_000_000_000}


def flight(kind: str) -> dict[str, Any]:
    return {"type": "FLIGHT", "kind": kind, "definition": DEFINITION}


@pytest.mark.parametrize("writer", [JAVA, "go", "python"])
@pytest.mark.parametrize("kind", ["JSON", "AVRO"])
def test_records_of_one_are_read_by_the_others(
    make_client: MakeClient, topic: str, writer: str, kind: str
) -> None:
    schema = flight(kind)
    others = [name for name in ("java", "go", "python") if name != writer]
    sent = {"typed": {**schema, "value": FLIGHT}}
    # Go tells the version only with a batch.
    make_client(writer).send(topic, sent, sent, schema=schema, is_batched=True)
    for name in (writer, *others):
        consumer = make_client(name).consumer(topic, name, schema=schema, is_earliest=True)
        (message,) = consumer.some(1, 30_000, **({"schema": schema} if name == "go" else {}))
        assert message.decoded == FLIGHT
        assert message.schema_version == bytes(8)


@pytest.mark.parametrize("writer", [JAVA, "go", "python"])
def test_text_of_one_is_read_by_the_others(
    make_client: MakeClient, topic: str, writer: str
) -> None:
    schema = {"type": "STRING"}
    make_client(writer).send(topic, {"typed": {**schema, "value": "flüge"}}, schema=schema)
    for name in ("java", "go", "python"):
        client = make_client(name)
        consumer = client.consumer(topic, name, schema=schema, is_earliest=True)
        (message,) = consumer.some(1, 30_000, **({"schema": schema} if name == "go" else {}))
        assert message.decoded == "flüge"
        refused = refusal(lambda c=client: c.producer(topic, schema=flight("JSON")))
        assert "IncompatibleSchema" in refused


PRIMITIVES = {
    "BOOLEAN": True,
    "INT8": -5,
    "INT16": 3_000,
    "INT32": -2_000_000_000,
    "INT64": 9_000_000_000_000,
    "FLOAT": 1.5,
    "DOUBLE": -2.25,
    "DATE": 1_700_000_000_000,
    "TIMESTAMP": 1_700_000_000_123,
    "INSTANT": "2026-11-24T12:00:00.123456789Z",
    "LOCAL_DATE": "2026-11-24",
    "LOCAL_TIME": "12:34:56.789",
    "LOCAL_DATE_TIME": "2026-11-24T12:34:56.789",
}
OF_GO = ("INT8", "INT16", "INT32", "INT64", "FLOAT", "DOUBLE")
# Go has numbers of several bytes the other way round (compat/pulsar/go/FINDINGS.md).
ALIKE = ("INT8",)


@of("java", "go")
def test_every_primitive_type(stock: Client, make_client: MakeClient, topic: str) -> None:
    other = make_client("go" if stock.name == "java" else "java")
    for kind in PRIMITIVES if stock.name == "java" else OF_GO:
        schema = {"type": kind}
        each = f"{topic}-{kind}"
        stock.send(each, {"typed": {**schema, "value": PRIMITIVES[kind]}}, schema=schema)
        for client in (stock, other) if kind in ALIKE else (stock,):
            consumer = client.consumer(each, client.name, schema=schema, is_earliest=True)
            how = {"schema": schema} if client.name == "go" else {}
            (message,) = consumer.some(1, 30_000, **how)
            assert message.decoded == PRIMITIVES[kind], kind
            consumer.close()
        # Whoever knows nothing of it gets the topic's.
        if stock.name == "java":
            auto = stock.consumer(each, "auto", schema={"type": "AUTO_CONSUME"}, is_earliest=True)
            assert auto.take(1)[0].decoded == PRIMITIVES[kind], kind
            auto.close()


@of("java")
@pytest.mark.parametrize("encoding", ["INLINE", "SEPARATED"])
def test_pairs(both: Both, stock: Client, topic: str, encoding: str) -> None:
    schema = {
        "type": "KEY_VALUE",
        "key_type": "STRING",
        "value_type": "INT32",
        "encoding": encoding,
    }
    stock.send(topic, {"typed": {**schema, "value": ["key", 7]}}, schema=schema)
    for wanted in (schema, {"type": "AUTO_CONSUME"}):
        consumer = stock.consumer(topic, wanted["type"], schema=wanted, is_earliest=True)
        assert consumer.take(1)[0].decoded == ["key", 7]
    (record,) = records_of(both.gateway.bootstrap, topic, 1)
    if encoding == "SEPARATED":
        assert (record.key(), record.value()) == (b"key", b"\x00\x00\x00\x07")
    else:
        inline = b"\x00\x00\x00\x03key\x00\x00\x00\x04\x00\x00\x00\x07"
        assert (record.key(), record.value()) == (None, inline)


@of("java")
@pytest.mark.parametrize("kind", ["JSON", "AVRO"])
def test_whatever_the_topic_has_and_what_it_becomes(stock: Client, topic: str, kind: str) -> None:
    consumer = stock.consumer(topic, schema={"type": "AUTO_CONSUME"})
    stock.send(topic, {"typed": {**flight(kind), "value": FLIGHT}}, schema=flight(kind))
    (first,) = consumer.take(1)
    assert first.decoded == FLIGHT
    # A schema that may follow: one field more, which may be missing.
    longer = json.loads(DEFINITION)
    longer["fields"].append({"name": "gate", "type": ["null", "string"], "default": None})
    newer = {"type": "RECORD", "kind": kind, "definition": json.dumps(longer)}
    value = {**FLIGHT, "gate": "B7"}
    stock.send(topic, {"typed": {**newer, "value": value}}, schema=newer)
    (second,) = consumer.take(1)
    assert second.decoded == value
    assert (first.schema_version, second.schema_version) == (bytes(8), bytes(7) + b"\x01")
    # One that may not.
    longer["fields"].append({"name": "number", "type": "int"})
    other = {"type": "RECORD", "kind": kind, "definition": json.dumps(longer)}
    assert "IncompatibleSchema" in refusal(lambda: stock.producer(topic, schema=other))
    # Bytes that are what the topic wants, and some that are not.
    producer = stock.producer(topic, schema={"type": "AUTO_PRODUCE"})
    producer.send(second.value)
    assert consumer.take(1)[0].decoded == value
    assert refusal(lambda: producer.send(b"\xff"))


@of("java")
def test_a_producer_changes_its_schema(stock: Client, topic: str) -> None:
    """GET_OR_CREATE_SCHEMA."""
    consumer = stock.consumer(topic, schema={"type": "AUTO_CONSUME"})
    producer = stock.producer(topic, schema=flight("AVRO"))
    longer = json.loads(DEFINITION)
    longer["fields"].append({"name": "gate", "type": ["null", "string"], "default": None})
    newer = {"type": "RECORD", "kind": "AVRO", "definition": json.dumps(longer)}
    producer.send({"typed": {**flight("AVRO"), "value": FLIGHT}})
    value = {**FLIGHT, "gate": "B7"}
    producer.send({"typed": {**newer, "value": value}, "schema": newer})
    found = consumer.take(2)
    assert [each.decoded for each in found] == [FLIGHT, value]
    assert found[1].schema_version == bytes(7) + b"\x01"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A public RSA key and its private one, as all clients read them."""
    directory = tmp_path_factory.mktemp("keys")
    private, public = directory / "private.pem", directory / "public.pem"
    for command in (
        f"openssl genrsa -traditional -out {private} 2048",
        f"openssl rsa -in {private} -pubout -out {public}",
    ):
        subprocess.run(command.split(), check=True, capture_output=True)
    return public, private


@pytest.mark.parametrize("writer", [JAVA, "go", "python"])
@pytest.mark.parametrize("is_batched", [False, True])
def test_what_is_encrypted_stays_so(
    both: Both,
    make_client: MakeClient,
    topic: str,
    keys: tuple[Path, Path],
    writer: str,
    is_batched: bool,
) -> None:
    public, private = map(str, keys)
    sent = [{"value": b"secret %d" % number, "properties": {"p": "1"}} for number in range(3)]
    settings = {"is_batched": is_batched, "batch_delay_ms": 300, "compression": "zstd"}
    make_client(writer).send(topic, *sent, public_key=public, **settings)
    for name in ("java", "go", "python"):
        consumer = make_client(name).consumer(topic, name, private_key=private, is_earliest=True)
        found = consumer.take(3)
        assert values(found) == [each["value"] for each in sent]
        assert {each.properties.get("p") for each in found} == {"1"}
    # A batch is one record at its first offset: nobody here can open it.
    records = records_of(both.gateway.bootstrap, topic, 1 if is_batched else 3)
    assert all(b"secret" not in each.value() for each in records)
