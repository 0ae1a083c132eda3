"""Every property, once: Kafka's name, type, default, validator, and where each value comes from.

Knows no file, environment, wire or database: values come in as text and go out typed. Names,
defaults and valid values are Kafka 4's (TopicConfig, LogConfig, ServerLogConfigs,
SocketServerConfigs, ServerConfigs; KIP-1030 for 4.0's changes); `DEVIATIONS` lists what differs.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from core.types import TimestampType

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

_BOUNDS = {"INT": (-(2**31), INT_MAX), "LONG": (-(2**63), LONG_MAX), "SHORT": (-(2**15), 2**15 - 1)}


class ConfigType(Enum):
    """Type of a property; the value is Kafka's id in DescribeConfigs (DescribeConfigsResponse)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class ConfigSource(Enum):
    """Where a value comes from, strongest first; the value is Kafka's id in DescribeConfigs."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5


class UpdateMode(Enum):
    """How a broker property may change while brokers run (DynamicBrokerConfig)."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


class AlterOperation(Enum):
    """What IncrementalAlterConfigs does with a property; the value is Kafka's id (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigError(ValueError):
    """A value that its property does not take; the text is Kafka's own sentence."""


ConfigValue = bool | int | float | str | tuple[str, ...]
Validator = Callable[[str, ConfigValue], None]


def _invalid(name: str, value: object, why: str) -> ConfigError:
    return ConfigError(f"Invalid value {value} for configuration {name}: {why}")


def at_least(minimum: int) -> Validator:
    """Kafka's `Range.atLeast`."""
    return between(minimum, None)


def between(minimum: int, maximum: int | None) -> Validator:
    """Kafka's `Range.between`, bounds included; no upper bound where `maximum` is None."""

    def check(name: str, value: ConfigValue) -> None:
        assert isinstance(value, int | float)
        if value < minimum:
            raise _invalid(name, value, f"Value must be at least {minimum}")
        if maximum is not None and value > maximum:
            raise _invalid(name, value, f"Value must be no more than {maximum}")

    return check


def one_of(*allowed: str) -> Validator:
    """Kafka's `ValidString.in`, and `ValidList.in` where the value is a list."""

    def check(name: str, value: ConfigValue) -> None:
        for item in value if isinstance(value, tuple) else (value,):
            if item not in allowed:
                raise _invalid(name, item, f"String must be one of: {', '.join(allowed)}")

    return check


def one_of_any_case(*allowed: str) -> Validator:
    """Kafka's `CaseInsensitiveValidString.in`."""

    def check(name: str, value: ConfigValue) -> None:
        if not isinstance(value, str) or value.upper() not in allowed:
            shown = ", ".join(allowed)
            raise _invalid(name, value, f"String must be one of (case insensitive): {shown}")

    return check


ASSIGNORS: Mapping[str, str] = {
    "uniform": "uniform",
    "range": "range",
    "org.apache.kafka.coordinator.group.assignor.UniformAssignor": "uniform",
    "org.apache.kafka.coordinator.group.assignor.RangeAssignor": "range",
}
"""Names of the assignors of consumer groups, by what `group.consumer.assignors` may call them."""


def _assignors(name: str, value: ConfigValue) -> None:
    assert isinstance(value, tuple)
    if not value:
        raise _invalid(name, value, "Configuration must not be empty")
    one_of(*ASSIGNORS)(name, value)


def _gzip_level(name: str, value: ConfigValue) -> None:
    if value != -1 and value not in range(1, 10):
        raise _invalid(name, value, "Value must be between 1 and 9 or equal to -1")


def _throttled_replicas(name: str, value: ConfigValue) -> None:
    assert isinstance(value, tuple)
    if "".join(value) != "*" and not all(re.fullmatch(r"(\d+:\d+)?", item) for item in value):
        raise _invalid(
            name,
            f"[{', '.join(value)}]",
            f"{name} must be the literal '*' or a list of replicas in the following format: "
            "[partitionId]:[brokerId],[partitionId]:[brokerId],...",
        )


def _no_tiered_storage(name: str, value: ConfigValue) -> None:
    if value is True:
        raise ConfigError(
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage."
        )


@dataclass(frozen=True, slots=True)
class Alternative:
    """A broker property that says the same in another unit (`log.retention.hours`)."""

    name: str
    unit_ms: int
    default: str | None
    validator: Validator | None = None


