"""Settings of groups and of committed offsets in effect: a group's own, else the broker's.

Knows the names of properties; must not know where their text was set.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from core.config.definitions import ASSIGNORS
from core.config.types import MINUTE_MS
from core.config.values import broker_int, broker_list, broker_value, group_int
from core.group.values import GroupSettings


@dataclass(frozen=True, slots=True)
class OffsetSettings:
    """How long committed offsets are kept; times in milliseconds."""

    retention_ms: int
    retention_check_interval_ms: int


def offset_settings(broker: Mapping[str, str]) -> OffsetSettings:
    """The settings for the offsets of all groups.

    broker: values in effect on the broker by name (`BrokerValues.merged`).
    """
    return OffsetSettings(
        retention_ms=broker_int("offsets.retention.minutes", broker) * MINUTE_MS,
        retention_check_interval_ms=broker_int("offsets.retention.check.interval.ms", broker),
    )


def group_settings(overrides: Mapping[str, str], broker: Mapping[str, str]) -> GroupSettings:
    """The settings of a group with these overrides (Kafka's GroupConfigManager).

    broker: values in effect on the broker by name (`BrokerValues.merged`). Raises ConfigError for
    text that should have been refused.
    """
    policy = str(broker_value("group.consumer.migration.policy", broker)).upper()
    assignors = broker_list("group.consumer.assignors", broker)
    session_timeout_ms = _bounded(
        group_int("consumer.session.timeout.ms", overrides, broker),
        low=broker_int("group.consumer.min.session.timeout.ms", broker),
        high=broker_int("group.consumer.max.session.timeout.ms", broker),
    )
    heartbeat_interval_ms = _bounded(
        group_int("consumer.heartbeat.interval.ms", overrides, broker),
        low=broker_int("group.consumer.min.heartbeat.interval.ms", broker),
        high=broker_int("group.consumer.max.heartbeat.interval.ms", broker),
    )
    return GroupSettings(
        min_session_timeout_ms=broker_int("group.min.session.timeout.ms", broker),
        max_session_timeout_ms=broker_int("group.max.session.timeout.ms", broker),
        initial_rebalance_delay_ms=broker_int("group.initial.rebalance.delay.ms", broker),
        max_size=broker_int("group.max.size", broker),
        consumer_session_timeout_ms=session_timeout_ms,
        consumer_heartbeat_interval_ms=heartbeat_interval_ms,
        consumer_max_size=broker_int("group.consumer.max.size", broker),
        consumer_assignors=tuple(dict.fromkeys(ASSIGNORS[each] for each in assignors)),
        upgrade_allowed=policy in {"UPGRADE", "BIDIRECTIONAL"},
        downgrade_allowed=policy in {"DOWNGRADE", "BIDIRECTIONAL"},
    )


def _bounded(value: int, *, low: int, high: int) -> int:
    """Keeps a group's value within the broker's bounds, which may have changed since it was set."""
    return max(low, min(value, high))
