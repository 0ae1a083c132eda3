"""Deletes committed offsets that are too old, and groups of which nothing is left (KIP-211).

Each broker does so for the groups it coordinates. Core decides what may go; knows no SQL.
"""

import asyncio
import time
from collections.abc import Sequence
from itertools import groupby
from typing import Final

import structlog

from core.errors import Error
from core.group.offsets import expired_offsets
from core.group.records import CommittedOffset, GroupEffects, OffsetEffects
from core.ports.groups import AgedOffset, GroupStore
from core.ports.log import StoreUnavailable
from gateway.runtime.cluster.leases import ShardLeases
from gateway.runtime.groups.loaded_groups import LoadedGroup, LoadedGroups
from gateway.runtime.topics.configs import Configs

log = structlog.get_logger(__name__)

PAGE: Final = 1_000


class OffsetExpiry:
    """Finds and deletes expired offsets in the background."""

    def __init__(
        self, store: GroupStore, leases: ShardLeases, loaded: LoadedGroups, configs: Configs
    ) -> None:
        self._store = store
        self._leases = leases
        self._loaded = loaded
        self._configs = configs
        self.offsets_expired = 0

    async def run(self) -> None:
        """One round per `offsets.retention.check.interval.ms`, until cancelled."""
        while True:
            settings = self._configs.offset_settings()
            await asyncio.sleep(settings.retention_check_interval_ms / 1000)
            try:
                await self.expire(time.time_ns() // 1_000_000)
            except StoreUnavailable as error:
                log.info("offset_expiry_postponed", reason=str(error))
            except Exception:  # an error in one group must not stop the others' expiry
                log.exception("offset_expiry_failed")

    async def expire(self, now_ms: int) -> None:
        """One round. Raises StoreUnavailable."""
        retention_ms = self._configs.offset_settings().retention_ms
        last: AgedOffset | None = None
        while True:
            shards = self._leases.shards
            page = await self._store.aged_offsets(shards, now_ms - retention_ms, PAGE, last)
            for group_id, aged in groupby(page, key=lambda each: each.group_id):
                await self._expire_of(group_id, list(aged), now_ms, retention_ms)
            await self._loaded.drain()
            if len(page) < PAGE:
                break
            last = page[-1]
        while await self._forget_groups() == PAGE:
            pass

    async def _expire_of(
        self, group_id: str, aged: Sequence[AgedOffset], now_ms: int, retention_ms: int
    ) -> None:
        loaded = await self._loaded.find(group_id)
        if isinstance(loaded, Error) or loaded.group is None:
            return  # another broker's by now, or deleted
        group = loaded.group
        expired: tuple[CommittedOffset, ...] = tuple(
            each.offset for each in aged if each.topic_name is None
        )
        expired += expired_offsets(
            [(each.topic_name, each.offset) for each in aged if each.topic_name is not None],
            group.offset_expiration(),
            group.is_subscribed_to,
            now_ms,
            retention_ms,
        )
        if expired:
            self._loaded.write(loaded, OffsetEffects(group_id, expired=expired))
            self.offsets_expired += len(expired)
            log.info("offsets_expired", group=group_id[:100], offsets=len(expired))

    async def _forget_groups(self) -> int:
        """Deletes groups without members and offsets; returns how many."""
        forgotten: list[LoadedGroup] = []
        for group_id in await self._store.groups_without_offsets(self._leases.shards, PAGE):
            loaded = await self._loaded.find(group_id)
            # A group without members yet may be about to get some.
            if isinstance(loaded, LoadedGroup) and loaded.group is not None and loaded.is_idle:
                self._loaded.write(loaded, GroupEffects(group_id, forgotten=True))
                forgotten.append(loaded)
        await self._loaded.drain()
        for loaded in forgotten:
            # Only the database knows whether it is gone: an offset may have arrived before.
            self._loaded.forget_idle(loaded)
        if forgotten:
            log.info("groups_forgotten", groups=len(forgotten))
        return len(forgotten)
