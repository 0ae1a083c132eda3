"""Connections to PostgreSQL: settings of sessions, errors under the store's names, SQL timing.

Knows no table and no rule. Cold queries go through one SQLAlchemy engine; the hot path (flush,
fetch, LISTEN) opens psycopg connections of its own with `connect`.
"""

import asyncio
import contextlib
import os
import select
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar
from weakref import WeakSet

import psycopg
from psycopg.abc import PQGen
from psycopg.pq import TransactionStatus
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from core.ports.log import CommitUnknown, SegmentGone, StoreUnavailable
from storage.connection.hosts import Hosts
from storage.flush.handover import Handover

CONNECT_TIMEOUT_S = 5
DEADLINE_S = 15.0
"""Longest wait for one answer to a cold query or a read. The server has its own, shorter limit
(`statement_timeout`), but it does not apply while the server is stopped or its disk hangs."""
FLUSH_DEADLINE_S = 35.0
TRANSACTION_TIMEOUT_S = FLUSH_DEADLINE_S - 10
"""Longest transaction of a hot session, from PostgreSQL 17 on; the commit's wait for the disk or a
standby does not count. While the server waits for the rest of a pipeline, no other timeout runs.
Shorter than others wait for a row (`PARKED_LIMIT_S`)."""
_HAS_TRANSACTION_TIMEOUT = 17_00_00

# A database of somebody's own may have another default: what we wait for, we want to see then.
_ISOLATION: Final = r" -c default_transaction_isolation=read\ committed"

# A stalled broker must not stop the others (docs/concurrency.md): its locks are released within
# seconds. Keep-alives notice dead peers, on both sides; over TCP the server also notices a peer
# that has stopped reading its answers.
HOT_SESSION: dict[str, Any] = {
    "application_name": "penstock",
    "options": (
        "-c synchronous_commit=on -c idle_in_transaction_session_timeout=2s -c lock_timeout=1s"
        f" -c statement_timeout={FLUSH_DEADLINE_S - 5:.0f}s -c jit=off"
        " -c plan_cache_mode=force_generic_plan"
        # Every statement has its index; a new segment has no statistics yet.
        " -c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off"
        " -c tcp_keepalives_idle=5 -c tcp_keepalives_interval=2 -c tcp_keepalives_count=3"
        " -c tcp_user_timeout=10s" + _ISOLATION
    ),
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    "connect_timeout": CONNECT_TIMEOUT_S,
}

READERS = 6

_SNAPSHOT: Final[Any] = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}

Result = TypeVar("Result")
Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Identity:
    """The cluster and history that a session sees; a failover or a restore makes another."""

    system_identifier: int
    timeline: int

    def is_before(self, other: "Identity") -> bool:
        """Whether the other one has branched off from this one, or from one after it."""
        return self.system_identifier == other.system_identifier and self.timeline < other.timeline


class HotConnection(psycopg.AsyncConnection[Row]):
    """A connection that waits for an answer until a deadline at most, and is lost then.

    deadline_s: for each wait, or None. identity: the history it was opened to. on_overdue: called
    when the deadline has passed. on_hang_up: ends the connection in place of `hang_up`, for a
    reason.
    is_warned: whether there was a warning since it was last set to False; only after
    `note_warnings`.
    """

    deadline_s: float | None = DEADLINE_S
    identity: Identity | None = None
    on_overdue: Callable[[], None] | None = None
    on_hang_up: Callable[[str], None] | None = None
    is_warned = False

    async def wait(self, gen: PQGen[Result], *args: Any, **options: Any) -> Result:
        """See psycopg. At the deadline this ends the socket, and the connection reads as lost. To
        cancel the wait instead would wait for the server again."""
        if self.deadline_s is None:
            return await super().wait(gen, *args, **options)
        timer = asyncio.get_running_loop().call_later(self.deadline_s, self._on_deadline)
        try:
            return await super().wait(gen, *args, **options)
        finally:
            timer.cancel()

    def note_warnings(self) -> None:
        """Sets `is_warned` at each warning from now on."""
        self.add_notice_handler(self._on_notice)

    def _on_notice(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        self.is_warned |= diagnostic.severity_nonlocalized == "WARNING"

    def note_overdue(self) -> None:
        """Tells that no answer came in time."""
        if self.on_overdue is not None:
            self.on_overdue()

    def _on_deadline(self) -> None:
        self.note_overdue()
        self.hang_up()

    def hang_up(self) -> None:
        """Ends the socket under the connection, so that it reads as lost."""
        if self.closed:
            return
        if self.on_hang_up is not None:
            self.on_hang_up("the server was given up")
            return
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self.fileno())) as again:
            again.shutdown(socket.SHUT_RDWR)


