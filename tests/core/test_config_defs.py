"""core.config_defs and core.config_types: Kafka's table, and its sentences."""

import pytest

from core.config_defs import BROKER_CONFIGS, DEVIATIONS, TOPIC_CONFIGS
from core.config_rules import check_topic_configs
from core.config_types import parse, to_text
from core.config_values import (
    BrokerValues,
    ConfigSource,
    describe_broker_config,
    describe_topic_config,
)

# As Apache Kafka 4.1 describes a topic and a broker: type, default, the synonym that it lists.
KAFKA_TOPIC_DEFAULTS = {
    "cleanup.policy": ("LIST", "delete", "log.cleanup.policy"),
    "compression.gzip.level": ("INT", "-1", "compression.gzip.level"),
    "compression.lz4.level": ("INT", "9", "compression.lz4.level"),
    "compression.type": ("STRING", "producer", "compression.type"),
    "compression.zstd.level": ("INT", "3", "compression.zstd.level"),
    "delete.retention.ms": ("LONG", "86400000", "log.cleaner.delete.retention.ms"),
    "file.delete.delay.ms": ("LONG", "60000", "log.segment.delete.delay.ms"),
    "flush.messages": ("LONG", "9223372036854775807", "log.flush.interval.messages"),
    "flush.ms": ("LONG", "9223372036854775807", None),
    "follower.replication.throttled.replicas": ("LIST", "", None),
    "index.interval.bytes": ("INT", "4096", "log.index.interval.bytes"),
    "leader.replication.throttled.replicas": ("LIST", "", None),
    "local.retention.bytes": ("LONG", "-2", "log.local.retention.bytes"),
    "local.retention.ms": ("LONG", "-2", "log.local.retention.ms"),
    "max.compaction.lag.ms": ("LONG", "9223372036854775807", "log.cleaner.max.compaction.lag.ms"),
    "max.message.bytes": ("INT", "1048588", "message.max.bytes"),
    "message.timestamp.after.max.ms": ("LONG", "3600000", "log.message.timestamp.after.max.ms"),
    "message.timestamp.before.max.ms": (  # 2**63 - 1
        "LONG",
        "9223372036854775807",
        "log.message.timestamp.before.max.ms",
    ),
    "message.timestamp.type": ("STRING", "CreateTime", "log.message.timestamp.type"),
    "min.cleanable.dirty.ratio": ("DOUBLE", "0.5", "log.cleaner.min.cleanable.ratio"),
    "min.compaction.lag.ms": ("LONG", "0", "log.cleaner.min.compaction.lag.ms"),
    "min.insync.replicas": ("INT", "1", "min.insync.replicas"),
    "preallocate": ("BOOLEAN", "false", "log.preallocate"),
    "remote.log.copy.disable": ("BOOLEAN", "false", None),
    "remote.log.delete.on.disable": ("BOOLEAN", "false", None),
    "remote.storage.enable": ("BOOLEAN", "false", None),
    "retention.bytes": ("LONG", "-1", "log.retention.bytes"),
    "retention.ms": ("LONG", "604800000", None),
    "segment.bytes": ("INT", "1073741824", "log.segment.bytes"),
    "segment.index.bytes": ("INT", "10485760", "log.index.size.max.bytes"),
    "segment.jitter.ms": ("LONG", "0", None),
    "segment.ms": ("LONG", "604800000", None),
    "unclean.leader.election.enable": ("BOOLEAN", "false", "unclean.leader.election.enable"),
}

