"""Coordinators of groups without a wire: the runtime over the real database, several at will.

A coordinator's heartbeats run by themselves or by hand, so that a test can let one fall silent.
Must not know what any test is about.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg

from core.errors import Error
from core.group.records import CommittedOffset
from core.group.values import (
    ClientIdentity,
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    GroupProtocol,
    JoinRequest,
    JoinResult,
    LeavingMember,
    SyncRequest,
    SyncResult,
)
from core.shard import shard_of
from core.topic.rules import NewTopic
from core.types import Endpoint
from gateway.compose import compose
from gateway.runtime.cluster.leases import ShardLeases
from gateway.runtime.cluster.membership import Cluster
from gateway.runtime.groups.groups import Groups, OffsetsWanted
from gateway.runtime.topics.configs import Configs
from gateway.runtime.topics.topics import Topics
from storage.brokers import ClusterStore
from storage.connection.pool import Database

CLIENT = ClientIdentity("test", "/127.0.0.1")
WITHIN_S = 60.0
"""How long anything may take that is to happen; how fast the machine is decides no test."""


@dataclass
class Coordinator:
    """One broker, as far as groups go. queries: how often each was sent, by name."""

    database: Database
    cluster: Cluster
    leases: ShardLeases
    topics: Topics
    configs: Configs
    groups: Groups
    queries: Counter[str]
    heartbeats: asyncio.Task[None] | None = None
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)

    def start_heartbeats(self) -> None:
        self.heartbeats = asyncio.create_task(self.cluster.run())

    async def stop_heartbeats(self) -> None:
        """It falls silent: others may take what it has once its session is over."""
        assert self.heartbeats is not None
        self.heartbeats.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.heartbeats
        self.heartbeats = None

    def submit(self, work: Awaitable[Any]) -> asyncio.Task[Any]:
        """Asks, without waiting for the answer."""
        task = asyncio.ensure_future(work)
        self.tasks.append(task)
        return task

    async def create_topic(self, name: str, partitions: int) -> tuple[int, ...]:
        """Gives the ids of its partitions."""
        await self.topics.create([NewTopic(name, partitions, 1)])
        topic = await self.topics.get(name)
        assert topic is not None
        return topic.partition_ids

    def rebalances(self, group_id: str) -> bool:
        """Whether the group waits for members to join."""
        return any(
            loaded.group_id == group_id
            and loaded.group is not None
            and loaded.group.state == "PreparingRebalance"
            for loaded in self.groups._loaded.snapshot()
        )

    # --- a member of the classic protocol ---

    async def join(
        self,
        group_id: str,
        member_id: str = "",
        *,
        new_member_id: str = "member",
        instance_id: str | None = None,
        protocols: Sequence[tuple[str, bytes]] = (("range", b"topics"),),
        session_timeout_ms: int = 10_000,
        rebalance_timeout_ms: int = 60_000,
    ) -> JoinResult:
        request = JoinRequest(
            member_id=member_id,
            group_instance_id=instance_id,
            client=CLIENT,
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
            protocol_type="consumer",
            protocols=tuple(GroupProtocol(*each) for each in protocols),
            new_member_id=new_member_id,
            requires_known_member_id=False,
        )
        return await self.groups.join(group_id, request)

    async def sync(
        self, group_id: str, joined: JoinResult, assignments: dict[str, bytes] | None = None
    ) -> SyncResult:
        request = SyncRequest(
            joined.member_id, None, joined.generation_id, None, None, assignments or {}
        )
        return await self.groups.sync(group_id, request)

    async def form(self, group_id: str, **join: Any) -> JoinResult:
        """A stable group of one member."""
        joined = await self.join(group_id, **join)
        assert joined.error is Error.NONE, joined
        synced = await self.sync(group_id, joined, {joined.member_id: b"all"})
        assert synced == SyncResult(Error.NONE, "consumer", joined.protocol_name, b"all")
        return joined

    async def heartbeat(self, group_id: str, joined: JoinResult) -> Error:
        return await self.groups.heartbeat(group_id, joined.member_id, None, joined.generation_id)

    async def leave(self, group_id: str, *member_ids: str) -> Error:
        left = await self.groups.leave(group_id, [LeavingMember(each) for each in member_ids])
        return left.error

    # --- offsets ---

    async def commit(
        self,
        group_id: str,
        offsets: dict[int, int],
        joined: JoinResult | None = None,
        *,
        timestamp: int = 1_000,
    ) -> Error:
        member_id, generation = (joined.member_id, joined.generation_id) if joined else ("", -1)
        rows = [CommittedOffset(at, offset, -1, "", timestamp) for at, offset in offsets.items()]
        return await self.groups.commit_offsets(group_id, member_id, None, generation, rows)

    async def offsets(self, group_id: str) -> Error | dict[int, int]:
        (answer,) = await self.groups.fetch_offsets([OffsetsWanted(group_id)])
        if isinstance(answer, Error):
            return answer
        return {partition_id: each.offset for partition_id, each in answer.items()}

    # --- a member of the consumer protocol ---

    async def consume(
        self, group_id: str, member_id: str, epoch: int = 0, **said: Any
    ) -> ConsumerHeartbeatResult:
        if epoch == 0:
            said = {"rebalance_timeout_ms": 60_000, "owned": {}, **said}
        request = ConsumerHeartbeat(member_id, epoch, CLIENT, **said)
        return await self.groups.consumer_heartbeat(group_id, request)


class Psql:
    """A person with psql, who may also be in the way."""

    def __init__(self, url: str) -> None:
        self.connection = psycopg.connect(url, autocommit=True)

    def rows(self, query: str, *parameters: object) -> list[tuple[object, ...]]:
        cursor = self.connection.execute(query.encode(), parameters)
        return cursor.fetchall() if cursor.description else []

    def hold_lease(self, group_id: str) -> None:
        """Nothing of the group's shard can be written until `let_go`."""
        self.rows("BEGIN")
        found = self.rows(
            "SELECT 1 FROM coordinator_lease WHERE shard = %s FOR UPDATE", shard_of(group_id)
        )
        assert found

    def let_go(self) -> None:
        self.rows("ROLLBACK")