Cursor = psycopg.AsyncCursor[tuple[Any, ...]]


# Third column: whether the cluster's row has this history already.
READ_IDENTITY = """
SELECT h.system_identifier, h.timeline,
       (h.system_identifier, h.timeline) = (c.system_identifier, c.timeline)
FROM penstock.cluster AS c, penstock.current_history() AS h
"""

# After a failover or a restore, ids of the lost history must not come back, including those of
# partitions, for which brokers may still have queued work. The leader epoch rises, so that clients
# notice a truncated log. Leases get generations above all of the lost history, so that each has to
# be taken again, but stay their holders' until the sessions end: a holder that has not heard of it
# yet goes on from memory. Versions of transactions rise as well: what a coordinator knows may not
# have happened here, and markers of the lost history's coordinators count as old. An open
# transaction may have lost acknowledged records: its producer is fenced, so that it is not
# committed, and it becomes overdue, so that it is aborted. Where a dump was loaded, transactions
# have other ids: what waits in the inbox is of an era that is over, and rows that only meant
# something in their own transaction go.
# The row lock on `cluster` makes all this happen once.
ADOPT_HISTORY = """
WITH adopted AS (
    UPDATE penstock.cluster SET system_identifier = %(system_identifier)s, timeline = %(timeline)s,
        next_producer_id = next_producer_id + 1000000, next_batch_id = next_batch_id + 1000000000,
        metadata_version = metadata_version + 1
    WHERE (system_identifier, timeline) <> (%(system_identifier)s, %(timeline)s)
    RETURNING setval(pg_get_serial_sequence('penstock.topic_partition', 'partition_id'),
        nextval(pg_get_serial_sequence('penstock.topic_partition', 'partition_id')) + 1000000)
), outdated AS (
    UPDATE penstock.coordinator_lease SET generation = generation + 1000000
    WHERE EXISTS (SELECT FROM adopted)
), moved AS (
    UPDATE penstock.transaction_state SET version = version + (1::bigint << 44),
        coordinator_epoch = least(coordinator_epoch, 2147483646) + 1,
        producer_epoch = CASE WHEN started_at >= 0 AND producer_epoch < 32767
                              THEN producer_epoch + 1 ELSE producer_epoch END,
        started_at = CASE WHEN started_at >= 0 THEN least(started_at,
            (extract(epoch FROM clock_timestamp()) * 1000)::bigint - timeout_ms - 1) ELSE -1 END
    WHERE EXISTS (SELECT FROM adopted)
), eras AS (
    UPDATE penstock.sql_door SET era = era + 1, cluster_of_era = cluster
    WHERE EXISTS (SELECT FROM adopted) AND cluster <> cluster_of_era
    RETURNING era
), applied_0 AS (
    DELETE FROM penstock.inbox_offset_0 WHERE EXISTS (SELECT FROM eras)
), applied_1 AS (
    DELETE FROM penstock.inbox_offset_1 WHERE EXISTS (SELECT FROM eras)
), applied_2 AS (
    DELETE FROM penstock.inbox_offset_2 WHERE EXISTS (SELECT FROM eras)
), risen AS (
    UPDATE penstock.topic_partition SET leader_epoch = leader_epoch + 1
    WHERE EXISTS (SELECT FROM adopted) RETURNING partition_id, leader_epoch, next_offset
)
INSERT INTO penstock.leader_epoch (partition_id, leader_epoch, start_offset) SELECT * FROM risen
"""

QueryObserver = Callable[[str, float], None]
"""Called with a query's name and its seconds."""


def is_connection_lost(error: BaseException) -> bool:
    """Whether the session is lost, rather than a statement refused."""
    if isinstance(error, psycopg.InterfaceError):
        return True
    state = error.sqlstate if isinstance(error, psycopg.Error) else None
    # Too long idle in a transaction, or too long a transaction; psycopg has another class for it.
    if state in {"25P03", "25P04"}:
        return True
    if not isinstance(error, psycopg.OperationalError):
        return False
    # 57P0x: shut down, crashed, starting up, or terminated; 08: connection; 53300: too many.
    return state is None or state[:3] == "57P" or state[:2] == "08" or state == "53300"


def is_for_now(error: BaseException) -> bool:
    """Whether a statement took no effect and may work later on the same connection.

    Lock or statement timeout, deadlock, serialization, no space, a standby not yet promoted.
    """
    state = error.sqlstate if isinstance(error, psycopg.Error) else None
    return state is not None and (
        state in {"55P03", "57014", "40P01", "40001", "25006"} or state[:2] == "53"
    )