@dataclass(frozen=True, slots=True)
class ConfigDef:
    """One property.

    default: as text; None is Kafka's null (not set, no value).
    topic_name: its name on a topic, None where it is no topic's.
    group_name: its name on a group, None where it is no group's.
    broker_name: its name on a broker, None where it is the topic's alone.
    alternatives: weaker broker properties for the same value, strongest first.
    set_by: the setting that gives a broker property its value, where it is not set by itself.
    """

    type: ConfigType
    default: str | None
    documentation: str
    topic_name: str | None = None
    group_name: str | None = None
    broker_name: str | None = None
    validator: Validator | None = None
    update_mode: UpdateMode = UpdateMode.READ_ONLY
    alternatives: tuple[Alternative, ...] = ()
    broker_default: str | None = None
    set_by: str | None = None

    @property
    def is_sensitive(self) -> bool:
        """Whether the value must never be shown."""
        return self.type is ConfigType.PASSWORD


def _topic(
    name: str,
    kind: ConfigType,
    default: object,
    documentation: str,
    *,
    broker: str | None,
    validator: Validator | None = None,
    alternatives: tuple[Alternative, ...] = (),
) -> ConfigDef:
    text = str(default)
    return ConfigDef(
        type=kind,
        default=text,
        documentation=documentation,
        topic_name=name,
        broker_name=broker,
        validator=validator,
        update_mode=UpdateMode.CLUSTER_WIDE,
        alternatives=alternatives,
        # With weaker alternatives the strongest name has no default: theirs counts.
        broker_default=None if alternatives else text,
    )


def _broker(
    name: str,
    kind: ConfigType,
    default: object,
    documentation: str,
    *,
    validator: Validator | None = None,
    update_mode: UpdateMode = UpdateMode.READ_ONLY,
    set_by: str | None = None,
    group: str | None = None,
) -> ConfigDef:
    text = None if default is None else str(default)
    return ConfigDef(
        type=kind,
        default=text,
        documentation=documentation,
        group_name=group,
        broker_name=name,
        validator=validator,
        update_mode=update_mode,
        broker_default=text,
        set_by=set_by,
    )


_BOOLEAN, _STRING, _INT = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT
_LONG, _DOUBLE, _LIST = ConfigType.LONG, ConfigType.DOUBLE, ConfigType.LIST
_CLUSTER_WIDE = UpdateMode.CLUSTER_WIDE
_NO_EFFECT = "Accepted and reported; without effect, since PostgreSQL keeps the log."
_LATER = "Accepted and reported; log compaction is not there yet."
_ONE_COPY = "Accepted and reported; without effect: replication is PostgreSQL's."

