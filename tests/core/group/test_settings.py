"""A group's settings: its own within the broker's bounds, else the broker's, else Kafka's."""

import pytest

from core.group.settings import OffsetSettings, group_settings, offset_settings
from core.group.values import GroupSettings


def test_defaults_are_kafkas() -> None:
    assert group_settings({}, {}) == GroupSettings()
    assert offset_settings({}) == OffsetSettings(
        retention_ms=7 * 24 * 3_600_000,
        retention_check_interval_ms=600_000,
    )


def test_the_brokers_values_are_read() -> None:
    broker = {
        "group.min.session.timeout.ms": "1",
        "group.max.session.timeout.ms": "2",
        "group.initial.rebalance.delay.ms": "3",
        "group.max.size": "4",
        "group.consumer.session.timeout.ms": "50000",
        "group.consumer.heartbeat.interval.ms": "6000",
        "group.consumer.max.size": "7",
        "group.consumer.assignors": "range,uniform",
        "group.consumer.migration.policy": "disabled",
        "offsets.retention.minutes": "8",
        "offsets.retention.check.interval.ms": "9",
    }
    assert group_settings({}, broker) == GroupSettings(
        min_session_timeout_ms=1,
        max_session_timeout_ms=2,
        initial_rebalance_delay_ms=3,
        max_size=4,
        consumer_session_timeout_ms=50_000,
        consumer_heartbeat_interval_ms=6_000,
        consumer_max_size=7,
        consumer_assignors=("range", "uniform"),
        upgrade_allowed=False,
        downgrade_allowed=False,
    )
    assert offset_settings(broker) == OffsetSettings(480_000, 9)


def test_a_groups_own_values_win() -> None:
    own = {"consumer.session.timeout.ms": "50000", "consumer.heartbeat.interval.ms": "6000"}
    settings = group_settings(own, {"group.consumer.session.timeout.ms": "55000"})
    assert settings.consumer_session_timeout_ms == 50_000
    assert settings.consumer_heartbeat_interval_ms == 6_000


@pytest.mark.parametrize(
    ("bound", "value", "effective"),
    [("max", "48000", 48_000), ("min", "55000", 55_000), ("max", "55000", 50_000)],
)
def test_bounds_that_changed_later_count(bound: str, value: str, effective: int) -> None:
    broker = {f"group.consumer.{bound}.session.timeout.ms": value}
    settings = group_settings({"consumer.session.timeout.ms": "50000"}, broker)
    assert settings.consumer_session_timeout_ms == effective


@pytest.mark.parametrize(
    ("policy", "upgrade", "downgrade"),
    [
        ("bidirectional", True, True),
        ("UPGRADE", True, False),
        ("Downgrade", False, True),
        ("disabled", False, False),
    ],
)
def test_the_migration_policy_is_read_in_any_case(
    policy: str, upgrade: bool, downgrade: bool
) -> None:
    settings = group_settings({}, {"group.consumer.migration.policy": policy})
    assert (settings.upgrade_allowed, settings.downgrade_allowed) == (upgrade, downgrade)


def test_assignors_may_be_named_by_their_java_classes() -> None:
    package = "org.apache.kafka.coordinator.group.assignor"
    names = f"{package}.RangeAssignor, uniform, {package}.UniformAssignor"
    settings = group_settings({}, {"group.consumer.assignors": names})
    assert settings.consumer_assignors == ("range", "uniform")
