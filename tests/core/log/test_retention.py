"""What retention asks for, from a topic's settings."""

import pytest

from core.config.values import TopicConfig, topic_config
from core.log.retention import (
    CONTROL,
    EMPTY_SEGMENT_BYTES,
    bytes_to_delete,
    oldest_kept_timestamp,
    retention_class,
    should_seal,
)
from core.ports.retention import OpenSegment

HOUR = 3_600_000


def config(**overrides: str) -> TopicConfig:
    return topic_config({name.replace("_", "."): value for name, value in overrides.items()}, {})


@pytest.mark.parametrize(
    ("retention_ms", "expected"),
    [
        (0, "hour"),
        (HOUR, "hour"),
        (HOUR + 1, "day"),
        (24 * HOUR, "day"),
        (7 * 24 * HOUR, "week"),
        (7 * 24 * HOUR + 1, "month"),
        (31 * 24 * HOUR + 1, "kept"),
        (-1, "kept"),
    ],
)
def test_class_by_time(retention_ms: int, expected: str) -> None:
    assert retention_class(config(retention_ms=str(retention_ms))) == expected


def test_class_without_time() -> None:
    assert retention_class(config(retention_ms="-1", retention_bytes="1000")) == "by_size"
    assert retention_class(config(retention_ms="-1", retention_bytes="0")) == "by_size"
    assert retention_class(config(cleanup_policy="compact", retention_ms="5")) == "kept"
    assert retention_class(config(cleanup_policy="compact,delete", retention_ms="5")) == "hour"


def test_oldest_kept_timestamp() -> None:
    assert oldest_kept_timestamp(config(retention_ms="1000"), 5000) == 4000
    assert oldest_kept_timestamp(config(retention_ms="0"), 5000) == 5000
    assert oldest_kept_timestamp(config(retention_ms="-1"), 5000) is None
    assert oldest_kept_timestamp(config(cleanup_policy="compact", retention_ms="1"), 5000) is None


def test_bytes_to_delete() -> None:
    assert bytes_to_delete(config(retention_bytes="100"), 250) == 150
    assert bytes_to_delete(config(retention_bytes="100"), 100) == 0
    assert bytes_to_delete(config(retention_bytes="0"), 7) == 7
    assert bytes_to_delete(config(retention_bytes="-1"), 10**12) == 0
    assert bytes_to_delete(config(cleanup_policy="compact", retention_bytes="1"), 10**6) == 0


def segment(
    name: str = "hour", size: int = 10**6, age_s: float = 1, used: bool = True
) -> OpenSegment:
    return OpenSegment(1, name, size, age_s, used)


def test_an_empty_segment_is_never_sealed() -> None:
    empty = segment(size=EMPTY_SEGMENT_BYTES, age_s=10**9, used=False)
    assert not should_seal(empty, 1)


def test_segments_are_sealed_by_size_by_age_and_when_nothing_is_left_in_them() -> None:
    assert not should_seal(segment(), 10**7)
    assert should_seal(segment(size=10**7), 10**7)
    assert should_seal(segment(used=False), 10**7)
    assert should_seal(segment("hour", age_s=301), 10**7)
    assert not should_seal(segment("day", age_s=301), 10**7)
    assert should_seal(segment("kept", age_s=605_000), 10**7)


def test_segments_of_markers_last_a_day() -> None:
    assert not should_seal(segment(CONTROL, age_s=86_399), 10**7)
    assert should_seal(segment(CONTROL, age_s=86_400), 10**7)
