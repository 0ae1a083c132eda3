"""Every property, once: Kafka's name, type, default, validator.

Knows no set value. Names, defaults and valid values are Kafka 4's (TopicConfig,
LogConfig, ServerLogConfigs, SocketServerConfigs, ServerConfigs, GroupCoordinatorConfig; KIP-1030
for 4.0's changes); `DEVIATIONS` lists what differs.
"""

import re
from collections.abc import Mapping
from typing import Final

from core.config.inert import INERT
from core.config.types import (
    DAY_MS,
    HOUR_MS,
    INT_MAX,
    LONG_MAX,
    MINUTE_MS,
    Alternative,
    ConfigDef,
    ConfigError,
    ConfigType,
    ConfigValue,
    UpdateMode,
    Validator,
    at_least,
    between,
    invalid,
    one_of,
    one_of_any_case,
)
from core.quota.connections import read_connections_per_ip
from core.security.acls import read_super_users
from core.security.listeners import DEFAULT_PROTOCOL_MAP, ClientAuth, read_protocol_map
from core.security.principal_mapping import read_mapping

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
        raise invalid(name, value, "Configuration must not be empty")
    one_of(*ASSIGNORS)(name, value)


def _rebalance_protocols(name: str, value: ConfigValue) -> None:
    assert isinstance(value, tuple)
    one_of("consumer", "classic", "share", "streams")(name, value)
    if "classic" not in value:
        raise ConfigError("Disabling the 'classic' protocol is not supported.")


def _mechanisms(name: str, value: ConfigValue) -> None:
    assert isinstance(value, tuple)
    if not value:
        raise invalid(name, value, "Configuration must not be empty")
    one_of("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")(name, value)


def _authorizer(name: str, value: ConfigValue) -> None:
    if value not in ("", AUTHORIZER):
        raise invalid(name, value, f"The only authorizer is {AUTHORIZER}")


def _providers(name: str, value: ConfigValue) -> None:
    assert isinstance(value, tuple)
    one_of(*PULSAR_PROVIDERS, *PULSAR_PROVIDERS.values())(name, value)


def _super_users(name: str, value: ConfigValue) -> None:
    assert isinstance(value, str)
    read_super_users(value)


def _principal_mapping(name: str, value: ConfigValue) -> None:
    assert isinstance(value, str)
    read_mapping(value)


def _connections_per_ip(name: str, value: ConfigValue) -> None:
    assert isinstance(value, str)
    try:
        read_connections_per_ip(value)
    except ValueError as error:
        raise invalid(name, value, str(error)) from error


def _protocol_map(name: str, value: ConfigValue) -> None:
    assert isinstance(value, str)
    read_protocol_map(value)


def _gzip_level(name: str, value: ConfigValue) -> None:
    if value != -1 and value not in range(1, 10):
        raise invalid(name, value, "Value must be between 1 and 9 or equal to -1")


def _throttled_replicas(name: str, value: ConfigValue) -> None:
    assert isinstance(value, tuple)
    if "".join(value) != "*" and not all(re.fullmatch(r"(\d+:\d+)?", item) for item in value):
        raise invalid(
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
        # With weaker alternatives the strongest name has no default: theirs applies.
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
    is_settable: bool = False,
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
        is_settable=is_settable,
    )


