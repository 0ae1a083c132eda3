"""Keeps this broker's memory in step with the others: sends news, receives it, and polls.

News only saves time. While other brokers are live, all partitions that a request waits for are read
again every second, so a lost message costs a second and never an answer.
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Sequence
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

PATIENT_S: Final = 0.1
"""The same, if nobody is known to wait for them."""

LOOK_AGAIN_S: Final = 1.0
RECONNECT_S: Final = 0.5

WATCHED_FOR_S: Final = 3 * LOOK_AGAIN_S
"""How long a broker counts as waiting for a partition after it has said so; it says so again each
time it looks."""


class Announcer:
    """Collects what the other brokers are to hear, and tells them, if there are any.

    Each message costs all brokers, in Python and in the database, about as much as a small flush.
    A partition's readers are where clients are sent to, at its leader. So a leader tells of what
    is written there only now and then, unless another broker has said that requests wait there,
    too: of consumers that have not heard of a new leader, or of Pulsar, to whom others dispatch.
    """

    def __init__(self, feed: ChangeFeed, cluster: Cluster) -> None:
        self._feed = feed
        self._cluster = cluster
        self._news: dict[News, set[int]] = {}
        self._wake = asyncio.Event()
        self._patient: set[int] = set()  # partitions
        self._later: asyncio.TimerHandle | None = None
        self._watched_until: dict[int, float] = {}  # elsewhere; the loop's seconds

    def announce(self, partition_ids: Iterable[int]) -> None:
        """Notes partitions with a committed change."""
        if self._cluster.is_alone:
            return
        now = asyncio.get_running_loop().time()
        for partition_id in partition_ids:
            is_led = self._cluster.leader_of(partition_id) == self._cluster.broker_id
            if is_led and self._watched_until.get(partition_id, 0) < now:
                self._patient.add(partition_id)
            else:
                self._tell(News.PARTITIONS, (partition_id,))
        if self._patient and self._later is None:
            self._later = asyncio.get_running_loop().call_later(PATIENT_S, self._tell_patient)

    def announce_ended(self, subscription_ids: Iterable[int]) -> None:
        """Notes subscriptions with acknowledgements of a transaction that has ended here."""
        if not self._cluster.is_alone:
            self._tell(News.ENDED_ACKS, subscription_ids)

    def announce_watched(self, partition_ids: Iterable[int]) -> None:
        """Notes partitions that requests wait for here. Call it again as long as they do."""
        own_id = self._cluster.broker_id
        led_elsewhere = [i for i in partition_ids if self._cluster.leader_of(i) != own_id]
        if led_elsewhere:
            self._tell(News.WATCHED, led_elsewhere)

    def on_watched(self, partition_ids: Collection[int]) -> None:
        """Another broker has requests that wait for these."""
        now = asyncio.get_running_loop().time()
        self._watched_until = {i: end for i, end in self._watched_until.items() if end >= now}
        self._watched_until.update(dict.fromkeys(partition_ids, now + WATCHED_FOR_S))
        if awaited := self._patient.intersection(partition_ids):
            self._patient -= awaited
            self._tell(News.PARTITIONS, awaited)

    def _tell(self, news: News, ids: Iterable[int]) -> None:
        self._news.setdefault(news, set()).update(ids)
        self._wake.set()

    def _tell_patient(self) -> None:
        self._later = None
        patient, self._patient = self._patient, set()
        self._tell(News.PARTITIONS, patient)

    async def run(self) -> None:
        """Sends what is noted, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            noted, self._news = self._news, {}
            for news, ids in noted.items():
                try:
                    await self._feed.publish(news, sorted(ids))
                except StoreUnavailable as error:
                    log.debug("news_not_sent", news=news.name, reason=str(error))
            await asyncio.sleep(COALESCE_S)


class NewsReader:
    """Receives the others' news, and polls."""

    def __init__(
        self,
        feed: ChangeFeed,
        partitions: Partitions,
        cluster: Cluster,
        announcer: Announcer,
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
        self._announcer = announcer
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
        elif news is News.WATCHED:
            self._announcer.on_watched(ids)
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
        """Reads partitions changed elsewhere, and once a second all that a request waits for, also
        while there is news of others all the time."""
        loop = asyncio.get_running_loop()
        look_again_at = loop.time() + LOOK_AGAIN_S
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(look_again_at):
                    await self._wake.wait()
            self._wake.clear()
            if loop.time() >= look_again_at:
                look_again_at = loop.time() + LOOK_AGAIN_S
                self._look_again()
            if not self._changed:
                continue
            changed, self._changed = self._changed, set()
            try:
                await self._partitions.on_changed_elsewhere(changed)
            except StoreUnavailable as error:
                log.debug("news_not_read", reason=str(error))

    def _look_again(self) -> None:
        if not self._cluster.is_alone:
            watched = self._partitions.watched()
            self._changed.update(watched)
            self._announcer.announce_watched(watched)
