"""Rows on their way into a statement and out of a result: one array per column, in binary.

A statement that takes rows names their columns up to four times, and numbers and types an array for
each; its parameters follow in the same order. All of that comes from one definition here, which is
the table's own where the statement writes a table's rows (`Row.of`). Knows no table, no statement.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy.dialects import postgresql

from storage.connection import client_text
from storage.connection.binary import (
    array_literal,
    bigint_array,
    boolean_array,
    bytea_array,
    integer,
    integer_array,
    integers,
    jsonb_array,
    smallint_array,
    text_array,
    texts,
    uuid_array,
)

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult
    from sqlalchemy import Table


@dataclass(frozen=True, slots=True)
class Type:
    """A column's type. element: what the array has that many values travel in.

    write: that array, from Python's values. read: one value of a binary result.
    """

    name: str
    element: str
    write: Callable[[Sequence[Any]], bytes]
    read: Callable[[bytes], Any]


def _plain(name: str, write: Callable[..., bytes], read: Callable[[bytes], Any]) -> Type:
    return Type(name, name, write, read)


def _array(name: str, literal: Callable[[Any], str], read: Callable[[bytes], Any]) -> Type:
    """Arrays of unequal length make no array in PostgreSQL: each travels as text, `{1,2}`."""

    def write(values: Sequence[Any]) -> bytes:
        return text_array([literal(value) for value in values])

    return Type(name, "text", write, read)


def _client_texts(array: bytes) -> tuple[str, ...]:
    return tuple([client_text.read(each) for each in texts(array)])


BIGINT = _plain("bigint", bigint_array, integer)
INTEGER = _plain("integer", integer_array, integer)
SMALLINT = _plain("smallint", smallint_array, integer)
BOOLEAN = _plain("boolean", boolean_array, b"\1".__eq__)
TEXT = _plain("text", text_array, bytes.decode)
UUID = _plain("uuid", uuid_array, bytes)
BYTEA = _plain("bytea", bytea_array, bytes)
JSONB = _plain("jsonb", jsonb_array, lambda value: value[1:].decode())
BIGINTS = _array("bigint[]", array_literal, functools.partial(integers, code="q"))
INTEGERS = _array("integer[]", array_literal, functools.partial(integers, code="i"))
CLIENT_TEXTS = _array("text[]", client_text.array_literal, _client_texts)

_TYPES = {
    each.name: each
    for each in (
        *(BIGINT, INTEGER, SMALLINT, BOOLEAN, TEXT, UUID, BYTEA, JSONB),
        *(BIGINTS, INTEGERS, CLIENT_TEXTS),
    )
}


class Row:
    """Columns in their order, as SQL for a statement's text, and as Python's values.

    names: for INSERT, and for `AS e (…)` after `unnest`. excluded: for DO UPDATE SET.
    """

    def __init__(self, **columns: Type) -> None:
        self.columns = columns
        self.names = ", ".join(columns)
        self.excluded = ", ".join(f"{name} = excluded.{name}" for name in columns)
        self._writers = [each.write for each in columns.values()]
        self._readers = [each.read for each in columns.values()]

    @classmethod
    def of(cls, table: Table, *, omit: Collection[str] = ()) -> Row:
        """A table's own columns, but for those that the database sets."""
        dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
        names = {each.name: each.type.compile(dialect).lower() for each in table.columns}
        return cls(**{name: _TYPES[kind] for name, kind in names.items() if name not in omit})

    def without(self, *names: str) -> Row:
        """All columns but these."""
        kept = {name: kind for name, kind in self.columns.items() if name not in names}
        assert len(kept) + len(names) == len(self.columns), f"{names} are not all there"
        return Row(**kept)

    def only(self, *names: str) -> Row:
        """These columns, in this order."""
        return Row(**{name: self.columns[name] for name in names})

    def of_table(self, alias: str) -> str:
        """The columns to be read, of a table's alias."""
        return ", ".join(f"{alias}.{name}" for name in self.columns)

    def unnest(self, first: int = 1) -> str:
        """The rows as a source of a statement. first: the number of the first array's parameter."""
        arrays = enumerate(self.columns.values(), first)
        return f"unnest({', '.join(f'${number}::{kind.element}[]' for number, kind in arrays)})"

    def unnested(self, prefix: str = "") -> str:
        """The columns of `unnest` as the table takes them."""
        return ", ".join(
            prefix + (name if kind.name == kind.element else f"{name}::{kind.name}")
            for name, kind in self.columns.items()
        )

    def encode(self, rows: Sequence[Sequence[Any]]) -> list[bytes]:
        """The parameters of `unnest`, from rows of values in the order of the columns."""
        if not rows:
            return [write(()) for write in self._writers]
        by_column = zip(*rows, strict=True)
        return [write(values) for write, values in zip(self._writers, by_column, strict=True)]

    def decode(self, result: PGresult) -> Iterator[tuple[Any, ...]]:
        """The rows of a binary result with these columns; None for null."""
        return zip(
            *[
                [
                    None if (value := result.get_value(row, number)) is None else read(value)
                    for row in range(result.ntuples)
                ]
                for number, read in enumerate(self._readers)
            ],
            strict=True,
        )
