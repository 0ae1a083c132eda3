"""The tables: one definition for queries, migrations and docs. Views are in `storage/views.py`.

Hot tables have no foreign keys (each check would lock and read another row in the flush). They stay
consistent because they are written only under the row lock of their partition, or of their group's
lease. What writes and reads whole rows takes their columns from here (`connection/rows.py`).
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Computed,
    DateTime,
    Double,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    PrimaryKeyConstraint,
    Sequence,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.schema import SchemaItem
from sqlalchemy.types import UserDefinedType

from storage.comments import TABLES as TABLE_COMMENTS

_LONG_MAX = "9223372036854775807"

SCHEMA = "penstock"
"""Of all that is ours in the database; whatever else is there is somebody else's."""

metadata = MetaData(
    schema=SCHEMA,
    naming_convention={
        "pk": "%(table_name)s_pkey",
        "uq": "%(table_name)s_%(column_0_name)s_key",
        "ix": "%(table_name)s_%(column_0_name)s_idx",
        "ck": "%(table_name)s_%(constraint_name)s_check",
        "fk": "%(table_name)s_%(column_0_name)s_fkey",
    },
)


class Xid8(UserDefinedType[str]):
    """A transaction's id, of 64 bits, so that none comes again in the cluster."""

    cache_ok = True

    def get_col_spec(self, **_: object) -> str:
        """PostgreSQL's name."""
        return "xid8"


class PgSnapshot(UserDefinedType[str]):
    """Which transactions had ended at a moment, as text: `xmin:xmax:xip,…`."""

    cache_ok = True

    def get_col_spec(self, **_: object) -> str:
        """PostgreSQL's name."""
        return "pg_snapshot"


def _timestamp(name: str) -> Column[object]:
    return Column(
        name, DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp()
    )


# One row. Blocks of ids are taken with UPDATE … RETURNING: a sequence may give out a value again
# after a crash. system_identifier and timeline tell a failover or a restore from a reconnect.
cluster = Table(
    "cluster",
    metadata,
    Column("only_row", Boolean, primary_key=True, server_default="true"),
    Column("cluster_id", Text, nullable=False),
    Column("system_identifier", BigInteger, nullable=False),
    Column("timeline", Integer, nullable=False),
    Column("views_digest", Text, nullable=False, server_default=""),
    Column("metadata_version", BigInteger, nullable=False, server_default="0"),
    Column("next_broker_id", Integer, nullable=False, server_default="1"),
    Column("next_batch_id", BigInteger, nullable=False, server_default="1"),
    Column("next_producer_id", BigInteger, nullable=False, server_default="1000"),
    # From it salts are made for users that are not there: a guess is to tell nothing.
    Column("login_secret", Uuid, nullable=False, server_default=func.gen_random_uuid()),
    CheckConstraint("only_row", name="single"),
)

broker = Table(
    "broker",
    metadata,
    Column("broker_id", Integer, primary_key=True, autoincrement=False),
    Column("incarnation", Uuid, nullable=False),
    Column("rack", Text),
    Column("version", Text, nullable=False),
    _timestamp("started_at"),
    _timestamp("heartbeat_at"),
    Column("session_timeout_s", Double, nullable=False),
)

topic = Table(
    "topic",
    metadata,
    Column("topic_id", Uuid, primary_key=True),
    Column("name", Text(collation="C"), nullable=False, unique=True),
    Column("is_internal", Boolean, nullable=False, server_default="false"),
    _timestamp("created_at"),
)

# How clients reach a broker: one address per listener ('kafka').
broker_endpoint = Table(
    "broker_endpoint",
    metadata,
    Column(
        "broker_id",
        Integer,
        ForeignKey("broker.broker_id", ondelete="CASCADE"),
        primary_key=True,
        autoincrement=False,
    ),
    Column("listener", Text, primary_key=True),
    Column("host", Text, nullable=False),
    Column("port", Integer, nullable=False),
)

