"""Reads tables that brokers keep in memory: all keys, and of the rows only what is new.

A trigger of such a table raises a number whenever anything in it changes, whoever changes it, so
that a broker may ask often. Knows no rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, Generic
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    Column,
    ColumnElement,
    LargeBinary,
    Table,
    Uuid,
    any_,
    cast,
    func,
    literal,
    select,
)

from core.ports.watched import Row, RowKey, WatchedRows
from storage.connection.pool import Database

PAGE: Final = 1000
_KEY_BYTES: Final = 16


class WatchedTable(Generic[Row]):
    """One of them. name: of its reads, for metrics. version: the table with the number. key: a hash
    of the whole row, as a UUID.

    make: a row's value of its columns, or None if nobody here can make sense of it.
    """

    def __init__(
        self,
        name: str,
        table: Table,
        version: Table,
        key: ColumnElement[Any],
        columns: Sequence[Column[Any]],
        make: Callable[..., Row | None],
    ) -> None:
        self._name = name
        self._version = select(version.c.version)
        self._keys = select(
            func.string_agg(func.uuid_send(key, type_=LargeBinary), literal(b""), type_=LargeBinary)
        ).select_from(table)
        self._key = key
        self._columns = columns
        self._make = make

    async def read(self, database: Database, known: WatchedRows[Row]) -> WatchedRows[Row] | None:
        """All rows, or None if nothing has changed since `known`. Raises StoreUnavailable."""
        # Of one moment: a row that is replaced between two statements, as a DENY is by an UPDATE,
        # would be missing in both its forms.
        async with database.begin(self._name, is_snapshot=True) as connection:
            version = await connection.scalar(self._version)
            assert version is not None, "its row is there"
            if version == known.version:
                return None
            packed = bytes(await connection.scalar(self._keys) or b"")
            keys = [packed[at : at + _KEY_BYTES] for at in range(0, len(packed), _KEY_BYTES)]
            rows = {key: each for key in keys if (each := known.rows.get(key)) is not None}
            unreadable = 0
            # By pages: other work of the process goes on between them.
            for page in pages(key for key in keys if key not in rows):
                query = select(self._key, *self._columns).where(self._key == any_(uuids(page)))
                for key, *values in await connection.execute(query):
                    row = self._make(*values)
                    if row is None:
                        unreadable += 1
                    else:
                        rows[key.bytes] = row
        return WatchedRows(version, rows, unreadable)


def uuids(keys: Sequence[RowKey]) -> Any:
    """Keys as PostgreSQL's array."""
    return cast([UUID(bytes=key) for key in keys], ARRAY(Uuid))


def pages(items: Iterable[Any]) -> Iterator[list[Any]]:
    """Pieces of a size that one statement takes well."""
    iterator = iter(items)
    while page := list(islice(iterator, PAGE)):
        yield page