DEFINITIONS: tuple[ConfigDef, ...] = (
    # --- topics, with the broker's name for the default of all topics ---
    _topic(
        "cleanup.policy",
        _LIST,
        "delete",
        "What happens to old records: delete drops them by time and size, compact keeps the last "
        "of each key, or both. Compaction is accepted and reported, but not done yet.",
        broker="log.cleanup.policy",
        validator=one_of("compact", "delete"),
    ),
    _topic(
        "compression.gzip.level",
        _INT,
        -1,
        "Level for gzip where compression.type is gzip. " + _NO_EFFECT,
        broker="compression.gzip.level",
        validator=_gzip_level,
    ),
    _topic(
        "compression.lz4.level",
        _INT,
        9,
        "Level for lz4 where compression.type is lz4. " + _NO_EFFECT,
        broker="compression.lz4.level",
        validator=between(1, 17),
    ),
    _topic(
        "compression.type",
        _STRING,
        "producer",
        "How batches are compressed in the log; producer keeps what each producer chose. "
        "Batches are stored as they came: any other value is accepted and reported only.",
        broker="compression.type",
        validator=one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    ),
    _topic(
        "compression.zstd.level",
        _INT,
        3,
        "Level for zstd where compression.type is zstd. " + _NO_EFFECT,
        broker="compression.zstd.level",
        validator=between(-131072, 22),
    ),
    _topic(
        "delete.retention.ms",
        _LONG,
        DAY_MS,
        "How long the tombstones of a compacted topic are kept. " + _LATER,
        broker="log.cleaner.delete.retention.ms",
        validator=at_least(0),
    ),
    _topic(
        "file.delete.delay.ms",
        _LONG,
        60_000,
        "Time to wait before a deleted file is removed. " + _NO_EFFECT,
        broker="log.segment.delete.delay.ms",
        validator=at_least(0),
    ),
    _topic(
        "flush.messages",
        _LONG,
        LONG_MAX,
        "Messages between two fsyncs. Every acknowledged record is committed with fsync anyway.",
        broker="log.flush.interval.messages",
        validator=at_least(1),
    ),
    _topic(
        "flush.ms",
        _LONG,
        LONG_MAX,
        "Time between two fsyncs. Every acknowledged record is committed with fsync anyway.",
        broker="log.flush.interval.ms",
        validator=at_least(0),
        alternatives=(Alternative("log.flush.scheduler.interval.ms", 1, str(LONG_MAX)),),
    ),
    _topic(
        "follower.replication.throttled.replicas",
        _LIST,
        "",
        "Replicas whose replication is throttled at the follower. " + _ONE_COPY,
        broker=None,
        validator=_throttled_replicas,
    ),
    _topic(
        "index.interval.bytes",
        _INT,
        4096,
        "Bytes between two entries of the offset index. " + _NO_EFFECT,
        broker="log.index.interval.bytes",
        validator=at_least(0),
    ),
    _topic(
        "leader.replication.throttled.replicas",
        _LIST,
        "",
        "Replicas whose replication is throttled at the leader. " + _ONE_COPY,
        broker=None,
        validator=_throttled_replicas,
    ),
    _topic(
        "local.retention.bytes",
        _LONG,
        -2,
        "Bytes kept locally with tiered storage; -2 means retention.bytes. " + _NO_EFFECT,
        broker="log.local.retention.bytes",
        validator=at_least(-2),
    ),
    _topic(
        "local.retention.ms",
        _LONG,
        -2,
        "Time kept locally with tiered storage; -2 means retention.ms. " + _NO_EFFECT,
        broker="log.local.retention.ms",
        validator=at_least(-2),
    ),
    _topic(
        "max.compaction.lag.ms",
        _LONG,
        LONG_MAX,
        "Longest time a record of a compacted topic stays uncompacted. " + _LATER,
        broker="log.cleaner.max.compaction.lag.ms",
        validator=at_least(1),
    ),
    _topic(
        "max.message.bytes",
        _INT,
        1_048_588,
        "Largest record batch accepted, compressed as it came, in bytes.",
        broker="message.max.bytes",
        validator=at_least(0),
    ),
    _topic(
        "message.timestamp.after.max.ms",
        _LONG,
        HOUR_MS,
        "How far a record's timestamp may lie after the broker's clock, with CreateTime.",
        broker="log.message.timestamp.after.max.ms",
        validator=at_least(0),
    ),
    _topic(
        "message.timestamp.before.max.ms",
        _LONG,
        LONG_MAX,
        "How far a record's timestamp may lie before the broker's clock, with CreateTime.",
        broker="log.message.timestamp.before.max.ms",
        validator=at_least(0),
    ),
    _topic(
        "message.timestamp.type",
        _STRING,
        "CreateTime",
        "Whose time a record carries: its producer's (CreateTime) or the log's (LogAppendTime).",
        broker="log.message.timestamp.type",
        validator=one_of("CreateTime", "LogAppendTime"),
    ),
    _topic(
        "min.cleanable.dirty.ratio",
        _DOUBLE,
        0.5,
        "Share of uncompacted bytes from which a log is compacted. " + _LATER,
        broker="log.cleaner.min.cleanable.ratio",
        validator=between(0, 1),
    ),
    _topic(
        "min.compaction.lag.ms",
        _LONG,
        0,
        "Shortest time a record of a compacted topic stays uncompacted. " + _LATER,
        broker="log.cleaner.min.compaction.lag.ms",
        validator=at_least(0),
    ),
    _topic(
        "min.insync.replicas",
        _INT,
        1,
        "Replicas that must have a batch before acks=all is answered. " + _ONE_COPY,
        broker="min.insync.replicas",
        validator=at_least(1),
    ),
    _topic(
        "preallocate",
        _BOOLEAN,
        "false",
        "Whether a new segment's file is allocated at once. " + _NO_EFFECT,
        broker="log.preallocate",
    ),
    _topic(
        "remote.log.copy.disable",
        _BOOLEAN,
        "false",
        "Whether a topic's tiered data is read only. There is no tiered storage here.",
        broker=None,
    ),
    _topic(
        "remote.log.delete.on.disable",
        _BOOLEAN,
        "false",
        "Whether tiered data is deleted when tiering ends. There is no tiered storage here.",
        broker=None,
    ),
    _topic(
        "remote.storage.enable",
        _BOOLEAN,
        "false",
        "Tiered storage. There is none here: true is refused, as by a Kafka without it.",
        broker=None,
        validator=_no_tiered_storage,
    ),
    _topic(
        "retention.bytes",
        _LONG,
        -1,
        "Bytes a partition may hold before its oldest records are dropped; -1 is no limit.",
        broker="log.retention.bytes",
    ),
    _topic(
        "retention.ms",
        _LONG,
        7 * DAY_MS,
        "How long records are kept before they are dropped; -1 is no limit.",
        broker="log.retention.ms",
        validator=at_least(-1),
        alternatives=(
            Alternative("log.retention.minutes", MINUTE_MS, None),
            Alternative("log.retention.hours", HOUR_MS, "168"),
        ),
    ),
    _topic(
        "segment.bytes",
        _INT,
        2**30,
        "On brokers: size at which a segment's table is closed and the next one opened. On a topic "
        "accepted and reported, without effect: topics of like retention share their segments.",
        broker="log.segment.bytes",
        validator=at_least(2**20),
    ),
    _topic(
        "segment.index.bytes",
        _INT,
        10 * 2**20,
        "Size of a segment's offset index. " + _NO_EFFECT,
        broker="log.index.size.max.bytes",
        validator=at_least(4),
    ),
    _topic(
        "segment.jitter.ms",
        _LONG,
        0,
        "Random part taken off segment.ms. " + _NO_EFFECT,
        broker="log.roll.jitter.ms",
        validator=at_least(0),
        alternatives=(Alternative("log.roll.jitter.hours", HOUR_MS, "0", at_least(0)),),
    ),
    _topic(
        "segment.ms",
        _LONG,
        7 * DAY_MS,
        "Age at which a segment is closed. Accepted and reported; without effect: it follows from "
        "the retention of the topics that share the segment.",
        broker="log.roll.ms",
        validator=at_least(1),
        alternatives=(Alternative("log.roll.hours", HOUR_MS, "168", at_least(1)),),
    ),
    _topic(
        "unclean.leader.election.enable",
        _BOOLEAN,
        "false",
        "Whether a replica out of sync may lead. " + _ONE_COPY,
        broker="unclean.leader.election.enable",
    ),
    # --- brokers only ---
    _broker(
        "advertised.listeners",
        _STRING,
        None,
        "The address clients are told to connect to.",
        set_by="--advertise",
    ),
    _broker(
        "auto.create.topics.enable",
        _BOOLEAN,
        "true",
        "Whether a topic that a client asks for is created when it does not exist.",
    ),
    _broker("broker.id", _INT, -1, "The broker's id in Metadata.", set_by="--broker-id"),
    _broker(
        "broker.rack", _STRING, None, "The broker's rack, as Metadata tells it.", set_by="--rack"
    ),
    _broker(
        "connections.max.idle.ms",
        _LONG,
        10 * MINUTE_MS,
        "Time after which a connection without requests is closed.",
    ),
    _broker(
        "default.replication.factor",
        _INT,
        1,
        "Replication factor of topics that do not say theirs. " + _ONE_COPY,
    ),
    _broker(
        "delete.topic.enable", _BOOLEAN, "true", "Whether topics may be deleted by DeleteTopics."
    ),
    _broker(
        "fetch.max.bytes",
        _INT,
        55 * 2**20,
        "Most bytes of records in one Fetch answer, but for a first batch that is larger.",
        validator=at_least(1024),
    ),
    _broker(
        "group.consumer.assignors",
        _LIST,
        "uniform,range",
        "Assignors that brokers offer to consumer groups, by name; the first is the default.",
        validator=_assignors,
    ),
    _broker(
        "group.consumer.heartbeat.interval.ms",
        _INT,
        5_000,
        "Time between two heartbeats of a member of a consumer group.",
        validator=at_least(1),
        group="consumer.heartbeat.interval.ms",
    ),
    _broker(
        "group.consumer.max.heartbeat.interval.ms",
        _INT,
        15_000,
        "Longest heartbeat interval that may be set on a consumer group.",
        validator=at_least(1),
    ),
    _broker(
        "group.consumer.max.session.timeout.ms",
        _INT,
        60_000,
        "Longest session timeout that may be set on a consumer group.",
        validator=at_least(1),
    ),
    _broker(
        "group.consumer.max.size",
        _INT,
        INT_MAX,
        "Most members of a consumer group.",
        validator=at_least(1),
    ),
    _broker(
        "group.consumer.migration.policy",
        _STRING,
        "bidirectional",
        "Whether a group that is not empty may go from the classic to the consumer protocol "
        "(upgrade), back (downgrade), both (bidirectional), or neither (disabled).",
        validator=one_of_any_case("DISABLED", "DOWNGRADE", "UPGRADE", "BIDIRECTIONAL"),
    ),
    _broker(
        "group.consumer.min.heartbeat.interval.ms",
        _INT,
        5_000,
        "Shortest heartbeat interval that may be set on a consumer group.",
        validator=at_least(1),
    ),
    _broker(
        "group.consumer.min.session.timeout.ms",
        _INT,
        45_000,
        "Shortest session timeout that may be set on a consumer group.",
        validator=at_least(1),
    ),
    _broker(
        "group.consumer.session.timeout.ms",
        _INT,
        45_000,
        "Time without a heartbeat after which a member of a consumer group is taken for gone.",
        validator=at_least(1),
        group="consumer.session.timeout.ms",
    ),
    _broker(
        "group.initial.rebalance.delay.ms",
        _INT,
        3_000,
        "Time an empty classic group waits for more members before its first rebalance.",
    ),
    _broker(
        "group.max.session.timeout.ms",
        _INT,
        1_800_000,
        "Longest session timeout that a member of a classic group may ask for.",
    ),
    _broker(
        "group.max.size",
        _INT,
        INT_MAX,
        "Most members of a classic group.",
        validator=at_least(1),
    ),
    _broker(
        "group.min.session.timeout.ms",
        _INT,
        6_000,
        "Shortest session timeout that a member of a classic group may ask for.",
    ),
    _broker(
        "listeners", _STRING, "PLAINTEXT://:9092", "The address listened on.", set_by="--listen"
    ),
    _broker(
        "log.retention.check.interval.ms",
        _LONG,
        5 * MINUTE_MS,
        "Time between two looks for records that retention lets go.",
        validator=at_least(1),
    ),
    _broker(
        "max.connections",
        _INT,
        INT_MAX,
        "Most connections at one time; one more is closed at once.",
        validator=at_least(0),
        update_mode=_CLUSTER_WIDE,
    ),
    _broker(
        "max.connections.per.ip",
        _INT,
        INT_MAX,
        "Most connections at one time from one address; one more is closed at once.",
        validator=at_least(0),
        update_mode=_CLUSTER_WIDE,
    ),
    _broker(
        "max.incremental.fetch.session.cache.slots",
        _INT,
        1000,
        "Most incremental fetch sessions kept at one time (KIP-227).",
        validator=at_least(0),
    ),
    _broker(
        "max.request.partition.size.limit",
        _INT,
        2000,
        "Most partitions in one answer to DescribeTopicPartitions (KIP-966).",
        validator=at_least(1),
    ),
    _broker("node.id", _INT, -1, "The same as broker.id.", set_by="--broker-id"),
    _broker(
        "num.partitions",
        _INT,
        1,
        "Partitions of a topic that does not say how many.",
        validator=at_least(1),
    ),
    _broker(
        "offset.metadata.max.bytes",
        _INT,
        4096,
        "Most bytes of metadata that may be committed with an offset.",
    ),
    _broker(
        "offsets.retention.check.interval.ms",
        _LONG,
        10 * MINUTE_MS,
        "Time between two looks for committed offsets that are too old.",
        validator=at_least(1),
    ),
    _broker(
        "offsets.retention.minutes",
        _INT,
        7 * 24 * 60,
        "How long committed offsets are kept once nobody is subscribed to their topic.",
        validator=at_least(1),
    ),
    _broker(
        "producer.id.expiration.ms",
        _INT,
        DAY_MS,
        "Time after which the last sequence numbers of a silent producer are forgotten.",
        validator=at_least(1),
        update_mode=_CLUSTER_WIDE,
    ),
    _broker(
        "queued.max.request.bytes",
        _LONG,
        256 * 2**20,
        "Most bytes of requests held in memory; beyond it no more is read until some are "
        "answered. -1 is no limit, Kafka's default.",
        validator=at_least(-1),
    ),
    _broker(
        "request.timeout.ms",
        _INT,
        30_000,
        "Longest time a client waits for an answer. Accepted and reported; without effect: "
        "connections, locks and statements have limits of their own.",
    ),
    _broker(
        "socket.listen.backlog.size",
        _INT,
        1024,
        "Connections the operating system may hold before they are accepted; it may have a lower "
        "limit of its own.",
        validator=at_least(1),
    ),
    _broker(
        "socket.request.max.bytes",
        _INT,
        100 * 2**20,
        "Largest request accepted; a larger one closes the connection.",
        validator=at_least(1),
    ),
    # --- Penstock's own ---
    _broker(
        "penstock.broker.session.timeout.ms",
        _INT,
        4_000,
        "Time without a heartbeat after which other brokers take a broker for gone.",
        validator=at_least(1_000),
    ),
    _broker(
        "penstock.flush.max.bytes",
        _INT,
        4 * 2**20,
        "Most payload in one flush, but for a single batch that is larger.",
        validator=at_least(1),
    ),
    _broker(
        "penstock.request.receive.timeout.ms",
        _INT,
        30_000,
        "Longest time a request may take from its first byte to its last.",
        validator=at_least(1),
    ),
    _broker(
        "penstock.shutdown.timeout.ms",
        _INT,
        10_000,
        "Longest time a stopping broker waits for requests in flight.",
        validator=at_least(0),
    ),
    _broker(
        "penstock.tail.cache.bytes",
        _LONG,
        64 * 2**20,
        "Memory for the newest batches, from which consumers at the tail are served.",
        validator=at_least(0),
    ),
)

