"""How the page reads: a few queries at a time, each for a few seconds at most.

People who look must not keep clients waiting: there are not more sessions than these, and a query
that takes long is ended, for a snapshot that is held open makes hot rows bloat.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqlalchemy import text

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
        """The query's rows: `kind` is called with its columns. values: for its `:names`. Raises
        StoreUnavailable, also where it takes too long."""
        async with self._turns, self._database.begin(f"console_{name}") as connection:
            await connection.execute(text(f"SET LOCAL statement_timeout = {_WITHIN_MS}"))
            found = await connection.execute(text(query), values)
            return [kind(**row) for row in found.mappings()]

    async def row(self, name: str, kind: Callable[..., Row], query: str, **values: Any) -> Row:
        """The same of a query that has one row."""
        (found,) = await self.rows(name, kind, query, **values)
        return found