MakeCoordinator = Callable[..., Awaitable[Coordinator]]

SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1",
    "group.consumer.min.session.timeout.ms": "1",
    "group.consumer.min.heartbeat.interval.ms": "1",
}


@asynccontextmanager
async def coordinators(url: str) -> AsyncIterator[MakeCoordinator]:
    """A factory of coordinators over one database, all stopped afterwards."""
    async with AsyncExitStack() as stack:
        ports = iter(range(1, 100))

        async def make(
            static: dict[str, str] | None = None,
            *,
            session_timeout_s: float = 60.0,
            heartbeats: bool = True,
            watches: bool = True,
            database_url: str = url,
            dispatches: bool = False,
        ) -> Coordinator:
            queries: Counter[str] = Counter()
            database = Database(database_url, observe=lambda name, seconds: queries.update([name]))
            stack.push_async_callback(database.close)
            port = next(ports)
            listeners = ("kafka", "pulsar") if dispatches else ("kafka",)
            cluster = Cluster(
                ClusterStore(database),
                endpoints=[Endpoint(each, "127.0.0.1", port) for each in listeners],
                version="test",
                session_timeout_s=session_timeout_s,
                heartbeat_interval_s=0.1,
            )
            await cluster.join()
            runtime = await compose(database, cluster, SETTINGS | (static or {}))
            groups = runtime.groups
            groups.start()
            await cluster.heartbeat()
            made = Coordinator(
                database, cluster, runtime.leases, runtime.topics, runtime.configs, groups, queries
            )
            stack.push_async_callback(_close, made)
            if watches:
                made.tasks.append(asyncio.create_task(groups.run()))
            if heartbeats:
                made.start_heartbeats()
            return made

        yield make


async def _close(made: Coordinator) -> None:
    if made.heartbeats is not None:
        await made.stop_heartbeats()
    for task in made.tasks:
        task.cancel()
    await asyncio.gather(*made.tasks, return_exceptions=True)
    await made.groups.stop()
    await made.groups.close()


async def until(condition: Callable[[], bool | Awaitable[bool]]) -> None:
    """Returns once it holds."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            held = condition()
            if held if isinstance(held, bool) else await held:
                return
            await asyncio.sleep(0.01)


def groups_of_shard(shard: int, count: int) -> list[str]:
    """Group ids that fall into one shard."""
    found: list[str] = []
    number = 0
    while len(found) < count:
        if shard_of(f"g{number}") == shard:
            found.append(f"g{number}")
        number += 1
    return found
