"""core.schema.avro_values, with fastavro as a second opinion."""

from __future__ import annotations

import io
import struct
from typing import Any

import fastavro
import pytest

from core.schema.avro import AvroError, parse
from core.schema.avro_values import read
from tests.core.schema.avro_schemas import array, data_of, enum, fixed, map_of, record

NESTED = record(("next", ["null", "R"]))
CASES = [
    ("null", None),
    ("boolean", True),
    ("int", -(2**31)),
    ("long", 2**63 - 1),
    ("long", -(2**63)),
    ("float", 1.5),
    ("double", -2.25),
    ("string", "grüße \N{PILE OF POO}\0"),
    (enum("A", "B"), "B"),
    (array("int"), [1, 2, 3]),
    (array("int"), []),
    (map_of("string"), {"a": "b", "": "c"}),
    (["null", "string"], None),
    (["null", "string"], "x"),
    (NESTED, {"next": {"next": {"next": None}}}),
    (
        record("a", ("b", array(record("c", name="Inner"))), ("d", map_of(array("double")))),
        {"a": 7, "b": [{"c": 1}, {"c": -1}], "d": {"k": [0.5]}},
    ),
]


def written(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


@pytest.mark.parametrize(("schema", "value"), CASES)
def test_what_fastavro_writes_is_read(schema: Any, value: Any) -> None:
    assert read(parse(data_of(schema)), written(schema, value)) == value


@pytest.mark.parametrize(
    ("schema", "data", "value"),
    [
        ("double", struct.pack("<d", float("nan")), "NaN"),
        ("float", struct.pack("<f", float("-inf")), "-Infinity"),
        (array("null"), written("long", 5_000) + b"\x00", [None] * 5_000),
        ("bytes", b"\x04\x00\xff", "\x00ÿ"),
        (fixed(2), b"\xfea", "þa"),
        ({"type": "int", "logicalType": "date"}, b"\x02", "1970-01-02"),
        (
            {"type": "long", "logicalType": "timestamp-millis"},
            written("long", 1_500),
            "1970-01-01T00:00:01.500000+00:00",
        ),
        ({"type": "long", "logicalType": "timestamp-micros"}, written("long", 2**62), 2**62),
        ({"type": "bytes", "logicalType": "decimal", "scale": 2}, b"\x04\x04\xd2", "12.34"),
        (
            {"type": "bytes", "logicalType": "decimal", "scale": 2},
            written("bytes", (10**35 + 1).to_bytes(15, "big")),
            f"1{'0' * 33}.01",
        ),
        (
            {"type": "bytes", "logicalType": "decimal"},
            written("bytes", b"\x01" * 900_000),
            "\x01" * 900_000,
        ),
        ({"type": "string", "logicalType": "date"}, b"\x02x", "x"),
        (array("int"), b"\x03\x04\x02\x04\x00", [1, 2]),  # a block that tells its size
    ],
)
def test_values_as_json_says_them(schema: Any, data: bytes, value: Any) -> None:
    assert read(parse(data_of(schema)), data) == value


@pytest.mark.parametrize(
    ("schema", "data", "why"),
    [
        ("int", b"", "end early"),
        ("int", b"\x02\x02", "left over"),
        ("int", b"\xff" * 10 + b"\x01", "64 bits"),
        ("string", b"\x02\xff", "UTF-8"),
        ("bytes", b"\x01", "end early"),  # of size -1
        ("bytes", written("long", 2**62), "end early"),
        (enum("A"), b"\x02", "part 1 of 1"),
        (["null"], b"\x01", "part -1 of 1"),
        ("double", struct.pack("<f", 1), "end early"),
        (array("null"), written("long", 2**62) + b"\x00", "more values than"),
        (array(record(*((f"{'n' * 900}{i}", "null") for i in range(9)))), b"\x80\x7d\x00", "worth"),
        (NESTED, b"\x02" * 100_000 + b"\x00", "nested more than 100 deep"),
    ],
)
def test_hostile_bytes_are_refused(schema: Any, data: bytes, why: str) -> None:
    with pytest.raises(AvroError, match=why):
        read(parse(data_of(schema)), data)
