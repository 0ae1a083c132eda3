"""Makes batches of records that waited in the inbox: by partition, in order, as topics take them.

How a batch looks is handed in. Knows no wire and no SQL.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final
from uuid import UUID

from core.config.values import TopicConfig
from core.inbox.bite import DELETED
from core.inbox.partitioner import Spreader, partition_of
from core.inbox.values import BiteBatch, RefusedRecords, WaitingRecord
from core.log.effects import IncomingBatch
from core.log.retention import retention_class
from core.topic.topic import Topic
from core.types import RecordBatch

MakeBatch = Callable[[Sequence[WaitingRecord], TopicConfig, int], tuple[RecordBatch, bytes]]
"""A batch of one partition's records, from the topic's settings and a time (ms)."""

BATCH_BYTES: Final = 1_000_000
"""Of a batch, or what the topic takes if that is less; a larger record is a batch by itself."""
_RECORD_OVERHEAD: Final = 48
_BATCH_OVERHEAD: Final = 61
_HEADER_OVERHEAD: Final = 10


class BatchMaker:
    """make_batch: see MakeBatch. spreader: of records without a key."""

    def __init__(self, make_batch: MakeBatch, spreader: Spreader) -> None:
        self._make = make_batch
        self._spreader = spreader

    def batches_of(
        self, records: Iterable[WaitingRecord], topics: Mapping[UUID, Topic]
    ) -> tuple[list[BiteBatch], list[RefusedRecords]]:
        """The batches, and what is of topics that are not there any more."""
        self._spreader.turn()
        places: dict[tuple[UUID, int], list[WaitingRecord]] = {}
        gone: Counter[tuple[str, int | None]] = Counter()
        sizes: Counter[tuple[str, int | None]] = Counter()
        for each in records:
            topic = topics.get(each.topic_id)
            number = each.partition
            if topic is not None and number is None:
                count = len(topic.partition_ids)
                number = (
                    self._spreader.partition(count)
                    if each.key is None
                    else partition_of(each.key, count)
                )
            if topic is None or number is None or topic.partition_id(number) is None:
                gone[each.topic, each.partition] += 1
                sizes[each.topic, each.partition] += each.size
                continue
            places.setdefault((each.topic_id, number), []).append(each)
        now_ms = time.time_ns() // 1_000_000
        batches = []
        for (topic_id, number), of_partition in places.items():
            topic = topics[topic_id]
            partition_id = topic.partition_id(number)
            assert partition_id is not None, "it was looked for above"
            kind = retention_class(topic.config)
            for part in _parts(of_partition, min(BATCH_BYTES, topic.config.max_message_bytes)):
                batch, payload = self._make(part, topic.config, now_ms)
                incoming = IncomingBatch(batch, payload, kind)
                batches.append(BiteBatch(topic.name, number, partition_id, incoming))
        refused = [
            RefusedRecords(topic_name, partition, count, sizes[topic_name, partition], DELETED)
            for (topic_name, partition), count in gone.items()
        ]
        return batches, refused


def _parts(records: Sequence[WaitingRecord], limit: int) -> Iterator[Sequence[WaitingRecord]]:
    """Pieces of at most so many bytes each, but for one larger record."""
    first, size = 0, _BATCH_OVERHEAD
    for place, each in enumerate(records):
        added = each.size + _RECORD_OVERHEAD
        if each.headers:
            added += sum(
                len(name.encode()) + len(value or b"") + _HEADER_OVERHEAD
                for name, value in each.headers
            )
        if size + added > limit and place > first:
            yield records[first:place]
            first, size = place, _BATCH_OVERHEAD
        size += added
    yield records[first:]
