"""News between brokers: LISTEN and NOTIFY, each on its own connection.

Never inside a flush: there NOTIFY would serialise commits (7,260 to 4,370 a second).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import psycopg

from core.ports.log import News, StoreUnavailable

if TYPE_CHECKING:
    from storage.connection.pool import Database

PARTITIONS_CHANGED = "penstock_partition"
PARTITIONS_WATCHED = "penstock_watch"
ACKS_ENDED = "penstock_acks"
METADATA_CHANGED = "penstock_metadata"
BROKERS_CHANGED = "penstock_broker"
USERS_CHANGED = "penstock_user"
ACLS_CHANGED = "penstock_acl"  # sent by a trigger
QUOTAS_CHANGED = "penstock_quota"  # sent by a trigger
DELEGATION_TOKENS_CHANGED = "penstock_delegation_token"  # sent by a trigger
INBOX_FILLED = "penstock_inbox"  # sent by whoever commits, while no broker looks
_CHANNELS = {
    INBOX_FILLED: News.INBOX,
    PARTITIONS_CHANGED: News.PARTITIONS,
    PARTITIONS_WATCHED: News.WATCHED,
    ACKS_ENDED: News.ENDED_ACKS,
    METADATA_CHANGED: News.METADATA,
    BROKERS_CHANGED: News.BROKERS,
    USERS_CHANGED: News.USERS,
    ACLS_CHANGED: News.ACLS,
    QUOTAS_CHANGED: News.QUOTAS,
    DELEGATION_TOKENS_CHANGED: News.DELEGATION_TOKENS,
}

_WITH_IDS = {
    News.PARTITIONS: PARTITIONS_CHANGED,
    News.WATCHED: PARTITIONS_WATCHED,
    News.ENDED_ACKS: ACKS_ENDED,
}

# A payload may have 8,000 bytes; ids have up to 19 digits.
_IDS_PER_MESSAGE = 350


class PostgresChangeFeed:
    """`core.ports.log.ChangeFeed` on PostgreSQL."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._sender: psycopg.AsyncConnection[Any] | None = None

    async def publish(self, news: News, ids: Sequence[int]) -> None:
        """See ChangeFeed. Not for concurrent use."""
        channel = _WITH_IDS[news]
        if self._sender is None or self._sender.closed:
            self._sender = await self._database.connect()
        try:
            for start in range(0, len(ids), _IDS_PER_MESSAGE):
                some = ",".join(map(str, ids[start : start + _IDS_PER_MESSAGE]))
                await self._sender.execute("SELECT pg_notify(%s, %s)", (channel, some))
        except psycopg.Error as error:
            await self._sender.close()
            raise StoreUnavailable(str(error).strip()) from error

    async def listen(self, on_news: Callable[[News, Sequence[int]], None]) -> None:
        """See ChangeFeed. A broker does not hear its own `publish`."""
        connection = await self._database.connect()
        try:
            for channel in _CHANNELS:
                await connection.execute(f"LISTEN {channel}")
            connection.deadline_s = None  # there may be no news for a long time
            on_news(News.RECONNECTED, ())
            async for notice in connection.notifies():
                if self._sender is not None and notice.pid == self._sender.info.backend_pid:
                    continue
                news = _CHANNELS[notice.channel]
                ids: Sequence[int] = ()
                if news in _WITH_IDS:
                    # Every role that may connect may also notify here.
                    ids = [int(each) for each in notice.payload.split(",") if each.isdecimal()]
                on_news(news, ids)
        except psycopg.Error as error:
            raise StoreUnavailable(str(error).strip()) from error
        finally:
            await connection.close()

    async def close(self) -> None:
        """Closes the sending connection."""
        if self._sender is not None:
            await self._sender.close()
