"""A broker without sockets: handlers called over the real runtime and the real database.

Requests and answers go through the codec in the version asked for, so that every field an answer
leaves out, or fills with the wrong type, shows. Must not know what any handler does.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any

import pytest

from gateway.kafka.api import CLOSE_CONNECTION, load_handlers
from gateway.kafka.codec import decode_message, encode_message
from gateway.kafka.connection_order import ConnectionOrder
from gateway.kafka.context import RequestContext, Services
from gateway.kafka.fetch_sessions import FetchSessions
from gateway.kafka.markers import control_batch
from gateway.kafka.pipelined_requests import PipelinedRequests
from gateway.runtime.cluster.leases import CoordinatorLeases
from gateway.runtime.cluster.membership import Cluster
from gateway.runtime.groups.groups import Groups
from gateway.runtime.log.partitions import Partitions
from gateway.runtime.staging import Staging
from gateway.runtime.topics.configs import Configs
from gateway.runtime.topics.topics import Topics
from gateway.runtime.transactions.coordinator import Transactions
from gateway.runtime.transactions.producer_ids import ProducerIds
from storage.brokers import ClusterStore
from storage.configs import ConfigStore
from storage.connection.pool import Database
from storage.groups.leases import LeaseStore
from storage.groups.store import GroupStore
from storage.log.store import PostgresLogStore
from storage.staging import PostgresStagingStore
from storage.topics import TopicStore
from storage.transactions import PostgresTransactionStore


class Broker:
    """One broker's services, and a way to ask its handlers. partitions: see `with_log`."""

    def __init__(self, database: Database, cluster: Cluster, static: Mapping[str, str]) -> None:
        self.partitions: Any = None  # who asks for the log says so
        self.producer_ids: Any = None
        self.groups: Any = None
        self.transactions: Any = None
        self.staging: Any = None
        self.fetch_sessions: Any = None
        self.connection_order = ConnectionOrder()
        self.connection = 1  # which one the next request comes on
        self.behind: PipelinedRequests | None = None  # what waits behind it there
        self.clock = lambda: int(time.time() * 1000)
        topic_store = TopicStore(database)
        self.database = database
        self.cluster = cluster
        self.configs = Configs(ConfigStore(database), topic_store, cluster.broker_id, static)
        self.topics = Topics(topic_store, self.configs, lambda: cluster.live_ids)

    def with_log(self, tail_cache_bytes: int = 2**20) -> Broker:
        """Serves the log as well; close `partitions` afterwards."""
        store = PostgresLogStore(self.database)
        self.partitions = Partitions(
            store,
            tail_cache_bytes=tail_cache_bytes,
            max_flush_bytes=2**22,
            make_marker=control_batch,
            announce=lambda partition_ids: None,
        )
        self.producer_ids = ProducerIds(store)
        self.fetch_sessions = FetchSessions(100)
        self.transactions = Transactions(
            PostgresTransactionStore(self.database),
            self.partitions,
            self.producer_ids,
            max_timeout_ms=lambda: self.configs.broker_int("transaction.max.timeout.ms"),
            expiration_ms=lambda: self.configs.broker_int("transactional.id.expiration.ms"),
            expiration_interval_ms=lambda: 3_600_000,
            is_alone=lambda: self.cluster.is_alone,
        )
        self.staging = Staging(
            PostgresStagingStore(self.database),
            store,
            self.partitions,
            max_flush_bytes=2**22,
            max_bytes=lambda: self.configs.broker_int("penstock.staged.max.bytes"),
            expiration_ms=lambda: self.configs.broker_int("penstock.staged.expiration.ms"),
        )
        self.partitions.start()
        return self

    async def with_groups(self, alive: bool = True) -> Broker:
        """Coordinates groups as well; close `groups` afterwards. alive: its session is renewed."""
        leases = CoordinatorLeases(LeaseStore(self.database), self.cluster)
        unstable = PostgresTransactionStore(self.database).pending_partitions
        self.groups = Groups(GroupStore(self.database), leases, self.topics, self.configs, unstable)
        self.groups.start()
        if alive:
            await self.cluster.heartbeat()
        return self

    async def handle(self, request: Any, version: int, client_id: str = "") -> Any:
        """What the handler returns, as it returns it."""
        api = load_handlers().find(request.API_KEY)
        assert api is not None
        assert version in api.versions
        sent = b"".join(encode_message(request, version))
        received = decode_message(type(request), version, memoryview(sent))
        services = Services(
            topics=self.topics,
            partitions=self.partitions,
            cluster=self.cluster,
            configs=self.configs,
            producer_ids=self.producer_ids,
            groups=self.groups,
            transactions=self.transactions,
            staging=self.staging,
            fetch_sessions=self.fetch_sessions,
            connection_order=self.connection_order,
            clock=self.clock,
        )
        context = RequestContext(
            services,
            version,
            client_id,
            "127.0.0.1:54321",
            connection=self.connection,
            behind=self.behind,
        )
        return await api.handler(received, context)

    async def ask(self, request: Any, version: int, client_id: str = "tester") -> Any:
        """The answer to a request, as a client of this version would read it.

        Raises ConnectionResetError where the connection is closed instead.
        """
        answer = await self.handle(request, version, client_id)
        if answer is CLOSE_CONNECTION:
            raise ConnectionResetError
        sent = b"".join(encode_message(answer, version))
        return decode_message(type(answer), version, memoryview(sent))


