"""core.config.values: what is in effect, and where each value comes from."""

import pytest

from core.config.values import (
    BrokerValues,
    ConfigSource,
    ConfigSynonym,
    broker_bool,
    broker_int,
    broker_value,
    describe_dynamic_default,
    describe_topic_config,
    describe_unknown,
    topic_config,
    topic_value,
)
from core.types import TimestampType


@pytest.mark.parametrize(
    ("broker", "retention_ms"),
    [
        ({}, 604_800_000),
        ({"log.retention.hours": "24"}, 86_400_000),
        ({"log.retention.hours": "24", "log.retention.minutes": "2"}, 120_000),
        ({"log.retention.minutes": "2", "log.retention.ms": "3"}, 3),
        ({"log.retention.hours": "-1"}, -1),
        ({"log.retention.ms": "-1"}, -1),
    ],
)
def test_retention_comes_from_the_strongest_name(broker: dict[str, str], retention_ms: int) -> None:
    assert topic_config({}, broker).retention_ms == retention_ms
    assert topic_config({"retention.ms": "5"}, broker).retention_ms == 5


def test_other_units_of_other_properties() -> None:
    assert topic_config({}, {"log.roll.hours": "1"}).segment_ms == 3_600_000
    assert topic_value("segment.jitter.ms", {}, {"log.roll.jitter.hours": "2"}) == 7_200_000
    assert topic_value("flush.ms", {}, {"log.flush.scheduler.interval.ms": "9"}) == 9


def test_what_the_log_reads_is_typed() -> None:
    config = topic_config(
        {"cleanup.policy": "compact,delete", "message.timestamp.type": "LogAppendTime"},
        {"message.max.bytes": "10"},
    )
    assert config.is_compacted
    assert config.is_deleted
    assert config.max_message_bytes == 10
    assert config.message_timestamp_type is TimestampType.LOG_APPEND_TIME
    default = topic_config({}, {})
    assert default.cleanup_policy == frozenset({"delete"})
    assert not default.is_compacted
    assert default.max_message_bytes == 1_048_588
    assert default.message_timestamp_type is TimestampType.CREATE_TIME
    assert default.message_timestamp_after_max_ms == 3_600_000
    assert default.message_timestamp_before_max_ms == 2**63 - 1
    assert (default.retention_bytes, default.segment_bytes) == (-1, 2**30)


def test_synonyms_come_strongest_first() -> None:
    name = "message.max.bytes"
    broker = BrokerValues(static={name: "3"}, dynamic_default={name: "2"}, dynamic={name: "1"})
    entry = describe_topic_config("max.message.bytes", {"max.message.bytes": "0"}, broker)
    assert (entry.value, entry.source) == ("0", ConfigSource.DYNAMIC_TOPIC_CONFIG)
    assert entry.synonyms == (
        ConfigSynonym("max.message.bytes", "0", ConfigSource.DYNAMIC_TOPIC_CONFIG),
        ConfigSynonym(name, "1", ConfigSource.DYNAMIC_BROKER_CONFIG),
        ConfigSynonym(name, "2", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        ConfigSynonym(name, "3", ConfigSource.STATIC_BROKER_CONFIG),
        ConfigSynonym(name, "1048588", ConfigSource.DEFAULT_CONFIG),
    )
    inherited = describe_topic_config("max.message.bytes", {}, broker)
    assert (inherited.value, inherited.source) == ("1", ConfigSource.DYNAMIC_BROKER_CONFIG)


def test_a_value_by_another_unit_has_no_synonyms_as_in_kafka() -> None:
    broker = BrokerValues({"log.retention.hours": "1"}, {}, {})
    entry = describe_topic_config("retention.ms", {}, broker)
    assert entry.value == "3600000"
    assert (entry.source, entry.synonyms) == (ConfigSource.DEFAULT_CONFIG, ())
    both = BrokerValues({"log.retention.hours": "1", "log.retention.ms": "7"}, {}, {})
    entry = describe_topic_config("retention.ms", {}, both)
    assert [each.name for each in entry.synonyms] == [
        "log.retention.ms",
        "log.retention.hours",
        "log.retention.hours",
    ]


def test_an_unknown_dynamic_default_is_hidden() -> None:
    broker = BrokerValues({}, {"plugin.password": "x", "max.connections": "9"}, {})
    known, unknown = describe_dynamic_default(broker)
    assert (known.name, known.value, known.is_sensitive) == ("max.connections", "9", False)
    assert (unknown.name, unknown.value, unknown.is_sensitive) == ("plugin.password", None, True)


def test_what_is_set_under_unknown_names_is_told_without_its_value() -> None:
    broker = BrokerValues({}, {"both": "1", "z": "2"}, {"both": "3", "max.connections": "9"})
    both, of_all = describe_unknown(broker)
    assert (both.name, both.value, both.is_read_only, both.type.value) == ("both", None, True, 0)
    assert both.source is ConfigSource.DYNAMIC_BROKER_CONFIG
    assert both.synonyms == (
        ConfigSynonym("both", None, ConfigSource.DYNAMIC_BROKER_CONFIG),
        ConfigSynonym("both", None, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
    )
    assert (of_all.name, of_all.source) == ("z", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)


def test_broker_values_are_typed() -> None:
    assert broker_int("num.partitions", {}) == 1
    assert broker_int("num.partitions", {"num.partitions": "3"}) == 3
    assert broker_bool("auto.create.topics.enable", {"auto.create.topics.enable": "false"}) is False
    assert broker_value("log.retention.ms", {}) is None
