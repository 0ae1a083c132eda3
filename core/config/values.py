"""Effective values, and where each of them comes from.

Values come in as text and go out typed. Does not know where the text was written (a file, the
environment, the database).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from core.config.definitions import (
    BROKER_CONFIGS,
    DEFINITIONS,
    GROUP_CONFIGS,
    PULSAR_PROVIDERS,
    TOPIC_CONFIGS,
)
from core.config.types import ConfigType, ConfigValue, UpdateMode, parse, parse_type, to_text
from core.log.records import Compression
from core.types import TimestampType


class ConfigSource(Enum):
    """Where a value comes from; the value is Kafka's id in DescribeConfigs."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_GROUP_CONFIG = 8


@dataclass(frozen=True, slots=True)
class BrokerValues:
    """The text set for a broker at each level, by broker property name.

    dynamic: for this broker, in the database; dynamic_default: for all brokers, in the database;
    static: from its command line, file or environment.
    """

    static: Mapping[str, str]
    dynamic_default: Mapping[str, str]
    dynamic: Mapping[str, str]

    def merged(self) -> dict[str, str]:
        """The effective values by name, without Kafka's defaults."""
        return {**self.static, **self.dynamic_default, **self.dynamic}


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """One of the places a value could come from, as DescribeConfigs lists them."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A property with its effective value, as DescribeConfigs describes it.

    value: None if there is none, or if it is sensitive. synonyms: strongest first.
    """

    name: str
    value: str | None
    source: ConfigSource
    is_sensitive: bool
    is_read_only: bool
    synonyms: tuple[ConfigSynonym, ...]
    type: ConfigType
    documentation: str


def _broker_names(name: str) -> tuple[str, ...]:
    """A broker property's name and its synonyms, strongest first."""
    for row in DEFINITIONS:
        names = (row.broker_name or "", *(other.name for other in row.alternatives))
        if len(names) > 1 and name in names:
            # In Kafka the scheduler's interval is only a weaker name, without synonyms of its own.
            return (name,) if name == "log.flush.scheduler.interval.ms" else names
    return (name,)


