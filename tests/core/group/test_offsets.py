"""When committed offsets may go (KIP-211)."""

import pytest

from core.group.offsets import (
    BY_COMMIT_TIMESTAMP,
    OffsetExpiration,
    empty_group_expiration,
    expire_timestamp,
    expired_offsets,
)
from core.group.records import CommittedOffset, GroupRow

RETENTION_MS = 1_000


def committed(partition_id: int, at: int, expire: int = -1) -> CommittedOffset:
    return CommittedOffset(partition_id, 5, -1, "", at, expire)


@pytest.mark.parametrize(
    ("expiration", "offset", "expires_at"),
    [
        (BY_COMMIT_TIMESTAMP, committed(1, at=50), 1_050),
        (OffsetExpiration(since_ms=700), committed(1, at=50), 1_700),
        # An operator resets the offsets of a group that has long been empty.
        (OffsetExpiration(since_ms=10), committed(1, at=50), 1_050),
        (BY_COMMIT_TIMESTAMP, committed(1, at=50, expire=60), 60),
        (OffsetExpiration(since_ms=700), committed(1, at=50, expire=9_000), 9_000),
    ],
)
def test_an_offset_expires(
    expiration: OffsetExpiration, offset: CommittedOffset, expires_at: int
) -> None:
    assert not expiration.is_expired(offset, expires_at - 1, RETENTION_MS)
    assert expiration.is_expired(offset, expires_at, RETENTION_MS)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (GroupRow("g", "classic", "consumer", state_timestamp=70), OffsetExpiration(70)),
        (GroupRow("g", "classic", "connect", state_timestamp=70), OffsetExpiration(70)),
        (GroupRow("g", "classic", "consumer", state_timestamp=-1), BY_COMMIT_TIMESTAMP),
        (GroupRow("g", "classic", "", state_timestamp=70), BY_COMMIT_TIMESTAMP),
        (GroupRow("g", "consumer", "consumer", state_timestamp=70), BY_COMMIT_TIMESTAMP),
    ],
)
def test_how_a_stored_empty_groups_offsets_expire(
    row: GroupRow, expected: OffsetExpiration
) -> None:
    expiration = empty_group_expiration(row.protocol, row.protocol_type, row.state_timestamp)
    assert expiration == expected


def test_offsets_of_topics_that_are_read_stay() -> None:
    old, young, read = committed(1, at=0), committed(2, at=9_500), committed(3, at=0)
    gone = committed(4, at=9_999)
    offsets = [("orders", old), ("orders", young), ("bills", read), (None, gone)]
    assert expired_offsets(
        offsets, BY_COMMIT_TIMESTAMP, lambda topic: topic == "bills", 10_000, RETENTION_MS
    ) == (old, gone)


def test_while_a_group_rebalances_only_offsets_of_deleted_topics_go() -> None:
    offsets = [("orders", committed(1, at=0)), (None, committed(4, at=9_999))]
    expired = expired_offsets(offsets, None, lambda topic: False, 10_000, RETENTION_MS)
    assert [offset.partition_id for offset in expired] == [4]


def test_a_commit_may_say_how_long_it_lasts() -> None:
    assert expire_timestamp(-1, 500) == -1
    assert expire_timestamp(0, 500) == 500
    assert expire_timestamp(86_400_000, 500) == 86_400_500
