"""Connections to PostgreSQL: settings of each session, errors under the store's names, SQL timing.

Knows no table and no rule. Cold queries go through one SQLAlchemy engine; the hot path (flush,
fetch, LISTEN) opens psycopg connections of its own with `connect`.
"""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import psycopg
from psycopg import AsyncConnection as HotConnection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from core.ports import StoreUnavailable

CONNECT_TIMEOUT_S = 5

# A stalled broker must not stop the others (architecture, section 4): whatever it holds is
# released within seconds. Dead peers are noticed by keep-alives.
HOT_SESSION = {
    "application_name": "penstock",
    "options": (
        "-c synchronous_commit=on -c idle_in_transaction_session_timeout=2s -c lock_timeout=1s"
        " -c statement_timeout=30s -c jit=off -c plan_cache_mode=force_generic_plan"
    ),
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    "connect_timeout": CONNECT_TIMEOUT_S,
}

QueryObserver = Callable[[str, float], None]
"""Called with a query's name and its seconds."""


def is_connection_lost(error: BaseException) -> bool:
    """Whether the error says that the session is gone, not that a statement was refused."""
    if isinstance(error, psycopg.InterfaceError):
        return True
    if not isinstance(error, psycopg.OperationalError):
        return False
    state = error.sqlstate
    # 57P0x: shut down, crashed, starting up, or terminated; 08: connection; 25P03: idle timeout;
    # 53300: too many connections.
    return state is None or state[:3] == "57P" or state[:2] == "08" or state in {"25P03", "53300"}


class Database:
    """One database, as this process reaches it."""

    def __init__(self, url: str, *, observe: QueryObserver | None = None) -> None:
        self.url = url
        self._observe = observe
        self._engine: AsyncEngine = create_async_engine(
            "postgresql+psycopg://",
            async_creator=self._connect_cold,
            pool_size=4,
            max_overflow=4,
            pool_timeout=CONNECT_TIMEOUT_S,
            pool_pre_ping=True,
        )

    async def _connect_cold(self) -> HotConnection[tuple[object, ...]]:
        return await HotConnection.connect(
            self.url,
            application_name="penstock",
            connect_timeout=CONNECT_TIMEOUT_S,
            options="-c lock_timeout=5s -c statement_timeout=60s -c jit=off",
        )

    async def connect(self) -> HotConnection[tuple[object, ...]]:
        """A session of one's own for the hot path, in autocommit mode.

        Raises StoreUnavailable where the database does not answer.
        """
        try:
            connection = await HotConnection.connect(self.url, autocommit=True, **HOT_SESSION)  # type: ignore[arg-type]  # libpq takes text and integers alike
        except psycopg.Error as error:
            raise StoreUnavailable(str(error).strip()) from error
        connection.prepare_threshold = 0
        connection.prepared_max = None
        return connection

    @asynccontextmanager
    async def begin(self, name: str) -> AsyncIterator[AsyncConnection]:
        """A transaction for cold queries, timed under `name`; commits when the block ends well.

        Raises StoreUnavailable where the connection cannot be had or is lost in the block.
        """
        started = time.perf_counter()
        try:
            async with self._engine.begin() as connection:
                yield connection
        except DBAPIError as error:
            if error.connection_invalidated or (error.orig and is_connection_lost(error.orig)):
                raise StoreUnavailable(str(error.orig).strip()) from error
            raise
        except (psycopg.OperationalError, psycopg.InterfaceError, OSError) as error:
            raise StoreUnavailable(str(error).strip()) from error
        finally:
            self.observe(name, time.perf_counter() - started)

    def observe(self, name: str, seconds: float) -> None:
        """Reports a query's duration under its name."""
        if self._observe is not None:
            self._observe(name, seconds)

    async def close(self) -> None:
        """Closes the engine's connections; those given by `connect` belong to their callers."""
        await self._engine.dispose()


def describe_url(url: str) -> str:
    """The URL without its password, for logs and messages."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    host = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=f"{parts.username}:***@{host}").geturl()
