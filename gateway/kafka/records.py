"""Kafka record batches, magic 2: the header's view, its validation, and looking into records.

A batch is stored as it came, if its topic has no codec of its own; this room reads 61 bytes and a
checksum, and opens the records only where a question is about single records (timestamps, keys), or
where the header contradicts itself.
It knows no topic, no configuration and no offset but the ones written in the batch. Sources:
DefaultRecordBatch, DefaultRecord, ProduceRequest.validateRecords, LogValidator,
UnifiedLog.analyzeAndValidateRecords.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from crc32c import crc32c

from core.errors import Error, Refusal
from core.transaction.values import ProducerIdAndEpoch
from core.types import BatchFormat, RecordBatch, TimestampType
from gateway.kafka.compression import Buffer, Codec, InvalidRecords, decompress

HEADER_SIZE: Final = 61
_LENGTH_AT: Final = 8
_LOG_OVERHEAD: Final = 12  # base offset and length, which the length does not count
_CRC_START: Final = 21
_ATTRIBUTES_AT: Final = 21
_MAX_TIMESTAMP_AT: Final = 35
_PRODUCER_AT: Final = 43
_SMALLEST_LENGTH: Final = 14  # LegacyRecord.RECORD_OVERHEAD_V0, the least any magic allows
_SMALLEST_RECORD: Final = 7  # length, attributes, two deltas, no key, no value, no headers
_MAGIC_AT: Final = 16
_MAGIC: Final = 2

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME_FLAG: Final = 0x08
TRANSACTIONAL_FLAG: Final = 0x10
_CONTROL_FLAG: Final = 0x20

# base offset, length, leader epoch, magic, crc, attributes, last offset delta, base timestamp,
# max timestamp, producer id, producer epoch, base sequence, record count
HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_PREFIX: Final = struct.Struct(">qii")
_PRODUCER: Final = struct.Struct(">qh")

# What the records of one batch may decompress to, and how many are looked at: a bomb of a megabyte
# must not stop the event loop for a minute. Kafka has neither bound.
MAX_DECOMPRESSED: Final = 64 * 1024 * 1024
MAX_RECORDS: Final = 1_000_000
# And where a Produce is opened to make sure of its header, which any topic may make us do: what the
# bytes that were sent are worth, however many such batches a request has.
_MOST_TIMES_LARGER: Final = 64

_TWO_63: Final = 2**63


@dataclass(frozen=True, slots=True)
class KafkaBatch:
    """A batch that passed validation.

    batch: what the log decides on. payload: the whole batch, a view into the request's frame.
    timestamp_type, is_marked_transactional: as the producer set them (for the log, a batch without
    a producer id is part of no transaction).
    """

    batch: RecordBatch
    payload: memoryview
    timestamp_type: TimestampType
    is_marked_transactional: bool


class BatchRecord(NamedTuple):
    """One record's place in its batch. timestamp: milliseconds. sizes: bytes, -1 for null."""

    offset_delta: int
    timestamp: int
    key_is_null: bool
    key_size: int
    value_size: int


def parse_produce_batch(records: memoryview | None, api_version: int) -> KafkaBatch | Refusal:
    """Validate the records of one partition in a Produce request v3 or later, as Kafka does.

    Exactly one complete batch (Kafka drops trailing bytes too short for a batch in silence; here
    they are refused). `max.message.bytes` and the topic's timestamp rules are the caller's.
    """
    if refusal := refuse_frame(records, api_version):
        return refusal
    assert records is not None, "refused"
    return validate_batch(records)


def refuse_frame(records: memoryview | None, api_version: int) -> Refusal | None:
    """What is wrong with the request that carries it (ProduceRequest.validateRecords), before its
    topic is looked at."""
    if records is None or len(records) < _LOG_OVERHEAD:
        return Refusal(Error.INVALID_RECORD, "there must be one record batch per partition")
    length = int.from_bytes(records[8:12], "big", signed=True)
    if length < _SMALLEST_LENGTH:
        return Refusal(Error.CORRUPT_MESSAGE, f"the record batch announces {length} bytes")
    if len(records) < length + _LOG_OVERHEAD:
        return Refusal(Error.INVALID_RECORD, "the record batch is cut short")
    magic = records[_MAGIC_AT]
    if magic > _MAGIC:
        return Refusal(Error.CORRUPT_MESSAGE, f"unknown record batch magic {magic}")
    if magic < _MAGIC:
        return Refusal(Error.INVALID_RECORD, f"record batches must have magic 2, not {magic}")
    if len(records) < HEADER_SIZE or length + _LOG_OVERHEAD < HEADER_SIZE:
        return Refusal(Error.CORRUPT_MESSAGE, "the record batch is smaller than its header")
    if api_version < 7 and records[_ATTRIBUTES_AT + 1] & CODEC_MASK == Codec.ZSTD:
        reason = f"Produce v{api_version} may not carry Zstandard compression (KIP-110)"
        return Refusal(Error.UNSUPPORTED_COMPRESSION_TYPE, reason)
    if len(records) > length + _LOG_OVERHEAD:
        return Refusal(Error.INVALID_RECORD, "there must be one record batch per partition")
    return None


