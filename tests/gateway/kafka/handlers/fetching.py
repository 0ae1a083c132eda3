"""What tests of fetching share: a request made short, and what is in its answer."""

from __future__ import annotations

import struct
from typing import Any
from uuid import UUID

from gateway.kafka.codec import FetchRequest


def fetch_request(
    offsets: dict[int, int] | None = None,
    *,
    topic: str | UUID = "t",
    wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 10**7,
    partition_max_bytes: int = 10**6,
    leader_epoch: int = -1,
    session: tuple[int, int] = (0, -1),
    forget: list[int] | None = None,
    isolation: int = 0,
) -> Any:
    """From these offsets by partition of one topic."""
    by_name = {"topic": topic} if isinstance(topic, str) else {"topic_id": topic}
    kind = FetchRequest.FetchTopic
    parts = [
        kind.FetchPartition(
            partition=p,
            fetch_offset=offset,
            partition_max_bytes=partition_max_bytes,
            current_leader_epoch=leader_epoch,
            last_fetched_epoch=-1,
            log_start_offset=-1,
        )
        for p, offset in (offsets or {}).items()
    ]
    forgotten = [FetchRequest.ForgottenTopic(partitions=forget, **by_name)] if forget else []
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation,
        session_id=session[0],
        session_epoch=session[1],
        topics=[kind(partitions=parts, **by_name)] if parts else [],
        forgotten_topics_data=forgotten,
        rack_id="",
    )


def batches(part: Any) -> list[tuple[int, int, bytes]]:
    """Base offset, leader epoch and the rest of each batch in an answer."""
    found, records = [], bytes(part.records or b"")
    while records:
        base, length, epoch = struct.unpack_from(">qii", records)
        found.append((base, epoch, records[16 : 12 + length]))
        records = records[12 + length :]
    return found
