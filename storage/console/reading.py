"""How the page reads: a few queries at a time, each for a few seconds at most.

People who look must not keep clients waiting: there are not more sessions than these, and a query
that takes long is ended, for a snapshot that is held open makes hot rows bloat.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqlalchemy import text

from storage.connection.client_text import read, written

if TYPE_CHECKING:
    from storage.connection.pool import Database

_AT_ONCE: Final = 2
_WITHIN_MS: Final = 5_000

Row = TypeVar("Row")


class Reading:
    """Queries for the page."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def rows(
        self, name: str, kind: Callable[..., Row], query: str, **values: Any
    ) -> list[Row]:
        """The query's rows: `kind` is called with its columns. values: for its `:names`. Text of
        clients is as they know it. Raises StoreUnavailable, also where it takes too long."""
        async with self._turns, self._database.begin(f"console_{name}") as connection:
            await connection.execute(text(f"SET LOCAL statement_timeout = {_WITHIN_MS}"))
            given = {name: _as_stored(value) for name, value in values.items()}
            found = await connection.execute(text(query), given)
            return [
                kind(**{name: _as_given(value) for name, value in row.items()})
                for row in found.mappings()
            ]

    async def row(self, name: str, kind: Callable[..., Row], query: str, **values: Any) -> Row:
        """The same of a query that has one row."""
        (found,) = await self.rows(name, kind, query, **values)
        return found


def _as_stored(value: Any) -> Any:
    if isinstance(value, str):
        return written(value)
    return [_as_stored(each) for each in value] if isinstance(value, list) else value


def _as_given(value: Any) -> Any:
    if isinstance(value, str):
        return read(value)
    return [_as_given(each) for each in value] if isinstance(value, list) else value