DEVIATIONS: Mapping[str, str] = {
    "queued.max.request.bytes": "Kafka has no limit by default (-1); memory is bounded here.",
    "socket.listen.backlog.size": "Kafka's 50 makes clients that come all at once wait a second.",
}
"""Defaults that are not Kafka's, with the reason."""


def _broker_table() -> dict[str, ConfigDef]:
    table = {}
    for row in DEFINITIONS:
        if row.broker_name is not None:
            table[row.broker_name] = row
        for other in row.alternatives:
            is_long = other.unit_ms == 1
            table[other.name] = ConfigDef(
                type=ConfigType.LONG if is_long else ConfigType.INT,
                default=other.default,
                documentation=f"Read where no stronger name of {row.topic_name} is set.",
                broker_name=other.name,
                validator=other.validator,
                broker_default=other.default,
            )
    return dict(sorted(table.items()))


TOPIC_CONFIGS: Mapping[str, ConfigDef] = {
    row.topic_name: row for row in DEFINITIONS if row.topic_name is not None
}
"""Properties of a topic, by name."""

GROUP_CONFIGS: Mapping[str, ConfigDef] = {
    row.group_name: row for row in DEFINITIONS if row.group_name is not None
}
"""Properties of a group, by name."""

BROKER_CONFIGS: Mapping[str, ConfigDef] = _broker_table()
"""Properties of a broker, by name, alternatives in other units included."""


