"""What namespaces' policies do to subscriptions and producers from time to time.

Messages expire (TTL), backlogs are held to their quotas, and limits of dispatch follow the
policies. Each partition is seen to by the broker that dispatches it, or is to: only there are its
subscriptions changed, and its producers are there as well. What is behind is asked of the database,
so that a partition without a backlog costs nothing. Core has the rules; this knows no wire and no
SQL.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import structlog

from core.namespace.rules import (
    blocks_producers,
    bytes_left_by_eviction,
    dispatch_settings,
    evicts_before,
    exceeded_quota,
    expires_before,
)
from core.namespace.values import BacklogQuota, Policies, QuotaType
from core.ports.log import StoreUnavailable
from core.subscription.values import DispatchSettings

if TYPE_CHECKING:
    from core.ports.backlogs import Backlog, BacklogStore
    from core.topic.topic import Topic
    from gateway.runtime.cluster.membership import Cluster
    from gateway.runtime.namespaces import Namespaces
    from gateway.runtime.subscriptions.subscriptions import Subscriptions
    from gateway.runtime.topics.configs import Configs
    from gateway.runtime.topics.topics import Topics

log = structlog.get_logger(__name__)

EXPIRY_CONFIG: Final = "penstock.message.expiry.check.interval.ms"
QUOTA_CONFIG: Final = "penstock.backlog.quota.check.interval.ms"
PER_CONSUMER_CONFIG: Final = "penstock.max.unacked.messages.per.consumer"
PER_SUBSCRIPTION_CONFIG: Final = "penstock.max.unacked.messages.per.subscription"
_AFTER_FAILURE_S: Final = 1.0


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class Upkeep:
    """One per process."""

    def __init__(
        self,
        store: BacklogStore,
        subscriptions: Subscriptions,
        topics: Topics,
        namespaces: Namespaces,
        configs: Configs,
        cluster: Cluster,
    ) -> None:
        self._store = store
        self._subscriptions = subscriptions
        self._topics = topics
        self._namespaces = namespaces
        self._configs = configs
        self._cluster = cluster
        self._on_blocked: list[Callable[[int], None]] = []
        self._has_changed = asyncio.Event()
        self._applied: object = None
        topics.on_invalidate(self._has_changed.set)

    def on_blocked(self, listener: Callable[[int], None]) -> None:
        """Registers a listener; it is called with a partition whose producers have to go."""
        self._on_blocked.append(listener)

    async def run(self) -> None:
        """All of it, until cancelled."""
        await asyncio.gather(
            self._repeat(EXPIRY_CONFIG, self.expire),
            self._repeat(QUOTA_CONFIG, self.hold_to_quotas),
            self._follow_limits(),
        )

    async def _repeat(self, interval: str, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(self._configs.broker_int(interval) / 1000)
            try:
                await work()
            except StoreUnavailable as error:
                log.info("policies_postponed", reason=str(error))

    # --- limits of dispatch ---

    def dispatch_settings(self, topic: Topic) -> DispatchSettings:
        """Limits that hold for a topic now."""
        broker = DispatchSettings(
            max_unacked_per_consumer=self._configs.broker_int(PER_CONSUMER_CONFIG),
            max_unacked=self._configs.broker_int(PER_SUBSCRIPTION_CONFIG),
        )
        return dispatch_settings(self._namespaces.policies_of(topic), broker)

    async def _follow_limits(self) -> None:
        """Consumers that are there are held to limits as soon as they change."""
        while True:
            await self._has_changed.wait()
            self._has_changed.clear()
            try:
                limits = await self._limits()
                # Topics come and go far more often.
                if limits != self._applied:
                    await self.apply_limits()
                    self._applied = limits
            except StoreUnavailable:
                await asyncio.sleep(_AFTER_FAILURE_S)
                self._has_changed.set()

    async def _limits(self) -> object:
        """All that limits rest on."""
        await self._configs.ensure_loaded()
        policies = {
            name: (
                each.policies.max_unacked_per_consumer,
                each.policies.max_unacked_per_subscription,
            )
            for name, each in (await self._namespaces.all()).items()
        }
        names = PER_CONSUMER_CONFIG, PER_SUBSCRIPTION_CONFIG
        return [self._configs.broker_int(name) for name in names], policies

    async def apply_limits(self) -> None:
        """Once. Raises StoreUnavailable."""
        if not self._subscriptions.owned:
            return
        by_partition = {i: each for each in await self._topics.all() for i in each.partition_ids}
        for owned in self._subscriptions.owned:
            if topic := by_partition.get(owned.partition_id):
                owned.limit(self.dispatch_settings(topic))

    # --- messages that expire ---

    async def expire(self) -> None:
        """Acknowledges, for all durable subscriptions, what is older than its namespace has it.
        Raises StoreUnavailable."""
        for policies, backlog in await self._backlogs(lambda each: bool(each.message_ttl_s)):
            before = expires_before(policies, _now_ms())
            if before is not None and _is_older(backlog, before):
                await self._acknowledge(backlog, await self._store.first_young(backlog, before))

    # --- quotas ---

    async def exceeded(self, topic: Topic, partition_id: int) -> BacklogQuota | None:
        """The quota for which a partition takes no producers now. Raises StoreUnavailable."""
        policies = self._namespaces.policies_of(topic)
        if not any(map(blocks_producers, policies.backlog_quotas.values())):
            return None
        for backlog in await self._store.backlogs([partition_id]):
            exceeded = await self._exceeded(policies, backlog)
            if exceeded is not None and blocks_producers(exceeded[1]):
                return exceeded[1]
        return None

    async def hold_to_quotas(self) -> None:
        """Closes producers, or acknowledges the oldest messages, where a backlog is too large or
        too old. Raises StoreUnavailable."""
        for policies, backlog in await self._backlogs(lambda each: bool(each.backlog_quotas)):
            exceeded = await self._exceeded(policies, backlog)
            if exceeded is None or not await self._is_ours(backlog.partition_id):
                continue
            kind, quota = exceeded
            log.info(
                "backlog_quota_exceeded",
                partition=backlog.partition_id,
                quota=kind.value,
                policy=quota.policy.value,
            )
            if blocks_producers(quota):
                for listener in self._on_blocked:
                    listener(backlog.partition_id)
            else:
                await self._acknowledge(backlog, await self._evicted_up_to(kind, quota, backlog))

    async def _exceeded(
        self, policies: Policies, backlog: Backlog
    ) -> tuple[QuotaType, BacklogQuota] | None:
        size = policies.backlog_quotas.get(QuotaType.DESTINATION_STORAGE)
        backlog_bytes = 0
        if size is not None and 0 <= size.limit_size <= backlog.log_bytes:  # else it is not counted
            backlog_bytes = await self._store.size_of(backlog, size.limit_size)
        return exceeded_quota(policies, backlog_bytes, backlog.oldest_ms, _now_ms())

    async def _evicted_up_to(self, kind: QuotaType, quota: BacklogQuota, backlog: Backlog) -> int:
        if kind is QuotaType.DESTINATION_STORAGE:
            return await self._store.end_of_excess(backlog, bytes_left_by_eviction(quota))
        return await self._store.first_young(backlog, evicts_before(quota, _now_ms()))

    # --- both ---

    async def _backlogs(self, wants: Callable[[Policies], bool]) -> list[tuple[Policies, Backlog]]:
        """Of partitions whose policies want it."""
        policies: dict[int, Policies] = {}
        for topic in await self._topics.all():
            if not topic.is_internal and wants(each := self._namespaces.policies_of(topic)):
                policies |= dict.fromkeys(topic.partition_ids, each)
        found = await self._store.backlogs(list(policies))
        return [(policies[each.partition_id], each) for each in found]

    async def _is_ours(self, partition_id: int) -> bool:
        owner = await self._subscriptions.owner_of(partition_id)
        return owner.broker_id == self._cluster.broker_id

    async def _acknowledge(self, backlog: Backlog, end: int) -> None:
        if end <= backlog.start or not await self._is_ours(backlog.partition_id):
            return
        owned = await self._subscriptions.find(backlog.partition_id)
        if owned is not None:
            await owned.expire_for_all(end)


def _is_older(backlog: Backlog, timestamp: int) -> bool:
    return backlog.oldest_ms is not None and 0 <= backlog.oldest_ms < timestamp
