"""PostgreSQL reads what we write: arrays and COPY streams, against the server's own output."""

import struct

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import pq

from storage.binary import (
    array_literal,
    bigint_array,
    boolean_array,
    bytea_array,
    copy_stream,
    cut,
    integer_array,
    smallint_array,
    text_array,
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


def test_arrays_of_booleans_and_text(connection: psycopg.Connection) -> None:
    assert read_back(connection, "boolean", boolean_array([True, False])) == [True, False]
    assert read_back(connection, "boolean", boolean_array([])) == []
    words = ["", "a", "ä→𝄞", "{1,2}", '"', "NULL"]
    assert read_back(connection, "text", text_array(words)) == words
    assert read_back(connection, "text", text_array([])) == []


def test_arrays_of_bytes_of_every_kind(connection: psycopg.Connection) -> None:
    values = [b"", b"\0\xff", bytearray(b"abc"), memoryview(b"xyz")[1:]]
    assert read_back(connection, "bytea", bytea_array(values)) == [
        "\\x" + bytes(value).hex() for value in values
    ]
    assert read_back(connection, "bytea", bytea_array([])) == []


@pytest.mark.parametrize(("values", "text"), [([], "{}"), ([1], "{1}"), ([-1, 2], "{-1,2}")])
def test_array_literal(values: list[int], text: str) -> None:
    assert array_literal(values) == text


def test_numbers_too_large_are_refused_not_cut() -> None:
    with pytest.raises(struct.error):
        smallint_array([SMALL + 1])
    with pytest.raises(struct.error):
        integer_array([INT + 1])


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    payloads=st.dictionaries(
        st.integers(-BIG, BIG),
        st.lists(st.binary(max_size=40) | st.just(b"x" * 24), min_size=1, max_size=4),
        max_size=5,
    ),
    chunk=st.integers(1, 12),
)
def test_copy_streams(
    connection: psycopg.Connection, payloads: dict[int, list[bytes]], chunk: int
) -> None:
    connection.execute("CREATE TEMP TABLE IF NOT EXISTS c (payload_id bigint, seq int, data bytea)")
    connection.execute("TRUNCATE c")
    chunks = [
        each
        for payload_id, batches in payloads.items()
        for each in cut(payload_id, [memoryview(batch) for batch in batches], chunk)
    ]
    with connection.cursor().copy("COPY c FROM STDIN (FORMAT binary)") as copy:
        copy.write(copy_stream(chunks))
    found = connection.execute(
        "SELECT payload_id, string_agg(data, '' ORDER BY seq), max(length(data)), max(seq) + 1"
        " FROM c GROUP BY payload_id"
    ).fetchall()
    whole = {payload_id: b"".join(batches) for payload_id, batches in payloads.items()}
    assert {i: payload for i, payload, _, _ in found} == {i: p for i, p in whole.items() if p}
    for payload_id, payload, longest, count in found:
        assert longest <= chunk
        assert count == -(-len(whole[payload_id]) // chunk), payload
