"""A broker without sockets: connections over the real runtime and the real database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from core.types import Endpoint
from gateway.compose import configs_of, wire
from gateway.listener import ConnectionLimits
from gateway.metrics.registry import Metrics
from gateway.pulsar.api import load_handlers
from gateway.pulsar.connection import PulsarFrontEnd
from gateway.pulsar.front_end import services_of
from gateway.pulsar.session import LISTENER
from gateway.request_memory import RequestMemory
from gateway.runtime.cluster.membership import Cluster
from gateway.runtime.runtime import Runtime
from storage.brokers import ClusterStore
from storage.connection.pool import Database
from tests.gateway.pulsar.conversing import Conversation

LIMITS = ConnectionLimits()


class Broker:
    """One broker, and the conversations its clients have with it."""

    def __init__(self, runtime: Runtime, **front_end: Any) -> None:
        self.runtime = runtime
        self.metrics = Metrics()
        self.memory = RequestMemory(LIMITS)
        registry = load_handlers()
        self.front_end = PulsarFrontEnd(
            registry,
            services_of(runtime, is_tls=False),
            LIMITS,
            self.memory,
            self.metrics.requests({each.type: each.name for each in registry.table()}),
            **front_end,
        )
        self._count = 0

    def call(self) -> Conversation:
        """A new client's connection."""
        self._count += 1
        return Conversation(self.front_end, self._count)

    async def client(self) -> Conversation:
        """One that has said CONNECT."""
        return await self.call().connect()

    async def lines(self, topic: str) -> list[tuple[int, int, bytes, int]]:
        """What lies in a topic's first partition: offsets, bytes, greatest timestamp."""
        from gateway.runtime.log.partitions import Want

        found = await self.runtime.topics.get(topic)
        assert found is not None
        (read,) = await self.runtime.partitions.read(
            [Want(found.partition_ids[0], 0, 2**20)], 2**20
        )
        return [
            (b.base_offset, b.last_offset, bytes(b.payload), b.producer_id) for b in read.batches
        ]


@pytest.fixture
async def make_broker(database_url: str) -> AsyncIterator[Any]:
    """Makes brokers over the test's database; each has its own connections."""
    async with AsyncExitStack() as stack:
        count = 0

        async def make(static: dict[str, str] | None = None, **front_end: Any) -> Broker:
            nonlocal count
            count += 1
            database = Database(database_url)
            stack.push_async_callback(database.close)
            endpoints = [Endpoint(LISTENER, "127.0.0.1", 6649 + count)]
            cluster = Cluster(
                ClusterStore(database), endpoints=endpoints, version="test", session_timeout_s=30.0
            )
            await cluster.join()
            configs = configs_of(database, static or {}, cluster.broker_id)
            runtime = wire(database, cluster, configs)
            runtime.flusher.start()
            stack.push_async_callback(runtime.partitions.close)
            stack.push_async_callback(runtime.flusher.close)
            stack.push_async_callback(runtime.transactions.close)
            stack.push_async_callback(runtime.subscriptions.close)
            await cluster.heartbeat()  # by which it may hold leases
            return Broker(runtime, **front_end)

        yield make


@pytest.fixture
async def broker(make_broker: Any) -> Broker:
    """A broker alone."""
    made: Broker = await make_broker()
    return made