# --- values ---


def parse(name: str, text: str, definition: ConfigDef) -> ConfigValue:
    """The typed value of a property's text, checked.

    Raises ConfigError with Kafka's sentence (ConfigDef.parseType and the validators). `name` is
    the one the user wrote: a property has two, on topics and on brokers.
    """
    value = _parse_type(name, text, definition.type)
    if definition.validator is not None:
        definition.validator(name, value)
    return value


def _parse_type(name: str, text: str, kind: ConfigType) -> ConfigValue:
    trimmed = text.strip()
    match kind:
        case ConfigType.BOOLEAN:
            if trimmed.lower() not in {"true", "false"}:
                raise _invalid(name, text, "Expected value to be either true or false")
            return trimmed.lower() == "true"
        case ConfigType.INT | ConfigType.SHORT | ConfigType.LONG:
            if re.fullmatch(r"[+-]?[0-9]{1,30}", trimmed):
                number = int(trimmed)
                low, high = _BOUNDS[kind.name]
                if low <= number <= high:
                    return number
            raise _invalid(name, text, f"Not a number of type {kind.name}")
        case ConfigType.DOUBLE:
            if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", trimmed):
                raise _invalid(name, text, f"Not a number of type {kind.name}")
            return float(trimmed)
        case ConfigType.LIST:
            return tuple(re.split(r"\s*,\s*", trimmed)) if trimmed else ()
        case ConfigType.STRING | ConfigType.CLASS | ConfigType.PASSWORD:
            return trimmed


