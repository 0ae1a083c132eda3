"""A hot session: prepared statements run as one pipeline, straight on libpq.

One network round trip for any number of statements. Knows no table; turns PostgreSQL's states
into the outcomes that `core.ports` names.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import generators, pq

from core.ports import (
    CommitUnknown,
    EffectRefused,
    RowLocked,
    SegmentGone,
    StoreUnavailable,
    VersionMismatch,
)

if TYPE_CHECKING:
    from psycopg.abc import PQGen
    from psycopg.pq.abc import PGresult

    from storage.pool import Database

VERSION_MISMATCH = "PS001"
"""SQLSTATE raised by the function `version_mismatch()` of the schema."""

_OUTCOMES: Mapping[str, type[Exception]] = {
    VERSION_MISMATCH: VersionMismatch,
    "55P03": RowLocked,  # lock_not_available: lock_timeout
    "40P01": RowLocked,  # deadlock_detected
    "40001": RowLocked,  # serialization_failure
    "42P01": SegmentGone,  # undefined_table
}
# The connection is lost, the server is going down or starting; the transaction took too long, which
# the server may say when it has just been committed.
_GOODBYES = ("08", "57P", "25P04")
# Nothing took effect, and it may well work a little later, on a new connection: idle in a
# transaction for too long (this process was stalled), a standby that is not promoted yet, a
# statement over its time.
_UNAVAILABLE = ("25P03", "25006", "57014")
_OUT_OF_SPACE = "53"

Statement = tuple[bytes, Sequence[bytes | None]]
"""Name of a prepared statement and its parameters, in binary."""


class HotSession:
    """One connection of the hot path. Not for concurrent use; once broken it stays broken."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection
        self._pgconn = connection.pgconn
        self._warned = False
        connection.add_notice_handler(self._on_notice)

    @classmethod
    async def open(cls, database: Database, statements: Mapping[bytes, str]) -> HotSession:
        """Connects and prepares every statement once.

        Raises StoreUnavailable; RowLocked where somebody holds a whole table.
        """
        session = cls(await database.connect())
        try:
            for name, sql in statements.items():
                await session.prepare(name, sql)
        except BaseException:
            await session.close()
            raise
        return session

    @property
    def is_broken(self) -> bool:
        """Whether the connection is gone."""
        return bool(self._pgconn.status == pq.ConnStatus.BAD) or self._connection.closed

    async def prepare(self, name: bytes, sql: str) -> None:
        """Prepares a statement under a name."""

        def steps() -> PQGen[list[PGresult]]:
            self._pgconn.send_prepare(name, sql.encode())
            yield from generators.send(self._pgconn)
            results: list[PGresult] = yield from generators.fetch_many(self._pgconn)
            return results

        self._check(await self._wait(steps(), commits=False), commits=False)

    async def run(self, statements: Sequence[Statement], *, commits: bool) -> list[PGresult]:
        """Runs prepared statements as one pipeline and returns their results, in binary.

        Outside a transaction block they are one transaction, committed by the pipeline's end.
        commits: whether COMMIT (or that end) is among them, so that a connection lost on the way
        raises CommitUnknown rather than StoreUnavailable.
        Raises VersionMismatch, RowLocked, SegmentGone, or EffectRefused for anything else.
        """
        pgconn = self._pgconn
        expected = len(statements) + 1

        def steps() -> PQGen[list[PGresult]]:
            pgconn.enter_pipeline_mode()
            for name, parameters in statements:
                pgconn.send_query_prepared(
                    name, parameters, [pq.Format.BINARY] * len(parameters), pq.Format.BINARY
                )
            pgconn.pipeline_sync()
            yield from generators.send(pgconn)
            results: list[PGresult] = []
            for _ in range(expected):
                results += yield from generators.fetch_many(pgconn)
            pgconn.exit_pipeline_mode()
            return results

        self._warned = False
        results = await self._wait(steps(), commits=commits)
        return self._check(results, commits=commits)

    async def execute(self, sql: bytes, *, commits: bool = False) -> None:
        """Runs one parameterless statement (BEGIN, ROLLBACK)."""

        def steps() -> PQGen[list[PGresult]]:
            self._pgconn.send_query_params(sql, None)
            yield from generators.send(self._pgconn)
            results: list[PGresult] = yield from generators.fetch_many(self._pgconn)
            return results

        self._warned = False
        self._check(await self._wait(steps(), commits=commits), commits=commits)

    async def close(self) -> None:
        """Closes the connection; whatever it had not committed is rolled back by the server."""
        await self._connection.close()

    async def _wait(
        self, steps: Generator[Any, Any, list[PGresult]], *, commits: bool
    ) -> list[PGresult]:
        try:
            results: list[PGresult] = await self._connection.wait(steps)
            return results
        except (psycopg.OperationalError, psycopg.InterfaceError, OSError) as error:
            await self._connection.close()
            lost = CommitUnknown if commits else StoreUnavailable
            raise lost(str(error).strip() or "the connection was lost") from error

    def _check(self, results: list[PGresult], *, commits: bool) -> list[PGresult]:
        for result in results:
            if result.status == pq.ExecStatus.FATAL_ERROR:
                state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
                message = result.error_message.decode(errors="replace").strip()
                if not state or state.startswith(_GOODBYES):
                    # libpq's own word that the connection is lost has no state. The server may
                    # have said goodbye after the commit, before it was done answering.
                    self._pgconn.finish()
                    raise CommitUnknown(message) if commits else StoreUnavailable(message)
                if state.startswith(_UNAVAILABLE):
                    self._pgconn.finish()
                    raise StoreUnavailable(message)
                if outcome := _OUTCOMES.get(state):
                    raise outcome(message)
                raise EffectRefused(message, out_of_space=state.startswith(_OUT_OF_SPACE))
        if commits and self._warned:
            # For instance "canceling wait for synchronous replication": committed here, perhaps
            # not where durability was promised.
            raise CommitUnknown("COMMIT was answered with a warning")
        return results

    def _on_notice(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        if diagnostic.severity_nonlocalized == "WARNING":
            self._warned = True
