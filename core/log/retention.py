"""What retention asks for: a topic's class of segments, and what of its log has had its time."""

from core.config.values import TopicConfig
from core.ports.retention import OpenSegment

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

EMPTY_SEGMENT_BYTES = 32 * 1024
"""A chunk table with its index has some pages before it has a row."""


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


# A segment goes as a whole, so it must be a small part of what its class keeps.
_SEAL_AFTER_S = {
    "hour": 300.0,
    "day": 7_200.0,
    "week": 86_400.0,
    "month": 345_600.0,
    CONTROL: 86_400.0,
}
_SEAL_AFTER_DEFAULT_S = 604_800.0


def should_seal(segment: OpenSegment, segment_bytes: int) -> bool:
    """Whether the next segment of its class should be opened.

    An empty one is never sealed; one whose batches have all had their time is, at once, so that
    its table can be dropped.
    """
    if segment.size_bytes <= EMPTY_SEGMENT_BYTES:
        return False
    return (
        not segment.is_used
        or segment.size_bytes >= segment_bytes
        or segment.age_s >= _SEAL_AFTER_S.get(segment.retention_class, _SEAL_AFTER_DEFAULT_S)
    )
