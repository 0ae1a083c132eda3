"""Kafka's record batches from and to the records that both front-ends know.

Kafka's clients read a batch that another front-end has stored as `write_batch` makes it, which for
the same records gives the same bytes, always. What it cannot say in a batch goes into headers
(`core/log/records.py` has the table). A batch stored by Kafka's clients never comes through here on
its way to Kafka's clients. Knows no topic and no store. Sources: DefaultRecordBatch, DefaultRecord,
DefaultRecordsWriter.
"""

import struct
from typing import Final

from crc32c import crc32c

from core.log.records import (
    Compression,
    Header,
    Record,
    RecordSet,
    fields_as_headers,
    is_text,
    unreadable,
    with_fields_of_headers,
)
from core.ports.log import StoredBatch
from core.transaction.values import ProducerIdAndEpoch
from core.types import NO_PRODUCER_ID, NO_SEQUENCE, TimestampType
from gateway.kafka import records as batches
from gateway.kafka.compression import CODECS, Buffer, InvalidRecords, compress, decompress
from gateway.kafka.records import HEADER, HEADER_SIZE, read_varint

_LOG_OVERHEAD: Final = 12
_CHECKED_FROM: Final = 21
_NO_LEADER_EPOCH: Final = -1
_MAGIC: Final = 2
_MASK: Final = 2**64 - 1
_NOBODY: Final = ProducerIdAndEpoch()

# By the number in the attributes; `decompress` has refused the others.
_KINDS: Final = {int(codec): kind for kind, codec in CODECS.items()}


# --- reading ---


def read_batch(payload: Buffer) -> RecordSet:
    """The records of a stored batch. Raises InvalidRecords where it is not what its header says.

    Offsets that compaction has emptied are None. What was aborted is not told: who reads knows
    which batches to leave out.
    """
    view = memoryview(payload)
    header = HEADER.unpack_from(view)
    attributes, last_offset_delta, base_timestamp, max_timestamp = header[5:9]
    producer_id, producer_epoch, base_sequence, count = header[9:13]
    span = last_offset_delta + 1
    if not 0 < span <= batches.MAX_RECORDS or not 0 <= count <= span:
        raise InvalidRecords(f"{count} records at {span} offsets")
    codec = attributes & batches.CODEC_MASK
    body: Buffer = b""
    if count:  # a batch that compaction has emptied is nothing but its header
        body = decompress(view[HEADER_SIZE:], codec, batches.MAX_DECOMPRESSED)
    stamped = bool(attributes & batches.LOG_APPEND_TIME_FLAG)
    found = _read_records(bytes(body), count, span, None if stamped else base_timestamp)
    times = [each.event_time for each in found if each is not None and each.event_time is not None]
    return RecordSet(
        records=tuple(found),
        timestamp=max(times, default=max_timestamp),
        timestamp_type=TimestampType.LOG_APPEND_TIME if stamped else TimestampType.CREATE_TIME,
        compression=_KINDS[codec] if count else Compression.NONE,
        producer=f"kafka-{producer_id}-{producer_epoch}" if producer_id >= 0 else None,
        sequence=base_sequence if base_sequence != NO_SEQUENCE else None,
        is_transactional=bool(attributes & batches.TRANSACTIONAL_FLAG) and producer_id >= 0,
    )


def read_stored(batch: StoredBatch) -> RecordSet:
    """The records of a stored batch, one or None for each offset, whatever its bytes are: Produce
    does not look into batches, so one that cannot be opened may be stored."""
    try:
        records = read_batch(batch.payload)
    except InvalidRecords:
        records = None
    if records is None or len(records.records) != batch.record_count:
        timestamp = batches.max_timestamp(batch.payload)
        return unreadable(batch.payload, batch.record_count, timestamp, "kafka")
    return records


def _read_records(
    body: bytes, count: int, span: int, base_timestamp: int | None
) -> list[Record | None]:
    """One for each of `span` offsets. base_timestamp: None where the log has stamped them."""
    found: list[Record | None] = [None] * span
    pos, last = 0, -1
    try:
        for _ in range(count):
            size, pos = read_varint(body, pos)
            end = pos + size
            if size < 0 or end > len(body):
                raise InvalidRecords("a record is cut short")
            time_delta, at = read_varint(body, pos + 1)  # after the record's attributes
            offset_delta, at = read_varint(body, at)
            key, at = _read_bytes(body, at, end)
            value, at = _read_bytes(body, at, end)
            headers, at = _read_headers(body, at, end)
            if at != end:
                raise InvalidRecords("a record has another size than it says")
            if not last < offset_delta < span:
                raise InvalidRecords(f"offset {offset_delta} after {last} in a batch of {span}")
            record = Record(
                key=key,
                value=value,
                headers=headers,
                event_time=None if base_timestamp is None else _int64(base_timestamp + time_delta),
                key_is_text=key is not None and is_text(key),
            )
            found[offset_delta] = with_fields_of_headers(record)
            pos, last = end, offset_delta
    except IndexError:
        raise InvalidRecords("the records end early") from None
    if pos != len(body):
        raise InvalidRecords("there are bytes after the last record")
    return found


