"""Rows on their way into a statement and out of a result: one array per column, in binary.

A statement that takes rows names their columns up to four times, and numbers and types an array for
each; its parameters follow in the same order. All of that comes from one definition here, which is
the table's own where the statement writes a table's rows (`Row.of`). Knows no table, no statement.
"""

from __future__ import annotations

import functools
import itertools
import struct
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

    write: that array, from Python's values. read: a value of a binary result, unless bytes are what
    is wanted. code: of a number, struct's.
    """

    name: str
    element: str
    write: Callable[[Sequence[Any]], bytes]
    read: Callable[[bytes], Any] | None = None
    code: str = ""


def _array(name: str, literal: Callable[[Any], str], read: Callable[[bytes], Any]) -> Type:
    """Arrays of unequal length make no array in PostgreSQL: each travels as text, `{1,2}`."""

    def write(values: Sequence[Any]) -> bytes:
        return text_array([literal(value) for value in values])

    return Type(name, "text", write, read)


def _read_texts(array: bytes) -> tuple[str, ...]:
    return tuple([client_text.read(each) for each in texts(array)])


BIGINT = Type("bigint", "bigint", bigint_array, code="q")
INTEGER = Type("integer", "integer", integer_array, code="i")
SMALLINT = Type("smallint", "smallint", smallint_array, code="h")
BOOLEAN = Type("boolean", "boolean", boolean_array, code="?")
TEXT = Type("text", "text", text_array, bytes.decode)
UUID = Type("uuid", "uuid", uuid_array)
BYTEA = Type("bytea", "bytea", bytea_array)
JSONB = Type("jsonb", "jsonb", jsonb_array, lambda value: value[1:].decode())
BIGINTS = _array("bigint[]", array_literal, functools.partial(integers, code="q"))
INTEGERS = _array("integer[]", array_literal, functools.partial(integers, code="i"))
TEXTS = _array("text[]", client_text.array_literal, _read_texts)
"""Of texts that clients chose, which are `written` here. One TEXT is as it is in the database."""

_TYPES = {
    each.name: each
    for each in (
        *(BIGINT, INTEGER, SMALLINT, BOOLEAN, TEXT, UUID, BYTEA, JSONB),
        *(BIGINTS, INTEGERS, TEXTS),
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
        types = list(columns.values())
        self._numbers = list(_numbers(types))
        self._readers = [(n, each.read) for n, each in enumerate(types) if each.read is not None]

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

    def decode(self, result: PGresult) -> Iterator[list[Any]]:
        """The rows of a binary result with these columns. A number is never null."""
        places = range(len(self.columns))
        for row in range(result.ntuples):
            values: list[Any] = [result.get_value(row, place) for place in places]
            for side_by_side, unpack in self._numbers:
                values[side_by_side] = unpack(b"".join(values[side_by_side]))
            for place, reader in self._readers:
                if values[place] is not None:
                    values[place] = reader(values[place])
            yield values


def _numbers(types: Sequence[Type]) -> Iterator[tuple[slice, Callable[[bytes], tuple[Any, ...]]]]:
    """Where numbers are side by side, and how they are read."""
    place = 0
    for is_number, run in itertools.groupby(types, lambda each: each.code != ""):
        codes = [each.code for each in run]
        if is_number:
            yield slice(place, place + len(codes)), struct.Struct(">" + "".join(codes)).unpack
        place += len(codes)