def _broker_synonyms(name: str, values: BrokerValues) -> tuple[ConfigSynonym, ...]:
    names = _broker_names(name)
    sensitive = BROKER_CONFIGS[name].is_sensitive if name in BROKER_CONFIGS else True
    defaults = {
        each: default
        for each in names
        if each in BROKER_CONFIGS and (default := BROKER_CONFIGS[each].broker_default) is not None
    }
    levels: tuple[tuple[Mapping[str, str], ConfigSource], ...] = (
        (values.dynamic, ConfigSource.DYNAMIC_BROKER_CONFIG),
        (values.dynamic_default, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        (values.static, ConfigSource.STATIC_BROKER_CONFIG),
        (defaults, ConfigSource.DEFAULT_CONFIG),
    )
    found = [
        ConfigSynonym(each, None if sensitive else level[each], source)
        for level, source in levels
        for each in names
        if each in level
    ]
    # Kafka lists from the first entry of the name asked for: a retention.ms that comes from
    # log.retention.hours has no synonyms and DEFAULT_CONFIG (ConfigHelper.configSynonyms).
    while found and found[0].name != name:
        del found[0]
    return tuple(found)


def describe_topic_config(
    name: str, overrides: Mapping[str, str], broker: BrokerValues
) -> ConfigEntry:
    """A topic property as DescribeConfigs shows it (ConfigHelper.createTopicConfigEntry).

    Raises KeyError if there is no topic property of this name.
    """
    definition = TOPIC_CONFIGS[name]
    value = to_text(topic_value(name, overrides, broker.merged()))
    synonyms = _broker_synonyms(definition.broker_name, broker) if definition.broker_name else ()
    if name in overrides:
        own = ConfigSynonym(name, value, ConfigSource.DYNAMIC_TOPIC_CONFIG)
        synonyms = (own, *synonyms)
    return ConfigEntry(
        name=name,
        value=value,
        source=synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG,
        is_sensitive=definition.is_sensitive,
        is_read_only=False,
        synonyms=synonyms,
        type=definition.type,
        documentation=definition.documentation,
    )


def describe_group_config(
    name: str, overrides: Mapping[str, str], broker: Mapping[str, str]
) -> ConfigEntry:
    """A group property as DescribeConfigs shows it (ConfigHelper.createGroupConfigEntry).

    The broker's value is the group's default, under the group's name for it; the group's own value
    hides it. broker: values in effect on the broker (`BrokerValues.merged`). Raises KeyError if
    there is no group property of this name.
    """
    definition = GROUP_CONFIGS[name]
    value = to_text(group_value(name, overrides, broker))
    own = name in overrides
    source = ConfigSource.DYNAMIC_GROUP_CONFIG if own else ConfigSource.DEFAULT_CONFIG
    return ConfigEntry(
        name=name,
        value=value,
        source=source,
        is_sensitive=definition.is_sensitive,
        is_read_only=False,
        synonyms=(ConfigSynonym(name, value, source),),
        type=definition.type,
        documentation=definition.documentation,
    )


def describe_broker_config(name: str, broker: BrokerValues) -> ConfigEntry:
    """A broker property as DescribeConfigs shows it (ConfigHelper.createBrokerConfigEntry).

    Raises KeyError if there is no broker property of this name.
    """
    definition = BROKER_CONFIGS[name]
    synonyms = _broker_synonyms(name, broker)
    text = broker.merged().get(name, definition.broker_default)
    value = None if text is None else to_text(parse_unchecked(name, text))
    return ConfigEntry(
        name=name,
        value=None if definition.is_sensitive else value,
        source=synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG,
        is_sensitive=definition.is_sensitive,
        is_read_only=definition.update_mode is UpdateMode.READ_ONLY,
        synonyms=synonyms,
        type=definition.type,
        documentation=definition.documentation,
    )


def describe_unknown(broker: BrokerValues) -> tuple[ConfigEntry, ...]:
    """Values set for this broker, or for all, under names that are no properties.

    Such a value may be a plug-in's password: it is hidden, as in Kafka.
    """
    names = {*broker.dynamic, *broker.dynamic_default} - BROKER_CONFIGS.keys()
    return tuple(_unknown_entry(name, _broker_synonyms(name, broker)) for name in sorted(names))


def _unknown_entry(name: str, synonyms: tuple[ConfigSynonym, ...]) -> ConfigEntry:
    return ConfigEntry(
        name=name,
        value=None,
        source=synonyms[0].source,
        is_sensitive=True,
        is_read_only=True,
        synonyms=synonyms,
        type=ConfigType.UNKNOWN,
        documentation="",
    )


def describe_dynamic_default(broker: BrokerValues) -> tuple[ConfigEntry, ...]:
    """The values set for all brokers, as DescribeConfigs shows them for the empty broker name."""
    entries = []
    source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    for name, value in sorted(broker.dynamic_default.items()):
        definition = BROKER_CONFIGS.get(name)
        if definition is None:
            entries.append(_unknown_entry(name, (ConfigSynonym(name, None, source),)))
            continue
        shown = None if definition.is_sensitive else value
        entries.append(
            ConfigEntry(
                name=name,
                value=shown,
                source=source,
                is_sensitive=definition.is_sensitive,
                is_read_only=definition.update_mode is UpdateMode.READ_ONLY,
                synonyms=(ConfigSynonym(name, shown, source),),
                type=definition.type,
                documentation=definition.documentation,
            )
        )
    return tuple(entries)


def parse_unchecked(name: str, text: str) -> ConfigValue:
    """A broker property's typed value without its validator (values set by other settings)."""
    return parse_type(name, text, BROKER_CONFIGS[name].type)


def broker_value(name: str, broker: Mapping[str, str]) -> ConfigValue | None:
    """The effective typed value of a broker property; None if it is unset and has no default.

    broker: values in effect by name (`BrokerValues.merged`). Raises ConfigError for bad text.
    """
    definition = BROKER_CONFIGS[name]
    text = broker.get(name, definition.broker_default)
    return None if text is None else parse(name, text, definition)


def broker_int(name: str, broker: Mapping[str, str]) -> int:
    """`broker_value` of a property that is a whole number and has a default."""
    value = broker_value(name, broker)
    assert isinstance(value, int), name
    return value


def broker_bool(name: str, broker: Mapping[str, str]) -> bool:
    """`broker_value` of a property that is true or false."""
    value = broker_value(name, broker)
    assert isinstance(value, bool), name
    return value


def broker_text(name: str, broker: Mapping[str, str]) -> str:
    """`broker_value` of a property that is text and has a default."""
    value = broker_value(name, broker)
    assert isinstance(value, str), name
    return value


def broker_secret(name: str, broker: Mapping[str, str]) -> str | None:
    """`broker_value` of a property that is a password; None where there is none."""
    value = broker_value(name, broker)
    assert value is None or isinstance(value, str), name
    return value or None


def broker_list(name: str, broker: Mapping[str, str]) -> tuple[str, ...]:
    """`broker_value` of a property that is a list."""
    value = broker_value(name, broker)
    assert isinstance(value, tuple), name
    return value


def authentication_methods(broker: Mapping[str, str]) -> tuple[str, ...]:
    """The methods of `authenticationProviders` by their names in CONNECT, each once."""
    by_class = {name: method for method, name in PULSAR_PROVIDERS.items()}
    named = broker_list("authenticationProviders", broker)
    return tuple(dict.fromkeys(by_class.get(each, each) for each in named))


def group_value(name: str, overrides: Mapping[str, str], broker: Mapping[str, str]) -> ConfigValue:
    """The effective typed value of a group's property: its own, else the broker's.

    Raises ConfigError for text that should have been refused.
    """
    definition = GROUP_CONFIGS[name]
    assert definition.default is not None
    if name in overrides:
        return parse(name, overrides[name], definition)
    if definition.broker_name is not None and definition.broker_name in broker:
        return parse(definition.broker_name, broker[definition.broker_name], definition)
    return parse(name, definition.default, definition)


def group_int(name: str, overrides: Mapping[str, str], broker: Mapping[str, str]) -> int:
    """`group_value` of a property that is a whole number."""
    value = group_value(name, overrides, broker)
    assert isinstance(value, int), name
    return value


def topic_value(name: str, overrides: Mapping[str, str], broker: Mapping[str, str]) -> ConfigValue:
    """The effective typed value of a topic property.

    overrides: set on the topic; broker: values in effect on the broker, by broker name. Raises
    ConfigError for text that should have been refused.
    """
    definition = TOPIC_CONFIGS[name]
    assert definition.default is not None
    if name in overrides:
        return parse(name, overrides[name], definition)
    if definition.broker_name is not None and definition.broker_name in broker:
        return parse(definition.broker_name, broker[definition.broker_name], definition)
    for other in definition.alternatives:
        if other.name in broker:
            amount = parse(other.name, broker[other.name], BROKER_CONFIGS[other.name])
            assert isinstance(amount, int)
            # Kafka takes any negative retention for none; validators of other names refuse it.
            return -1 if amount < 0 else amount * other.unit_ms
    return parse(name, definition.default, definition)


# --- what the log reads ---


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic's settings in effect, typed: what the log acts on. Times in ms, sizes in bytes.

    compression_type: of Kafka's batches; None: each as its producer chose. compression_level: of
    that codec, where it has levels.
    retention_ms, retention_bytes: -1 (or less) is no limit. deduplication_enabled: as far as named
    producers (Pulsar's) go. pulsar_partitioned: to Pulsar's clients, also with one partition.
    pulsar_retention: whether its namespace's retention counts, too.
    """

    cleanup_policy: frozenset[str]
    compression_type: Compression | None
    compression_level: int | None
    max_message_bytes: int
    message_timestamp_type: TimestampType
    message_timestamp_before_max_ms: int
    message_timestamp_after_max_ms: int
    min_insync_replicas: int
    retention_ms: int
    retention_bytes: int
    segment_bytes: int
    segment_ms: int
    deduplication_enabled: bool
    pulsar_partitioned: bool
    pulsar_retention: bool

    @property
    def is_compacted(self) -> bool:
        """Whether the last record of each key must be kept, so that records need keys."""
        return "compact" in self.cleanup_policy

    @property
    def is_deleted(self) -> bool:
        """Whether old records are dropped by time and size."""
        return "delete" in self.cleanup_policy


_COMPRESSION: Mapping[str, Compression | None] = {
    "producer": None,
    "uncompressed": Compression.NONE,
    "gzip": Compression.DEFLATE,
    "snappy": Compression.SNAPPY,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}
_LEVELS = {
    Compression.DEFLATE: "compression.gzip.level",
    Compression.LZ4: "compression.lz4.level",
    Compression.ZSTD: "compression.zstd.level",
}
_TIMESTAMP_TYPES = {
    "CreateTime": TimestampType.CREATE_TIME,
    "LogAppendTime": TimestampType.LOG_APPEND_TIME,
}


def topic_config(overrides: Mapping[str, str], broker: Mapping[str, str]) -> TopicConfig:
    """A topic's settings in effect: its own, else the broker's, else Kafka's default.

    Both maps hold text by Kafka's names (`BrokerValues.merged` for the broker's). Raises
    ConfigError for text that should have been refused.
    """

    def whole(name: str) -> int:
        value = topic_value(name, overrides, broker)
        assert isinstance(value, int), name
        return value

    policy = topic_value("cleanup.policy", overrides, broker)
    assert isinstance(policy, tuple)
    compression = _COMPRESSION[str(topic_value("compression.type", overrides, broker))]
    level = _LEVELS.get(compression) if compression is not None else None
    return TopicConfig(
        cleanup_policy=frozenset(policy),
        compression_type=compression,
        compression_level=whole(level) if level is not None else None,
        max_message_bytes=whole("max.message.bytes"),
        message_timestamp_type=_TIMESTAMP_TYPES[
            str(topic_value("message.timestamp.type", overrides, broker))
        ],
        message_timestamp_before_max_ms=whole("message.timestamp.before.max.ms"),
        message_timestamp_after_max_ms=whole("message.timestamp.after.max.ms"),
        min_insync_replicas=whole("min.insync.replicas"),
        retention_ms=whole("retention.ms"),
        retention_bytes=whole("retention.bytes"),
        segment_bytes=whole("segment.bytes"),
        segment_ms=whole("segment.ms"),
        # Pulsar asks the topic, its namespace, the broker; the namespace's word is among the
        # overrides (`gateway/runtime/topics`).
        deduplication_enabled=topic_value("penstock.deduplication.enabled", overrides, broker)
        is True,
        pulsar_partitioned=topic_value("penstock.pulsar.partitioned", overrides, broker) is True,
        pulsar_retention=topic_value("penstock.pulsar.retention", overrides, broker) is True,
    )
