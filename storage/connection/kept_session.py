"""A hot session kept open for one kind of work: opened when first used, and again when lost.

A call is one pipeline, one transaction and one round trip, so that no lock waits for this process,
even if it is stopped. Knows no table.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from core.ports.log import RowLocked, StoreUnavailable
from storage.connection.pool import DEADLINE_S, HotConnection, is_stale
from storage.connection.session import HotSession, Statement

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

    from storage.connection.pool import Database


class KeptSession:
    """One call at a time; others wait for their turn. Closed with the database.

    statements: by name, prepared when a session is opened.
    deadline_s: of each wait for an answer; after it the session is lost.
    """

    def __init__(
        self,
        database: Database,
        statements: Mapping[bytes, str],
        *,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self._database = database
        self._statements = statements
        self._deadline_s = deadline_s
        self._connection: HotConnection[tuple[Any, ...]] | None = None
        self._session: HotSession | None = None
        self._turn = asyncio.Lock()
        database.on_close(self.close)

    async def run(self, name: str, statements: Sequence[Statement]) -> list[PGresult]:
        """Runs prepared statements as one transaction, timed under `name`; returns their results.

        Raises StoreUnavailable, CommitUnknown, RowLocked, VersionMismatch, EffectRefused.
        """
        async with self._turn:
            started = time.perf_counter()
            try:
                session = await self._open()
                return await session.run(statements, commits=True)
            except asyncio.CancelledError:
                await self.close()  # in the middle of a pipeline no other call can use it
                raise
            finally:
                self._database.observe(name, time.perf_counter() - started)

    async def run_or_fail(self, name: str, statements: Sequence[Statement]) -> list[PGresult]:
        """As `run`; if a row stays locked, raises StoreUnavailable."""
        try:
            return await self.run(name, statements)
        except RowLocked as error:
            raise StoreUnavailable(str(error)) from error

    async def _open(self) -> HotSession:
        if self._session is not None and self._connection is not None:
            if not is_stale(self._connection):
                return self._session
            await self.close()
        connection = await self._database.connect(self._deadline_s)
        session = HotSession(connection)
        try:
            await session.prepare_all(self._statements)
            if self._database.is_closed:  # it has closed only the sessions it knew
                raise StoreUnavailable("the database is closed")
        except BaseException:
            await session.close()
            raise
        self._connection, self._session = connection, session
        return session

    async def close(self) -> None:
        """Closes the session; the next call opens another."""
        if self._session is not None:
            await self._session.close()
            self._session = None