_BOOLEAN, _STRING, _INT = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT
_LONG, _DOUBLE, _LIST = ConfigType.LONG, ConfigType.DOUBLE, ConfigType.LIST
_CLUSTER_WIDE, _PER_BROKER = UpdateMode.CLUSTER_WIDE, UpdateMode.PER_BROKER
_NO_EFFECT = "Accepted and reported; without effect, since PostgreSQL keeps the log."
NOT_COMPACTED: Final = "Penstock does not compact yet: compact in cleanup.policy removes no record."
"""The sentence shown to anybody who asks for compaction."""
TLS: Final = "tls"
PULSAR_PROVIDERS: Final[Mapping[str, str]] = {
    "token": "org.apache.pulsar.broker.authentication.AuthenticationProviderToken",
    "basic": "org.apache.pulsar.broker.authentication.AuthenticationProviderBasic",
    TLS: "org.apache.pulsar.broker.authentication.AuthenticationProviderTls",
}
"""Pulsar's classes by the name of their method (CONNECT's `auth_method_name`)."""
PUBLIC_KEY_ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512"),
    *("PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512"),
)
"""Those of tokens, where the key that checks them is not the one that signs them."""
AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_LATER = "Accepted and reported; log compaction is not there yet."
_ONE_COPY = "Accepted and reported; without effect: replication is PostgreSQL's."