KAFKA_BROKER_DEFAULTS = {
    "auto.create.topics.enable": ("BOOLEAN", "true", True),
    "compression.gzip.level": ("INT", "-1", False),
    "compression.lz4.level": ("INT", "9", False),
    "compression.type": ("STRING", "producer", False),
    "compression.zstd.level": ("INT", "3", False),
    "connections.max.idle.ms": ("LONG", "600000", True),
    "default.replication.factor": ("INT", "1", True),
    "delete.topic.enable": ("BOOLEAN", "true", True),
    "fetch.max.bytes": ("INT", "57671680", True),
    "group.consumer.assignors": ("LIST", "uniform,range", True),
    "group.consumer.heartbeat.interval.ms": ("INT", "5000", True),
    "group.consumer.max.heartbeat.interval.ms": ("INT", "15000", True),
    "group.consumer.max.session.timeout.ms": ("INT", "60000", True),
    "group.consumer.max.size": ("INT", "2147483647", True),
    "group.consumer.migration.policy": ("STRING", "bidirectional", True),
    "group.consumer.min.heartbeat.interval.ms": ("INT", "5000", True),
    "group.consumer.min.session.timeout.ms": ("INT", "45000", True),
    "group.consumer.session.timeout.ms": ("INT", "45000", True),
    "group.initial.rebalance.delay.ms": ("INT", "3000", True),
    "group.max.session.timeout.ms": ("INT", "1800000", True),
    "group.max.size": ("INT", "2147483647", True),
    "group.min.session.timeout.ms": ("INT", "6000", True),
    "log.cleaner.delete.retention.ms": ("LONG", "86400000", False),
    "log.cleaner.max.compaction.lag.ms": ("LONG", "9223372036854775807", False),
    "log.cleaner.min.cleanable.ratio": ("DOUBLE", "0.5", False),
    "log.cleaner.min.compaction.lag.ms": ("LONG", "0", False),
    "log.cleanup.policy": ("LIST", "delete", False),
    "log.flush.interval.messages": ("LONG", "9223372036854775807", False),
    "log.flush.interval.ms": ("LONG", None, False),
    "log.flush.scheduler.interval.ms": ("LONG", "9223372036854775807", True),
    "log.index.interval.bytes": ("INT", "4096", False),
    "log.index.size.max.bytes": ("INT", "10485760", False),
    "log.local.retention.bytes": ("LONG", "-2", False),
    "log.local.retention.ms": ("LONG", "-2", False),
    "log.message.timestamp.after.max.ms": ("LONG", "3600000", False),
    "log.message.timestamp.before.max.ms": ("LONG", "9223372036854775807", False),
    "log.message.timestamp.type": ("STRING", "CreateTime", False),
    "log.preallocate": ("BOOLEAN", "false", False),
    "log.retention.bytes": ("LONG", "-1", False),
    "log.retention.check.interval.ms": ("LONG", "300000", True),
    "log.retention.hours": ("INT", "168", True),
    "log.retention.minutes": ("INT", None, True),
    "log.retention.ms": ("LONG", None, False),
    "log.roll.hours": ("INT", "168", True),
    "log.roll.jitter.hours": ("INT", "0", True),
    "log.roll.jitter.ms": ("LONG", None, False),
    "log.roll.ms": ("LONG", None, False),
    "log.segment.bytes": ("INT", "1073741824", False),
    "log.segment.delete.delay.ms": ("LONG", "60000", False),
    "max.connections": ("INT", "2147483647", False),
    "max.connections.per.ip": ("INT", "2147483647", False),
    "max.incremental.fetch.session.cache.slots": ("INT", "1000", True),
    "max.request.partition.size.limit": ("INT", "2000", True),
    "message.max.bytes": ("INT", "1048588", False),
    "min.insync.replicas": ("INT", "1", False),
    "num.partitions": ("INT", "1", True),
    "offset.metadata.max.bytes": ("INT", "4096", True),
    "offsets.retention.check.interval.ms": ("LONG", "600000", True),
    "offsets.retention.minutes": ("INT", "10080", True),
    "producer.id.expiration.ms": ("INT", "86400000", False),
    "queued.max.request.bytes": ("LONG", "-1", True),
    "request.timeout.ms": ("INT", "30000", True),
    "socket.listen.backlog.size": ("INT", "50", True),
    "socket.request.max.bytes": ("INT", "104857600", True),
    "unclean.leader.election.enable": ("BOOLEAN", "false", False),
}

NOTHING = BrokerValues({}, {}, {})


@pytest.mark.parametrize("name", KAFKA_TOPIC_DEFAULTS)
def test_a_topics_property_is_kafkas(name: str) -> None:
    kind, value, synonym = KAFKA_TOPIC_DEFAULTS[name]
    entry = describe_topic_config(name, {}, NOTHING)
    assert (entry.type.name, entry.value) == (kind, value)
    assert entry.source is ConfigSource.DEFAULT_CONFIG
    assert [each.name for each in entry.synonyms] == ([synonym] if synonym else [])
    assert not entry.is_read_only


def test_there_is_no_other_topic_property() -> None:
    assert set(TOPIC_CONFIGS) == set(KAFKA_TOPIC_DEFAULTS)


@pytest.mark.parametrize("name", sorted(set(KAFKA_BROKER_DEFAULTS) - set(DEVIATIONS)))
def test_a_brokers_property_is_kafkas(name: str) -> None:
    kind, value, is_read_only = KAFKA_BROKER_DEFAULTS[name]
    entry = describe_broker_config(name, NOTHING)
    assert (entry.type.name, entry.value, entry.is_read_only) == (kind, value, is_read_only)