def to_text(value: ConfigValue) -> str:
    """A typed value as Kafka writes it in DescribeConfigs (ConfigDef.convertToString)."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value)


# --- checks: None where all is well, else Kafka's sentence ---


def check_topic_configs(
    overrides: Mapping[str, str | None], broker: Mapping[str, str] | None = None
) -> str | None:
    """What is wrong with a topic's whole set of overrides, or None (LogConfig.validate).

    broker: the broker's values, whose defaults count where the topic says nothing.
    """
    if nulls := [name for name, value in overrides.items() if value is None]:
        return f"Null value not supported for topic configs: {','.join(nulls)}"
    values = {name: value for name, value in overrides.items() if value is not None}
    for name in values:
        if name not in TOPIC_CONFIGS:
            return f"Unknown topic config name: {name}"
    try:
        for name, value in values.items():
            parse(name, value, TOPIC_CONFIGS[name])
        low = topic_value("min.compaction.lag.ms", values, broker or {})
        high = topic_value("max.compaction.lag.ms", values, broker or {})
    except ConfigError as error:
        return str(error)
    assert isinstance(low, int)
    assert isinstance(high, int)
    if low > high:
        return (
            f"conflict topic config setting min.compaction.lag.ms ({low})"
            f" > max.compaction.lag.ms ({high})"
        )
    return None


def check_dynamic_broker_configs(
    values: Mapping[str, str | None], *, per_broker: bool
) -> str | None:
    """What is wrong with dynamic broker values, or None (DynamicBrokerConfig.validateConfigs).

    per_broker: whether they are for one broker, or for all (the empty resource name). Unknown
    names pass, as in Kafka: they may be for a plug-in; a None value deletes.
    """
    read_only = [
        name
        for name in values
        if name in BROKER_CONFIGS and BROKER_CONFIGS[name].update_mode is UpdateMode.READ_ONLY
    ]
    if read_only:
        return f"Cannot update these configs dynamically: Set({', '.join(read_only)})"
    alone = [
        name
        for name in values
        if name in BROKER_CONFIGS and BROKER_CONFIGS[name].update_mode is UpdateMode.PER_BROKER
    ]
    if alone and not per_broker:
        return (
            "Cannot update these configs at default cluster level, broker id must be specified:"
            f" Set({', '.join(alone)})"
        )
    try:
        for name, value in values.items():
            if value is not None and name in BROKER_CONFIGS:
                parse(name, value, BROKER_CONFIGS[name])
    except ConfigError as error:
        return str(error)
    return None


def check_static_broker_config(name: str, value: str) -> str | None:
    """What is wrong with a broker property from the command line, a file or the environment.

    Stricter than Kafka, which only logs names it does not know: here nobody could read them.
    """
    definition = BROKER_CONFIGS.get(name)
    if definition is None:
        topic = TOPIC_CONFIGS.get(name)
        if topic is not None and topic.broker_name is not None:
            return f"{name} is a topic's property; for all topics set {topic.broker_name}"
        return f"Unknown broker property: {name}"
    if definition.set_by is not None:
        return f"{name} is set by {definition.set_by}"
    try:
        parse(name, value, definition)
    except ConfigError as error:
        return str(error)
    return None


def alter(
    operation: AlterOperation,
    name: str,
    value: str | None,
    current: str | None,
    definition: ConfigDef | None,
) -> str | None:
    """The text a property has after one step of IncrementalAlterConfigs; None where it is unset.

    current: the text set on this resource now, None where there is none. Raises ConfigError where
    APPEND or SUBTRACT meets a property that is not a list (ConfigurationControlManager).
    """
    if operation is AlterOperation.DELETE:
        return None
    if operation is AlterOperation.SET:
        return value
    if definition is None or definition.type is not ConfigType.LIST:
        raise ConfigError(f"Can't {operation.name} to key {name} because its type is not LIST.")
    before = definition.default if current is None else current
    parts = [part for part in (before or "").split(",") if part]
    for part in (value or "").split(","):
        if operation is AlterOperation.APPEND:
            if part not in parts:
                parts.append(part)
        elif part in parts:
            parts.remove(part)
    return ",".join(parts)


# --- effective values ---


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
        """What is in effect by name, without Kafka's defaults."""
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

    value: None where there is none, or where it is sensitive. synonyms: strongest first.
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
    """A broker property's name with those that say the same, strongest first."""
    for row in DEFINITIONS:
        names = (row.broker_name or "", *(other.name for other in row.alternatives))
        if len(names) > 1 and name in names:
            # Kafka knows the scheduler's interval as the weaker name only, not as a synonym.
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
    # Kafka lists from the first entry of the asked name on: a retention.ms that comes from
    # log.retention.hours has no synonyms and DEFAULT_CONFIG (ConfigHelper.configSynonyms).
    while found and found[0].name != name:
        del found[0]
    return tuple(found)


