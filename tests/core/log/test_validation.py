"""A topic's rules for a batch (Kafka's LogValidator)."""

import pytest

from core.config.values import TopicConfig, topic_config
from core.errors import Error
from core.log.validation import must_see_every_timestamp, refuse_batch, refuse_timestamp
from tests.batches import batch

NOW = 1_700_000_000_000


def config(**overrides: str) -> TopicConfig:
    return topic_config({name.replace("_", "."): value for name, value in overrides.items()}, {})


@pytest.mark.parametrize(("size", "error"), [(1000, None), (1001, Error.MESSAGE_TOO_LARGE)])
def test_size_limit_is_inclusive(size: int, error: Error | None) -> None:
    refusal = refuse_batch(batch(size=size, timestamp=NOW), config(max_message_bytes="1000"), NOW)
    assert (refusal.error if refusal else None) is error


def test_refusals_name_the_value_and_the_limits() -> None:
    limits = config(
        max_message_bytes="1000",
        message_timestamp_before_max_ms="1000",
        message_timestamp_after_max_ms="500",
    )
    large = refuse_batch(batch(size=1001, timestamp=NOW), limits, NOW)
    assert large is not None
    assert "is 1001 bytes" in large.message
    assert "configured value of 1000." in large.message
    late = refuse_timestamp(NOW + 501, limits, NOW)
    assert late is not None
    assert f"Timestamp {NOW + 501} is" in late.message
    assert f"[{NOW - 1000}, {NOW + 500}]" in late.message


@pytest.mark.parametrize(
    ("timestamp", "is_refused"),
    [(NOW - 1000, False), (NOW - 1001, True), (NOW + 500, False), (NOW + 501, True), (-1, False)],
)
def test_timestamp_limits_are_inclusive(timestamp: int, is_refused: bool) -> None:
    limits = config(message_timestamp_before_max_ms="1000", message_timestamp_after_max_ms="500")
    refusal = refuse_batch(batch(timestamp=timestamp), limits, NOW)
    assert bool(refusal) is is_refused
    assert bool(refuse_timestamp(timestamp, limits, NOW)) is is_refused
    if refusal:
        assert refusal.error is Error.INVALID_TIMESTAMP


def test_where_the_log_stamps_nothing_is_refused_for_its_time() -> None:
    limits = config(message_timestamp_type="LogAppendTime", message_timestamp_after_max_ms="0")
    assert refuse_batch(batch(timestamp=NOW + 10**9), limits, NOW) is None


def test_by_default_the_future_ends_in_an_hour_and_the_past_never_began() -> None:
    assert refuse_timestamp(NOW + 3_600_000, config(), NOW) is None
    assert refuse_timestamp(NOW + 3_600_001, config(), NOW) is not None
    assert refuse_timestamp(0, config(), NOW) is None


def test_single_records_are_looked_at_only_where_a_lower_limit_is_set() -> None:
    assert not must_see_every_timestamp(config())
    assert must_see_every_timestamp(config(message_timestamp_before_max_ms="5"))
    assert not must_see_every_timestamp(config(message_timestamp_after_max_ms="5"))
    assert not must_see_every_timestamp(
        config(message_timestamp_before_max_ms="5", message_timestamp_type="LogAppendTime")
    )
