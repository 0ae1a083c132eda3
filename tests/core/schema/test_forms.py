"""Schemas of each type: which data are right, and what makes two schemas one."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from core.schema.forms import MalformedError, fingerprint, refuse_malformed, root_message, split
from core.schema.values import MAX_AVRO_BYTES, MAX_SCHEMA_BYTES, Schema, SchemaType
from tests.core.schema.avro_schemas import data_of, enum, record

PRIMITIVE = [
    each
    for each in SchemaType
    if each > 0
    and not each.has_avro_data
    and each not in (SchemaType.STRING, SchemaType.KEY_VALUE, SchemaType.PROTOBUF_NATIVE)
]
NATIVE = {
    "fileDescriptorSet": "Cg==",
    "rootMessageTypeName": "p.Message",
    "rootFileDescriptorName": "m.proto",
}


def key_value(
    key: bytes | None = b"", value: bytes | None = b"", rest: bytes = b"", **properties: str
) -> Schema:
    """As KeyValueSchemaInfo encodes it; properties' names with `_` for `.`."""
    data = b"".join(
        struct.pack(">i", -1) if part is None else struct.pack(">i", len(part)) + part
        for part in (key, value)
    )
    named = {name.replace("_", "."): text for name, text in properties.items()}
    return Schema(SchemaType.KEY_VALUE, data + rest, properties=named)


def native(**changes: Any) -> Schema:
    given = {key: value for key, value in (NATIVE | changes).items() if value is not None}
    return Schema(SchemaType.PROTOBUF_NATIVE, json.dumps(given).encode())


def of(kind: SchemaType, schema: Any = None) -> Schema:
    return Schema(kind, data_of(record("a") if schema is None else schema))


JSON_SCHEMA_OF_OLD = Schema(SchemaType.JSON, b'{"type":"object","id":"urn:jsonschema:Foo"}')
RIGHT = [
    *map(Schema, PRIMITIVE),
    Schema(SchemaType.STRING),
    Schema(SchemaType.STRING, b"null"),
    Schema(SchemaType.BYTES, b"whatever"),
    of(SchemaType.AVRO),
    of(SchemaType.AVRO, "int"),
    of(SchemaType.JSON),
    of(SchemaType.PROTOBUF),
    JSON_SCHEMA_OF_OLD,
    native(),
    key_value(),
    key_value(None, None),
    key_value(b"\0\1", b"x"),
    key_value(data_of(record("a")), key_schema_type="AVRO", value_schema_type="STRING"),
]
WRONG = [
    *((Schema(each, b"x"), "length should be zero") for each in PRIMITIVE),
    (Schema(SchemaType.STRING, b"nulL"), "length should be zero"),
    (Schema(SchemaType.INT8, b"null"), "length should be zero"),
    (of(SchemaType.AVRO, ["null", "int"]), "a union"),
    (of(SchemaType.AVRO, "integer"), "no type 'integer'"),
    (Schema(SchemaType.PROTOBUF, b"{}"), "no type"),
    (Schema(SchemaType.JSON, b""), "no JSON"),
    (Schema(SchemaType.JSON, b"[1]"), "no int"),
    *((Schema(each), "client-side") for each in SchemaType if each < SchemaType.BYTES),
    (native(rootMessageTypeName=None), "no JSON with"),
    (native(rootMessageTypeName=""), "names no message"),
    (native(rootFileDescriptorName=1), "names no message"),
    (native(fileDescriptorSet="?"), "in base64"),
    (Schema(SchemaType.PROTOBUF_NATIVE, b"[]"), "in base64"),
    (Schema(SchemaType.PROTOBUF_NATIVE, b"[" * 100_000), "in base64"),
    (Schema(SchemaType.KEY_VALUE), "the key is missing"),
    (Schema(SchemaType.KEY_VALUE, b"\0\0\0\1"), "the key is cut off"),
    (Schema(SchemaType.KEY_VALUE, b"\0\0\0\0\0"), "the value is missing"),
    (Schema(SchemaType.KEY_VALUE, b"\0\0\0\0\0\0\0\1"), "the value is cut off"),
    (key_value(b"x", key_schema_type="STRING"), "length should be zero"),
    (key_value(b"{", value_schema_type="AVRO"), "no JSON"),
    (key_value(key_schema_type="LIST"), "no schema type 'LIST'"),
    (key_value(b"\0" * 8, key_schema_type="KEY_VALUE"), "in a KEY_VALUE"),
    (key_value(key_schema_type="AUTO_CONSUME"), "client-side"),
    (Schema(SchemaType.JSON, b" " * (MAX_AVRO_BYTES - 1) + b"{}"), "are the limit"),
    (Schema(SchemaType.STRING, name="x" * (MAX_SCHEMA_BYTES + 1)), "are the limit"),
    (Schema(SchemaType.STRING, properties={"\ud800": ""}), "no text"),
]


@pytest.mark.parametrize("schema", RIGHT)
def test_what_is_well_formed(schema: Schema) -> None:
    assert refuse_malformed(schema) is None
    assert len(fingerprint(schema)) == 32


@pytest.mark.parametrize(("schema", "why"), WRONG)
def test_what_is_not(schema: Schema, why: str) -> None:
    refusal = refuse_malformed(schema)
    assert refusal is not None
    assert why in refusal.message


def test_layout_makes_no_difference() -> None:
    data = data_of(record("a"))
    for kind in (SchemaType.AVRO, SchemaType.JSON, SchemaType.PROTOBUF):
        spread = json.dumps(json.loads(data) | {"doc": "d"}, indent=2).encode()
        assert fingerprint(Schema(kind, data)) == fingerprint(Schema(kind, spread, "n", {"a": "b"}))
        assert fingerprint(Schema(kind, data)) != fingerprint(of(kind, record("b")))
    assert fingerprint(JSON_SCHEMA_OF_OLD) != fingerprint(of(SchemaType.JSON))


def test_of_a_pair_everything_makes_one() -> None:
    pairs = [
        key_value(),
        key_value(key_schema_type="STRING"),
        key_value(value_schema_type="STRING"),
        key_value(value_schema_type="STRING", kv_encoding_type="SEPARATED"),
        key_value(b"a", b"bc"),
        key_value(b"ab", b"c"),
    ]
    assert len(set(map(fingerprint, pairs))) == len(pairs)
    assert fingerprint(key_value()) == fingerprint(
        key_value(None, None, kv_encoding_type="INLINE", key_schema_type="BYTES")
    )


def test_a_pair_is_split() -> None:
    pair = key_value(b"k", b"vv", key_schema_name="K", value_schema_type="AVRO")
    assert split(pair) == (
        Schema(SchemaType.BYTES, b"k", "K"),
        Schema(SchemaType.AVRO, b"vv"),
    )


def test_the_root_message_is_named() -> None:
    assert root_message(native()) == "p.Message"
    with pytest.raises(MalformedError):
        root_message(Schema(SchemaType.PROTOBUF_NATIVE, data_of(enum("A"))))
