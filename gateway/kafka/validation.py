"""What a topic makes of a batch that is to enter it: its rules, its codec, and its own stamp.

Shared by what appends (Produce) and what stages (StageRecords). Knows no request and no answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from core.config.values import TopicConfig
from core.errors import Error, Refusal
from core.log.validation import (
    must_see_every_timestamp,
    refuse_batch,
    refuse_size,
    refuse_timestamp,
)
from core.types import NO_TIMESTAMP, Payload, RecordBatch, TimestampType
from gateway.kafka.compression import Buffer, Codec, InvalidRecords, TooLarge
from gateway.kafka.recompression import codec_to_change_to, recompressed
from gateway.kafka.records import (
    MAX_DECOMPRESSED,
    KafkaBatch,
    codec_of,
    iterate_records,
    opened,
    with_max_timestamp,
)
from gateway.kafka.records import with_log_append_time as stamped

_REJECTED = "One or more records have been rejected"
MOST_NAMED = 1_000
"""How many of a batch's records are told to be the reason; Kafka tells of all."""

# What may be compressed anew while the event loop stands still: 1 ms, or 2 with gzip.
_AT_ONCE_BYTES: Final = 32 * 1024  # of the records, decompressed
_BYTES_OF_A_RECORD: Final = 64  # it takes as long to look at one as to compress so many


@dataclass(frozen=True, slots=True)
class Accepted:
    """The batch as it goes to the log. append_time: the log's stamp (ms), -1 where it has none."""

    batch: RecordBatch
    payload: Payload
    append_time: int = NO_TIMESTAMP


@dataclass(frozen=True, slots=True)
class Rejected:
    """Why not. record_errors: single records by their number, where they are why."""

    refusal: Refusal
    record_errors: Sequence[tuple[int, str]] = ()


def accept_at_once(
    kafka_batch: KafkaBatch, config: TopicConfig, now: int, may: Callable[[int], bool]
) -> Accepted | Rejected | None:
    """`accept`, or None where the event loop should not stop for so much work. may: whether it may
    for so many bytes."""
    payload = kafka_batch.payload
    if config.compression_type is None or codec_to_change_to(payload, config) is None:
        return accept(kafka_batch, config, now)
    is_plain = codec_of(payload) is Codec.NONE
    size = len(payload) if is_plain else max(len(payload), _AT_ONCE_BYTES)
    size = max(size, kafka_batch.batch.record_count * _BYTES_OF_A_RECORD)
    if size > _AT_ONCE_BYTES or not may(size):
        return None
    try:
        return accept(kafka_batch, config, now, _AT_ONCE_BYTES)
    except TooLarge:
        return None


def accept(
    kafka_batch: KafkaBatch, config: TopicConfig, now: int, most_bytes: int = MAX_DECOMPRESSED
) -> Accepted | Rejected:
    """Applies the topic's rules and codec, and stamps the batch where the log does so.

    now: ms. most_bytes: what its records may decompress to where they have to change their codec;
    raises TooLarge where that is more, and less than MAX_DECOMPRESSED.
    """
    log_stamps = config.message_timestamp_type is TimestampType.LOG_APPEND_TIME
    if log_stamps and kafka_batch.timestamp_type is TimestampType.LOG_APPEND_TIME:
        reason = "Producer should not set timestamp type to LogAppendTime."
        return Rejected(Refusal(Error.INVALID_TIMESTAMP, reason))
    refusal = refuse_batch(kafka_batch.batch, config, now)
    doubted = refusal if refusal and refusal.error is Error.INVALID_TIMESTAMP else None
    if refusal is not None and doubted is None:
        return Rejected(refusal)
    codec = codec_to_change_to(kafka_batch.payload, config)
    body = None
    if codec is not None:
        try:
            body = opened(kafka_batch.payload, most_bytes)
        except InvalidRecords as broken:
            if isinstance(broken, TooLarge) and most_bytes < MAX_DECOMPRESSED:
                raise
            return Rejected(doubted or Refusal(Error.INVALID_RECORD, str(broken)))
    greatest = _look_inside(kafka_batch, config, now, doubted, body)
    if (
        not isinstance(greatest, Rejected)
        and greatest > kafka_batch.batch.max_timestamp
        and (doubted := refuse_timestamp(greatest, config, now))
    ):  # the header has not told of it
        greatest = _look_inside(kafka_batch, config, now, doubted, body)
    if isinstance(greatest, Rejected):
        return greatest
    if greatest != kafka_batch.batch.max_timestamp:  # the header's is none of the records'
        kafka_batch = with_max_timestamp(kafka_batch, greatest)
    batch, payload = kafka_batch.batch, kafka_batch.payload
    if codec is not None and body is not None:
        payload = memoryview(recompressed(payload, body, codec, config))
        batch = replace(batch, size=len(payload))
        if refusal := refuse_size(batch.size, config):  # again, as Kafka does
            return Rejected(refusal)
    if log_stamps:
        return Accepted(replace(batch, max_timestamp=now), stamped(payload, now), now)
    return Accepted(batch, payload)


def _look_inside(
    kafka_batch: KafkaBatch,
    config: TopicConfig,
    now: int,
    doubted: Refusal | None,
    body: Buffer | None,
) -> Rejected | int:
    """The greatest timestamp. Single records are only looked at where the topic has a rule about
    them, to say which of them are the reason, or where they are compressed anew (body: they).
    doubted: what is to be said of the timestamps by the header alone."""
    sees_timestamps = doubted is not None or must_see_every_timestamp(config)
    greatest = kafka_batch.batch.max_timestamp
    if not (sees_timestamps or config.is_compacted or body is not None):
        return greatest
    error = Error.INVALID_RECORD
    errors: list[tuple[int, str]] = []
    try:
        in_proportion = doubted is not None and body is None
        records = iterate_records(kafka_batch.payload, in_proportion=in_proportion, body=body)
        for index, record in enumerate(records):
            greatest = record.timestamp if index == 0 else max(greatest, record.timestamp)
            if len(errors) == MOST_NAMED:
                break
            if config.is_compacted and record.key_is_null:
                errors.append((index, "Compacted topic cannot accept message without key."))
            elif sees_timestamps and (refusal := refuse_timestamp(record.timestamp, config, now)):
                error = refusal.error
                errors.append((index, refusal.message or ""))
    except InvalidRecords as broken:
        return Rejected(doubted or Refusal(Error.INVALID_RECORD, str(broken)), errors)
    return Rejected(Refusal(error, _REJECTED), errors) if errors else greatest
