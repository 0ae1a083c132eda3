"""A topic's rules for what enters its log (Kafka's LogValidator, as far as a header tells)."""

from core.config.values import TopicConfig
from core.errors import Error, Refusal
from core.types import NO_TIMESTAMP, RecordBatch, TimestampType

NO_LIMIT_MS = 2**63 - 1


def refuse_batch(batch: RecordBatch, config: TopicConfig, now_ms: int) -> Refusal | None:
    """Why the topic refuses this batch, judged by its size and greatest timestamp; or None."""
    return refuse_size(batch.size, config) or refuse_timestamp(batch.max_timestamp, config, now_ms)


def refuse_size(size: int, config: TopicConfig) -> Refusal | None:
    """Why the topic refuses a batch of this size in bytes, or None."""
    if size <= config.max_message_bytes:
        return None
    return Refusal(
        Error.MESSAGE_TOO_LARGE,
        f"The record batch size in the append is {size} bytes, which exceeds the maximum"
        f" configured value of {config.max_message_bytes}.",
    )


def refuse_timestamp(timestamp: int, config: TopicConfig, now_ms: int) -> Refusal | None:
    """Why the topic refuses a record with this timestamp (ms), or None.

    Nothing is refused if the log itself sets timestamps.
    """
    if config.message_timestamp_type is TimestampType.LOG_APPEND_TIME or timestamp == NO_TIMESTAMP:
        return None
    earliest = now_ms - config.message_timestamp_before_max_ms
    latest = now_ms + config.message_timestamp_after_max_ms
    if earliest <= timestamp <= latest:
        return None
    return Refusal(
        Error.INVALID_TIMESTAMP,
        f"Timestamp {timestamp} is out of range. The timestamp should be within"
        f" [{earliest}, {latest}]",
    )


def must_see_every_timestamp(config: TopicConfig) -> bool:
    """Whether a limit applies that needs more than the greatest timestamp."""
    return (
        config.message_timestamp_type is TimestampType.CREATE_TIME
        and config.message_timestamp_before_max_ms < NO_LIMIT_MS
    )
