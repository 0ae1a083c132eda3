"""Record batches of what waited in the inbox: plain ones, without a producer.

A quick way of `conversion.write_batch` for records without more than a key, a value and headers.
Sources: DefaultRecordBatch, DefaultRecord.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from crc32c import crc32c

from core.config.values import TopicConfig
from core.inbox.values import WaitingRecord
from core.types import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    BatchFormat,
    RecordBatch,
    TimestampType,
)
from gateway.kafka.recompression import in_codec_of_topic
from gateway.kafka.records import HEADER, HEADER_SIZE, LOG_APPEND_TIME_FLAG

_LOG_OVERHEAD: Final = 12
_CHECKED_FROM: Final = 21
_NO_LEADER_EPOCH: Final = -1
_MAGIC: Final = 2


def _varint(number: int) -> bytes:
    """A signed number of at most 64 bits (ByteUtils.writeVarlong)."""
    number = (number << 1) ^ (number >> 63)
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


_SMALL: Final = [_varint(n) for n in range(16_384)]
_NULL: Final = _varint(-1)
_NO_HEADERS: Final = b"\0"


def _size(number: int) -> bytes:
    return _SMALL[number] if number < 16_384 else _varint(number)


def _headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    pieces = [_size(len(headers))]
    for name, value in headers:
        encoded = name.encode()
        pieces += (_size(len(encoded)), encoded)
        pieces += (_NULL,) if value is None else (_size(len(value)), value)
    return b"".join(pieces)


def inbox_batch(
    records: Sequence[WaitingRecord], config: TopicConfig, now_ms: int
) -> tuple[RecordBatch, bytes]:
    """A batch of one partition's records, in order, and its bytes. now_ms: the log's stamp."""
    base = records[0].timestamp_ms
    newest = base
    pieces: list[bytes] = []
    for delta, each in enumerate(records):
        key, value, timestamp_ms = each.key, each.value, each.timestamp_ms
        if timestamp_ms > newest:
            newest = timestamp_ms
        time_delta = timestamp_ms - base
        body = b"".join(
            (
                b"\0",  # attributes
                _SMALL[time_delta] if 0 <= time_delta < 16_384 else _varint(time_delta),
                _size(delta),
                *((_NULL,) if key is None else (_size(len(key)), key)),
                *((_NULL,) if value is None else (_size(len(value)), value)),
                _headers(each.headers) if each.header_names else _NO_HEADERS,
            )
        )
        pieces += (_size(len(body)), body)
    content = b"".join(pieces)
    is_stamped = config.message_timestamp_type is TimestampType.LOG_APPEND_TIME
    if is_stamped:
        newest = now_ms
    header = bytearray(HEADER_SIZE)
    HEADER.pack_into(
        header,
        0,
        0,
        HEADER_SIZE - _LOG_OVERHEAD + len(content),
        _NO_LEADER_EPOCH,
        _MAGIC,
        0,
        LOG_APPEND_TIME_FLAG if is_stamped else 0,
        len(records) - 1,
        base,
        newest,
        NO_PRODUCER_ID,
        NO_PRODUCER_EPOCH,
        NO_SEQUENCE,
        len(records),
    )
    checksum = crc32c(content, crc32c(memoryview(header)[_CHECKED_FROM:]))
    struct.pack_into(">I", header, _CHECKED_FROM - 4, checksum)
    payload = bytes(in_codec_of_topic(b"".join((header, content)), config))
    return RecordBatch(len(records), newest, len(payload), BatchFormat.KAFKA_V2), payload
