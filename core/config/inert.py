"""Kafka's properties that change nothing here: accepted, checked and reported, with the reason.

They are in the table because tools and people look for them, and a `server.properties` names them.
A property that would promise missing safety (`ONLY_DEFAULT`) takes only its default.
Names, types, defaults, bounds and update modes are Apache Kafka 4.1's.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from core.config.types import (
    ConfigDef,
    ConfigType,
    UpdateMode,
    Validator,
    at_least,
    between,
    offset_reset,
    one_of,
    only_default,
)

_BOOLEAN, _STRING, _INT = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT
_LONG, _DOUBLE, _LIST = ConfigType.LONG, ConfigType.DOUBLE, ConfigType.LIST
_SHORT, _CLASS, _PASSWORD = ConfigType.SHORT, ConfigType.CLASS, ConfigType.PASSWORD
_CLUSTER_WIDE, _PER_BROKER = UpdateMode.CLUSTER_WIDE, UpdateMode.PER_BROKER


class _Row(NamedTuple):
    name: str
    type: ConfigType
    default: str | None
    validator: Validator | None = None
    update_mode: UpdateMode = UpdateMode.READ_ONLY


# Why they change nothing.
_PLUG_IN: Final = "plug-ins are Java classes, and none can be loaded here."
_TLS: Final = "TLS is set with --tls-cert, --tls-key and --tls-client-ca."
_NO_LOGIN: Final = (
    "clients log in with PLAIN, SCRAM and OAUTHBEARER; other ways are not there, and the broker is "
    "nobody's client."
)
_NO_LOGIN_TO_TUNE: Final = (
    "they time and tune ways to log in that are not there yet, and promise none."
)
_NO_TIER: Final = "there is no tiered storage to enable."
_TIERED: Final = "tiered storage is not there."
_TRANSACTIONS: Final = "transactions are rows of PostgreSQL, ended in one commit: no such topics."
_TWO_PHASE: Final = "two-phase commit (KIP-939) is not there."
_GROUPS: Final = "groups and offsets are rows of PostgreSQL: there are no such threads and topics."
_SHARE: Final = "share groups are not there."
_STREAMS: Final = "groups of the streams protocol are not there."
_COMPACTION: Final = "compaction is not there yet."
_REPLICATION: Final = "copies are PostgreSQL's replication."
_FILES: Final = "PostgreSQL keeps the log: there are no such files."
_KRAFT: Final = "there is no quorum of controllers: brokers meet in PostgreSQL."
_PROCESS: Final = "a broker is one loop of events: there are no such threads and queues."
_CONNECTIONS: Final = "connections are limited in number and rate only."
_METRICS: Final = "metrics are Prometheus's (--metrics-listen)."

_ONLY_DEFAULT: Final = {_PLUG_IN, _TLS, _NO_LOGIN, _NO_TIER, _TWO_PHASE}

_ROWS: Final[Mapping[str, tuple[_Row, ...]]] = {
    _PLUG_IN: (
        _Row("alter.config.policy.class.name", _CLASS, None),
        _Row("client.quota.callback.class", _CLASS, None),
        _Row("create.topic.policy.class.name", _CLASS, None),
        _Row("kafka.metrics.reporters", _LIST, ""),
        _Row(
            "metric.reporters",
            _LIST,
            "org.apache.kafka.common.metrics.JmxReporter",
            None,
            _CLUSTER_WIDE,
        ),
        _Row("replica.selector.class", _STRING, None),
    ),
    _TLS: (
        _Row("ssl.allow.dn.changes", _BOOLEAN, "false"),
        _Row("ssl.allow.san.changes", _BOOLEAN, "false"),
        _Row("ssl.cipher.suites", _LIST, "", None, _PER_BROKER),
        _Row("ssl.enabled.protocols", _LIST, "TLSv1.2,TLSv1.3", None, _PER_BROKER),
        _Row("ssl.endpoint.identification.algorithm", _STRING, "https", None, _PER_BROKER),
        _Row("ssl.engine.factory.class", _CLASS, None, None, _PER_BROKER),
        _Row("ssl.key.password", _PASSWORD, None, None, _PER_BROKER),
        _Row("ssl.keymanager.algorithm", _STRING, "SunX509", None, _PER_BROKER),
        _Row("ssl.keystore.certificate.chain", _PASSWORD, None, None, _PER_BROKER),
        _Row("ssl.keystore.key", _PASSWORD, None, None, _PER_BROKER),
        _Row("ssl.keystore.location", _STRING, None, None, _PER_BROKER),
        _Row("ssl.keystore.password", _PASSWORD, None, None, _PER_BROKER),
        _Row("ssl.keystore.type", _STRING, "JKS", None, _PER_BROKER),
        _Row("ssl.protocol", _STRING, "TLSv1.3", None, _PER_BROKER),
        _Row("ssl.provider", _STRING, None, None, _PER_BROKER),
        _Row("ssl.secure.random.implementation", _STRING, None, None, _PER_BROKER),
        _Row("ssl.trustmanager.algorithm", _STRING, "PKIX", None, _PER_BROKER),
        _Row("ssl.truststore.certificates", _PASSWORD, None, None, _PER_BROKER),
        _Row("ssl.truststore.password", _PASSWORD, None, None, _PER_BROKER),
    ),
    _NO_LOGIN: (
        _Row(
            "principal.builder.class",
            _CLASS,
            "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder",
            None,
            _PER_BROKER,
        ),
        _Row("sasl.client.callback.handler.class", _CLASS, None),
        _Row("sasl.jaas.config", _PASSWORD, None, None, _PER_BROKER),
        _Row("sasl.login.callback.handler.class", _CLASS, None),
        _Row("sasl.login.class", _CLASS, None),
        _Row("sasl.mechanism.controller.protocol", _STRING, "GSSAPI"),
        _Row("sasl.mechanism.inter.broker.protocol", _STRING, "GSSAPI", None, _PER_BROKER),
        _Row("sasl.oauthbearer.assertion.algorithm", _STRING, "RS256"),
        _Row("sasl.oauthbearer.assertion.claim.aud", _STRING, None),
        _Row("sasl.oauthbearer.assertion.claim.iss", _STRING, None),
        _Row("sasl.oauthbearer.assertion.claim.jti.include", _BOOLEAN, "false"),
        _Row("sasl.oauthbearer.assertion.claim.sub", _STRING, None),
        _Row("sasl.oauthbearer.assertion.file", _STRING, None),
        _Row("sasl.oauthbearer.assertion.private.key.file", _STRING, None),
        _Row("sasl.oauthbearer.assertion.private.key.passphrase", _PASSWORD, None),
        _Row("sasl.oauthbearer.assertion.template.file", _STRING, None),
        _Row("sasl.oauthbearer.client.credentials.client.id", _STRING, None),
        _Row("sasl.oauthbearer.client.credentials.client.secret", _PASSWORD, None),
        _Row(
            "sasl.oauthbearer.jwt.retriever.class",
            _CLASS,
            "org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever",
        ),
        _Row(
            "sasl.oauthbearer.jwt.validator.class",
            _CLASS,
            "org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator",
        ),
        _Row("sasl.oauthbearer.token.endpoint.url", _STRING, None),
        _Row("sasl.server.callback.handler.class", _CLASS, None),
        _Row("security.inter.broker.protocol", _STRING, "PLAINTEXT"),
        _Row("security.providers", _STRING, None),
    ),
    _NO_LOGIN_TO_TUNE: (
        _Row("sasl.kerberos.kinit.cmd", _STRING, "/usr/bin/kinit", None, _PER_BROKER),
        _Row("sasl.kerberos.min.time.before.relogin", _LONG, "60000", None, _PER_BROKER),
        _Row("sasl.kerberos.principal.to.local.rules", _LIST, "DEFAULT", None, _PER_BROKER),
        _Row("sasl.kerberos.service.name", _STRING, None, None, _PER_BROKER),
        _Row("sasl.kerberos.ticket.renew.jitter", _DOUBLE, "0.05", None, _PER_BROKER),
        _Row("sasl.kerberos.ticket.renew.window.factor", _DOUBLE, "0.8", None, _PER_BROKER),
        _Row("sasl.login.connect.timeout.ms", _INT, None),
        _Row("sasl.login.read.timeout.ms", _INT, None),
        _Row("sasl.login.refresh.buffer.seconds", _SHORT, "300", None, _PER_BROKER),
        _Row("sasl.login.refresh.min.period.seconds", _SHORT, "60", None, _PER_BROKER),
        _Row("sasl.login.refresh.window.factor", _DOUBLE, "0.8", None, _PER_BROKER),
        _Row("sasl.login.refresh.window.jitter", _DOUBLE, "0.05", None, _PER_BROKER),
        _Row("sasl.login.retry.backoff.max.ms", _LONG, "10000"),
        _Row("sasl.login.retry.backoff.ms", _LONG, "100"),
        _Row("sasl.oauthbearer.assertion.claim.exp.seconds", _INT, "300", between(0, 86400)),
        _Row("sasl.oauthbearer.assertion.claim.nbf.seconds", _INT, "60", between(0, 3600)),
        _Row("sasl.oauthbearer.scope", _STRING, None),
    ),
    _NO_TIER: (_Row("remote.log.storage.system.enable", _BOOLEAN, "false"),),
    _TIERED: (
        _Row("remote.fetch.max.wait.ms", _INT, "500", at_least(1), _CLUSTER_WIDE),
        _Row("remote.list.offsets.request.timeout.ms", _LONG, "30000", at_least(1), _CLUSTER_WIDE),
        _Row(
            "remote.log.index.file.cache.total.size.bytes",
            _LONG,
            "1073741824",
            at_least(1),
            _CLUSTER_WIDE,
        ),
        _Row("remote.log.manager.copier.thread.pool.size", _INT, "10", at_least(1), _CLUSTER_WIDE),
        _Row(
            "remote.log.manager.copy.max.bytes.per.second",
            _LONG,
            "9223372036854775807",
            at_least(1),
            _CLUSTER_WIDE,
        ),
        _Row("remote.log.manager.copy.quota.window.num", _INT, "11", at_least(1)),
        _Row("remote.log.manager.copy.quota.window.size.seconds", _INT, "1", at_least(1)),
        _Row(
            "remote.log.manager.expiration.thread.pool.size", _INT, "10", at_least(1), _CLUSTER_WIDE
        ),
        _Row(
            "remote.log.manager.fetch.max.bytes.per.second",
            _LONG,
            "9223372036854775807",
            at_least(1),
            _CLUSTER_WIDE,
        ),
        _Row("remote.log.manager.fetch.quota.window.num", _INT, "11", at_least(1)),
        _Row("remote.log.manager.fetch.quota.window.size.seconds", _INT, "1", at_least(1)),
        _Row("remote.log.manager.task.interval.ms", _LONG, "30000", at_least(1)),
        _Row("remote.log.manager.thread.pool.size", _INT, "2", at_least(1)),
        _Row("remote.log.metadata.custom.metadata.max.bytes", _INT, "128", at_least(0)),
        _Row(
            "remote.log.metadata.manager.class.name",
            _STRING,
            "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager",
        ),
        _Row("remote.log.metadata.manager.class.path", _STRING, None),
        _Row("remote.log.metadata.manager.impl.prefix", _STRING, "rlmm.config."),
        _Row("remote.log.metadata.manager.listener.name", _STRING, None),
        _Row("remote.log.reader.max.pending.tasks", _INT, "100", at_least(1)),
        _Row("remote.log.reader.threads", _INT, "10", at_least(1), _CLUSTER_WIDE),
        _Row("remote.log.storage.manager.class.name", _STRING, None),
        _Row("remote.log.storage.manager.class.path", _STRING, None),
        _Row("remote.log.storage.manager.impl.prefix", _STRING, "rsm.config."),
    ),
    _TWO_PHASE: (_Row("transaction.two.phase.commit.enable", _BOOLEAN, "false"),),
    _TRANSACTIONS: (
        _Row("add.partitions.to.txn.retry.backoff.max.ms", _INT, "100", at_least(0)),
        _Row("add.partitions.to.txn.retry.backoff.ms", _INT, "20", at_least(1)),
        _Row(
            "transaction.abort.timed.out.transaction.cleanup.interval.ms",
            _INT,
            "10000",
            at_least(1),
        ),
        _Row("transaction.partition.verification.enable", _BOOLEAN, "true", None, _CLUSTER_WIDE),
        _Row("transaction.state.log.load.buffer.size", _INT, "5242880", at_least(1)),
        _Row("transaction.state.log.min.isr", _INT, "2", at_least(1)),
        _Row("transaction.state.log.num.partitions", _INT, "50", at_least(1)),
        _Row("transaction.state.log.replication.factor", _SHORT, "3", at_least(1)),
        _Row("transaction.state.log.segment.bytes", _INT, "104857600", at_least(1)),
    ),
    _GROUPS: (
        _Row("group.coordinator.append.linger.ms", _INT, "5", at_least(0)),
        _Row("group.coordinator.threads", _INT, "4", at_least(1)),
        _Row("offsets.commit.timeout.ms", _INT, "5000", at_least(1)),
        _Row("offsets.load.buffer.size", _INT, "5242880", at_least(1)),
        _Row("offsets.topic.compression.codec", _INT, "0"),
        _Row("offsets.topic.num.partitions", _INT, "50", at_least(1)),
        _Row("offsets.topic.replication.factor", _SHORT, "3", at_least(1)),
        _Row("offsets.topic.segment.bytes", _INT, "104857600", at_least(1)),
    ),
    _SHARE: (
        _Row("group.share.assignors", _LIST, "simple"),
        _Row("group.share.delivery.count.limit", _INT, "5", between(2, 10)),
        _Row("group.share.heartbeat.interval.ms", _INT, "5000", at_least(1)),
        _Row("group.share.max.heartbeat.interval.ms", _INT, "15000", at_least(1)),
        _Row("group.share.max.record.lock.duration.ms", _INT, "60000", between(30000, 3600000)),
        _Row("group.share.max.session.timeout.ms", _INT, "60000", at_least(1)),
        _Row("group.share.max.share.sessions", _INT, "2000", at_least(1)),
        _Row("group.share.max.size", _INT, "200", between(1, 1000)),
        _Row("group.share.min.heartbeat.interval.ms", _INT, "5000", at_least(1)),
        _Row("group.share.min.record.lock.duration.ms", _INT, "15000", between(1000, 30000)),
        _Row("group.share.min.session.timeout.ms", _INT, "45000", at_least(1)),
        _Row("group.share.partition.max.record.locks", _INT, "2000", between(100, 10000)),
        _Row("group.share.record.lock.duration.ms", _INT, "30000", between(1000, 3600000)),
        _Row("group.share.session.timeout.ms", _INT, "45000", at_least(1)),
        _Row("share.coordinator.append.linger.ms", _INT, "5", at_least(0)),
        _Row("share.coordinator.load.buffer.size", _INT, "5242880", at_least(1)),
        _Row("share.coordinator.snapshot.update.records.per.snapshot", _INT, "500", at_least(0)),
        _Row("share.coordinator.state.topic.compression.codec", _INT, "0"),
        _Row("share.coordinator.state.topic.min.isr", _SHORT, "2", at_least(1)),
        _Row("share.coordinator.state.topic.num.partitions", _INT, "50", at_least(1)),
        _Row("share.coordinator.state.topic.replication.factor", _SHORT, "3", at_least(1)),
        _Row("share.coordinator.state.topic.segment.bytes", _INT, "104857600", at_least(1)),
        _Row("share.coordinator.threads", _INT, "1", at_least(1)),
        _Row("share.coordinator.write.timeout.ms", _INT, "5000", at_least(1)),
        _Row("share.fetch.purgatory.purge.interval.requests", _INT, "1000"),
    ),
    _STREAMS: (
        _Row("group.streams.heartbeat.interval.ms", _INT, "5000", at_least(1)),
        _Row("group.streams.max.heartbeat.interval.ms", _INT, "15000", at_least(1)),
        _Row("group.streams.max.session.timeout.ms", _INT, "60000", at_least(1)),
        _Row("group.streams.max.size", _INT, "2147483647", at_least(1)),
        _Row("group.streams.max.standby.replicas", _INT, "2", at_least(0)),
        _Row("group.streams.min.heartbeat.interval.ms", _INT, "5000", at_least(1)),
        _Row("group.streams.min.session.timeout.ms", _INT, "45000", at_least(1)),
        _Row("group.streams.num.standby.replicas", _INT, "0", at_least(0)),
        _Row("group.streams.session.timeout.ms", _INT, "45000", at_least(1)),
    ),
    _COMPACTION: (
        _Row("log.cleaner.backoff.ms", _LONG, "15000", at_least(0), _CLUSTER_WIDE),
        _Row("log.cleaner.dedupe.buffer.size", _LONG, "134217728", None, _CLUSTER_WIDE),
        _Row("log.cleaner.enable", _BOOLEAN, "true"),
        _Row("log.cleaner.io.buffer.load.factor", _DOUBLE, "0.9", None, _CLUSTER_WIDE),
        _Row("log.cleaner.io.buffer.size", _INT, "524288", at_least(0), _CLUSTER_WIDE),
        _Row(
            "log.cleaner.io.max.bytes.per.second",
            _DOUBLE,
            "1.7976931348623157E308",
            None,
            _CLUSTER_WIDE,
        ),
        _Row("log.cleaner.threads", _INT, "1", at_least(0), _CLUSTER_WIDE),
    ),
    _REPLICATION: (
        _Row("alter.log.dirs.replication.quota.window.num", _INT, "11", at_least(1)),
        _Row("alter.log.dirs.replication.quota.window.size.seconds", _INT, "1", at_least(1)),
        _Row("auto.leader.rebalance.enable", _BOOLEAN, "true"),
        _Row("leader.imbalance.check.interval.seconds", _LONG, "300", at_least(1)),
        _Row("num.replica.alter.log.dirs.threads", _INT, None),
        _Row("num.replica.fetchers", _INT, "1", None, _CLUSTER_WIDE),
        _Row("replica.fetch.backoff.ms", _INT, "1000", at_least(0)),
        _Row("replica.fetch.max.bytes", _INT, "1048576", at_least(0)),
        _Row("replica.fetch.min.bytes", _INT, "1"),
        _Row("replica.fetch.response.max.bytes", _INT, "10485760", at_least(0)),
        _Row("replica.fetch.wait.max.ms", _INT, "500"),
        _Row("replica.high.watermark.checkpoint.interval.ms", _LONG, "5000"),
        _Row("replica.lag.time.max.ms", _LONG, "30000"),
        _Row("replica.socket.receive.buffer.bytes", _INT, "65536"),
        _Row("replica.socket.timeout.ms", _INT, "30000"),
        _Row("replication.quota.window.num", _INT, "11", at_least(1)),
        _Row("replication.quota.window.size.seconds", _INT, "1", at_least(1)),
    ),
    _FILES: (
        _Row("log.dir", _STRING, "/tmp/kafka-logs"),
        _Row("log.dir.failure.timeout.ms", _LONG, "30000", at_least(1)),
        _Row("log.dirs", _STRING, None),
        _Row("log.flush.offset.checkpoint.interval.ms", _INT, "60000", at_least(0)),
        _Row("log.flush.start.offset.checkpoint.interval.ms", _INT, "60000", at_least(0)),
        _Row("metadata.log.dir", _STRING, None),
        _Row("num.recovery.threads.per.data.dir", _INT, "2", at_least(1), _CLUSTER_WIDE),
    ),
    _KRAFT: (
        _Row("broker.heartbeat.interval.ms", _INT, "2000"),
        _Row("broker.session.timeout.ms", _INT, "9000"),
        _Row("controlled.shutdown.enable", _BOOLEAN, "true"),
        _Row("controller.listener.names", _STRING, None),
        _Row("controller.quorum.append.linger.ms", _INT, "25", at_least(0)),
        _Row("controller.quorum.bootstrap.servers", _LIST, ""),
        _Row("controller.quorum.election.backoff.max.ms", _INT, "1000", at_least(0)),
        _Row("controller.quorum.election.timeout.ms", _INT, "1000", at_least(0)),
        _Row("controller.quorum.fetch.timeout.ms", _INT, "2000", at_least(0)),
        _Row("controller.quorum.request.timeout.ms", _INT, "2000", at_least(0)),
        _Row("controller.quorum.retry.backoff.ms", _INT, "20", at_least(0)),
        _Row("controller.quorum.voters", _LIST, ""),
        _Row("controller.socket.timeout.ms", _INT, "30000"),
        _Row("early.start.listeners", _STRING, None),
        _Row("initial.broker.registration.timeout.ms", _INT, "60000"),
        _Row("inter.broker.listener.name", _STRING, None),
        _Row("metadata.log.max.record.bytes.between.snapshots", _LONG, "20971520", at_least(1)),
        _Row("metadata.log.max.snapshot.interval.ms", _LONG, "3600000", at_least(0)),
        _Row("metadata.log.segment.bytes", _INT, "1073741824", at_least(8388608)),
        _Row("metadata.log.segment.ms", _LONG, "604800000"),
        _Row("metadata.max.idle.interval.ms", _INT, "500", at_least(0)),
        _Row("metadata.max.retention.bytes", _LONG, "104857600"),
        _Row("metadata.max.retention.ms", _LONG, "604800000"),
        _Row("process.roles", _LIST, "broker", one_of("broker", "controller")),
    ),
    _PROCESS: (
        _Row("background.threads", _INT, "10", at_least(1), _CLUSTER_WIDE),
        _Row("delete.records.purgatory.purge.interval.requests", _INT, "1"),
        _Row("fetch.purgatory.purge.interval.requests", _INT, "1000"),
        _Row("num.io.threads", _INT, "8", at_least(1), _CLUSTER_WIDE),
        _Row("num.network.threads", _INT, "3", at_least(1), _CLUSTER_WIDE),
        _Row("producer.purgatory.purge.interval.requests", _INT, "1000"),
        _Row("queued.max.requests", _INT, "500", at_least(1)),
    ),
    _CONNECTIONS: (
        _Row("socket.connection.setup.timeout.max.ms", _LONG, "30000"),
        _Row("socket.connection.setup.timeout.ms", _LONG, "10000"),
        _Row("socket.receive.buffer.bytes", _INT, "102400"),
        _Row("socket.send.buffer.bytes", _INT, "102400"),
    ),
    _METRICS: (
        _Row("kafka.metrics.polling.interval.secs", _INT, "10", at_least(1)),
        _Row("metrics.num.samples", _INT, "2", at_least(1)),
        _Row("metrics.recording.level", _STRING, "INFO"),
        _Row("metrics.sample.window.ms", _LONG, "30000", at_least(1)),
        _Row("telemetry.max.bytes", _INT, "1048576", at_least(1)),
    ),
}

# Kafka has the same property on groups of its kind, without the first word.
_ALSO_GROUPS: Final = {
    "group.share.heartbeat.interval.ms",
    "group.share.record.lock.duration.ms",
    "group.share.session.timeout.ms",
    "group.streams.heartbeat.interval.ms",
    "group.streams.num.standby.replicas",
    "group.streams.session.timeout.ms",
}


def _definition(row: _Row, why: str) -> ConfigDef:
    return ConfigDef(
        type=row.type,
        default=row.default,
        documentation=f"Accepted and reported; without effect: {why}",
        group_name=row.name.removeprefix("group.") if row.name in _ALSO_GROUPS else None,
        broker_name=row.name,
        validator=only_default(row.default, why) if why in _ONLY_DEFAULT else row.validator,
        update_mode=row.update_mode,
        broker_default=row.default,
    )


_ON_GROUPS_ONLY: Final = (
    ConfigDef(
        type=_STRING,
        default="latest",
        documentation=f"Accepted and reported; without effect: {_SHARE}",
        group_name="share.auto.offset.reset",
        validator=offset_reset,
    ),
    ConfigDef(
        type=_STRING,
        default="read_uncommitted",
        documentation=f"Accepted and reported; without effect: {_SHARE}",
        group_name="share.isolation.level",
        validator=one_of("read_committed", "read_uncommitted"),
    ),
)

REASONS: Final[Mapping[str, tuple[str, ...]]] = {
    why: tuple(row.name for row in rows) for why, rows in _ROWS.items()
}
"""Names of brokers' properties without effect, by the reason."""

ONLY_DEFAULT: Final = frozenset(row.name for why in _ONLY_DEFAULT for row in _ROWS[why])
"""Properties that take only their default."""

INERT: Final = (
    *(_definition(row, why) for why, rows in _ROWS.items() for row in rows),
    *_ON_GROUPS_ONLY,
)
"""The properties themselves."""
