"""When committed offsets and groups may be deleted (KIP-211): rules only.

Kafka's OffsetExpirationConditionImpl and OffsetMetadataManager.cleanupExpiredOffsets. Knows neither
what is stored nor how often it is checked.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from core.group.records import CommittedOffset

NO_RETENTION_TIME = -1


@dataclass(frozen=True, slots=True)
class OffsetExpiration:
    """Since when a group's offsets count as unused.

    since_ms: when the group became empty; None: each offset's own commit counts. A later commit
    counts as well: Kafka deletes one to a group that has long been empty minutes later.
    """

    since_ms: int | None = None

    def is_expired(self, offset: CommittedOffset, now_ms: int, retention_ms: int) -> bool:
        """Whether it has outlived its own retention, if the commit gave one, else the broker's."""
        if offset.expire_timestamp >= 0:
            return now_ms >= offset.expire_timestamp
        since_ms = offset.commit_timestamp
        if self.since_ms is not None:
            since_ms = max(since_ms, self.since_ms)
        return now_ms - since_ms >= retention_ms


BY_COMMIT_TIMESTAMP: Final = OffsetExpiration()


def empty_group_expiration(
    protocol: str, protocol_type: str, state_timestamp: int
) -> OffsetExpiration:
    """How offsets of a group without members expire.

    In a classic group that had members: since it became empty, if that is known. In a consumer
    group, or one that only ever had offsets: since each offset's own commit.
    """
    if protocol == "classic" and protocol_type and state_timestamp >= 0:
        return OffsetExpiration(state_timestamp)
    return BY_COMMIT_TIMESTAMP


def expired_offsets(
    offsets: Iterable[tuple[str | None, CommittedOffset]],
    expiration: OffsetExpiration | None,
    is_subscribed_to: Callable[[str], bool],
    now_ms: int,
    retention_ms: int,
) -> tuple[CommittedOffset, ...]:
    """Which of these offsets of one group may be deleted now; each comes with its topic's name.

    A name of None: the topic is deleted, so its offsets are too. An expiration of None: in the
    group's state no others may be. Offsets of topics that members subscribe to stay, however old:
    perhaps nothing was written for a year.
    """

    def may_go(topic: str | None, offset: CommittedOffset) -> bool:
        if topic is None:
            return True
        return (
            expiration is not None
            and expiration.is_expired(offset, now_ms, retention_ms)
            and not is_subscribed_to(topic)
        )

    return tuple([offset for topic, offset in offsets if may_go(topic, offset)])


def expire_timestamp(retention_time_ms: int, now_ms: int) -> int:
    """When an offset expires if its commit gave a retention time (OffsetCommit 2 to 4), else -1."""
    return -1 if retention_time_ms == NO_RETENTION_TIME else now_ms + retention_time_ms
