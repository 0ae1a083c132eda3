"""Record batches for tests of the log: what the log decides on, and bytes to go with it.

Most rooms never look into a batch, so the payload is any bytes; `kafka_batch` makes real ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from crc32c import crc32c
from kafka.record import MemoryRecordsBuilder

from core.log.effects import IncomingBatch, StoredBytes
from core.transaction.values import Marker
from core.types import BatchFormat, RecordBatch

T0 = 1_700_000_000_000


def batch(
    records: int = 1,
    *,
    timestamp: int = T0,
    size: int = 100,
    producer: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    transactional: bool = False,
    batch_format: BatchFormat = BatchFormat.KAFKA_V2,
) -> RecordBatch:
    """A batch as the log sees it."""
    return RecordBatch(
        records, timestamp, size, batch_format, producer, epoch, sequence, transactional
    )


def control_batch(marker: Marker, *, timestamp: int = T0, size: int = 78) -> RecordBatch:
    """The marker as the log sees it: one record, which no application gets to see."""
    return RecordBatch(
        1,
        timestamp,
        size,
        BatchFormat.KAFKA_V2,
        marker.producer_id,
        marker.producer_epoch,
        is_transactional=True,
        is_control=True,
    )


def incoming(of: RecordBatch, mark: int = 0, retention_class: str = "week") -> IncomingBatch:
    """The batch on its way into the log, with bytes told apart by `mark`."""
    return IncomingBatch(of, payload_of(of, mark), retention_class)


def mark_of(incoming: IncomingBatch) -> int:
    """What `incoming` was told its bytes apart by."""
    assert not isinstance(incoming.content, StoredBytes)
    return int.from_bytes(incoming.content[:8], "big")


def payload_of(of: RecordBatch, mark: int = 0) -> bytes:
    """Bytes of the batch's size, told apart by `mark`."""
    pattern = mark.to_bytes(8, "big") + bytes(range(256))
    return (pattern * (of.size // len(pattern) + 1))[: of.size]


def kafka_batch(
    values: Sequence[bytes | None] = (b"value",),
    *,
    timestamps: Sequence[int] | None = None,
    keys: Sequence[bytes | None] | None = None,
    producer: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    transactional: bool = False,
) -> bytes:
    """One whole record batch v2 as a producer sends it."""
    builder = MemoryRecordsBuilder(2, 0, 2**30)
    builder.set_producer_state(producer, epoch, sequence, transactional)
    for index, value in enumerate(values):
        stamp = timestamps[index] if timestamps else T0
        builder.append(timestamp=stamp, key=keys[index] if keys else None, value=value, headers=[])
    builder.close()
    return bytes(builder.buffer())


def with_body(batch: bytes, body: bytes, *, codec: int = 0) -> bytes:
    """The batch with another body under its own header: right as far as a header can tell.

    codec: by its number in the attributes (CompressionType).
    """
    attributes = int.from_bytes(batch[21:23], "big") & ~7 | codec
    covered = attributes.to_bytes(2, "big") + batch[23:61] + body
    length = (9 + len(covered)).to_bytes(4, "big")
    return batch[:8] + length + batch[12:17] + crc32c(covered).to_bytes(4, "big") + covered
