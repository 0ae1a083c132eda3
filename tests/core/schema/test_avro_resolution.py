"""Avro's rules of schema resolution, one case each.

The answers of all tables are those of Avro's Java library (1.12.1, SchemaValidatorBuilder's
canReadStrategy), to which they were put; so were 100,000 random pairs, with the same answers.
"""

from __future__ import annotations

from typing import Any

import pytest

from core.schema.avro import parse
from core.schema.avro_resolution import TooComplexError, why_unreadable
from tests.core.schema.avro_schemas import array, data_of, enum, fixed, map_of, record

PRIMITIVES = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]
PROMOTED = {
    ("int", "long"),
    ("int", "float"),
    ("int", "double"),
    ("long", "float"),
    ("long", "double"),
    ("float", "double"),
    ("string", "bytes"),
    ("bytes", "string"),
}


def why(writer: Any, reader: Any) -> str | None:
    return why_unreadable(parse(data_of(writer)), parse(data_of(reader)))


@pytest.mark.parametrize("reader", PRIMITIVES)
@pytest.mark.parametrize("writer", PRIMITIVES)
def test_primitives_are_read_as_themselves_or_promoted(writer: str, reader: str) -> None:
    is_read = writer == reader or (writer, reader) in PROMOTED
    assert (why(writer, reader) is None) == is_read
    assert (why(array(writer), array(reader)) is None) == is_read
    assert (why(map_of(writer), map_of(reader)) is None) == is_read
    assert (why([writer], reader) is None) == is_read
    assert (why(writer, [reader]) is None) == is_read
    assert (why(record(("a", writer)), record(("a", reader))) is None) == is_read
    assert why(record(("a", writer)), record()) is None


TREE = record("v", ("next", ["null", "R"], None))
WIDER = record(("v", "long"), ("next", ["null", "R"], None))
READ = [
    # Records: fields by name, in any order; what the reader lacks is skipped.
    (record("a", "b"), record("b", "a")),
    (record("a", "b"), record("b")),
    (record("b"), record(("a", "int", 0), "b")),
    (record(), record(("a", ["null", "int"], None))),
    (record(), record(("a", ["null", "int"], 1))),  # from 1.12 on, of any branch
    (record(), record(("a", record("x", name="S"), {"x": 1}))),
    (record(), record(("a", record(("x", "int", 1), name="S"), {}))),
    (record(), record(("a", array("int"), [1]), ("b", map_of("int"), {"k": 1}))),
    (record(), record(("a", fixed(1), "x"), ("b", "bytes", "x"), ("c", enum("A"), "A"))),
    (record(), record(("a", "double", "NaN"), ("b", "boolean", True))),
    # Names: a record's does not matter, nor the namespace of others.
    (record("a"), record("a", name="other.S")),
    (enum("A", name="E"), enum("A", name="n.E")),
    (fixed(2, name="F"), fixed(2, name="n.F")),
    # An enum's symbols show in the data only.
    (enum("A", "B"), enum("A")),
    (enum("A", "B"), enum("C", default="C")),
    # Unions: each branch of the writer's by some branch of the reader's.
    (["null", "int"], ["int", "null", "string"]),
    (["null", "int"], ["null", "long"]),
    ("int", ["null", "int"]),
    ("int", ["null", "double", "long"]),
    (["int"], "int"),
    (["int", "long"], "double"),
    ([record("a")], ["null", record("a", name="n.S")]),
    ([record("a", name="n.S")], [record("b", name="X"), record("a", name="S")]),
    (["null", enum("A", name="E")], ["null", enum("A", name="n.E")]),  # alike, so by their place
    # Aliases.
    (record("a"), record({"name": "b", "type": "int", "aliases": ["a"]})),
    (enum("A", name="E"), enum("A", name="G", aliases=["E"])),
    ([enum("A", name="E"), "int"], ["int", enum("A", name="n.G", aliases=[".E"])]),
    ([record("a")], ["null", record("a", ("b", "int", 0), name="S", aliases=["R"])]),
    # Of themselves.
    (TREE, TREE),
    (TREE, WIDER),
    (record(("kids", array("R"))), record(("kids", array("R")), ("x", "int", 0))),
]
NOT_READ = [
    (record(), record("a"), "a field 'a' without a default"),
    (record(), record(("a", "int", "x")), "none of its type"),
    (record(), record(("a", "boolean", 0)), "none of its type"),
    (record(), record(("a", "null", 0)), "none of its type"),
    (record(), record(("a", ["null"], 1)), "none of its type"),
    (record(), record(("a", enum("A"), "B")), "none of its type"),
    (record(), record(("a", array("int"), ["x"])), "none of its type"),
    (record(), record(("a", map_of("int"), {"k": "x"})), "none of its type"),
    (record(), record(("a", record("x", name="S"), {})), "none of its type"),
    (record(("a", "string")), record("a"), "string cannot be read as int"),
    (record("a"), "int", "record R cannot be read as int"),
    (array("int"), map_of("int"), "array cannot be read as map"),
    (array("string"), array("int"), "string cannot be read as int"),
    (enum("A", name="E"), enum("A", name="G"), "enum E cannot be read as enum G"),
    (enum("A"), "string", "enum E cannot be read as string"),
    (fixed(1), fixed(2), "fixed F of 1 bytes cannot be read as fixed F of 2 bytes"),
    (fixed(1), "bytes", "cannot be read as bytes"),
    (fixed(1, name="F"), fixed(1, name="G"), "cannot be read"),
    (["null", "int"], "int", "null cannot be read as int"),
    (["null", "int"], ["null", "string"], "no branch of a union reads int"),
    ("int", [], "no branch"),
    (["null", "int", enum("A", name="E")], ["null", enum("A", name="n.E")], "no branch"),
    ([record("a")], ["null", record("b", name="S")], "no branch"),
    ([record("a")], ["null", record(("a", "string"))], "int cannot be read as string"),
    (record("a"), record({"name": "b", "type": "int", "aliases": ["c"]}), "'b' without a default"),
    (
        record("a", name="n.R"),  # a field's alias is of a record of the same name
        record({"name": "b", "type": "int", "aliases": ["a"]}, name="S"),
        "'b' without a default",
    ),
    (WIDER, TREE, "long cannot be read as int"),
    (
        record("v", ("next", ["null", "R"])),
        record("v", ("next", ["null", record("v", "w", name="S")])),
        "no branch of a union reads record R",
    ),
]


@pytest.mark.parametrize(("writer", "reader"), READ)
def test_what_is_read(writer: Any, reader: Any) -> None:
    assert why(writer, reader) is None


@pytest.mark.parametrize(("writer", "reader", "reason"), NOT_READ)
def test_what_is_not(writer: Any, reader: Any, reason: str) -> None:
    assert reason in (why(writer, reader) or "")


def test_what_would_take_too_long_is_not_compared() -> None:
    many = [record(f"a{n}", name=f"A{n}") for n in range(400)]
    with pytest.raises(TooComplexError):
        why(many, [*many[1:], record("b", name="B"), many[0]])
    chain = [record(name="A0")]
    chain += [record(("next", f"A{n}"), name=f"A{n + 1}") for n in range(300)]
    other = [record(("x", "int", 0), name="A0"), *chain[1:]]
    with pytest.raises(TooComplexError):
        why(chain, other)


def test_a_default_that_has_itself_twice_is_no_trap() -> None:
    reader = record(("a", "R", {}), ("b", "R", {}))
    with pytest.raises(TooComplexError):
        why(record(), reader)
