"""A hot session: prepared statements run as pipelines, straight on libpq.

One network round trip for any number of statements. Knows no table; translates SQLSTATEs into the
outcomes that `core.ports.log` names.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psycopg
from psycopg import pq

from core.ports.inbox import InboxOvertaken
from core.ports.log import (
    CommitUnknown,
    EffectRefused,
    RowLocked,
    SegmentGone,
    StoreUnavailable,
    VersionMismatch,
)

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn, PGresult

    from storage.connection.pool import Database, HotConnection

VERSION_MISMATCH = "PS001"
"""SQLSTATE raised by the function `version_mismatch()` of the schema."""

INBOX_OVERTAKEN = "PS002"
"""The same by `penstock.inbox_overtaken()`."""

_OUTCOMES: Mapping[str, type[Exception]] = {
    VERSION_MISMATCH: VersionMismatch,
    INBOX_OVERTAKEN: InboxOvertaken,
    "55P03": RowLocked,  # lock_not_available: lock_timeout
    "40P01": RowLocked,  # deadlock_detected
    "40001": RowLocked,  # serialization_failure
    "42P01": SegmentGone,  # undefined_table
}
# The connection is lost, or the server is stopping or starting; or the transaction took too long,
# which the server may say even after it was committed.
_GOODBYES = ("08", "57P", "25P04")
# Nothing took effect, and it may work a little later on a new connection: too long idle in a
# transaction (this process stalled), a standby that is not promoted yet, a statement timeout.
_UNAVAILABLE = ("25P03", "25006", "57014")
_OUT_OF_SPACE = "53"

Statement = tuple[bytes, Sequence[bytes | None]]
"""Name of a prepared statement and its parameters, in binary."""


@dataclass(slots=True)
class _Pipeline:
    """Statements sent until a Sync, and the results so far."""

    done: asyncio.Future[list[PGresult]]
    commits: bool
    timer: asyncio.TimerHandle | None
    results: list[PGresult] = field(default_factory=list)
    is_warned: bool = False

    def finish(self, error: Exception | None) -> None:
        """Gives the waiting caller the results or the error, unless it was cancelled."""
        if self.timer is not None:
            self.timer.cancel()
        if self.done.done():
            return
        if error is None:
            self.done.set_result(self.results)
        else:
            self.done.set_exception(error)


class HotSession:
    """One connection of the hot path. Once broken it stays broken.

    Pipelines are answered in order, even if a sender no longer waits. The loop watches the socket
    as long as the session is open, and results are read as they come: to begin and end a watch for
    each answer cost more than the answer.
    """

    def __init__(self, connection: HotConnection[tuple[object, ...]]) -> None:
        self._connection = connection
        self._pgconn: PGconn = connection.pgconn
        self._loop = asyncio.get_running_loop()
        self.opened_at = time.monotonic()  # the connection, a moment earlier
        self._socket = self._pgconn.socket
        self._is_watched = False
        self._is_writing = False
        self._sent: deque[_Pipeline] = deque()
        connection.add_notice_handler(self._on_notice)
        connection.on_hang_up = self._lose

    @classmethod
    async def open(cls, database: Database, statements: Mapping[bytes, str]) -> HotSession:
        """Connects and prepares every statement once.

        Raises StoreUnavailable; RowLocked if another session has locked a whole table.
        """
        session = cls(await database.connect())
        try:
            await session.prepare_all(statements)
        except BaseException:
            await session.close()
            raise
        return session

    @property
    def is_broken(self) -> bool:
        """Whether the connection is gone."""
        return bool(self._pgconn.status == pq.ConnStatus.BAD) or self._connection.closed

    @property
    def is_idle(self) -> bool:
        """Whether all that was sent is answered."""
        return not self._sent

    async def prepare_all(self, statements: Mapping[bytes, str]) -> None:
        """Prepares statements under their names."""

        def send(pgconn: PGconn) -> None:
            for name, sql in statements.items():
                pgconn.send_prepare(name, sql.encode())

        await self._send(send, commits=False)

    async def run(self, statements: Sequence[Statement], *, commits: bool) -> list[PGresult]:
        """Runs prepared statements as one pipeline and returns their results, in binary.

        Outside a transaction block they are one transaction, committed by the pipeline's end.
        commits: whether COMMIT (or that end) is among them, so that a connection lost meanwhile
        raises CommitUnknown rather than StoreUnavailable.
        Raises VersionMismatch, RowLocked, SegmentGone, or EffectRefused for anything else.
        """

        def send(pgconn: PGconn) -> None:
            for name, parameters in statements:
                pgconn.send_query_prepared(
                    name, parameters, [pq.Format.BINARY] * len(parameters), pq.Format.BINARY
                )

        return await self._send(send, commits=commits)

    async def execute(self, sql: bytes, *, commits: bool = False) -> None:
        """Runs one parameterless statement (BEGIN, ROLLBACK)."""
        await self._send(lambda pgconn: pgconn.send_query_params(sql, None), commits=commits)

    async def close(self) -> None:
        """Closes the connection; the server rolls back what was not committed."""
        self._lose("the session was closed")
        await self._connection.close()

    def _send(
        self, send: Callable[[PGconn], None], *, commits: bool
    ) -> asyncio.Future[list[PGresult]]:
        pgconn = self._pgconn
        done: asyncio.Future[list[PGresult]] = self._loop.create_future()
        if self.is_broken:
            done.set_exception(StoreUnavailable("the connection was lost"))
            return done
        deadline_s = self._connection.deadline_s
        timer = self._loop.call_later(deadline_s, self._on_overdue) if deadline_s else None
        pipeline = _Pipeline(done, commits, timer)
        is_first = not self._sent
        self._sent.append(pipeline)
        try:
            if is_first:
                pgconn.enter_pipeline_mode()
            send(pgconn)
            pgconn.pipeline_sync()
            self._flush()
            if not self._is_watched:
                self._loop.add_reader(self._socket, self._on_readable)
                self._is_watched = True
        except (psycopg.OperationalError, psycopg.InterfaceError, OSError) as error:
            self._lose(str(error))
            return done
        except BaseException:  # a bug: the pipeline has no end, so nothing may follow it
            self._lose("a statement could not be sent")
            done.exception()
            raise
        return done

    def _flush(self) -> None:
        """Sends what the socket takes now; the rest follows when it takes more."""
        is_left = bool(self._pgconn.flush())
        if is_left is not self._is_writing:
            self._is_writing = is_left
            if is_left:
                self._loop.add_writer(self._socket, self._on_writable)
            else:
                self._loop.remove_writer(self._socket)

    def _on_writable(self) -> None:
        try:
            self._flush()
        except (psycopg.OperationalError, OSError) as error:
            self._lose(str(error))

    def _on_readable(self) -> None:
        if not self._sent:
            # Only goodbye comes unasked. The session's next user will find it.
            self._unwatch()
            return
        pgconn = self._pgconn
        try:
            pgconn.consume_input()
            if self._is_writing:
                self._flush()
            while self._sent and not pgconn.is_busy():
                result = pgconn.get_result()
                if result is not None:
                    self._take(result)
                elif pgconn.transaction_status != pq.TransactionStatus.ACTIVE:
                    # Otherwise it ends one statement's results, and more will follow.
                    self._lose("the connection was lost, or is out of step")
        except (psycopg.OperationalError, psycopg.InterfaceError, OSError) as error:
            self._lose(str(error))

    def _take(self, result: PGresult) -> None:
        self._sent[0].results.append(result)
        if result.status == pq.ExecStatus.PIPELINE_SYNC:
            pipeline = self._sent.popleft()
            pipeline.finish(_error_of(pipeline))
            if not self._sent:
                self._pgconn.exit_pipeline_mode()
        elif result.status == pq.ExecStatus.FATAL_ERROR:
            state = _state(result)
            if not state or state.startswith(_GOODBYES):
                # libpq's own error for a lost connection has no SQLSTATE. The server may have said
                # goodbye after the commit, before the end of its answer.
                self._lose(_message(result))
            elif state.startswith(_UNAVAILABLE):
                self._sent.popleft().finish(StoreUnavailable(_message(result)))
                self._lose(_message(result))

    def _lose(self, reason: str) -> None:
        """The connection is lost: all waiting callers get that error.

        Stops watching the socket before it is closed: another socket gets its number.
        """
        self._unwatch()
        self._pgconn.finish()
        lost, self._sent = self._sent, deque()
        for pipeline in lost:
            kind = CommitUnknown if pipeline.commits else StoreUnavailable
            pipeline.finish(kind(reason.strip() or "the connection was lost"))

    def _on_overdue(self) -> None:
        """The deadline has passed, whether or not more comes from the socket."""
        self._connection.note_overdue()
        self._lose(f"no answer within {self._connection.deadline_s:g} s")

    def _unwatch(self) -> None:
        # libpq may have closed the socket, which not every loop tolerates.
        if self._is_watched:
            self._is_watched = False
            with contextlib.suppress(OSError):
                self._loop.remove_reader(self._socket)
        if self._is_writing:
            self._is_writing = False
            with contextlib.suppress(OSError):
                self._loop.remove_writer(self._socket)

    def _on_notice(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        if diagnostic.severity_nonlocalized == "WARNING" and self._sent:
            self._sent[0].is_warned = True


def _error_of(pipeline: _Pipeline) -> Exception | None:
    for result in pipeline.results:
        if result.status == pq.ExecStatus.FATAL_ERROR:
            state, message = _state(result), _message(result)
            if outcome := _OUTCOMES.get(state):
                return outcome(message)
            return EffectRefused(message, out_of_space=state.startswith(_OUT_OF_SPACE))
    if pipeline.commits and pipeline.is_warned:
        # For instance "canceling wait for synchronous replication": committed here, perhaps not
        # where durability was promised.
        return CommitUnknown("COMMIT was answered with a warning")
    return None


def _state(result: PGresult) -> str:
    return (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()


def _message(result: PGresult) -> str:
    return result.error_message.decode(errors="replace").strip()
