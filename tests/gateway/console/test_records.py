"""gateway.console.records: how records are shown, and what is found of them. No database."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from core.log.records import Record
from core.schema.avro import parse
from gateway.console.records.filters import BadPath, Filter, TooLong
from gateway.console.records.paths import Path
from gateway.console.records.turns import Turns
from gateway.console.records.values import Format, for_json, hex_dump, show
from tests.core.schema.avro_schemas import data_of, record

ORDER = {"id": 7, "status": "open", "items": [{"sku": "A-1", "price": 12.5}]}


@pytest.mark.parametrize(
    ("path", "is_found"),
    [
        ("$.id", True),
        ("$.none", False),
        ("$.items[?@.price > 10]", True),
        ("$.items[?@.price > 20]", False),
        ("$..sku", True),
        ("@.status == 'open'", True),
        ("@.status == 'paid' || @.id < 8", True),
        ("@.id > 7", False),
        ("match(@.status, 'o.*')", True),
        ("match(@.status, 'o')", False),
        ("search(@.status, 'pe')", True),
        ("search(@.status, '(')", False),
    ],
)
def test_a_path_finds(path: str, is_found: bool) -> None:
    assert Path(path).matches(ORDER) is is_found


@pytest.mark.parametrize(
    "path", ["$.", "nonsense", "@.a >", "$.a | $.b", "foo(@.a)", "(" * 1_900 + "@", "@" * 3_000]
)
def test_what_is_no_path_is_told(path: str) -> None:
    with pytest.raises(BadPath, match="JSONPath"):
        Path(path)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("$..*..*..*..*[?@.none]", [[[[[1] * 9] * 9] * 9] * 9] * 9),
        ("$[?@..*[?@..*[?@.none]]]", [[[[1] * 30] * 30] * 30] * 30),
        ("$[?$..*..*..none]", [[[1] * 60] * 60] * 60),
    ],
)
def test_a_path_has_a_moment_and_no_more(path: str, value: Any) -> None:
    began = time.perf_counter()
    with pytest.raises(TooLong):
        Path(path).matches(value)
    assert time.perf_counter() - began < 5


def test_a_regular_expression_takes_no_time() -> None:
    began = time.perf_counter()
    assert not Path("match(@.a, '(a+)+b')").matches({"a": "a" * 100_000})
    assert time.perf_counter() - began < 2


def test_nesting_ends_a_search_only() -> None:
    value: Any = 1
    for _ in range(500):
        value = [value]
    assert not Path("$..none").matches(value)


@pytest.mark.parametrize("text", ["SHOES", "ünïc", "trace-1", "key", "\N{PILE OF POO}"])
def test_text_is_looked_for_in_all_of_a_record(text: str) -> None:
    value = "shoes, ÜNÏCODE \N{PILE OF POO}".encode()
    one = Record(b"the key", value, (("trace", b"Trace-1"), ("none", None)))
    assert Filter(text=text).may_match(one)
    assert not Filter(text=text).may_match(Record(None, b"\xff other"))


def test_a_key_is_all_of_it() -> None:
    assert Filter(key=b"k1").may_match(Record(b"k1", None))
    assert not Filter(key=b"k1").may_match(Record(b"k12", None))
    assert not Filter(key=b"k1").may_match(Record(None, b"k1"))
    assert not Filter(key=b"k1").may_match(None)


@pytest.mark.parametrize(
    ("data", "wanted", "format_", "text"),
    [
        (b'{"a": 1}', Format.AUTO, Format.JSON, '{"a": 1}'),
        (b'{"a": 1}', Format.TEXT, Format.TEXT, '{"a": 1}'),
        (b'{"a": 1}', Format.HEX, Format.HEX, "7b 22 61 22 3a 20 31 7d"),
        (b"plain", Format.AUTO, Format.TEXT, "plain"),
        (b"plain", Format.JSON, Format.TEXT, "plain"),
        (b"", Format.AUTO, Format.TEXT, ""),
        (b"\xff\x00", Format.AUTO, Format.HEX, "ff 00"),
        (b"\x00\x01\x02a", Format.AUTO, Format.HEX, "00 01 02 61"),
        (b"[" * 100_000, Format.AUTO, Format.TEXT, "[" * 100_000),
        (b"1" * 10_000, Format.AUTO, Format.TEXT, "1" * 10_000),
    ],
)
def test_the_first_format_that_fits(
    data: bytes, wanted: Format, format_: Format, text: str
) -> None:
    assert show(data, wanted, None)[:2] == (format_, text)


def test_avro_where_it_fits() -> None:
    schema = parse(data_of(record("a")))
    assert show(b"\x54", Format.AUTO, schema) == (Format.AVRO, '{"a": 42}', {"a": 42})
    assert show(b'{"a": 1}', Format.AUTO, schema).format is Format.JSON
    assert show(b"\xff" * 11, Format.AVRO, schema).format is Format.HEX


def test_a_field_of_json_says_all_of_the_bytes() -> None:
    assert for_json("value", None, Format.AUTO, None) == {"value": None}
    assert for_json("value", b"[1]", Format.AUTO, None) == {"value": [1]}
    assert for_json("value", b"[1]", Format.TEXT, None) == {"value": "[1]"}
    assert for_json("value", b"\xff\xfe", Format.AUTO, None) == {"value_base64": "//4="}


@pytest.mark.parametrize(
    "text",
    [
        "NaN",
        '{"a": 1e999}',
        '{"a": 1, "a": 2}',
        "0.1234567890123456789",
        "1e-999999999999999999999",
        f"0.{'1' * 100_000}",
    ],
)
def test_json_that_would_be_another_is_text(text: str) -> None:
    assert for_json("value", text.encode(), Format.AUTO, None) == {"value": text}


def test_json_that_stays_the_same_is_json() -> None:
    said = b'{"a": [1.10, 1e3, 12345678901234567890, -0.0], "b": {"a": 0.1}}'
    assert for_json("value", said, Format.AUTO, None) == {"value": json.loads(said)}


def test_a_dump_shows_where_what_is() -> None:
    lines = hex_dump(bytes(range(60, 80))).splitlines()
    assert lines[0] == "00000000  3c 3d 3e 3f 40 41 42 43 44 45 46 47 48 49 4a 4b  <=>?@ABCDEFGHIJK"
    assert lines[1] == "00000010  4c 4d 4e 4f                                      LMNO"


async def test_after_a_turn_all_rest() -> None:
    turns = Turns(4.0)
    began = time.monotonic()
    async with turns.turn():
        time.sleep(0.02)
    ended = time.monotonic()
    async with turns.turn():
        pass
    assert time.monotonic() - ended >= 4 * 0.02 - 0.005
    assert ended - began < 1
