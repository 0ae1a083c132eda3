"""Rows into PostgreSQL and back, by the text and the parameters of one definition."""

from collections.abc import Iterator

import psycopg
import pytest
from psycopg import pq
from psycopg.pq.abc import PGresult
from sqlalchemy import BigInteger, Column, DateTime, MetaData, Table, Text
from sqlalchemy.dialects.postgresql import ARRAY

from storage.connection.rows import (
    BIGINT,
    BIGINTS,
    BOOLEAN,
    BYTEA,
    INTEGER,
    INTEGERS,
    JSONB,
    SMALLINT,
    TEXT,
    TEXTS,
    UUID,
    Row,
)

EVERY_TYPE = Row(
    key=UUID,
    big=BIGINT,
    number=INTEGER,
    small=SMALLINT,
    flag=BOOLEAN,
    name=TEXT,
    data=BYTEA,
    document=JSONB,
    bigs=BIGINTS,
    numbers=INTEGERS,
    texts=TEXTS,
)
ROWS = [
    (b"k" * 16, -(2**63), 7, -1, True, "a␀0", b"\0", "{}", (1, 2**40), (-1,), ("x", 'q"\0␀,{}')),
    (b"l" * 16, 2**63 - 1, -7, 1, False, "→", b"", '{"ä": [1]}', (), (), ()),
]


@pytest.fixture
def connection(database_url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


def run(connection: psycopg.Connection, sql: str, parameters: list[bytes]) -> PGresult:
    result = connection.pgconn.exec_params(
        sql.encode(),
        parameters,
        param_formats=[pq.Format.BINARY] * len(parameters),
        result_format=pq.Format.BINARY,
    )
    assert result.status == pq.ExecStatus.TUPLES_OK, result.error_message
    return result


@pytest.mark.parametrize("count", range(3))
def test_rows_of_every_type_come_back(connection: psycopg.Connection, count: int) -> None:
    row = EVERY_TYPE
    sql = f"SELECT {row.unnested()} FROM {row.unnest()} AS e ({row.names})"
    result = run(connection, sql, row.encode(ROWS[:count]))
    assert list(map(tuple, row.decode(result))) == ROWS[:count]


def test_parameters_begin_at_any_number(connection: psycopg.Connection) -> None:
    numbers, named = Row(number=INTEGER), Row(big=BIGINT, name=TEXT)
    sql = f"""
        SELECT e.number, {named.unnested("f.")}
        FROM {numbers.unnest()} AS e (number), {named.unnest(2)} AS f ({named.names})
    """
    result = run(connection, sql, [*numbers.encode([(1,)]), *named.encode([(2, None)])])
    assert list(Row(number=INTEGER, **named.columns).decode(result)) == [[1, 2, None]]


def test_a_table_is_its_rows_definition() -> None:
    table = Table(
        "t",
        MetaData(),
        Column("id", BigInteger, primary_key=True),
        Column("names", ARRAY(Text)),
        Column("at", DateTime(timezone=True)),
    )
    row = Row.of(table, omit=["at"])
    assert row.columns == {"id": BIGINT, "names": TEXTS}
    assert row.names == "id, names"
    assert row.of_table("t") == "t.id, t.names"
    assert row.unnest(3) == "unnest($3::bigint[], $4::text[])"
    assert row.unnested("e.") == "e.id, e.names::text[]"
    assert row.without("id").excluded == "names = excluded.names"
    assert row.only("names", "id").names == "names, id"


def test_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match=r"zip\(\)"):
        Row(big=BIGINT, number=INTEGER).encode([(1,)])
    with pytest.raises(AssertionError, match="not all there"):
        EVERY_TYPE.without("nothing")