def _read_bytes(body: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    size, at = read_varint(body, at)
    if size < 0:
        return None, at
    if at + size > end:
        raise InvalidRecords("a record's fields are longer than the record")
    return body[at : at + size], at + size


def _read_headers(body: bytes, at: int, end: int) -> tuple[tuple[Header, ...], int]:
    count, at = read_varint(body, at)
    if count == 0:
        return (), at
    if not 0 < count <= end - at:
        raise InvalidRecords(f"{count} headers in {end - at} bytes")
    found = []
    for _ in range(count):
        name, at = _read_bytes(body, at, end)
        if name is None:
            raise InvalidRecords("a header without a name")
        value, at = _read_bytes(body, at, end)
        found.append((name.decode(errors="surrogateescape"), value))
    return tuple(found), at


def _int64(number: int) -> int:
    """As Java adds: a difference of two times may not fit."""
    return (number + 2**63 & _MASK) - 2**63


# --- writing ---


def write_batch(
    records: RecordSet,
    base_offset: int = 0,
    *,
    producer: ProducerIdAndEpoch = _NOBODY,
    is_transactional: bool = False,
) -> bytes:
    """The batch of these records, at offsets from `base_offset` on, without a leader epoch.

    producer, is_transactional: of the transaction it was written in, by which readers of committed
    data know what was aborted. Sequences are left out: nobody sends this again.
    """
    present = [(delta, each) for delta, each in enumerate(records.records) if each is not None]
    times = [records.timestamp if r.event_time is None else r.event_time for _, r in present]
    base_timestamp = times[0] if times else records.timestamp
    max_timestamp = max(times, default=records.timestamp)
    attributes = batches.TRANSACTIONAL_FLAG if is_transactional else 0
    if records.timestamp_type is TimestampType.LOG_APPEND_TIME:
        attributes |= batches.LOG_APPEND_TIME_FLAG
        max_timestamp = records.timestamp
    body: Buffer = b"".join(
        _encode(record, _int64(time - base_timestamp), delta)
        for (delta, record), time in zip(present, times, strict=True)
    )
    if present:  # a batch without records is one of no bytes
        codec = CODECS[records.compression]
        attributes |= codec
        body = compress(body, codec)
    batch = bytearray(HEADER_SIZE)
    HEADER.pack_into(
        batch,
        0,
        base_offset,
        HEADER_SIZE - _LOG_OVERHEAD + len(body),
        _NO_LEADER_EPOCH,
        _MAGIC,
        0,
        attributes,
        len(records.records) - 1,
        base_timestamp,
        max_timestamp,
        producer.producer_id,
        producer.producer_epoch,
        NO_SEQUENCE,
        len(present),
    )
    checksum = crc32c(body, crc32c(memoryview(batch)[_CHECKED_FROM:]))
    struct.pack_into(">I", batch, _CHECKED_FROM - 4, checksum)
    return b"".join((batch, body))


def write_stored(batch: StoredBatch, records: RecordSet) -> bytes:
    """The same of a batch that another front-end has stored: where it is, and in whose transaction
    it was written."""
    producer_id = batch.producer_id
    producer = ProducerIdAndEpoch(producer_id, 0) if producer_id != NO_PRODUCER_ID else _NOBODY
    return write_batch(
        records,
        batch.base_offset,
        producer=producer,
        is_transactional=producer is not _NOBODY,
    )


def _encode(record: Record, time_delta: int, offset_delta: int) -> bytes:
    headers = fields_as_headers(record)
    pieces = [
        b"\0",  # attributes
        _varint(time_delta),
        _varint(offset_delta),
        *_sized(record.key),
        *_sized(record.value),
        _varint(len(headers)),
    ]
    for name, value in headers:
        pieces += _sized(name.encode(errors="surrogateescape"))
        pieces += _sized(value)
    encoded = b"".join(pieces)
    return _varint(len(encoded)) + encoded


def _sized(data: bytes | None) -> tuple[bytes, bytes]:
    return (_varint(-1), b"") if data is None else (_varint(len(data)), data)


def _varint(number: int) -> bytes:
    """A signed number of at most 64 bits (ByteUtils.writeVarlong)."""
    number = (number << 1) ^ (number >> 63)
    if number < 0x80:
        return bytes((number,))
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