def test_what_is_not_kafkas_says_so() -> None:
    others = {name for name in BROKER_CONFIGS if name not in KAFKA_BROKER_DEFAULTS}
    named_by_flags = {name for name in others if BROKER_CONFIGS[name].set_by}
    assert all(name.startswith("penstock.") for name in others - named_by_flags)
    for name in DEVIATIONS:
        assert BROKER_CONFIGS[name].default != KAFKA_BROKER_DEFAULTS[name][1]


@pytest.mark.parametrize("table", [TOPIC_CONFIGS, BROKER_CONFIGS])
def test_every_default_passes_its_own_check(table: dict[str, object]) -> None:
    for name, definition in (TOPIC_CONFIGS | BROKER_CONFIGS).items():
        if name in table and definition.default is not None:
            assert to_text(parse(name, definition.default, definition)) == definition.default
        assert definition.documentation


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("retention.ms", "abc", "Not a number of type LONG"),
        ("retention.ms", "1.5", "Not a number of type LONG"),
        ("retention.ms", "", "Not a number of type LONG"),
        ("retention.ms", "9223372036854775808", "Not a number of type LONG"),
        ("retention.ms", "-2", "Value must be at least -1"),
        ("max.message.bytes", "2147483648", "Not a number of type INT"),
        ("max.message.bytes", "１２", "Not a number of type INT"),  # noqa: RUF001 - digits, but not ASCII's
        ("segment.bytes", "1000", "Value must be at least 1048576"),
        ("preallocate", "maybe", "Expected value to be either true or false"),
        ("min.cleanable.dirty.ratio", "nan", "Not a number of type DOUBLE"),
        (
            "message.timestamp.type",
            "createtime",
            "String must be one of: CreateTime, LogAppendTime",
        ),
        (
            "compression.type",
            "none",
            "String must be one of: uncompressed, zstd, lz4, snappy, gzip, producer",
        ),
        ("compression.gzip.level", "0", "Value must be between 1 and 9 or equal to -1"),
        ("compression.zstd.level", "23", "Value must be no more than 22"),
        ("cleanup.policy", "foo", "String must be one of: compact, delete"),
    ],
)
def test_a_bad_value_gets_kafkas_sentence(name: str, text: str, sentence: str) -> None:
    wanted = f"Invalid value {text} for configuration {name}: {sentence}"
    assert check_topic_configs({name: text}) == wanted


def test_sentences_with_a_form_of_their_own() -> None:
    assert check_topic_configs({"nope": "1"}) == "Unknown topic config name: nope"
    assert check_topic_configs({"retention.ms": None}) == (
        "Null value not supported for topic configs: retention.ms"
    )
    assert check_topic_configs({"min.cleanable.dirty.ratio": "2"}) == (
        "Invalid value 2.0 for configuration min.cleanable.dirty.ratio: "
        "Value must be no more than 1"
    )
    assert check_topic_configs({"remote.storage.enable": "true"}) == (
        "Tiered Storage functionality is disabled in the broker. "
        "Topic cannot be configured with remote log storage."
    )
    name = "leader.replication.throttled.replicas"
    assert check_topic_configs({name: "foo"}) == (
        f"Invalid value [foo] for configuration {name}: {name} must be the literal '*' or a list "
        "of replicas in the following format: [partitionId]:[brokerId],[partitionId]:[brokerId],..."
    )


@pytest.mark.parametrize("text", ["*", "", "0:1", "0:1, 1:2"])
def test_throttled_replicas_pass(text: str) -> None:
    assert check_topic_configs({"follower.replication.throttled.replicas": text}) is None


def test_compaction_lags_may_not_cross_with_the_brokers_values_either() -> None:
    conflict = "conflict topic config setting min.compaction.lag.ms (5) > max.compaction.lag.ms (3)"
    both = {"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "3"}
    assert check_topic_configs(both) == conflict
    broker = {"log.cleaner.max.compaction.lag.ms": "3"}
    assert check_topic_configs({"min.compaction.lag.ms": "5"}, broker) == conflict
    assert check_topic_configs({"min.compaction.lag.ms": "5"}) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [("delete", ("delete",)), (" compact , delete ", ("compact", "delete")), ("", ())],
)
def test_lists_are_split_at_commas(text: str, value: tuple[str, ...]) -> None:
    assert parse("cleanup.policy", text, TOPIC_CONFIGS["cleanup.policy"]) == value


def test_numbers_and_booleans_are_read_as_java_reads_them() -> None:
    assert parse("retention.ms", " +7 ", TOPIC_CONFIGS["retention.ms"]) == 7
    assert parse("preallocate", "TRUE", TOPIC_CONFIGS["preallocate"]) is True
    ratio = TOPIC_CONFIGS["min.cleanable.dirty.ratio"]
    assert parse("min.cleanable.dirty.ratio", "5e-1", ratio) == 0.5
