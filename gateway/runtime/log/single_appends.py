"""Appends one record, for a person who has written it in a browser.

How a batch is made of it, and what its topic takes, is handed in where rooms are wired: it goes
into the log as any producer's. Knows no wire.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from core.config.values import TopicConfig
from core.errors import Error, Refusal
from core.log.records import Record
from core.topic.topic import Topic
from core.types import Payload, RecordBatch
from gateway.runtime.flush.outcomes import Unconfirmed
from gateway.runtime.log.partitions import Partitions

MakeBatch = Callable[[Record, TopicConfig, int], tuple[RecordBatch, Payload] | Refusal]
"""The batch of one record as its topic takes it, stamped with a time (ms); or why it does not."""

_GONE: Final = Refusal(Error.UNKNOWN_TOPIC_OR_PARTITION, "There is no such partition")


class SingleAppends:
    """make_batch: see MakeBatch."""

    def __init__(self, partitions: Partitions, make_batch: MakeBatch) -> None:
        self._partitions = partitions
        self._make_batch = make_batch

    async def append(self, topic: Topic, number: int, record: Record) -> int | Refusal:
        """The record's offset once it is stored, or why it is not. Raises StoreUnavailable."""
        partition_id = topic.partition_id(number)
        if partition_id is None:
            return _GONE
        if topic.is_internal:
            reason = f"Cannot append to internal topic {topic.name}"
            return Refusal(Error.INVALID_TOPIC_EXCEPTION, reason)
        made = self._make_batch(record, topic.config, time.time_ns() // 1_000_000)
        if isinstance(made, Refusal):
            return made
        result = await self._partitions.append(partition_id, topic.config, *made)
        if isinstance(result, Unconfirmed):
            return Refusal(Error.UNKNOWN_SERVER_ERROR, result.message)
        if result.error is not Error.NONE:
            return Refusal(result.error, result.message)
        return result.base_offset
