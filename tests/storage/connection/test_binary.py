"""PostgreSQL reads what we write: arrays, against the server's own output."""

import struct
from uuid import uuid4

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import pq

from storage.connection.binary import (
    array_literal,
    bigint_array,
    boolean_array,
    bytea_array,
    columns,
    integer_array,
    jsonb_array,
    smallint_array,
    text_array,
    tid_array,
    tids,
    uuid_array,
)

BIG, INT, SMALL = 2**63 - 1, 2**31 - 1, 2**15 - 1
NUMBERS = {
    "bigint": (bigint_array, BIG),
    "integer": (integer_array, INT),
    "smallint": (smallint_array, SMALL),
}


def read_back(connection: psycopg.Connection, kind: str, value: bytes) -> object:
    result = connection.pgconn.exec_params(
        f"SELECT to_json($1::{kind}[])::text, cardinality($1::{kind}[])".encode(),
        [value],
        param_formats=[pq.Format.BINARY],
    )
    assert result.status == pq.ExecStatus.TUPLES_OK, result.error_message
    text = result.get_value(0, 0)
    assert text is not None
    return connection.execute("SELECT %s::json", [text.decode()]).fetchone()[0]  # type: ignore[index]


def test_places_of_rows(connection: psycopg.Connection) -> None:
    """They are written as they were read."""
    for text in (b"{}", b'{"(0,1)"}', b'{"(4294967294,65534)","(0,1)","(70000,291)"}'):
        read = connection.pgconn.exec_params(
            b"SELECT $1::tid[]", [text], result_format=pq.Format.BINARY
        )
        places = tids(read.get_value(0, 0))
        assert [len(each) for each in places] == [6] * text.count(b"(")
        written = connection.pgconn.exec_params(
            b"SELECT $1::tid[]", [tid_array(places)], param_formats=[pq.Format.BINARY]
        )
        assert written.get_value(0, 0) == text
    assert tids(None) == []


@pytest.fixture
def connection(database_url: str):
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


@pytest.mark.parametrize("kind", NUMBERS)
def test_arrays_of_numbers(connection: psycopg.Connection, kind: str) -> None:
    array, limit = NUMBERS[kind]
    for values in ([], [0], [-1, 1], [limit, -limit - 1], list(range(300))):
        assert read_back(connection, kind, array(values)) == values


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(values=st.lists(st.integers(-BIG - 1, BIG)))
def test_any_numbers(connection: psycopg.Connection, values: list[int]) -> None:
    assert read_back(connection, "bigint", bigint_array(values)) == values


@pytest.mark.parametrize("count", [0, 1, 2, 300])
def test_columns(connection: psycopg.Connection, count: int) -> None:
    rows = [(n - 1, -n, n % 7, n % 2 == 0) for n in range(count)]
    kinds = ("bigint", "integer", "smallint", "boolean")
    arrays = columns("qih?", rows)
    for number, (kind, array) in enumerate(zip(kinds, arrays, strict=True)):
        assert read_back(connection, kind, array) == [row[number] for row in rows]


def test_arrays_of_booleans_and_text(connection: psycopg.Connection) -> None:
    assert read_back(connection, "boolean", boolean_array([True, False])) == [True, False]
    assert read_back(connection, "boolean", boolean_array([])) == []
    words = ["", "a", "ä→𝄞", "{1,2}", '"', "NULL"]
    assert read_back(connection, "text", text_array(words)) == words
    assert read_back(connection, "text", text_array([])) == []


def test_arrays_with_nulls_and_of_other_kinds(connection: psycopg.Connection) -> None:
    assert read_back(connection, "text", text_array(["a", None, ""])) == ["a", None, ""]
    assert read_back(connection, "bytea", bytea_array([b"\0\xff", b""])) == ["\\x00ff", "\\x"]
    assert read_back(connection, "bytea", bytea_array([])) == []
    some = uuid4()
    assert read_back(connection, "uuid", uuid_array([some.bytes])) == [str(some)]
    assert read_back(connection, "jsonb", jsonb_array(['{"ä": [1]}', "{}"])) == [{"ä": [1]}, {}]


@pytest.mark.parametrize(("values", "text"), [([], "{}"), ([1], "{1}"), ([-1, 2], "{-1,2}")])
def test_array_literal(values: list[int], text: str) -> None:
    assert array_literal(values) == text


def test_numbers_too_large_are_refused_not_cut() -> None:
    with pytest.raises(struct.error):
        smallint_array([SMALL + 1])
    with pytest.raises(struct.error):
        integer_array([INT + 1])
