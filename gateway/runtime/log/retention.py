"""The janitor: moves log starts by time and size, deletes index rows, seals and drops segments.

Any broker may do any of it at any time: each step is safe to do twice. To avoid repeated work, only
the live broker with the lowest id does it; the others only read the open segments again, in case
one was sealed.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Final

import structlog

from core.log.retention import (
    acknowledged_bytes_kept,
    acknowledged_may_go,
    bytes_to_delete,
    oldest_acknowledged_kept,
    oldest_kept_timestamp,
)
from core.namespace.values import Retention
from core.ports.log import StoreUnavailable
from core.ports.retention import PartitionUsage, RetentionStore
from core.topic.topic import Topic
from gateway.runtime.log.partitions import Partitions
from gateway.runtime.topics.configs import Configs
from gateway.runtime.topics.topics import Topics

log = structlog.get_logger(__name__)

CHECK_CONFIG: Final = "log.retention.check.interval.ms"
INACTIVITY_CONFIG: Final = "penstock.broker.deduplication.producer.inactivity.timeout.minutes"


class Janitor:
    """Retention, in the background."""

    def __init__(
        self,
        store: RetentionStore,
        topics: Topics,
        configs: Configs,
        partitions: Partitions,
        is_on_duty: Callable[[], bool],
        retention_of: Callable[[Topic], Retention | None] = lambda _: None,
    ) -> None:
        """is_on_duty: whether this broker has the lowest live id, as far as it knows. retention_of:
        how much of what everybody has acknowledged a topic's namespace keeps, if that is set."""
        self._store = store
        self._topics = topics
        self._configs = configs
        self._partitions = partitions
        self._is_on_duty = is_on_duty
        self._retention_of = retention_of

    async def run(self) -> None:
        """One round per `log.retention.check.interval.ms`, until cancelled."""
        while True:
            await asyncio.sleep(self._configs.broker_int(CHECK_CONFIG) / 1000)
            await self._touch_names()
            if not self._is_on_duty():
                self._store.forget_segments()
                continue
            try:
                await self.clean()
            except StoreUnavailable as error:
                log.info("retention_postponed", reason=str(error))

    async def _touch_names(self) -> None:
        """Producers that are connected here are not forgotten, though they write nothing."""
        if names := self._partitions.names_in_use():
            try:
                await self._store.touch_names(names)
            except StoreUnavailable as error:
                log.info("touching_names_postponed", reason=str(error))

    async def clean(self) -> list[int]:
        """One round; returns the segments dropped. Raises StoreUnavailable."""
        topics = {topic.name: topic for topic in await self._topics.all()}
        # Rows before a log start still count as size: delete them before the size is checked.
        await self._delete_rows()
        for usage in await self._store.usage():
            if topic := topics.get(usage.topic_name):
                await self._move_log_start(usage, topic)
        await self._delete_rows()
        await self._store.clean_deleted_partitions()
        idle_ms = self._configs.broker_int("producer.id.expiration.ms")
        await self._store.expire_producers(idle_ms / 1000)
        await self._expire_names(topics.values())
        if expired := await self._store.expire_tokens():
            log.info("staged_tokens_expired", tokens=expired)
        forget_ms = self._configs.broker_int("penstock.published.batch.expiration.ms")
        await self._store.forget_published(forget_ms / 1000)
        segment_bytes = self._configs.broker_int("log.segment.bytes")
        await self._store.seal_segments(segment_bytes)
        dropped = await self._store.drop_unused_segments()
        if dropped:
            log.info("segments_dropped", segments=dropped)
        return dropped

    async def _expire_names(self, topics: Iterable[Topic]) -> None:
        deduplicated = [
            i for each in topics if each.config.deduplication_enabled for i in each.partition_ids
        ]
        idle_s = 60 * self._configs.broker_int(INACTIVITY_CONFIG)
        await self._store.expire_names(idle_s, deduplicated)

    async def _delete_rows(self) -> None:
        for usage in await self._store.usage():
            deleted = bool(usage.size_bytes)
            while deleted:
                deleted = await self._store.delete_rows(usage.partition_id) > 0

    async def _move_log_start(self, usage: PartitionUsage, topic: Topic) -> None:
        start = usage.log_start_offset
        if start >= usage.next_offset:
            return
        now_ms = time.time_ns() // 1_000_000
        oldest = oldest_kept_timestamp(topic.config, now_ms)
        if oldest is not None:
            young = await self._store.first_young_batch(usage.partition_id, start, oldest)
            start = max(start, usage.next_offset if young is None else young)
        if bytes_to_delete(topic.config, usage.size_bytes) > 0 and start < usage.next_offset:
            kept = await self._store.first_within_size(
                usage.partition_id, usage.log_start_offset, topic.config.retention_bytes
            )
            start = max(start, usage.next_offset if kept is None else kept)
        start = max(start, await self._end_of_acknowledged(usage, topic, start, now_ms))
        if start > usage.log_start_offset:
            log.info(
                "log_start_moved", topic=topic.name, partition=usage.partition_id, offset=start
            )
            await self._partitions.delete_records(usage.partition_id, start)

    async def _end_of_acknowledged(
        self, usage: PartitionUsage, topic: Topic, start: int, now_ms: int
    ) -> int:
        """Up to where that may go which all durable subscriptions have acknowledged; where there
        are none, that is everything. start: what is before it goes anyway."""
        retention = self._retention_of(topic)
        if retention is None or not acknowledged_may_go(topic.config):
            return start
        acknowledged = await self._store.acknowledged_up_to(usage.partition_id)
        end = usage.next_offset if acknowledged is None else acknowledged
        if end <= start:
            return start
        kept_from = start
        oldest, size = (
            oldest_acknowledged_kept(retention, now_ms),
            acknowledged_bytes_kept(retention),
        )
        if oldest is not None:
            young = await self._store.first_young_batch(usage.partition_id, start, oldest)
            kept_from = max(kept_from, usage.next_offset if young is None else young)
        if size is not None and usage.size_bytes > size:
            kept = await self._store.first_within_size(usage.partition_id, start, size)
            kept_from = max(kept_from, usage.next_offset if kept is None else kept)
        return min(end, kept_from)
