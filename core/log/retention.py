"""What retention asks for: a topic's class of segments, and what of its log has had its time."""

from core.config.values import TopicConfig

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS

# Topics of one class share a segment, which goes when the last of them lets go of it: classes keep
# one topic's long retention from pinning another's short one, and are few, since a flush writes
# one table per class.
_CLASSES = (
    (HOUR_MS, "hour"),
    (DAY_MS, "day"),
    (7 * DAY_MS, "week"),
    (31 * DAY_MS, "month"),
)
KEPT = "kept"
BY_SIZE = "by_size"
CONTROL = "control"
"""Control batches of all topics: some bytes serve every partition of a transaction that ends."""


def retention_class(config: TopicConfig) -> str:
    """The class of like retention a topic's payload is kept with."""
    if not config.is_deleted:
        return KEPT
    if config.retention_ms >= 0:
        for limit, name in _CLASSES:
            if config.retention_ms <= limit:
                return name
    return BY_SIZE if config.retention_bytes >= 0 else KEPT


def oldest_kept_timestamp(config: TopicConfig, now_ms: int) -> int | None:
    """Batches stamped (ms) earlier than this have had their time; None: there is no limit."""
    if not config.is_deleted or config.retention_ms < 0:
        return None
    return now_ms - config.retention_ms


def bytes_to_delete(config: TopicConfig, size_bytes: int) -> int:
    """How much of a partition exceeds `retention.bytes`."""
    if not config.is_deleted or config.retention_bytes < 0:
        return 0
    return max(0, size_bytes - config.retention_bytes)
