"""Batches of real bytes put into the log, for tests of what reads them in SQL.

Must not know what a test is about.
"""

from __future__ import annotations

from collections.abc import Sequence

from core.log.effects import IncomingBatch
from core.log.partition_log import LogDraft
from core.log.records import Compression, Header, Record, RecordSet, is_text
from core.types import BatchFormat, RecordBatch, TimestampType
from gateway.kafka.conversion import write_batch
from gateway.kafka.records import HEADER
from gateway.pulsar.entries import open_stored
from tests.storage.conftest import Log

T0 = 1_700_000_000_000


def record(
    value: bytes | None = b"v",
    key: bytes | None = None,
    at: int = T0,
    headers: Sequence[Header] = (),
) -> Record:
    return Record(key, value, tuple(headers), at, key_is_text=key is not None and is_text(key))


def records(
    *each: Record | None, codec: Compression = Compression.NONE, stamped: int | None = None
) -> bytes:
    """A batch of these. stamped: LogAppendTime."""
    kind = TimestampType.CREATE_TIME if stamped is None else TimestampType.LOG_APPEND_TIME
    return write_batch(RecordSet(each, stamped or T0, kind, codec))


async def put(
    log: Log, partition_id: int, payload: bytes, *, producer: int = -1, segment: str = "week"
) -> None:
    """Appends a Kafka batch. producer: of the transaction it is in."""
    _, _, _, _, _, _, last_delta, _, max_timestamp, *_ = HEADER.unpack_from(payload)
    sequence = -1
    _, known, _ = await log.store.load([partition_id], [(partition_id, producer)])
    if producer >= 0:
        state = known.get((partition_id, producer))
        sequence = state.last_sequence + 1 if state and state.batches else 0
    batch = RecordBatch(
        last_delta + 1,
        max_timestamp,
        len(payload),
        BatchFormat.KAFKA_V2,
        producer,
        0 if producer >= 0 else -1,
        sequence,
        producer >= 0,
    )
    await put_as(log, partition_id, batch, payload, segment)


async def put_entry(log: Log, partition_id: int, payload: bytes) -> None:
    """Appends an entry of Pulsar's."""
    entry = open_stored(payload)
    at = max(entry.metadata.publish_time, entry.metadata.event_time)
    batch = RecordBatch(entry.message_count, at, len(payload), BatchFormat.PULSAR)
    await put_as(log, partition_id, batch, payload)


async def put_as(
    log: Log, partition_id: int, batch: RecordBatch, payload: bytes, segment: str = "week"
) -> None:
    """Appends any bytes as what the batch says of them."""
    producer = batch.producer_id
    states, known, _ = await log.store.load([partition_id], [(partition_id, producer)])
    draft = LogDraft(states[partition_id], {producer: known.get((partition_id, producer))})
    draft.prepare_append(IncomingBatch(batch, payload, segment))
    effects = draft.effects()
    assert effects is not None
    flush = log.store.open_flush()
    try:
        await flush.commit([effects])
    finally:
        await flush.close()
