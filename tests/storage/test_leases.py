"""Leases on real PostgreSQL: who gets them, and every race between acquiring, renewing, writing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from core.group_ports import Lease
from core.topic_ports import BrokerRegistration
from core.types import BrokerEndpoint
from storage.brokers import ClusterStore
from storage.leases import LeaseStore
from storage.pool import Database


@dataclass
class Coordinator:
    """A broker's stores, on connections of its own."""

    database: Database
    registration: BrokerRegistration
    broker_id: int = -1
    leases: LeaseStore = field(init=False)
    cluster: ClusterStore = field(init=False)

    def __post_init__(self) -> None:
        self.leases = LeaseStore(self.database)
        self.cluster = ClusterStore(self.database)

    @property
    def incarnation(self) -> UUID:
        return self.registration.incarnation

    @property
    def endpoint(self) -> BrokerEndpoint:
        return BrokerEndpoint(
            self.broker_id,
            self.registration.host,
            self.registration.port,
            self.registration.rack,
        )

    async def acquire(self, shard: int) -> Lease | BrokerEndpoint:
        return await self.leases.acquire(shard, self.broker_id, self.incarnation)

    async def heartbeat(self) -> tuple[Lease, ...]:
        return (await self.cluster.heartbeat(self.broker_id, self.incarnation)).leases

    async def leave(self) -> None:
        await self.cluster.leave(self.broker_id, self.incarnation)


@dataclass
class Brokers:
    """Brokers over one database, and a person with psql beside them."""

    url: str
    psql: psycopg.Connection[Any]
    all: list[Coordinator] = field(default_factory=list)

    async def start(self, port: int, session_timeout_s: float = 30.0) -> Coordinator:
        """Registers a process at a port, as another incarnation where there was one."""
        registration = BrokerRegistration(None, uuid4(), "h", port, None, "test", session_timeout_s)
        broker = Coordinator(Database(self.url), registration)
        self.all.append(broker)
        broker.broker_id = await broker.cluster.register(registration)
        return broker

    def end_session(self, broker: Coordinator) -> None:
        """As if it had not been heard of for a while."""
        self.psql.execute(
            "UPDATE broker SET heartbeat_at = clock_timestamp() - interval '1 hour'"
            " WHERE broker_id = %s",
            [broker.broker_id],
        )


@pytest.fixture
async def brokers(any_url: str) -> AsyncIterator[Brokers]:
    with psycopg.connect(any_url, autocommit=True) as psql:
        brokers = Brokers(any_url, psql)
        yield brokers
        for each in brokers.all:
            await each.database.close()


async def test_a_free_shard_is_taken_and_a_held_one_names_its_holder(brokers: Brokers) -> None:
    one, two = await brokers.start(1), await brokers.start(2)
    assert await one.leases.free() == []
    assert await one.acquire(7) == Lease(7, 1)
    assert await two.acquire(7) == one.endpoint
    assert await two.acquire(8) == Lease(8, 1)
    assert await two.leases.holders([7, 8, 9]) == {7: one.endpoint, 8: two.endpoint}
    assert await one.heartbeat() == (Lease(7, 1),)
    assert await two.heartbeat() == (Lease(8, 1),)
    assert await one.leases.free() == []