def transactional_producer(records: memoryview | None) -> ProducerIdAndEpoch | None:
    """Who has sent a batch, if it says that it is of a transaction. Validates nothing."""
    if records is None or len(records) < HEADER_SIZE:
        return None
    if not records[_ATTRIBUTES_AT + 1] & TRANSACTIONAL_FLAG:
        return None
    producer_id, producer_epoch = _PRODUCER.unpack_from(records, _PRODUCER_AT)
    return ProducerIdAndEpoch(producer_id, producer_epoch) if producer_id >= 0 else None


def validate_batch(records: memoryview) -> KafkaBatch | Refusal:
    """What is wrong with a batch that `refuse_frame` has let pass (UnifiedLog, LogValidator)."""
    (
        base_offset,
        _,
        _,
        _,
        crc,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    ) = HEADER.unpack_from(records)
    codec = attributes & CODEC_MASK
    if codec > Codec.ZSTD:
        return Refusal(Error.UNSUPPORTED_COMPRESSION_TYPE, f"unknown compression type {codec}")
    if base_offset != 0:
        return Refusal(Error.INVALID_RECORD, f"the base offset must be 0, not {base_offset}")
    if crc32c(records[_CRC_START:]) != crc:
        return Refusal(Error.CORRUPT_MESSAGE, "the record batch's checksum does not match")
    if count <= 0 or last_offset_delta != count - 1:
        reason = f"{count} records, but offsets 0 to {last_offset_delta}"
        return Refusal(Error.INVALID_RECORD, reason)
    if codec == Codec.NONE and count * _SMALLEST_RECORD > len(records) - HEADER_SIZE:
        return Refusal(Error.INVALID_RECORD, f"{count} records in {len(records)} bytes")
    if attributes & _CONTROL_FLAG:
        return Refusal(Error.INVALID_RECORD, "clients may not write control records")
    if producer_id >= 0 and base_sequence < 0:
        reason = f"sequence {base_sequence} in a batch of producer {producer_id}"
        return Refusal(Error.INVALID_RECORD, reason)
    log_stamped = attributes & LOG_APPEND_TIME_FLAG
    is_marked = bool(attributes & TRANSACTIONAL_FLAG)
    batch = KafkaBatch(
        batch=RecordBatch(
            record_count=count,
            max_timestamp=max_timestamp,
            size=len(records),
            format=BatchFormat.KAFKA_V2,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            is_transactional=is_marked and producer_id >= 0,
        ),
        payload=records,
        timestamp_type=TimestampType.LOG_APPEND_TIME if log_stamped else TimestampType.CREATE_TIME,
        is_marked_transactional=is_marked,
    )
    if max_timestamp >= base_timestamp:
        return batch
    # Some clients leave it out (Sarama did until 2025); retention and lookups go by it.
    return with_true_max_timestamp(batch)


def with_true_max_timestamp(batch: KafkaBatch) -> KafkaBatch:
    """The batch with the greatest timestamp of its records in its header (LogValidator).

    Where they cannot be read, or that would be too much work, the first record's has to do.
    """
    try:
        stamps = (record.timestamp for record in iterate_records(batch.payload, in_proportion=True))
        greatest = max(stamps)
    except InvalidRecords:
        greatest = int(HEADER.unpack_from(batch.payload)[7])
    return with_max_timestamp(batch, greatest)


def with_max_timestamp(batch: KafkaBatch, greatest: int) -> KafkaBatch:
    """The batch with this in its header."""
    payload = memoryview(_with_max_timestamp(batch.payload, greatest))
    return replace(batch, batch=replace(batch.batch, max_timestamp=greatest), payload=payload)


def with_log_append_time(payload: Buffer, now_ms: int) -> bytes:
    """The batch stamped by the log: flag, max timestamp and a new checksum; records untouched.

    DefaultRecordBatch.setMaxTimestamp with `message.timestamp.type=LogAppendTime`.
    """
    return _with_max_timestamp(payload, now_ms, LOG_APPEND_TIME_FLAG)


def _with_max_timestamp(payload: Buffer, max_timestamp: int, flags: int = 0) -> bytes:
    """The batch with this in its header, and with these attributes besides those it has."""
    header = bytearray(payload[:HEADER_SIZE])
    header[_ATTRIBUTES_AT + 1] |= flags
    struct.pack_into(">q", header, _MAX_TIMESTAMP_AT, max_timestamp)
    return _sealed(header, memoryview(payload)[HEADER_SIZE:])


def codec_of(payload: Buffer) -> Codec:
    """How the records of a valid batch are compressed."""
    return Codec(payload[_ATTRIBUTES_AT + 1] & CODEC_MASK)


