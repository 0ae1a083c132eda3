"""All parts of one broker's runtime: what front-ends call, and what runs in the background.

`gateway.compose` makes it. Knows no protocol and no SQL; decides nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import structlog

from core.ports.console import ConsoleReads
from core.ports.log import ChangeFeed
from gateway.runtime.acls import Acls
from gateway.runtime.authentication import Authentication
from gateway.runtime.cluster.leases import ShardLeases
from gateway.runtime.cluster.membership import Cluster
from gateway.runtime.cluster.news import Announcer, NewsReader
from gateway.runtime.cluster.snapshots import SnapshotWatch
from gateway.runtime.delegation_tokens import DelegationTokens
from gateway.runtime.flush.flusher import Flusher
from gateway.runtime.groups.groups import Groups
from gateway.runtime.inbox.inbox import Inbox
from gateway.runtime.log.partitions import Partitions
from gateway.runtime.log.retention import Janitor
from gateway.runtime.log.single_appends import SingleAppends
from gateway.runtime.log.translation import Translations
from gateway.runtime.namespaces import Namespaces
from gateway.runtime.quotas import Quotas
from gateway.runtime.schemas import Schemas
from gateway.runtime.sql_doors import SqlDoors
from gateway.runtime.staging import Staging
from gateway.runtime.subscriptions.live_consumers import LiveConsumers
from gateway.runtime.subscriptions.subscriptions import Subscriptions
from gateway.runtime.subscriptions.upkeep import Upkeep
from gateway.runtime.throttling import Throttles
from gateway.runtime.topics.configs import Configs
from gateway.runtime.topics.topics import Topics
from gateway.runtime.transactions.coordinator import Transactions
from gateway.runtime.transactions.producer_clients import ProducerClients
from gateway.runtime.transactions.producer_ids import ProducerIds
from gateway.runtime.users import Users

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Runtime:
    """What front-ends call, and what runs in the background. One per process, over one database.

    changed: set when settings or topics have changed at any broker; its waiter clears it.
    """

    cluster: Cluster
    configs: Configs
    topics: Topics
    flusher: Flusher
    partitions: Partitions
    single_appends: SingleAppends
    translations: Translations
    producer_ids: ProducerIds
    producer_clients: ProducerClients
    transactions: Transactions
    leases: ShardLeases
    groups: Groups
    subscriptions: Subscriptions
    live_consumers: LiveConsumers
    schemas: Schemas
    namespaces: Namespaces
    upkeep: Upkeep
    staging: Staging
    inbox: Inbox
    users: Users
    acls: Acls
    quotas: Quotas
    delegation_tokens: DelegationTokens
    authentication: Authentication
    sql_doors: SqlDoors
    throttles: Throttles
    feed: ChangeFeed
    announcer: Announcer
    snapshots: SnapshotWatch
    janitor: Janitor
    console: ConsoleReads
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def start(self) -> None:
        """Starts all that takes requests; the caller runs `background`."""
        self.flusher.start()
        self.groups.start()

    def background(self) -> tuple[Coroutine[Any, Any, None], ...]:
        """Coroutines to run until cancelled, beside the requests."""
        acks = self.subscriptions.pending_acks
        news = NewsReader(
            self.feed,
            self.partitions,
            self.cluster,
            self.announcer,
            self.on_metadata,
            acks.look_again,
            self.users.invalidate,
            self.acls.invalidate,
            self.quotas.invalidate,
            self.delegation_tokens.invalidate,
            self.inbox.wake,
        )
        return (
            self.cluster.run(),
            self.groups.run(),
            self.groups.run_expiry(),
            self.transactions.run(),
            self.staging.run(),
            self.inbox.run(),
            self.users.run(),
            self.acls.run(),
            self.acls.run_admins(),
            self.quotas.run(),
            self.delegation_tokens.run(),
            self.delegation_tokens.run_ends(),
            self.delegation_tokens.run_expiry(),
            self.sql_doors.run(),
            self.live_consumers.run(),
            self.producer_clients.run(),
            acks.run(),
            self.announcer.run(),
            news.listen(),
            news.run(),
            self.janitor.run(),
            self.upkeep.run(),
            self.snapshots.run(),
        )

    def stopping(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Steps that turn clients to other brokers, in order, while this one still answers."""
        return (self.subscriptions.stop, self.groups.stop, self.partitions.drain)

    def closing(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Steps that finish what is under way, in order, once no more requests come."""
        return (
            self.transactions.close,
            self.staging.close,
            self.subscriptions.close,
            self.flusher.close,
            self.partitions.close,
            self.groups.close,
            self.users.close,
        )

    def on_metadata(self) -> None:
        """Topics, namespaces or settings have changed, at any broker."""
        self.configs.invalidate()
        self.topics.invalidate()
        self.sql_doors.invalidate()
        self.changed.set()

    def on_other_history(self) -> None:
        """The database came back with another history: drops all that was known of it."""
        log.warning("database_history_changed")
        self.flusher.forget_everything()
        self.partitions.forget_everything()
        self.translations.forget_everything()
        self.producer_ids.forget()
        self.groups.forget_everything()
        self.subscriptions.forget_everything()
        self.staging.forget_everything()
        self.inbox.forget_everything()
        self.users.invalidate()
        self.acls.forget()
        self.quotas.forget()
        self.delegation_tokens.forget()
        self.sql_doors.forget()
        self.on_metadata()
