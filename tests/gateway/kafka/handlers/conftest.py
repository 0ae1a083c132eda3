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

from core.security.principal import ANONYMOUS
from core.types import BatchFormat, Endpoint
from gateway.compose import configs_of, wire
from gateway.kafka.api import CLOSE_CONNECTION, Api, load_handlers
from gateway.kafka.codec import API_VERSIONS_KEY, decode_message, encode_message
from gateway.kafka.context import RequestContext, Services
from gateway.kafka.conversion import write_stored
from gateway.kafka.fetch_sessions import FetchSessions
from gateway.kafka.late_requests import LateRequests
from gateway.kafka.pipelined_requests import PipelinedRequests
from gateway.kafka.rights import KafkaRights
from gateway.runtime.cluster.membership import Cluster
from storage.brokers import ClusterStore
from storage.connection.pool import Database

TAIL_CACHE = {"penstock.tail.cache.bytes": str(2**20)}


class Broker:
    """One broker's services, and a way to ask its handlers. What it serves is started by `with_…`.

    connection: which one the next request comes on. behind: what waits behind it there.
    """

    def __init__(self, database: Database, cluster: Cluster, static: Mapping[str, str]) -> None:
        self.database = database
        configs = configs_of(database, TAIL_CACHE | dict(static), cluster.broker_id)
        self.runtime = wire(database, cluster, configs)
        self.translator = self.runtime.translations.into(BatchFormat.KAFKA_V2, write_stored)
        self.late_requests = LateRequests()
        self.fetch_sessions = FetchSessions(100)
        self.connection = 1
        self.principal = ANONYMOUS
        self.refused: list[tuple[str, str]] = []
        self.behind: PipelinedRequests | None = None
        self.clock = lambda: int(time.time() * 1000)

    def __getattr__(self, name: str) -> Any:
        """`broker.topics` is the runtime's, and so on."""
        return getattr(self.runtime, name)

    def with_log(self) -> Broker:
        """Serves the log as well; `close_log` afterwards."""
        self.flusher.start()
        return self

    async def close_log(self) -> None:
        """Finishes what is queued."""
        await self.flusher.close()
        await self.partitions.close()

    async def with_groups(self, alive: bool = True) -> Broker:
        """Coordinates groups as well; close `groups` afterwards. alive: its session is renewed."""
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
        return await api.handler(received, self.context(version, client_id, api))

    def context(
        self, version: int = 0, client_id: str = "", api: Api | None = None
    ) -> RequestContext:
        """What a handler is given beside its request. api: where it does not matter, any."""
        api = api or load_handlers().find(API_VERSIONS_KEY)
        assert api is not None
        return RequestContext(
            self.services(),
            api,
            version,
            client_id,
            "127.0.0.1:54321",
            principal=self.principal,
            rights=self.rights(),
            connection=self.connection,
            behind=self.behind,
        )

    def rights(self) -> KafkaRights | None:
        """Those of `principal`, where there is an authorizer."""
        if not self.acls.is_on:
            return None
        return KafkaRights(
            self.acls, self.principal, "127.0.0.1", lambda *told: self.refused.append(told)
        )

    def services(self) -> Services:
        """What handlers may ask."""
        return Services(
            topics=self.topics,
            partitions=self.partitions,
            translator=self.translator,
            cluster=self.cluster,
            configs=self.configs,
            producer_ids=self.producer_ids,
            producer_clients=self.producer_clients,
            groups=self.groups,
            transactions=self.transactions,
            subscriptions=self.subscriptions,
            staging=self.staging,
            users=self.users,
            acls=self.acls,
            quotas=self.quotas,
            delegation_tokens=self.delegation_tokens,
            throttles=self.throttles,
            fetch_sessions=self.fetch_sessions,
            late_requests=self.late_requests,
            clock=self.clock,
        )

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

        async def make(
            static: Mapping[str, str] | None = None,
            host: str = "127.0.0.1",
            port: int | None = None,
            **settings: Any,
        ) -> Broker:
            nonlocal count
            count += 1
            database = Database(database_url)
            stack.push_async_callback(database.close)
            settings = {
                "endpoints": [Endpoint("kafka", host, port or 9000 + count)],
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
    await broker.close_log()


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
    await broker.close_log()


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