def describe_topic_config(
    name: str, overrides: Mapping[str, str], broker: BrokerValues
) -> ConfigEntry:
    """A topic property as DescribeConfigs tells it (ConfigHelper.createTopicConfigEntry).

    Raises KeyError for a name that no topic property has.
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


def describe_broker_config(name: str, broker: BrokerValues) -> ConfigEntry:
    """A broker property as DescribeConfigs tells it (ConfigHelper.createBrokerConfigEntry).

    Raises KeyError for a name that no broker property has.
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


def describe_dynamic_default(broker: BrokerValues) -> tuple[ConfigEntry, ...]:
    """The values set for all brokers, as DescribeConfigs tells them for the empty broker name."""
    entries = []
    for name, value in sorted(broker.dynamic_default.items()):
        definition = BROKER_CONFIGS.get(name)
        # A name nobody knows may be a plug-in's password: Kafka hides it, and so do we.
        sensitive = definition is None or definition.is_sensitive
        shown = None if sensitive else value
        source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
        entries.append(
            ConfigEntry(
                name=name,
                value=shown,
                source=source,
                is_sensitive=sensitive,
                is_read_only=definition is None or definition.update_mode is UpdateMode.READ_ONLY,
                synonyms=(ConfigSynonym(name, shown, source),),
                type=definition.type if definition else ConfigType.STRING,
                documentation=definition.documentation if definition else "",
            )
        )
    return tuple(entries)