class Database:
    """One database, as this process reaches it."""

    def __init__(
        self,
        url: str,
        *,
        observe: QueryObserver | None = None,
        handover: Handover | None = None,
    ) -> None:
        """handover: passes files to a server on this machine that may read them."""
        self.url = url
        self.handover = handover
        self._observe = observe
        self._hosts = Hosts(url)
        self._idle_readers: list[HotConnection[tuple[Any, ...]]] = []
        self._reader_slots = asyncio.Semaphore(READERS)
        self._identity: Identity | None = None
        self._open: WeakSet[HotConnection[tuple[Any, ...]]] = WeakSet()
        self._listeners: list[Callable[[], None]] = []
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self._cold: set[HotConnection[tuple[Any, ...]]] = set()
        self._is_closed = False
        self._engine: AsyncEngine = create_async_engine(
            "postgresql+psycopg://",
            async_creator=self._connect_cold,
            pool_size=4,
            max_overflow=4,
            pool_timeout=CONNECT_TIMEOUT_S,
            pool_pre_ping=True,
            hide_parameters=True,  # among them are clients' records and users' verifiers
        )

    async def _connect_cold(self) -> HotConnection[tuple[Any, ...]]:
        connection: HotConnection[tuple[Any, ...]] = await HotConnection.connect(
            self.url,
            autocommit=True,
            **self._hosts.parameters,
            application_name="penstock",
            connect_timeout=CONNECT_TIMEOUT_S,
            # A broker that stalls in the middle of a change must not stop the others
            # (docs/concurrency.md).
            options="-c idle_in_transaction_session_timeout=5s -c lock_timeout=5s"
            f" -c statement_timeout={DEADLINE_S - 3:.0f}s -c jit=off" + _ISOLATION,
        )
        async with self._taken_in(connection):
            await connection.set_autocommit(False)
            if self._is_closed:
                raise StoreUnavailable("the database is closed")
        connection.note_warnings()
        # The engine may lose track of a connection if its user is cancelled; `close` does not.
        self._cold = {each for each in self._cold if not each.closed} | {connection}
        return connection

    async def connect(
        self, deadline_s: float | None = FLUSH_DEADLINE_S
    ) -> HotConnection[tuple[Any, ...]]:
        """A new session for the hot path, in autocommit mode.

        deadline_s: of each wait for an answer; after it the connection is lost.
        Raises StoreUnavailable if the database does not answer.
        """
        try:
            connection: HotConnection[tuple[Any, ...]] = await HotConnection.connect(
                self.url, autocommit=True, **self._hosts.parameters, **HOT_SESSION
            )
        except psycopg.Error as error:
            raise StoreUnavailable(str(error).strip()) from error
        connection.deadline_s = deadline_s
        connection.prepare_threshold = 0
        connection.prepared_max = None
        async with self._taken_in(connection):
            if connection.info.server_version >= _HAS_TRANSACTION_TIMEOUT:
                limit = f"SET transaction_timeout = '{TRANSACTION_TIMEOUT_S * 1000:.0f}ms'"
                await connection.execute(limit.encode())
        return connection

    def on_identity_change(self, listener: Callable[[], None]) -> None:
        """Registers a listener that drops caches when the database has another history."""
        self._listeners.append(listener)

    @asynccontextmanager
    async def _taken_in(self, connection: HotConnection[tuple[Any, ...]]) -> AsyncIterator[None]:
        """A new connection, of use once the block ends well; closed if not. Raises
        StoreUnavailable."""
        try:
            await self._check_identity(connection)
            yield
        except BaseException as error:  # cancelled, too
            if not isinstance(error, asyncio.CancelledError):
                self._hosts.put_last(connection)
            await connection.close()
            if isinstance(error, psycopg.Error):
                raise StoreUnavailable(str(error).strip()) from error
            raise
        connection.on_overdue = partial(self._hosts.put_last, connection)
        self._hosts.put_first(connection)

    async def _check_identity(self, connection: HotConnection[tuple[Any, ...]]) -> None:
        """Checks that this is still the known history; if not, every cache is dropped, and what
        leads to the other one is lost.

        After a failover or a restore, the first connection moves the cluster to a new history.
        Raises StoreUnavailable if the server is one that another was promoted in place of.
        """
        cursor = await connection.execute(READ_IDENTITY)
        row = await cursor.fetchone()
        assert row is not None
        identity = connection.identity = Identity(*row[:2])
        self._refuse_former(identity)
        if not row[2]:
            await connection.execute(
                ADOPT_HISTORY,
                {
                    "system_identifier": identity.system_identifier,
                    "timeline": identity.timeline,
                },
            )
            self._refuse_former(identity)  # it may have become one meanwhile
        self._open.add(connection)
        if identity == self._identity:
            return
        known, self._identity = self._identity, identity
        if known is not None:
            # The server they lead to may still answer: with what is over.
            for each in list(self._open):
                if each.identity != identity:
                    each.hang_up()
            for listener in self._listeners:
                listener()

    def _refuse_former(self, identity: Identity) -> None:
        known = self._identity
        if known is not None and identity.is_before(known):
            raise StoreUnavailable(
                f"the server is on timeline {identity.timeline}, and another one was promoted to"
                f" timeline {known.timeline} in its place"
            )

    @asynccontextmanager
    async def begin(
        self, name: str, *, is_snapshot: bool = False
    ) -> AsyncIterator[AsyncConnection]:
        """A transaction for cold queries, timed under `name`; commits when the block ends well.

        is_snapshot: it only reads, and all of its statements see what the first one does.

        Raises StoreUnavailable if it cannot connect, if the connection is lost in the block, or if
        a statement got no lock, time or space; CommitUnknown if the commit was answered with a
        warning, as when it stopped waiting for the standby.
        """
        started = time.perf_counter()
        try:
            async with self._engine.connect() as connection:
                driver = (await connection.get_raw_connection()).driver_connection
                assert isinstance(driver, HotConnection), "the engine's connections are ours"
                if is_snapshot:  # BEGIN says so itself: no further statement
                    await connection.execution_options(**_SNAPSHOT)
                async with connection.begin():
                    yield connection
                    driver.is_warned = False
                if driver.is_warned:
                    raise CommitUnknown("COMMIT was answered with a warning")
        except DBAPIError as error:
            if error.connection_invalidated or (
                error.orig and (is_connection_lost(error.orig) or is_for_now(error.orig))
            ):
                raise StoreUnavailable(str(error.orig).strip()) from error
            raise
        except (psycopg.OperationalError, psycopg.InterfaceError, OSError) as error:
            raise StoreUnavailable(str(error).strip()) from error
        except PoolTimeout as error:
            raise StoreUnavailable("no connection became free in time") from error
        finally:
            self.observe(name, time.perf_counter() - started)

    def observe(self, name: str, seconds: float) -> None:
        """Reports a query's duration under its name."""
        if self._observe is not None:
            self._observe(name, seconds)

    @asynccontextmanager
    async def reader(self, name: str) -> AsyncIterator[Cursor]:
        """A binary cursor in autocommit mode for reads on the hot path, timed under `name`.

        Raises StoreUnavailable if it cannot connect, if the connection is lost in the block, or if
        a statement got no lock, time or space; SegmentGone if a segment's table was dropped.
        """
        async with self._reader_slots:
            started = time.perf_counter()
            connection = None
            try:
                while self._idle_readers and connection is None:
                    connection = self._idle_readers.pop()
                    if is_stale(connection):
                        await connection.close()
                        connection = None
                connection = connection or await self.connect(DEADLINE_S)
                async with connection.cursor(binary=True) as cursor:
                    yield cursor
            except psycopg.errors.UndefinedTable as error:
                raise SegmentGone(str(error).strip()) from error
            except (psycopg.Error, OSError) as error:
                if is_connection_lost(error) or isinstance(error, OSError):
                    if connection is not None:
                        await connection.close()
                elif not is_for_now(error):
                    raise
                raise StoreUnavailable(str(error).strip()) from error
            finally:
                if connection is not None and not connection.closed:
                    is_idle = connection.info.transaction_status == TransactionStatus.IDLE
                    if is_idle and not self._is_closed:
                        self._idle_readers.append(connection)
                    else:
                        await connection.close()
                self.observe(name, time.perf_counter() - started)

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called: connections made after it must not be kept."""
        return self._is_closed

    def on_close(self, closer: Callable[[], Awaitable[None]]) -> None:
        """Registers a function that closes a connection kept until `close`."""
        self._closers.append(closer)

    async def close(self) -> None:
        """Closes idle and kept connections; callers close the others that `connect` gave."""
        self._is_closed = True
        for closer in self._closers:
            await closer()
        while self._idle_readers:
            await self._idle_readers.pop().close()
        await self._engine.dispose()
        while self._cold:
            await self._cold.pop().close()


def is_stale(connection: HotConnection[Any]) -> bool:
    """Whether an idle connection is lost, as far as is known without asking the server.

    On an idle connection the server says only goodbye, so anything to read means that. Spares the
    first query after a restart of the database a refusal. One system call.
    """
    if connection.closed:
        return True
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))
