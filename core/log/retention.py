"""Retention's rules: the class of segments for a topic, and which part of its log has expired."""

from core.config.values import TopicConfig
from core.namespace.values import Retention

MB = 2**20
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

# Topics of one class share a segment, which is dropped once all of its batches are deleted. Classes
# keep one topic's long retention from pinning another's short one; they are few, since a flush
# writes one table per class.
_CLASSES = (
    (HOUR_MS, "hour"),
    (DAY_MS, "day"),
    (7 * DAY_MS, "week"),
    (31 * DAY_MS, "month"),
)
KEPT = "kept"
BY_SIZE = "by_size"
CONTROL = "control"
"""Control batches of all topics: an ended transaction's partitions share one batch's bytes."""


def retention_class(config: TopicConfig) -> str:
    """The class of retention for a topic's payload."""
    if not config.is_deleted:
        return KEPT
    if config.retention_ms >= 0:
        for limit, name in _CLASSES:
            if config.retention_ms <= limit:
                return name
    return BY_SIZE if config.retention_bytes >= 0 else KEPT


# A segment is dropped whole, so it must be a small part of what its class keeps.
_SEAL_AFTER_S = {
    "hour": 300.0,
    "day": 7_200.0,
    "week": 86_400.0,
    "month": 345_600.0,
    CONTROL: 86_400.0,
    KEPT: 604_800.0,
    BY_SIZE: 604_800.0,
}


def seal_after_s(retention_class: str) -> float:
    """The age, in seconds, at which the next segment of a class is opened."""
    return _SEAL_AFTER_S[retention_class]


def oldest_kept_timestamp(config: TopicConfig, now_ms: int) -> int | None:
    """Batches with an earlier timestamp (ms) have expired; None: there is no limit."""
    if not config.is_deleted or config.retention_ms < 0:
        return None
    return now_ms - config.retention_ms


def bytes_to_delete(config: TopicConfig, size_bytes: int) -> int:
    """By how many bytes a partition exceeds `retention.bytes`."""
    if not config.is_deleted or config.retention_bytes < 0:
        return 0
    return max(0, size_bytes - config.retention_bytes)


# --- what everybody has acknowledged ---


def acknowledged_may_go(config: TopicConfig) -> bool:
    """Whether a namespace's retention counts for a topic: it has been told so, and `cleanup.policy`
    deletes anything at all."""
    return config.pulsar_retention and config.is_deleted


def oldest_acknowledged_kept(retention: Retention, now_ms: int) -> int | None:
    """Acknowledged batches with an earlier timestamp (ms) may go; None: there is no limit."""
    if retention.time_minutes < 0:
        return None
    return now_ms - retention.time_minutes * MINUTE_MS


def acknowledged_bytes_kept(retention: Retention) -> int | None:
    """So much of a partition is kept, acknowledged or not; None: there is no limit."""
    return None if retention.size_mb < 0 else retention.size_mb * MB
