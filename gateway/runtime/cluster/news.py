"""Keeps this broker's memory in step with the others: sends news, receives it, and polls.

News only saves time. While other brokers are live, all partitions that a request waits for are read
again every second, so a lost message costs a second and never an answer.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import structlog

from core.ports.log import (
    ChangeFeed,
    News,
    StoreUnavailable,
)
from gateway.runtime.cluster.membership import Cluster
from gateway.runtime.log.partitions import Partitions

log = structlog.get_logger(__name__)

COALESCE_S: Final = 0.003
"""Changes within this time travel as one message."""

LOOK_AGAIN_S: Final = 1.0
RECONNECT_S: Final = 0.5


class Announcer:
    """Collects partitions that have changed here, and subscriptions of whose acknowledgements
    transactions have ended here, and tells the other brokers, if any."""

    def __init__(self, feed: ChangeFeed, is_alone: Callable[[], bool]) -> None:
        self._feed = feed
        self._is_alone = is_alone
        self._changed: set[int] = set()
        self._ended: set[int] = set()
        self._wake = asyncio.Event()

    def announce(self, partition_ids: Iterable[int]) -> None:
        """Notes partitions with a committed change."""
        if self._is_alone():
            return
        self._changed.update(partition_ids)
        self._wake.set()

    def announce_ended(self, subscription_ids: Iterable[int]) -> None:
        """Notes subscriptions with acknowledgements of a transaction that has ended."""
        if self._is_alone():
            return
        self._ended.update(subscription_ids)
        self._wake.set()

    async def run(self) -> None:
        """Sends what is noted, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            changed, self._changed = sorted(self._changed), set()
            ended, self._ended = sorted(self._ended), set()
            try:
                await self._feed.publish(changed, ended)
            except StoreUnavailable as error:
                log.debug("news_not_sent", reason=str(error))
            await asyncio.sleep(COALESCE_S)


class NewsReader:
    """Receives the others' news, and polls."""

    def __init__(
        self,
        feed: ChangeFeed,
        partitions: Partitions,
        cluster: Cluster,
        on_metadata: Callable[[], None],
        on_ended_acks: Callable[[Sequence[int]], None],
        on_users: Callable[[], None] = lambda: None,
        on_acls: Callable[[], None] = lambda: None,
        on_quotas: Callable[[], None] = lambda: None,
        on_delegation_tokens: Callable[[], None] = lambda: None,
        on_inbox: Callable[[], None] = lambda: None,
    ) -> None:
        self._feed = feed
        self._partitions = partitions
        self._cluster = cluster
        self._on_metadata = on_metadata
        self._on_ended_acks = on_ended_acks
        self._on_users = on_users
        self._on_acls = on_acls
        self._on_quotas = on_quotas
        self._on_delegation_tokens = on_delegation_tokens
        self._on_inbox = on_inbox
        self._changed: set[int] = set()
        self._wake = asyncio.Event()

    def _on_news(self, news: News, ids: Sequence[int]) -> None:
        if news in (News.METADATA, News.RECONNECTED):
            self._on_metadata()
        if news in (News.BROKERS, News.RECONNECTED):
            self._cluster.look()
        if news in (News.USERS, News.RECONNECTED):
            self._on_users()
        if news in (News.ACLS, News.RECONNECTED):
            self._on_acls()
        if news in (News.QUOTAS, News.RECONNECTED):
            self._on_quotas()
        if news in (News.DELEGATION_TOKENS, News.RECONNECTED):
            self._on_delegation_tokens()
        if news in (News.INBOX, News.RECONNECTED):
            self._on_inbox()
        if news is News.PARTITIONS:
            self._changed.update(ids)
            self._wake.set()
        elif news is News.ENDED_ACKS:
            self._on_ended_acks(ids)
        elif news is News.RECONNECTED:
            self._changed.update(self._partitions.watched())
            self._wake.set()

    async def listen(self) -> None:
        """Listens, and connects again when the connection is lost, until cancelled."""
        while True:
            try:
                await self._feed.listen(self._on_news)
            except StoreUnavailable as error:
                log.debug("news_connection_lost", reason=str(error))
            await asyncio.sleep(RECONNECT_S)

    async def run(self) -> None:
        """Reads partitions changed elsewhere, and once a second all that a request waits for."""
        while True:
            try:
                async with asyncio.timeout(LOOK_AGAIN_S):
                    await self._wake.wait()
            except TimeoutError:
                if not self._cluster.is_alone:
                    self._changed.update(self._partitions.watched())
            self._wake.clear()
            if not self._changed:
                continue
            changed, self._changed = self._changed, set()
            try:
                await self._partitions.on_changed_elsewhere(changed)
            except StoreUnavailable as error:
                log.debug("news_not_read", reason=str(error))