def with_records(payload: Buffer, records: Buffer, codec: Codec) -> bytes:
    """The batch with other bytes for the same records. codec: what these are compressed with."""
    header = bytearray(payload[:HEADER_SIZE])
    header[_ATTRIBUTES_AT + 1] = header[_ATTRIBUTES_AT + 1] & ~CODEC_MASK | codec
    struct.pack_into(">i", header, _LENGTH_AT, HEADER_SIZE - _LOG_OVERHEAD + len(records))
    return _sealed(header, records)


def _sealed(header: bytearray, records: Buffer) -> bytes:
    """A batch with its checksum."""
    crc = crc32c(records, crc32c(memoryview(header)[_CRC_START:]))
    struct.pack_into(">I", header, _CRC_START - 4, crc)
    return b"".join((header, records))


def patched(payload: Buffer, base_offset: int, leader_epoch: int) -> tuple[bytes, memoryview]:
    """A stored batch with its offset and leader epoch, which lie outside the checksum.

    Records are not copied: a new first 16 bytes, and a view of the rest.

    Two buffers that may be given in turn as a Fetch response's `records` list.
    """
    length = int.from_bytes(payload[8:12], "big", signed=True)
    return _PREFIX.pack(base_offset, length, leader_epoch), memoryview(payload)[_PREFIX.size :]


def opened(payload: Buffer, most_bytes: int = MAX_DECOMPRESSED) -> Buffer:
    """The bytes of a valid batch's records, decompressed. Raises InvalidRecords, and TooLarge where
    that makes more than `most_bytes` of them."""
    return decompress(memoryview(payload)[HEADER_SIZE:], codec_of(payload), most_bytes)


def iterate_records(
    payload: Buffer, *, in_proportion: bool = False, body: Buffer | None = None
) -> Iterator[BatchRecord]:
    """The records of one valid batch in order. Raises InvalidRecords where they are broken.

    In a batch stamped by the log every record has the batch's max timestamp.
    in_proportion: also where they are far more, or larger, than the batch's own bytes.
    body: as `opened` has given it, where the caller needs that as well.
    """
    view = memoryview(payload)
    header = HEADER.unpack_from(view)
    attributes, base_timestamp, max_timestamp, count = header[5], header[7], header[8], header[12]
    most_records, most_bytes = MAX_RECORDS, MAX_DECOMPRESSED
    if in_proportion:
        most_records = min(most_records, len(view) // _SMALLEST_RECORD)
        most_bytes = min(most_bytes, _MOST_TIMES_LARGER * len(view))
    if count > most_records:
        raise InvalidRecords(f"{count} records in one batch are too many to look into")
    stamped = attributes & LOG_APPEND_TIME_FLAG
    if body is None:
        body = opened(view, most_bytes)
    pos = 0
    try:
        for index in range(count):
            size, pos = read_varint(body, pos)
            end = pos + size
            if size < 0 or end > len(body):
                raise InvalidRecords("a record is cut short")
            delta_ms, at = read_varint(body, pos + 1)  # after the record's attributes
            offset_delta, at = read_varint(body, at)
            key_size, at = read_varint(body, at)
            value_size, at = read_varint(body, at + max(key_size, 0))
            at += max(value_size, 0)
            if at >= end:
                raise InvalidRecords("a record's fields are longer than the record")
            if body[at] or at + 1 != end:  # as a rule there are no headers
                _check_headers(body, at, end)
            timestamp = max_timestamp if stamped else base_timestamp + delta_ms
            if offset_delta != index or not -_TWO_63 <= timestamp < _TWO_63:
                raise InvalidRecords(f"record {index} has offset {offset_delta}, time {timestamp}")
            yield BatchRecord(offset_delta, timestamp, key_size < 0, key_size, value_size)
            pos = end
    except IndexError:
        raise InvalidRecords("the records end early") from None
    if pos != len(body):
        raise InvalidRecords("there are bytes after the last record")


def _check_headers(body: Buffer, at: int, end: int) -> None:
    count, at = read_varint(body, at)
    if not 0 <= count <= end - at:
        raise InvalidRecords(f"{count} headers in {end - at} bytes")
    for _ in range(count):
        size, at = read_varint(body, at)
        if size < 0:
            raise InvalidRecords("a header without a name")
        size, at = read_varint(body, at + size)
        at += max(size, 0)
    if at != end:
        raise InvalidRecords("a record has another size than it says")


def max_timestamp(payload: Buffer) -> int:
    """The greatest timestamp, as the batch's header has it."""
    return int.from_bytes(payload[_MAX_TIMESTAMP_AT : _MAX_TIMESTAMP_AT + 8], "big", signed=True)


def read_varint(body: Buffer, pos: int) -> tuple[int, int]:
    """A signed varint of at most 64 bits, and the position after it (ByteUtils.readVarlong)."""
    value = shift = 0
    while True:
        byte = body[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), pos
        shift += 7
        if shift > 63:
            raise InvalidRecords("a varint longer than ten bytes")