def parse_unchecked(name: str, text: str) -> ConfigValue:
    """A broker property's typed value without its validator (values set by other settings)."""
    return _parse_type(name, text, BROKER_CONFIGS[name].type)


def broker_value(name: str, broker: Mapping[str, str]) -> ConfigValue | None:
    """The effective typed value of a broker property; None where it is unset and has no default.

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


def topic_value(name: str, overrides: Mapping[str, str], broker: Mapping[str, str]) -> ConfigValue:
    """The effective typed value of a topic property.

    overrides: set on the topic; broker: values in effect on the broker, by broker name. Raises
    ConfigError for text that should not have been let in.
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
            # Kafka reads any negative retention as none; other names refuse them by validator.
            return -1 if amount < 0 else amount * other.unit_ms
    return parse(name, definition.default, definition)


# --- what the log reads ---


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic's settings in effect, typed: what the log acts on. Times in ms, sizes in bytes.

    retention_ms, retention_bytes: -1 (or less) is no limit.
    """

    cleanup_policy: frozenset[str]
    compression_type: str
    max_message_bytes: int
    message_timestamp_type: TimestampType
    message_timestamp_before_max_ms: int
    message_timestamp_after_max_ms: int
    min_insync_replicas: int
    retention_ms: int
    retention_bytes: int
    segment_bytes: int
    segment_ms: int

    @property
    def is_compacted(self) -> bool:
        """Whether the last record of each key is to be kept: records need keys."""
        return "compact" in self.cleanup_policy

    @property
    def is_deleted(self) -> bool:
        """Whether old records are dropped by time and size."""
        return "delete" in self.cleanup_policy


_TIMESTAMP_TYPES = {
    "CreateTime": TimestampType.CREATE_TIME,
    "LogAppendTime": TimestampType.LOG_APPEND_TIME,
}


def topic_config(overrides: Mapping[str, str], broker: Mapping[str, str]) -> TopicConfig:
    """A topic's settings in effect: its own, else the broker's, else Kafka's default.

    Both maps hold text by Kafka's names (`BrokerValues.merged` for the broker's). Raises
    ConfigError for text that should not have been let in.
    """

    def whole(name: str) -> int:
        value = topic_value(name, overrides, broker)
        assert isinstance(value, int), name
        return value

    policy = topic_value("cleanup.policy", overrides, broker)
    assert isinstance(policy, tuple)
    return TopicConfig(
        cleanup_policy=frozenset(policy),
        compression_type=str(topic_value("compression.type", overrides, broker)),
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
    )
