"""Makes batches of records that waited in the inbox: by partition, in order, as topics take them.

How a batch looks is handed in. Knows no wire and no SQL.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias
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

ByTopic: TypeAlias = Mapping[UUID, Sequence[WaitingRecord]]

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
        self, of_topics: ByTopic, topics: Mapping[UUID, Topic]
    ) -> tuple[list[BiteBatch], list[RefusedRecords]]:
        """The batches, and what is of topics or partitions that are not there any more."""
        self._spreader.turn()
        now_ms = time.time_ns() // 1_000_000
        batches: list[BiteBatch] = []
        refused: list[RefusedRecords] = []
        for topic_id, records in of_topics.items():
            topic = topics.get(topic_id)
            for number, of_partition in self._by_partition(records, topic).items():
                partition_id = (
                    None if topic is None or number is None else topic.partition_id(number)
                )
                if topic is None or number is None or partition_id is None:
                    refused.append(_refused(of_partition, number))
                    continue
                kind = retention_class(topic.config)
                for part in _parts(of_partition, min(BATCH_BYTES, topic.config.max_message_bytes)):
                    batch, payload = self._make(part, topic.config, now_ms)
                    incoming = IncomingBatch(batch, payload, kind)
                    batches.append(BiteBatch(topic.name, number, partition_id, incoming))
        return batches, refused

    def _by_partition(
        self, records: Sequence[WaitingRecord], topic: Topic | None
    ) -> Mapping[int | None, list[WaitingRecord]]:
        """Where records go, in order; None where there is no topic to choose a partition of."""
        count = 0 if topic is None else len(topic.partition_ids)
        without_key = self._spreader.partition(count) if count else None
        found: defaultdict[int | None, list[WaitingRecord]] = defaultdict(list)
        for each in records:
            number = each.partition
            if number is None and count:
                number = without_key if each.key is None else partition_of(each.key, count)
            found[number].append(each)
        return found


def by_topic(records: Iterable[WaitingRecord]) -> ByTopic:
    """The records of each topic, in order."""
    found: defaultdict[bytes, list[WaitingRecord]] = defaultdict(list)
    for each in records:
        found[each.topic_id].append(each)
    return {UUID(bytes=topic_id): of_topic for topic_id, of_topic in found.items()}


def name_what_is_not_there(of_topics: ByTopic, topics: Mapping[UUID, Topic]) -> bool:
    """Whether records name partitions that their topics do not have, as far as is known."""
    return any(
        topic.partition_id(number) is None
        for topic_id, topic in topics.items()
        for number in {each.partition for each in of_topics[topic_id]}
        if number is not None
    )


def _refused(records: Sequence[WaitingRecord], partition: int | None) -> RefusedRecords:
    size = sum(each.size for each in records)
    return RefusedRecords(records[0].topic, partition, len(records), size, DELETED)


def _parts(records: Sequence[WaitingRecord], limit: int) -> Iterator[Sequence[WaitingRecord]]:
    """Pieces of at most so many bytes each, but for one larger record."""
    first, size = 0, _BATCH_OVERHEAD
    for place, each in enumerate(records):
        added = len(each.key or b"") + len(each.value or b"") + _RECORD_OVERHEAD
        if each.header_names:
            added += sum(
                len(name.encode()) + len(value or b"") + _HEADER_OVERHEAD
                for name, value in each.headers
            )
        if size + added > limit and place > first:
            yield records[first:place]
            first, size = place, _BATCH_OVERHEAD
        size += added
    yield records[first:]