_HONOURED: tuple[ConfigDef, ...] = (
    # --- topics, with the broker's name for the default of all topics ---
    _topic(
        "cleanup.policy",
        _LIST,
        "delete",
        "What happens to old records: delete drops them by time and size, compact keeps the last "
        f"of each key, or both. {NOT_COMPACTED}",
        broker="log.cleanup.policy",
        validator=one_of("compact", "delete"),
    ),
    _topic(
        "compression.gzip.level",
        _INT,
        -1,
        "Level for gzip where compression.type is gzip; -1 is zlib's own default, 6.",
        broker="compression.gzip.level",
        validator=_gzip_level,
    ),
    _topic(
        "compression.lz4.level",
        _INT,
        9,
        "Level for lz4 where compression.type is lz4; 9, the default, is the fast compressor.",
        broker="compression.lz4.level",
        validator=between(1, 17),
    ),
    _topic(
        "compression.type",
        _STRING,
        "producer",
        "How batches of Kafka's producers are compressed in the log; producer keeps what each of "
        "them chose. A batch that came otherwise is opened, checked and compressed anew.",
        broker="compression.type",
        validator=one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    ),
    _topic(
        "compression.zstd.level",
        _INT,
        3,
        "Level for zstd where compression.type is zstd.",
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
        "Largest record batch accepted, in bytes: as it came, and as compression.type has made it.",
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
    _topic(
        "penstock.deduplication.enabled",
        _BOOLEAN,
        "false",
        "Whether a message of a Pulsar client is stored once, however often it is sent: by its "
        "producer's name and sequence id. Pulsar's `deduplicationEnabled` of a topic, and of a "
        "broker `brokerDeduplicationEnabled`. Some minutes after it is switched off, what was "
        "known of names is forgotten.",
        broker="penstock.broker.deduplication.enabled",
    ),
    _topic(
        "penstock.pulsar.partitioned",
        _BOOLEAN,
        "false",
        "Whether the topic is a partitioned one to Pulsar's clients though it has one partition "
        "(`NAME-partition-0`), as Pulsar's own may be. One with several always is.",
        broker=None,
    ),
    _topic(
        "penstock.pulsar.retention",
        _BOOLEAN,
        "false",
        "Whether the retention that the topic's namespace sets (Pulsar's `retention_policies`) "
        "lets go earlier what all of its durable subscriptions have acknowledged. Topics that "
        "Pulsar's clients make start with true. retention.ms and retention.bytes hold in any case.",
        broker=None,
    ),
    # --- brokers only ---
    _broker(
        "advertised.listeners",
        _STRING,
        None,
        "The addresses that clients are told to connect to, by the names in listeners; those not "
        "named here are told the one listened on.",
        set_by="--advertise",
        is_settable=True,
    ),
    _broker(
        "allow.everyone.if.no.acl.found",
        _BOOLEAN,
        "false",
        "Whether a resource that no ACL is about may be used by everybody.",
    ),
    _broker(
        "authorizer.class.name",
        _STRING,
        "",
        f"Whether clients are asked for rights: {AUTHORIZER}, or empty: everybody may do "
        "everything. All brokers of a cluster need the same.",
        validator=_authorizer,
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
        "connection.failed.authentication.delay.ms",
        _INT,
        100,
        "How long a client waits to hear that its login was refused.",
        validator=at_least(0),
    ),
    _broker(
        "connections.max.idle.ms",
        _LONG,
        10 * MINUTE_MS,
        "Time after which a connection without requests is closed.",
    ),
    _broker(
        "connections.max.reauth.ms",
        _LONG,
        0,
        "Time after which a client must have logged in again, on the same connection (KIP-368); 0: "
        "never.",
    ),
    _broker(
        "controller.quota.window.num",
        _INT,
        11,
        "With controller.quota.window.size.seconds: what of controller_mutation_rate may "
        "be used at once, as seconds of it.",
        validator=at_least(1),
    ),
    _broker(
        "controller.quota.window.size.seconds",
        _INT,
        1,
        "See controller.quota.window.num.",
        validator=at_least(1),
    ),
    _broker(
        "default.replication.factor",
        _INT,
        1,
        "Replication factor of topics that do not say theirs. " + _ONE_COPY,
    ),
    _broker(
        "delegation.token.expiry.check.interval.ms",
        _LONG,
        HOUR_MS,
        "How often tokens that are over are deleted. Nobody logs in by one meanwhile.",
        validator=at_least(1),
    ),
    _broker(
        "delegation.token.expiry.time.ms",
        _LONG,
        DAY_MS,
        "How long a delegation token lasts unless it is renewed.",
        validator=at_least(1),
    ),
    _broker(
        "delegation.token.max.lifetime.ms",
        _LONG,
        7 * DAY_MS,
        "How long a delegation token may be renewed.",
        validator=at_least(1),
    ),
    _broker(
        "delegation.token.secret.key",
        ConfigType.PASSWORD,
        None,
        "The key that delegation tokens are made with; without it there are none. All brokers of a "
        "cluster need the same. With another one no former token is good.",
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
        "group.coordinator.rebalance.protocols",
        _LIST,
        "classic,consumer",
        "Protocols that groups may use; without consumer, members of the new protocol (KIP-848) "
        "are refused.",
        validator=_rebalance_protocols,
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
        "listener.security.protocol.map",
        _STRING,
        DEFAULT_PROTOCOL_MAP,
        "Which protocol is spoken on a listener, by name: NAME:PROTOCOL, with commas. PLAINTEXT; "
        "SSL; SASL_PLAINTEXT and SASL_SSL ask clients who they are.",
        validator=_protocol_map,
    ),
    _broker(
        "listeners",
        _STRING,
        "PLAINTEXT://:9092",
        "The addresses listened on for Kafka's clients: NAME://HOST:PORT, with commas. All brokers "
        "of a cluster need the same names. Takes the place of `--listen`.",
        set_by="--listen",
        is_settable=True,
    ),
    _broker(
        "log.retention.check.interval.ms",
        _LONG,
        5 * MINUTE_MS,
        "Time between two looks for records that retention lets go.",
        validator=at_least(1),
    ),
    _broker(
        "max.connection.creation.rate",
        _INT,
        INT_MAX,
        "Most new connections a second; others wait to be accepted.",
        validator=at_least(0),
        update_mode=_CLUSTER_WIDE,
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
        "max.connections.per.ip.overrides",
        _STRING,
        "",
        "Other limits than max.connections.per.ip for some addresses: 10.0.0.1:5,10.0.0.2:500.",
        validator=_connections_per_ip,
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
    _broker(
        "node.id",
        _INT,
        None,
        "The same as broker.id.",
        validator=at_least(0),
        set_by="--broker-id",
    ),
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
        "quota.window.num",
        _INT,
        11,
        "With quota.window.size.seconds: for how long use of request_percentage beyond a quota is "
        "remembered, and how many connections an address may make at once, as seconds of its rate.",
        validator=at_least(1),
    ),
    _broker(
        "quota.window.size.seconds",
        _INT,
        1,
        "What of a client's quota may be used at once, as seconds of it.",
        validator=at_least(1),
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
        "sasl.enabled.mechanisms",
        _LIST,
        "SCRAM-SHA-256,SCRAM-SHA-512",
        "Mechanisms by which clients log in on listeners that ask: PLAIN, SCRAM-SHA-256, "
        "SCRAM-SHA-512, which go by the same users, and OAUTHBEARER.",
        validator=_mechanisms,
        update_mode=UpdateMode.PER_BROKER,
    ),
    _broker(
        "sasl.oauthbearer.clock.skew.seconds",
        _INT,
        30,
        "So much the clocks of issuers of tokens may be wrong.",
        validator=at_least(0),
    ),
    _broker(
        "sasl.oauthbearer.expected.audience",
        _LIST,
        None,
        "For whom a token has to be: one of these is in its claim `aud`. OAUTHBEARER needs it.",
    ),
    _broker(
        "sasl.oauthbearer.expected.issuer",
        _STRING,
        None,
        "Whose tokens are taken: the claim `iss`. OAUTHBEARER needs it.",
    ),
    _broker(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        _LONG,
        HOUR_MS,
        "How old keys may be before a login looks for newer ones; a file is looked at once a "
        "second.",
        validator=at_least(1),
    ),
    _broker(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        _LONG,
        10_000,
        "Longest pause after a failure to get the keys.",
        validator=at_least(1),
    ),
    _broker(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        _LONG,
        100,
        "First pause after a failure to get the keys; each further one is twice as long.",
        validator=at_least(1),
    ),
    _broker(
        "sasl.oauthbearer.jwks.endpoint.url",
        _STRING,
        None,
        "Where the keys are by which tokens are checked: the issuer's key set (JWKS), https://…, "
        "http://… or file:///…. OAUTHBEARER needs it.",
    ),
    _broker(
        "sasl.oauthbearer.scope.claim.name",
        _STRING,
        "scope",
        "The claim that has a token's scopes; they are looked at, and mean nothing here.",
    ),
    _broker(
        "sasl.oauthbearer.sub.claim.name",
        _STRING,
        "sub",
        "The claim that has the user's name.",
    ),
    _broker(
        "sasl.server.max.receive.size",
        _INT,
        524_288,
        "Largest request accepted of a client that has not logged in.",
        validator=at_least(1),
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
    _broker(
        "ssl.client.auth",
        _STRING,
        "none",
        "Whether Kafka's clients show a certificate where TLS is spoken: none; requested, and who "
        "shows none is User:ANONYMOUS; required. On listeners of SASL_SSL only a listener's own "
        "value counts (`listener.name.<listener>.ssl.client.auth`).",
        validator=one_of(*(each.value for each in ClientAuth)),
        update_mode=_PER_BROKER,
    ),
    _broker(
        "ssl.principal.mapping.rules",
        _STRING,
        "DEFAULT",
        "Whom a client's certificate stands for: RULE:pattern/replacement/ with L or U behind, by "
        "the name of its subject; DEFAULT is the name as it is. The first that fits decides.",
        validator=_principal_mapping,
    ),
    _broker(
        "ssl.truststore.location",
        _STRING,
        None,
        "File of the certificates (PEM) by which clients' certificates are checked.",
        update_mode=_PER_BROKER,
        set_by="--tls-client-ca",
        is_settable=True,
    ),
    _broker(
        "ssl.truststore.type",
        _STRING,
        "PEM",
        "What the file of ssl.truststore.location is.",
        validator=one_of("PEM"),
        update_mode=_PER_BROKER,
    ),
    _broker(
        "super.users",
        _STRING,
        "",
        "Who may do everything, whatever the ACLs: Type:name, with semicolons.",
        validator=_super_users,
    ),
    _broker(
        "transaction.max.timeout.ms",
        _INT,
        15 * MINUTE_MS,
        "Longest transaction timeout that a producer may ask for.",
        validator=at_least(1),
    ),
    _broker(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        _INT,
        HOUR_MS,
        "Time between two looks for transactional ids that nobody uses any more.",
        validator=at_least(1),
    ),
    _broker(
        "transactional.id.expiration.ms",
        _INT,
        7 * DAY_MS,
        "Time after which a transactional id that nobody uses is forgotten.",
        validator=at_least(1),
    ),
    # --- Penstock's own ---
    _broker(
        "penstock.backlog.quota.check.interval.ms",
        _INT,
        MINUTE_MS,
        "Time between two looks at backlogs that namespaces limit. Pulsar's "
        "`backlogQuotaCheckIntervalInSeconds`.",
        validator=at_least(1),
        update_mode=_CLUSTER_WIDE,
    ),
    _broker(
        "penstock.broker.deduplication.producer.inactivity.timeout.minutes",
        _INT,
        360,
        "Time after which the sequence ids of a Pulsar producer that is gone are forgotten. "
        "Pulsar's `brokerDeduplicationProducerInactivityTimeoutMinutes`.",
        validator=at_least(1),
        update_mode=_CLUSTER_WIDE,
    ),
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
        "penstock.login.timeout.ms",
        _INT,
        30_000,
        "Longest time that a connection may take to log in, where it is asked to.",
        validator=at_least(1),
    ),
    _broker(
        "penstock.max.unacked.messages.per.consumer",
        _INT,
        50_000,
        "Messages that a consumer of a Shared or Key_Shared subscription of Pulsar's may have "
        "without acknowledging one; 0: no limit. A namespace may set its own. Pulsar's "
        "`maxUnackedMessagesPerConsumer`.",
        validator=at_least(0),
        update_mode=_CLUSTER_WIDE,
    ),
    _broker(
        "penstock.max.unacked.messages.per.subscription",
        _INT,
        200_000,
        "The same for all consumers of a subscription in a partition. Pulsar's "
        "`maxUnackedMessagesPerSubscription`.",
        validator=at_least(0),
        update_mode=_CLUSTER_WIDE,
    ),
    _broker(
        "penstock.message.expiry.check.interval.ms",
        _INT,
        5 * MINUTE_MS,
        "Time between two looks for messages that are older than their namespace's TTL. Pulsar's "
        "`messageExpiryCheckIntervalInMinutes`.",
        validator=at_least(1),
        update_mode=_CLUSTER_WIDE,
    ),
    _broker(
        "penstock.published.batch.expiration.ms",
        _LONG,
        30 * DAY_MS,
        "Time after its last publication after which a query's highest batch is forgotten.",
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
        "penstock.sql.transaction.max.bytes",
        _LONG,
        512 * 2**20,
        "Most bytes of records that one transaction of an application may produce in SQL.",
        validator=at_least(1),
        update_mode=_CLUSTER_WIDE,
    ),
    _broker(
        "penstock.ssl.crl.location",
        _STRING,
        None,
        "File of lists (CRLs, PEM) of clients' certificates that were taken back; with it, each of "
        "who signs them needs one that is not out of date.",
    ),
    _broker(
        "penstock.staged.expiration.ms",
        _LONG,
        DAY_MS,
        "Time after which staged records that nobody publishes are dropped.",
        validator=at_least(1),
    ),
    _broker(
        "penstock.staged.max.bytes",
        _LONG,
        10 * 2**30,
        "Most bytes of staged records that wait to be published; beyond it staging has to wait.",
        validator=at_least(0),
    ),
    _broker(
        "penstock.tail.cache.bytes",
        _LONG,
        64 * 2**20,
        "Memory for the newest batches, from which consumers at the tail are served.",
        validator=at_least(0),
    ),
    _broker(
        "penstock.transaction.coordinators",
        _INT,
        16,
        "Transaction coordinators that Pulsar's clients find, spread over the brokers. Pulsar's "
        "`initial-num-transaction-coordinators`.",
        validator=at_least(1),
        update_mode=_CLUSTER_WIDE,
    ),
    # --- logins of Pulsar's clients and by HTTP, under Pulsar's names ---
    _broker(
        "authenticateMetricsEndpoint",
        _BOOLEAN,
        "true",
        "Whether who reads /metrics has to log in, too, where authenticationEnabled is set; not so "
        "in Pulsar by default. --metrics-listen asks nobody.",
    ),
    _broker(
        "authenticateOriginalAuthData",
        _BOOLEAN,
        "false",
        "Whether a proxy has to pass on what its client has logged in by, which is checked here, "
        "too; else its word is taken for who the client is.",
    ),
    _broker(
        "authenticationEnabled",
        _BOOLEAN,
        "false",
        "Whether clients have to log in at Pulsar's door and by HTTP, by one of "
        "authenticationProviders.",
    ),
    _broker(
        "authenticationProviders",
        _LIST,
        "",
        f"How they may: {', '.join(PULSAR_PROVIDERS)}, or Pulsar's names of these classes. token: "
        "a JWT; basic: name and password of a user, the same as for SASL; tls: a certificate, "
        "whose CN is the role.",
        validator=_providers,
    ),
    _broker(
        "authenticationRefreshCheckSeconds",
        _INT,
        60,
        "So long before a token runs out its client is asked for another (AUTH_CHALLENGE). Whoever "
        "has given none is disconnected when it does.",
        validator=at_least(1),
    ),
    _broker(
        "proxyRoles",
        _LIST,
        "",
        "Roles of proxies: they say for whom they ask (original principal), and nobody else may.",
    ),
    _broker(
        "superUserRoles",
        _LIST,
        "",
        "Roles that may do everything, as those in super.users may: `admin` here is `User:admin` "
        "there.",
    ),
    _broker(
        "tokenAllowedClockSkewSeconds",
        _INT,
        0,
        "So much the clocks of those that make tokens may be wrong.",
        validator=at_least(0),
    ),
    _broker("tokenAudience", _STRING, "", "What has to be in a token's tokenAudienceClaim."),
    _broker(
        "tokenAudienceClaim",
        _STRING,
        "",
        "The claim that says for which brokers a token is; empty: for all.",
    ),
    _broker("tokenAuthClaim", _STRING, "sub", "The claim that has a token's role."),
    _broker(
        "tokenPublicAlg",
        _STRING,
        "RS256",
        "The one algorithm of tokens that tokenPublicKey is for.",
        validator=one_of(*PUBLIC_KEY_ALGORITHMS),
    ),
    _broker(
        "tokenPublicKey",
        _STRING,
        "",
        "The public key of those that make tokens: file:///PATH or a path, data:;base64,… or "
        "Base64; DER or PEM.",
    ),
    _broker(
        "tokenSecretKey",
        ConfigType.PASSWORD,
        "",
        "The secret key, of 32 bytes or more, of those that make tokens, given likewise. A file "
        "is better: everybody on the machine can read a command line.",
    ),
)

DEFINITIONS: tuple[ConfigDef, ...] = (*_HONOURED, *INERT)

DEVIATIONS: Mapping[str, str] = {
    "group.coordinator.rebalance.protocols": "There are no groups of the streams protocol here.",
    "process.roles": "Kafka has no default; every process here is a broker.",
    "queued.max.request.bytes": "Kafka has no limit by default (-1); memory is bounded here.",
    "sasl.enabled.mechanisms": "Kafka's GSSAPI is not there.",
    "socket.listen.backlog.size": "Kafka's 50 makes clients that come all at once wait a second.",
    "ssl.truststore.type": "JKS, Kafka's default, is Java's own.",
}
"""Defaults that differ from Kafka's, with the reason."""


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
