"""What a topic makes of a batch that is to enter it: its rules, and its own stamp.

Shared by what appends (Produce) and what stages (StageRecords). Knows no request and no answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from core.config.values import TopicConfig
from core.errors import Error, Refusal
from core.log.validation import must_see_every_timestamp, refuse_batch, refuse_timestamp
from core.types import NO_TIMESTAMP, Payload, RecordBatch, TimestampType
from gateway.kafka.records import (
    InvalidRecords,
    KafkaBatch,
    iterate_records,
    with_true_max_timestamp,
)
from gateway.kafka.records import with_log_append_time as stamped

_REJECTED = "One or more records have been rejected"
MOST_NAMED = 1_000
"""How many of a batch's records are told to be the reason; Kafka tells of all."""


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


def accept(kafka_batch: KafkaBatch, config: TopicConfig, now: int) -> Accepted | Rejected:
    """Applies the topic's rules, and stamps the batch where the log does so. now: ms."""
    log_stamps = config.message_timestamp_type is TimestampType.LOG_APPEND_TIME
    if log_stamps and kafka_batch.timestamp_type is TimestampType.LOG_APPEND_TIME:
        reason = "Producer should not set timestamp type to LogAppendTime."
        return Rejected(Refusal(Error.INVALID_TIMESTAMP, reason))
    refusal = refuse_batch(kafka_batch.batch, config, now)
    doubted = refusal if refusal and refusal.error is Error.INVALID_TIMESTAMP else None
    if refusal is not None and doubted is None:
        return Rejected(refusal)
    if rejected := _look_inside(kafka_batch, config, now, doubted):
        return rejected
    if doubted is not None:  # the header's greatest timestamp is none of the records'
        kafka_batch = with_true_max_timestamp(kafka_batch)
    if log_stamps:
        batch = replace(kafka_batch.batch, max_timestamp=now)
        return Accepted(batch, stamped(kafka_batch.payload, now), now)
    return Accepted(kafka_batch.batch, kafka_batch.payload)


def _look_inside(
    kafka_batch: KafkaBatch, config: TopicConfig, now: int, doubted: Refusal | None
) -> Rejected | None:
    """Single records are only looked at where the topic has a rule about them, or to say which of
    them are the reason. doubted: what is to be said of the timestamps by the header alone."""
    sees_timestamps = doubted is not None or must_see_every_timestamp(config)
    if not (sees_timestamps or config.is_compacted):
        return None
    error = Error.INVALID_RECORD
    errors: list[tuple[int, str]] = []
    try:
        records = iterate_records(kafka_batch.payload, in_proportion=doubted is not None)
        for index, record in enumerate(records):
            if len(errors) == MOST_NAMED:
                break
            if config.is_compacted and record.key_is_null:
                errors.append((index, "Compacted topic cannot accept message without key."))
            elif sees_timestamps and (refusal := refuse_timestamp(record.timestamp, config, now)):
                error = refusal.error
                errors.append((index, refusal.message or ""))
    except InvalidRecords as broken:
        return Rejected(doubted or Refusal(Error.INVALID_RECORD, str(broken)), errors)
    return Rejected(Refusal(error, _REJECTED), errors) if errors else None
