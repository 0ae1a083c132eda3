"""Avro schemas from JSON: what is one, what is not, and which are the same."""

from __future__ import annotations

from typing import Any

import pytest

from core.schema.avro import AvroError, canonical, parse
from tests.core.schema.avro_schemas import array, data_of, enum, fixed, map_of, record


def nested(depth: int) -> Any:
    schema: Any = "int"
    for _ in range(depth):
        schema = array(schema)
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        "int",
        {"type": "string", "avro.java.string": "String"},
        ["null", "int", array("int"), map_of("int"), record(), enum("A", name="E2"), fixed(1)],
        [],
        record(("next", ["null", "R"], None)),
        record(("a", enum("A")), ("b", "E"), namespace="n"),
        record(("a", record(name="n.S")), ("b", "n.S")),
        record(("a", record(name="S")), ("b", record(name="S"))),
        record(("a", enum("A")), ("b", record(("c", "E"), name="n.S"))),
        record({"name": "a", "type": "int", "order": "IGNORE", "aliases": ["b"]}),
        record(name="Outer$Inner_1"),
        record(("a", "int", "no default of its type")),
        record(("a", "double", "NaN")),
        enum("A", default="A"),
        enum(),
        {"type": "error", "name": "X", "fields": []},
        nested(100),
    ],
)
def test_what_is_a_schema(schema: Any) -> None:
    parse(data_of(schema))


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ("integer", "no type 'integer'"),
        (7, "no int"),
        (None, "no NoneType"),
        ({}, "no type"),
        ({"type": {"type": "int"}}, "no type"),
        ({"type": "record", "name": "R"}, "no fields"),
        ({"type": "record", "name": "R", "fields": {}}, "no list"),
        ({"type": "record", "name": "R", "fields": [1]}, "no object"),
        ({"type": "record", "fields": []}, "no name"),
        ({"type": "record", "name": 1, "fields": []}, "no text"),
        (record(name="R", namespace=1), "no text"),
        (record(name="2R"), "'2R' is no name"),
        (record(name=""), "empty"),
        (record(name="n..R"), "empty"),
        (record(name="int"), "primitive"),
        (record("a", "a"), "'a' twice"),
        (record("a b"), "'a b' is no name"),
        (record({"name": "a"}), "no type"),
        (record({"name": "a", "type": "int", "order": "up"}), "no such order"),
        (record({"name": "a", "type": "int", "aliases": "b"}), "no list of names"),
        (record(("a", "double", "x")), "no number"),
        (record(("a", record())), "declared in itself"),
        (record(("a", enum("A")), ("b", enum("B"))), "declared twice"),
        (record(("a", "S"), ("b", record(name="S"))), "no type 'S'"),
        (["int", "int"], "'int' twice"),
        ([array("int"), array("string")], "'array' twice"),
        (["int", ["null"]], "directly in a union"),
        (enum("A", "A"), "symbol twice"),
        (enum("a-b"), "is no name"),
        (enum("A", default="B"), "none of its symbols"),
        ({"type": "enum", "name": "E", "symbols": "A"}, "no list"),
        (fixed(-1), "no size"),
        ({"type": "fixed", "name": "F", "size": True}, "no size"),
        ({"type": "array"}, "no items"),
        (nested(101), "nested more than"),
    ],
)
def test_what_is_none(schema: Any, why: str) -> None:
    with pytest.raises(AvroError, match=why):
        parse(data_of(schema))


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b'"a\0"', b"[" * 100_000, b'{"a":' * 100_000])
def test_what_is_no_json(data: bytes) -> None:
    with pytest.raises(AvroError):
        parse(data)


SAME = [
    ("int", {"type": "int"}),
    (record("a"), record("a", doc="d", aliases=["S"])),
    (record("a"), record({"name": "a", "type": "int", "doc": "d", "order": "ascending"})),
    (record("a", namespace="n"), record("a", name="n.R")),
    (enum("A"), enum("A", default="A")),
    (
        record(("a", record(name="S")), ("b", "S")),
        record(("a", record(name="S")), ("b", record(name="S"))),
    ),
    (record(("a", ["null", "R"])), record(("a", ["null", {"type": "R"}]))),
]
OTHER = [
    ("int", "long"),
    ("int", {"type": "int", "logicalType": "date"}),
    (record("a"), record("b")),
    (record("a", "b"), record("b", "a")),
    (record("a"), record(("a", "int", 0))),
    (record(("a", "int", 0)), record(("a", "int", 1))),
    (record("a"), record("a", name="S")),
    (record("a"), record("a", prop=1)),
    (record("a"), record({"name": "a", "type": "int", "order": "ignore"})),
    (["null", "int"], ["int", "null"]),
    (enum("A", "B"), enum("B", "A")),
    (fixed(1), fixed(2)),
    (array("int"), array("long")),
    (array("int"), map_of("int")),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_documentation_and_layout_make_no_difference(one: Any, other: Any) -> None:
    assert canonical(parse(data_of(one))) == canonical(parse(data_of(other)))


@pytest.mark.parametrize(("one", "other"), OTHER)
def test_all_that_means_something_does(one: Any, other: Any) -> None:
    assert canonical(parse(data_of(one))) != canonical(parse(data_of(other)))