# resource_type: 'topic', 'broker' (a named broker, or '' for the default of all), later 'group'.
# A topic's resource_name is the topic's id as text, so that a recreated topic has no old settings.
config_entry = Table(
    "config_entry",
    metadata,
    Column("resource_type", Text, primary_key=True),
    Column("resource_name", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

# The row every append locks. next_offset is the log end offset, the high watermark and the version
# that guards the partition's batches and producers. Half-empty pages keep its updates HOT.
# Its indexes are not unique: whenever a row moved to another page, each that is would look at all
# its versions that an open snapshot keeps (docs/decisions/0015). Ids come from a sequence, numbers
# are given under the lock of all changes to topics.
topic_partition = Table(
    "topic_partition",
    metadata,
    Column("partition_id", BigInteger, nullable=False),  # bigserial
    Column("topic_id", Uuid, ForeignKey("topic.topic_id", ondelete="CASCADE"), nullable=False),
    Column("partition", Integer, nullable=False),
    Column("next_offset", BigInteger, nullable=False, server_default="0"),
    Column("log_start_offset", BigInteger, nullable=False, server_default="0"),
    Column("leader_epoch", Integer, nullable=False, server_default="0"),
    Column("max_timestamp", BigInteger, nullable=False, server_default="-1"),
    Column("size_bytes", BigInteger, nullable=False, server_default="0"),
    Column("batch_count", BigInteger, nullable=False, server_default="0"),
    _timestamp("created_at"),
    Column("terminated_offset", BigInteger, nullable=False, server_default="-1"),
    Column("topic_epoch", BigInteger, nullable=False, server_default="-1"),
    postgresql_with={"fillfactor": "40"},
)
Index("topic_partition_partition_id_idx", topic_partition.c.partition_id)
Index(
    "topic_partition_topic_id_partition_idx",
    topic_partition.c.topic_id,
    topic_partition.c.partition,
)

# Where each leader epoch of a partition began (Kafka's leader-epoch-checkpoint).
leader_epoch = Table(
    "leader_epoch",
    metadata,
    Column("partition_id", BigInteger, primary_key=True),
    Column("leader_epoch", Integer, primary_key=True),
    Column("start_offset", BigInteger, nullable=False),
)

# Partitions of deleted topics: their index rows are deleted in batches, in the background.
deleted_partition = Table(
    "deleted_partition",
    metadata,
    Column("partition_id", BigInteger, primary_key=True, autoincrement=False),
    _timestamp("deleted_at"),
)

# The index of the log. A flush writes its batches for a segment as one payload, cut into chunks; a
# batch begins at its byte `position`. `running_max_timestamp` is the greatest max_timestamp up to
# this batch: it never falls, so a lookup by timestamp is a binary search over offsets and needs no
# index.
record_batch = Table(
    "record_batch",
    metadata,
    Column("partition_id", BigInteger, nullable=False),
    Column("base_offset", BigInteger, nullable=False),
    Column("last_offset", BigInteger, nullable=False),
    Column("payload_id", BigInteger, nullable=False),
    Column("position", Integer, nullable=False),
    Column("segment_id", Integer, nullable=False),
    Column("size", Integer, nullable=False),
    Column("max_timestamp", BigInteger, nullable=False),
    Column("running_max_timestamp", BigInteger, nullable=False),
    Column("producer_id", BigInteger, nullable=False),
    Column("base_sequence", Integer, nullable=False),
    Column("producer_epoch", SmallInteger, nullable=False),
    Column("format", SmallInteger, nullable=False),
    Column("is_transactional", Boolean, nullable=False),
    Column("is_control", Boolean, nullable=False),
)
Index(
    "record_batch_partition_id_last_offset_key",
    record_batch.c.partition_id,
    record_batch.c.last_offset,
    unique=True,
)
# Rows are in the order of their segments, so a block range index costs nearly nothing.
Index(
    "record_batch_segment_id_idx",
    record_batch.c.segment_id,
    postgresql_using="brin",
    postgresql_with={"pages_per_range": "16", "autosummarize": "on"},
)

# Control batches are few; a group's lag does not count them.
Index(
    "record_batch_control_idx",
    record_batch.c.partition_id,
    record_batch.c.last_offset,
    postgresql_include=["base_offset"],
    postgresql_where=record_batch.c.is_control,
)

# A segment is one plain table `record_chunk_<segment_id>` of payload, dropped whole when no live
# batch points into it. Each class of retention writes to one open segment at a time.
segment = Table(
    "segment",
    metadata,
    Column("segment_id", Integer, primary_key=True),
    Column("retention_class", Text, nullable=False),
    _timestamp("created_at"),
    Column("sealed_at", DateTime(timezone=True)),
)
Index(
    "segment_retention_class_key",
    segment.c.retention_class,
    unique=True,
    postgresql_where=segment.c.sealed_at.is_(None),
)

# The last five batches of a producer on a partition (Kafka's ProducerStateEntry). Arrays run
# oldest first and have one length.
producer_state = Table(
    "producer_state",
    metadata,
    Column("partition_id", BigInteger, primary_key=True),
    Column("producer_id", BigInteger, primary_key=True),
    Column("producer_epoch", SmallInteger, nullable=False),
    Column("last_timestamp", BigInteger, nullable=False),
    Column("last_sequences", ARRAY(Integer), nullable=False),
    Column("last_offsets", ARRAY(BigInteger), nullable=False),
    Column("offset_deltas", ARRAY(Integer), nullable=False),
    Column("timestamps", ARRAY(BigInteger), nullable=False),
    _timestamp("updated_at"),
    # First offset of the open transaction's data, null if none is open. Then the epoch of the
    # coordinator that wrote the last marker; an older one is refused.
    Column("txn_first_offset", BigInteger),
    Column("coordinator_epoch", Integer, nullable=False, server_default="-1"),
    postgresql_with={"fillfactor": "70"},
)
# The open transactions of a partition; the oldest holds back its last stable offset.
Index(
    "producer_state_open_transaction_idx",
    producer_state.c.partition_id,
    producer_state.c.txn_first_offset,
    postgresql_where=producer_state.c.txn_first_offset.is_not(None),
)

# Which client asked for an idempotent producer's id: for people, so that nothing of it is logged.
producer_client = Table(
    "producer_client",
    metadata,
    Column("producer_id", BigInteger, primary_key=True, autoincrement=False),
    Column("client_id", Text, nullable=False),
    Column("client_host", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("begun_at", DateTime(timezone=True), nullable=False),
    prefixes=["UNLOGGED"],
)
Index("producer_client_begun_at_idx", producer_client.c.begun_at)

# What a partition remembers of a producer that is known by its name (core.log.named_sequences).
# Sequence ids are u64, or -1. `claim` changes with each producer that begins to write under the
# name, and guards what it writes. name_key stands for the name: text of clients may be longer than
# an index takes.
named_producer = Table(
    "named_producer",
    metadata,
    Column("partition_id", BigInteger, primary_key=True),
    Column("name_key", Uuid, primary_key=True),
    Column("name", Text, nullable=False),
    Column("claim", BigInteger, nullable=False),
    Column("highest_sequence_id", Numeric(20, 0), nullable=False, server_default="-1"),
    Column("chunked_sequence_id", Numeric(20, 0), nullable=False, server_default="-1"),
    Column("chunk_id", Integer, nullable=False, server_default="-1"),
    _timestamp("updated_at"),
    postgresql_with={"fillfactor": "50"},
)

# A transaction's key, of a `kind` (core.transaction.key), and its present producer. `version` rises
# with each change and guards every write of the transaction: appends hold the row FOR SHARE, an end
# holds it alone. An id may have 32 kB, so the key is a hash. Times are the database's, in
# milliseconds; -1 for none.
transaction_state = Table(
    "transaction_state",
    metadata,
    Column("txn_key", Uuid, primary_key=True),
    Column("kind", SmallInteger, nullable=False, server_default="0"),
    Column("transactional_id", Text, nullable=False),
    Column("producer_id", BigInteger, nullable=False, unique=True),
    Column("producer_epoch", SmallInteger, nullable=False),
    Column("previous_producer_id", BigInteger, nullable=False),
    Column("last_producer_epoch", SmallInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("transaction_version", SmallInteger, nullable=False),
    Column("timeout_ms", Integer, nullable=False),
    Column("started_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("coordinator_epoch", Integer, nullable=False),
    Column("client_id", Text, nullable=False),
    Column("client_host", Text, nullable=False),
    Column("owner", Text, nullable=False, server_default=""),
    Column("version", BigInteger, nullable=False),
    postgresql_with={"fillfactor": "50"},
)
# Brokers look here each second for overdue transactions.
Index(
    "transaction_state_open_idx",
    transaction_state.c.started_at,
    postgresql_where=transaction_state.c.started_at >= 0,
)

# Partitions in the open transaction of an id. Written while its row is held FOR SHARE.
transaction_partition = Table(
    "transaction_partition",
    metadata,
    Column("txn_key", Uuid, primary_key=True),
    Column("partition_id", BigInteger, primary_key=True),
)
# What else takes part, by kind: groups with pending offsets, subscriptions (by their ids) with
# pending acknowledgements.
transaction_participant = Table(
    "transaction_participant",
    metadata,
    Column("txn_key", Uuid, primary_key=True),
    Column("participant_key", Uuid, primary_key=True),
    Column("kind", SmallInteger, nullable=False, server_default="0"),
    Column("name", Text, nullable=False),
)

# Which of two commits of an offset is later (Kafka's offset in __consumer_offsets): the end of a
# transaction does not undo a commit that came after its own.
offset_commit_seq = Sequence("offset_commit_seq", metadata=metadata, data_type=BigInteger)

# Offsets that become committed if their producer's transaction does. The end of a transaction knows
# its groups, so one index serves ends, deletions of groups, and readers.
pending_offset = Table(
    "pending_offset",
    metadata,
    Column("group_key", Uuid, primary_key=True),
    Column("producer_id", BigInteger, primary_key=True),
    Column("partition_id", BigInteger, primary_key=True),
    Column("committed_offset", BigInteger, nullable=False),
    Column("leader_epoch", Integer, nullable=False),
    Column("metadata", Text, nullable=False),
    Column("commit_timestamp", BigInteger, nullable=False),
    Column("commit_order", BigInteger, nullable=False),
)

# Acknowledgements that take effect if their producer's transaction commits: ranges of offsets, or
# all below end_offset (is_cumulative; start_offset is -1). open_version: which of its transactions,
# by the version of transaction_state's row while it is open. An abort deletes them, a commit marks
# them: from then on they are acknowledged. Whoever holds the cursor takes them into it, and deletes
# them with the write of it.
pending_ack = Table(
    "pending_ack",
    metadata,
    Column("subscription_id", BigInteger, primary_key=True, autoincrement=False),
    Column("producer_id", BigInteger, primary_key=True, autoincrement=False),
    Column("open_version", BigInteger, primary_key=True, autoincrement=False),
    Column("start_offset", BigInteger, primary_key=True, autoincrement=False),
    Column("end_offset", BigInteger, nullable=False),
    Column("is_cumulative", Boolean, nullable=False),
    Column("is_committed", Boolean, nullable=False, server_default="false"),
    postgresql_with={"fillfactor": "70"},
)

# Stretches of a partition that readers of committed data must skip (Kafka's transaction index): the
# producer's data between its first offset and the marker at last_offset.
aborted_transaction = Table(
    "aborted_transaction",
    metadata,
    Column("partition_id", BigInteger, primary_key=True),
    Column("last_offset", BigInteger, primary_key=True),
    Column("producer_id", BigInteger, nullable=False),
    Column("first_offset", BigInteger, nullable=False),
)

# Writers' staged batches, to be published later, under one token each. `batches` rises with each
# staging and guards it. Whatever adds to a token, publishes or drops it has locked its row.
staged_token = Table(
    "staged_token",
    metadata,
    Column("token", Uuid, primary_key=True),
    Column("batches", Integer, nullable=False),
    Column("records", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    _timestamp("created_at"),
    _timestamp("staged_at"),
    Column("expires_at", DateTime(timezone=True), nullable=False),
    postgresql_with={"fillfactor": "50"},
)

# A batch of a token: what `record_batch` will have, except what comes with its offset. The topic's
# name is for people: a topic that was deleted meanwhile must still be named.
staged_batch = Table(
    "staged_batch",
    metadata,
    Column("token", Uuid, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("topic", Text, nullable=False),
    Column("partition", Integer, nullable=False),
    Column("partition_id", BigInteger, nullable=False),
    Column("payload_id", BigInteger, nullable=False),
    Column("position", Integer, nullable=False),
    Column("segment_id", Integer, nullable=False),
    Column("size", Integer, nullable=False),
    Column("record_count", Integer, nullable=False),
    Column("max_timestamp", BigInteger, nullable=False),
    Column("format", SmallInteger, nullable=False),
)
# A segment with a staged batch in it is not dropped.
Index("staged_batch_segment_id_idx", staged_batch.c.segment_id)

# The highest batch that a query has published into one of its sinks: none is published twice.
published_batch = Table(
    "published_batch",
    metadata,
    Column("guard_key", Uuid, primary_key=True),
    Column("query_id", Text, nullable=False),
    Column("sink", Text, nullable=False),
    Column("batch_id", BigInteger, nullable=False),
    _timestamp("published_at"),
    postgresql_with={"fillfactor": "50"},
)

# Which broker has a shard, and coordinates its groups or dispatches its partitions, while its
# session lasts. The generation rises whenever the lease changes hands; it is the version that
# guards every write of what is in the shard.
coordinator_lease = Table(
    "coordinator_lease",
    metadata,
    Column("shard", Integer, primary_key=True, autoincrement=False),
    Column("broker_id", Integer, nullable=False),
    Column("incarnation", Uuid, nullable=False),
    Column("generation", BigInteger, nullable=False),
    _timestamp("acquired_at"),
)

# Ids of groups and members have up to 32 kB, more than a btree takes: their keys are hashes
# (`storage/groups/rows.py`). Text from clients may hold NUL; see there how it is written.
consumer_group = Table(
    "consumer_group",
    metadata,
    Column("group_key", Uuid, primary_key=True),
    Column("group_id", Text, nullable=False),
    Column("shard", Integer, nullable=False),
    Column("protocol", Text, nullable=False),
    Column("protocol_type", Text, nullable=False),
    Column("protocol_name", Text),
    Column("leader", Text),
    Column("generation_id", Integer, nullable=False),
    Column("assignment_epoch", Integer, nullable=False),
    Column("state", Text, nullable=False),
    Column("state_timestamp", BigInteger, nullable=False),
    Column("waiting_for", ARRAY(Text), nullable=False),
    Column("metadata_hash", BigInteger, nullable=False),
    postgresql_with={"fillfactor": "70"},
)
Index("consumer_group_shard_idx", consumer_group.c.shard)

# protocols: [{"name": …, "metadata": base64}], in the member's order of preference. assigned,
# revoking, target: {topic id: [partitions]}.
group_member = Table(
    "group_member",
    metadata,
    Column("group_key", Uuid, primary_key=True),
    Column("member_key", Uuid, primary_key=True),
    Column("member_id", Text, nullable=False),
    Column("protocol", Text, nullable=False),
    Column("group_instance_id", Text),
    Column("client_id", Text, nullable=False),
    Column("client_host", Text, nullable=False),
    Column("rack_id", Text),
    Column("session_timeout_ms", Integer, nullable=False),
    Column("rebalance_timeout_ms", Integer, nullable=False),
    Column("protocols", JSONB, nullable=False),
    Column("assignment", LargeBinary, nullable=False),
    Column("member_epoch", Integer, nullable=False),
    Column("previous_member_epoch", Integer, nullable=False),
    Column("state", Text, nullable=False),
    Column("subscribed_topic_names", ARRAY(Text), nullable=False),
    Column("subscribed_topic_regex", Text),
    Column("server_assignor", Text),
    Column("assigned", JSONB, nullable=False),
    Column("revoking", JSONB, nullable=False),
    Column("target", JSONB, nullable=False),
    postgresql_with={"fillfactor": "50"},
)

# Committed offsets: the same rows are written again and again. So there is no index except the key,
# and pages have room for a second version of each row, so that updates stay on their page.
committed_offset = Table(
    "committed_offset",
    metadata,
    Column("group_key", Uuid, primary_key=True),
    Column("partition_id", BigInteger, primary_key=True),
    Column("committed_offset", BigInteger, nullable=False),
    Column("leader_epoch", Integer, nullable=False),
    Column("metadata", Text, nullable=False),
    Column("commit_timestamp", BigInteger, nullable=False),
    Column("expire_timestamp", BigInteger, nullable=False),
    Column("commit_order", BigInteger, nullable=False, server_default="0"),
    postgresql_with={"fillfactor": "40"},
)

# A durable subscription's cursor in one partition: all offsets below mark_delete are acknowledged,
# and those of its ranges. Written again and again: no index holds what an acknowledgement changes,
# and pages have room for a second version of each row. name_key stands for the name, which may be
# longer than an index takes. A topic that is deleted takes them with it.
subscription = Table(
    "subscription",
    metadata,
    Column("subscription_id", BigInteger, Identity(always=True), primary_key=True),
    Column("partition_id", BigInteger, nullable=False),
    Column("name_key", Uuid, nullable=False),
    Column("name", Text, nullable=False),
    Column("type", Text),
    Column("mark_delete", BigInteger, nullable=False),
    Column("properties", JSONB, nullable=False),
    _timestamp("created_at"),
    UniqueConstraint("partition_id", "name_key", name="subscription_partition_id_name_key"),
    postgresql_with={"fillfactor": "50"},
)

# From start_offset up to, and without, end_offset; they neither overlap nor touch.
subscription_range = Table(
    "subscription_range",
    metadata,
    Column("subscription_id", BigInteger, primary_key=True),
    Column("start_offset", BigInteger, primary_key=True),
    Column("end_offset", BigInteger, nullable=False),
    postgresql_with={"fillfactor": "50"},
)

# A consumer that is connected, as its broker has seen it a moment ago: for people only. It outlives
# neither a crash of the database, which is why nothing of it is logged, nor its broker's session.
live_consumer = Table(
    "live_consumer",
    metadata,
    Column("broker_id", Integer, primary_key=True, autoincrement=False),
    Column("incarnation", Uuid, nullable=False),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("partition_id", BigInteger, nullable=False),
    Column("subscription", Text, nullable=False),
    Column("consumer", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("address", Text, nullable=False),
    Column("client", Text, nullable=False),
    Column("connected_at", DateTime(timezone=True), nullable=False),
    Column("priority_level", Integer, nullable=False),
    Column("permits", BigInteger, nullable=False),
    Column("unacknowledged", BigInteger, nullable=False),
    Column("is_active", Boolean, nullable=False),
    Column("is_blocked", Boolean, nullable=False),
    _timestamp("seen_at"),
    prefixes=["UNLOGGED"],
    postgresql_with={"fillfactor": "50"},
)

# A version of a topic's schema; all partitions have the same. Versions go on from 0, given by
# whoever holds the topic's row. A deletion is a row, too: those below it are deleted.
topic_schema = Table(
    "topic_schema",
    metadata,
    Column("topic_id", Uuid, ForeignKey("topic.topic_id", ondelete="CASCADE"), primary_key=True),
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("type", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("data", LargeBinary, nullable=False),
    Column("properties", JSONB, nullable=False),
    Column("fingerprint", LargeBinary, nullable=False),
    Column("size", Integer, nullable=False),
    Column("is_deletion", Boolean, nullable=False),
    _timestamp("created_at"),
)

# Pulsar's tenants and namespaces. Which topic is in which one its name says. Policies are in the
# form that Pulsar gives them in JSON, those that are set.
tenant = Table(
    "tenant",
    metadata,
    Column("name", Text(collation="C"), primary_key=True),
    Column("admin_roles", ARRAY(Text), nullable=False),
    Column("allowed_clusters", ARRAY(Text), nullable=False),
    _timestamp("created_at"),
)
namespace = Table(
    "namespace",
    metadata,
    Column("tenant", Text(collation="C"), ForeignKey("tenant.name"), primary_key=True),
    Column("name", Text(collation="C"), primary_key=True),
    Column("policies", JSONB, nullable=False),
    _timestamp("created_at"),
)

# A user's secret of one mechanism, as PostgreSQL writes verifiers, so that a role's password can be
# copied in with one INSERT. The text says which mechanism it is of.
scram_credential = Table(
    "scram_credential",
    metadata,
    Column("user_name", Text(collation="C"), primary_key=True),
    Column(
        "mechanism",
        Text,
        Computed("split_part(verifier, '$', 1)", persisted=True),
        primary_key=True,
    ),
    Column("verifier", Text, nullable=False),
    _timestamp("changed_at"),
    CheckConstraint(
        r"verifier ~ '^SCRAM-SHA-(256|512)\$[0-9]+:[A-Za-z0-9+/=]+"
        r"\$[A-Za-z0-9+/=]+:[A-Za-z0-9+/=]+$'",
        name="verifier",
    ),
)

# Principals are Kafka's: "User:alice". A token's secret is made of its id and a key that is not in
# the database.
delegation_token = Table(
    "delegation_token",
    metadata,
    Column("token_id", Text(collation="C"), primary_key=True),
    Column("owner", Text, nullable=False),
    Column("requester", Text, nullable=False),
    Column("renewers", ARRAY(Text), nullable=False),
    Column("issued_at", DateTime(timezone=True), nullable=False),
    Column("expires_at", DateTime(timezone=True), nullable=False),
    Column("max_at", DateTime(timezone=True), nullable=False),
    CheckConstraint("owner LIKE '%:%' AND requester LIKE '%:%'", name="principals"),
    CheckConstraint(
        "coalesce(array_ndims(renewers), 1) = 1 AND array_position(renewers, NULL) IS NULL",
        name="renewers",
    ),
    CheckConstraint(
        "least(issued_at, expires_at, max_at) >= '1970-01-01 00:00:00+00' "
        "AND greatest(issued_at, expires_at, max_at) <= '9999-12-31 00:00:00+00'",
        name="times",
    ),
)
delegation_token_version = Table(
    "delegation_token_version",
    metadata,
    Column("only_row", Boolean, primary_key=True, server_default="true"),
    Column("version", BigInteger, nullable=False, server_default="0"),
    CheckConstraint("only_row", name="single"),
)

_ACL_WORDS = {
    "permission": "permission IN ('ALLOW', 'DENY')",
    "operation": "operation IN ('ALL', 'READ', 'WRITE', 'CREATE', 'DELETE', 'ALTER', 'DESCRIBE', "
    "'CLUSTER_ACTION', 'DESCRIBE_CONFIGS', 'ALTER_CONFIGS', 'IDEMPOTENT_WRITE', "
    "'CREATE_TOKENS', 'DESCRIBE_TOKENS', 'TWO_PHASE_COMMIT')",
    "resource_type": "resource_type IN ('TOPIC', 'GROUP', 'CLUSTER', 'TRANSACTIONAL_ID', "
    "'DELEGATION_TOKEN', 'USER')",
    "pattern_type": "pattern_type IN ('LITERAL', 'PREFIXED')",
}

# A key of its own: names may be longer than an index takes.
acl = Table(
    "acl",
    metadata,
    Column(
        "acl_key",
        Uuid,
        Computed(
            "md5(resource_type || ' ' || pattern_type || ' ' || operation || ' ' || permission "
            "|| ' ' || length(resource_name) || ' ' || length(principal) || ' ' || "
            "resource_name || principal || host)::uuid",
            persisted=True,
        ),
        primary_key=True,
    ),
    Column("principal", Text(collation="C"), nullable=False),
    Column("permission", Text, nullable=False, server_default="ALLOW"),
    Column("operation", Text, nullable=False),
    Column("resource_type", Text, nullable=False),
    Column("resource_name", Text(collation="C"), nullable=False),
    Column("pattern_type", Text, nullable=False, server_default="LITERAL"),
    Column("host", Text(collation="C"), nullable=False, server_default="*"),
    _timestamp("created_at"),
    *(CheckConstraint(condition, name=column) for column, condition in _ACL_WORDS.items()),
    CheckConstraint(
        "resource_name <> '' AND (resource_type <> 'CLUSTER' OR resource_name = 'kafka-cluster')",
        name="resource_name",
    ),
    CheckConstraint("principal LIKE '%:%'", name="principal"),
)

# For decisions in SQL. Names may be longer than an index takes: of a resource's its beginning is in
# it, and no role's principal is as long as those that it leaves out.
Index(
    "acl_decision_idx",
    acl.c.principal,
    acl.c.resource_type,
    acl.c.pattern_type,
    func.left(acl.c.resource_name, 300),
    postgresql_where=text("octet_length(principal) <= 300"),
)
# Nearly always empty: each decision asks whether there is one that nobody can read.
Index(
    "acl_unreadable_idx",
    acl.c.acl_key,
    postgresql_where=text(f"NOT ({' AND '.join(_ACL_WORDS.values())})"),
)

# Raised by a trigger on `acl`. Not in `cluster`: a session of psql that is left open on the one is
# to hold up nobody who needs the other.
acl_version = Table(
    "acl_version",
    metadata,
    Column("only_row", Boolean, primary_key=True, server_default="true"),
    Column("version", BigInteger, nullable=False, server_default="0"),
    CheckConstraint("only_row", name="single"),
)

# A user, a client id, both, or an address; '' is the default, all without a quota by their own. As
# with `acl`, a key of its own, and a number in a table of its own.
client_quota = Table(
    "client_quota",
    metadata,
    Column(
        "quota_id",
        Uuid,
        Computed(
            "md5(quota_key || ' ' || coalesce('u' || length(user_name), '-') || ' ' || "
            "coalesce('c' || length(client_id), '-') || ' ' || coalesce(user_name, '') || "
            "coalesce(client_id, '') || coalesce(ip, ''))::uuid",
            persisted=True,
        ),
        primary_key=True,
    ),
    Column("user_name", Text(collation="C")),
    Column("client_id", Text(collation="C")),
    Column("ip", Text(collation="C")),
    Column("quota_key", Text, nullable=False),
    Column("value", Double, nullable=False),
    _timestamp("changed_at"),
    CheckConstraint("(ip IS NULL) <> (user_name IS NULL AND client_id IS NULL)", name="entity"),
    CheckConstraint(
        "CASE WHEN ip IS NULL THEN quota_key IN ('producer_byte_rate', 'consumer_byte_rate', "
        "'request_percentage', 'controller_mutation_rate') "
        "ELSE quota_key IN ('connection_creation_rate') END",
        name="quota_key",
    ),
    CheckConstraint("value > 0 AND value < 'Infinity'", name="value"),
)

client_quota_version = Table(
    "client_quota_version",
    metadata,
    Column("only_row", Boolean, primary_key=True, server_default="true"),
    Column("version", BigInteger, nullable=False, server_default="0"),
    CheckConstraint("only_row", name="single"),
)


# --- SQL doors: what applications write in transactions of their own ---

_SECRET = "('penstock.s'::text || translate((gen_random_uuid())::text, '-'::text, '_'::text))"

# One row: what the functions have to know. slot: the tables that are written to. era: rises when
# the database comes from another cluster, whose transactions had other ids; where cluster, which
# whoever loads a dump makes anew, is not cluster_of_era, it has risen by one already. secret: the
# name of a setting that nobody else is to give. The rest are brokers' settings, written when one
# starts or they change.
sql_door = Table(
    "sql_door",
    metadata,
    Column("only_row", Boolean, primary_key=True, server_default="true"),
    Column("slot", SmallInteger, nullable=False, server_default="0"),
    Column("era", Integer, nullable=False, server_default="0"),
    Column("secret", Text, nullable=False, server_default=text(_SECRET)),
    Column("cluster", BigInteger, Computed("penstock.present_cluster(only_row)", persisted=True)),
    Column("cluster_of_era", BigInteger),
    Column("max_message_bytes", Integer, nullable=False, server_default="1048588"),
    Column("is_compacted", Boolean, nullable=False, server_default="false"),
    Column("timestamp_before_max_ms", BigInteger, nullable=False, server_default=_LONG_MAX),
    Column("timestamp_after_max_ms", BigInteger, nullable=False, server_default="3600000"),
    Column("max_transaction_bytes", BigInteger, nullable=False, server_default="536870912"),
    Column("max_metadata_bytes", Integer, nullable=False, server_default="4096"),
    Column("asks_rights", Boolean, nullable=False, server_default="false"),
    Column("allows_without_acl", Boolean, nullable=False, server_default="false"),
    Column("super_users", ARRAY(Text), nullable=False, server_default="{}"),
    CheckConstraint("only_row", name="single"),
)

INBOX_SLOTS = 3
"""Each has tables of its own. One is written to; those before it are emptied whole once all in them
is published: their rows are neither updated nor deleted. Plain tables: to find the partition of a
partitioned one cost a transaction a third of its time."""


def _inbox_table(name: str, slot: int, *columns: SchemaItem, is_unlogged: bool = False) -> Table:
    return Table(
        f"{name}_{slot}",
        metadata,
        Column("xid", Xid8, nullable=False),
        *columns,
        prefixes=["UNLOGGED"] if is_unlogged else [],
    )


def _inbox_record(slot: int) -> Table:
    """Records that transactions have produced. number: the order of calls. is_first: of its
    transaction; at COMMIT it begins what follows. partition: null where the broker is to choose."""
    table = _inbox_table(
        "inbox_record",
        slot,
        Column("era", Integer, nullable=False),
        Column("number", BigInteger, nullable=False),
        Column("is_first", Boolean, nullable=False),
        Column("topic_id", Uuid, nullable=False),
        Column("topic", Text(collation="C"), nullable=False),
        Column("partition", Integer),
        Column("timestamp_ms", BigInteger, nullable=False),
        Column("key", LargeBinary),
        Column("value", LargeBinary),
        Column("header_names", ARRAY(Text)),
        Column("header_values", ARRAY(LargeBinary)),
    )
    Index(f"inbox_record_{slot}_xid_number_idx", table.c.xid, table.c.number)
    return table


def _inbox_transaction(slot: int) -> Table:
    """Transactions at their COMMIT, in a first pass of deferred triggers; that the row is there
    lets a second pass follow, behind what the application's own triggers wait for."""
    return _inbox_table(
        "inbox_transaction",
        slot,
        Column("era", Integer, nullable=False),
        Column("is_of_offsets", Boolean, nullable=False, server_default="false"),
        is_unlogged=True,
    )


def _inbox_commit(slot: int) -> Table:
    """Their places in the order of commits."""
    table = _inbox_table(
        "inbox_commit",
        slot,
        Column("era", Integer, nullable=False),
        Column("stamp", BigInteger, nullable=False),
        _timestamp("committed_at"),
        PrimaryKeyConstraint("stamp"),
    )
    Index(f"inbox_commit_{slot}_xid_idx", table.c.xid)
    return table


def _inbox_offset(slot: int) -> Table:
    """Offsets that transactions commit; written to `committed_offset` at their COMMIT, if the
    member may. generation: or member epoch; null, with the member's id, where the caller names
    none. previous: what has to be committed until then; null where that is not compared."""
    table = _inbox_table(
        "inbox_offset",
        slot,
        Column("number", BigInteger, nullable=False),
        Column("group_key", Uuid, nullable=False),
        Column("group_id", Text, nullable=False),
        Column("partition_id", BigInteger, nullable=False),
        Column("committed_offset", BigInteger, nullable=False),
        Column("metadata", Text, nullable=False),
        Column("member_id", Text),
        Column("generation", Integer),
        Column("instance_id", Text),
        Column("previous", BigInteger),
    )
    Index(f"inbox_offset_{slot}_xid_idx", table.c.xid)
    return table


for _slot in range(INBOX_SLOTS):
    _inbox_record(_slot)
    _inbox_transaction(_slot)
    _inbox_commit(_slot)
    _inbox_offset(_slot)

# A session takes fifty at a time: within a transaction they rise.
inbox_number_seq = Sequence("inbox_number_seq", metadata=metadata, data_type=BigInteger, cache=50)
inbox_stamp_seq = Sequence("inbox_stamp_seq", metadata=metadata, data_type=BigInteger)

# What is published: of an era, all transactions that `published` shows as ended. While a backlog is
# worked off in bites, it is those of `target` that come next, and of them all up to `after_stamp`
# are done. Each move is a row of its own, whose key guards it: an update of one row would be slow
# to find under a snapshot that somebody holds.
inbox_position = Table(
    "inbox_position",
    metadata,
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("era", Integer, nullable=False),
    Column("published", PgSnapshot, nullable=False),
    Column("target", PgSnapshot),
    Column("after_stamp", BigInteger, nullable=False, server_default="0"),
    _timestamp("moved_at"),
)

# Records that were committed and could not be published: their topic was deleted meanwhile, say.
inbox_refused = Table(
    "inbox_refused",
    metadata,
    Column("refused_id", BigInteger, Identity(always=True), primary_key=True),
    Column("topic", Text, nullable=False),
    Column("partition", Integer),
    Column("records", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("reason", Text, nullable=False),
    _timestamp("refused_at"),
)


def chunk_table_name(segment_id: int) -> str:
    """Name of the table that holds a segment's payload, with its schema."""
    return f"{SCHEMA}.record_chunk_{segment_id:d}"


def create_chunk_table_sql(segment_id: int) -> tuple[str, str]:
    """DDL of one segment's payload: rows of at most CHUNK_BYTES that fit a page, never TOASTed.

    Two statements: CREATE TABLE takes STORAGE only from PostgreSQL 16 on.
    """
    name = chunk_table_name(segment_id)
    return (
        f"CREATE TABLE {name} (payload_id bigint NOT NULL, seq integer NOT NULL, "
        f"data bytea NOT NULL, PRIMARY KEY (payload_id, seq))",
        f"ALTER TABLE {name} ALTER COLUMN data SET STORAGE PLAIN",
    )


CHUNK_BYTES = 8_000

for _table in metadata.tables.values():
    _table.comment = TABLE_COMMENTS.get(_table.name)
