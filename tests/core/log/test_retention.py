"""What retention asks for, from a topic's settings."""

import pytest

from core.config.values import TopicConfig, topic_config
from core.log.retention import (
    bytes_to_delete,
    oldest_kept_timestamp,
    retention_class,
)

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
