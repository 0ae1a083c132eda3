"""What tests of staging share: requests, made short."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from gateway.kafka.codec import DropStagedRequest, PublishStagedRequest, StageRecordsRequest
from tests.gateway.kafka.handlers.conftest import Broker
from tests.gateway.kafka.handlers.fetching import fetch_request

Records = tuple[str, int, bytes | None]

PUBLISHED, ALREADY = 1, 2


def stage_request(token: UUID | None, *parts: Records, first: int = 0) -> Any:
    """Records by topic and partition, behind the `first` that were sent before."""
    kind = StageRecordsRequest.PartitionRecords
    return StageRecordsRequest(
        token=token,
        first_batch=first,
        partitions=[kind(topic=topic, index=index, records=r) for topic, index, r in parts],
    )


async def stage(broker: Broker, token: UUID | None, *parts: Records, first: int = 0) -> Any:
    """The answer to it."""
    return await broker.ask(stage_request(token, *parts, first=first), 0)


async def publish(
    broker: Broker,
    tokens: Sequence[tuple[UUID | None, int]],
    *,
    batch_id: int = 0,
    query: str = "query",
    sink: str = "sink",
    timeout_ms: int = 0,
) -> Any:
    """Publishes tokens of so many batches each."""
    kind = PublishStagedRequest.StagedToken
    request = PublishStagedRequest(
        query_id=query,
        sink=sink,
        batch_id=batch_id,
        tokens=[kind(token=token, batches=batches) for token, batches in tokens],
        timeout_ms=timeout_ms,
    )
    return await broker.ask(request, 0)


async def drop(broker: Broker, *tokens: UUID | None) -> Any:
    """Drops tokens."""
    return await broker.ask(DropStagedRequest(tokens=list(tokens)), 0)


def published(answer: Any) -> list[tuple[str, int, int, int]]:
    """Where the records went: topic, partition, base offset and how many, in order."""
    return sorted((p.topic, p.index, p.base_offset, p.record_count) for p in answer.partitions)


async def fetched(broker: Broker, topic: str = "t", index: int = 0) -> bytes:
    """All that a reader finds in a partition, fetch by fetch."""
    found = b""
    offset = 0
    while answer := await _fetched_from(broker, topic, index, offset):
        found += answer
        while answer:  # whole batches: base offset, length, …, last offset delta
            offset = int.from_bytes(answer[:8], "big") + int.from_bytes(answer[23:27], "big") + 1
            answer = answer[12 + int.from_bytes(answer[8:12], "big") :]
    return found


async def _fetched_from(broker: Broker, topic: str, index: int, offset: int) -> bytes:
    big = 10**8
    request = fetch_request(
        {index: offset}, topic=topic, max_bytes=big, partition_max_bytes=big, isolation=1
    )
    answer = await broker.ask(request, 11)
    ((found,),) = [each.partitions for each in answer.responses]
    assert found.error_code == 0
    return bytes(found.records or b"")