MakeBroker = Callable[..., Awaitable[Broker]]


@pytest.fixture
async def make_broker(database_url: str) -> AsyncIterator[MakeBroker]:
    """Makes brokers over the test's database; each has its own connections."""
    async with AsyncExitStack() as stack:
        count = 0

        async def make(static: Mapping[str, str] | None = None, **settings: Any) -> Broker:
            nonlocal count
            count += 1
            database = Database(database_url)
            stack.push_async_callback(database.close)
            settings = {
                "host": "127.0.0.1",
                "port": 9000 + count,
                "version": "test",
                "session_timeout_s": 30.0,
                **settings,
            }
            cluster = Cluster(ClusterStore(database), **settings)
            await cluster.join()
            return Broker(database, cluster, static or {})

        yield make


@pytest.fixture
async def broker(make_broker: MakeBroker) -> Broker:
    """A broker alone, with Kafka's defaults."""
    return await make_broker()


@pytest.fixture
async def log_broker(broker: Broker) -> AsyncIterator[Broker]:
    """A broker alone that serves the log."""
    yield broker.with_log()
    await broker.partitions.close()


NO_DELAY = {"group.initial.rebalance.delay.ms": "0"}


@pytest.fixture
async def group_broker(make_broker: MakeBroker) -> AsyncIterator[Broker]:
    """A broker alone that coordinates groups; nobody waits for members that may come."""
    broker = await (await make_broker(NO_DELAY)).with_groups()
    yield broker
    await broker.groups.close()


@pytest.fixture
async def txn_broker(make_broker: MakeBroker) -> AsyncIterator[Broker]:
    """A broker alone that serves the log, groups and transactions."""
    broker = await (await make_broker(NO_DELAY)).with_log().with_groups()
    yield broker
    await broker.groups.close()
    await broker.partitions.close()


@pytest.fixture
async def two_group_brokers(make_broker: MakeBroker) -> AsyncIterator[tuple[Broker, Broker]]:
    """Two brokers; each coordinates the groups that it was asked for first."""
    one, other = [await (await make_broker(NO_DELAY)).with_groups() for _ in range(2)]
    yield one, other
    for broker in (one, other):
        await broker.groups.close()


class LostDatabase(Database):
    """The database of a broker whose PostgreSQL is gone: nobody listens at this address."""

    def __init__(self) -> None:
        super().__init__("postgresql://penstock@127.0.0.1:1/penstock?connect_timeout=1")


@pytest.fixture
async def cut_off(broker: Broker) -> AsyncIterator[Broker]:
    """A broker that had joined, and now finds nobody at its database's address."""
    database = LostDatabase()
    yield Broker(database, broker.cluster, {})
    await database.close()
