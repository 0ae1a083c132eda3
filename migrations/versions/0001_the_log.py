"""The log"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies the change."""
    op.create_table(
        "broker",
        sa.Column("broker_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("incarnation", sa.Uuid(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("port", sa.Integer(), nullable=False),
        sa.Column("rack", sa.Text(), nullable=True),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column(
            "started_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column(
            "heartbeat_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column("session_timeout_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("broker_id", name=op.f("broker_pkey")),
    )
    op.create_table(
        "cluster",
        sa.Column("only_row", sa.Boolean(), server_default="true", nullable=False),
        sa.Column("cluster_id", sa.Text(), nullable=False),
        sa.Column("system_identifier", sa.BigInteger(), nullable=False),
        sa.Column("timeline", sa.Integer(), nullable=False),
        sa.Column("views_digest", sa.Text(), server_default="", nullable=False),
        sa.Column("metadata_version", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("next_broker_id", sa.Integer(), server_default="1", nullable=False),
        sa.Column("next_batch_id", sa.BigInteger(), server_default="1", nullable=False),
        sa.Column("next_producer_id", sa.BigInteger(), server_default="1000", nullable=False),
        sa.CheckConstraint("only_row", name=op.f("cluster_single_check")),
        sa.PrimaryKeyConstraint("only_row", name=op.f("cluster_pkey")),
    )
    op.create_table(
        "config_entry",
        sa.Column("resource_type", sa.Text(), nullable=False),
        sa.Column("resource_name", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint(
            "resource_type", "resource_name", "name", name=op.f("config_entry_pkey")
        ),
    )
    op.create_table(
        "deleted_partition",
        sa.Column("partition_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column(
            "deleted_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("partition_id", name=op.f("deleted_partition_pkey")),
    )
    op.create_table(
        "leader_epoch",
        sa.Column("partition_id", sa.BigInteger(), nullable=False),
        sa.Column("leader_epoch", sa.Integer(), nullable=False),
        sa.Column("start_offset", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("partition_id", "leader_epoch", name=op.f("leader_epoch_pkey")),
    )
    op.create_table(
        "producer_state",
        sa.Column("partition_id", sa.BigInteger(), nullable=False),
        sa.Column("producer_id", sa.BigInteger(), nullable=False),
        sa.Column("producer_epoch", sa.SmallInteger(), nullable=False),
        sa.Column("last_timestamp", sa.BigInteger(), nullable=False),
        sa.Column("last_sequences", postgresql.ARRAY(sa.Integer()), nullable=False),
        sa.Column("last_offsets", postgresql.ARRAY(sa.BigInteger()), nullable=False),
        sa.Column("offset_deltas", postgresql.ARRAY(sa.Integer()), nullable=False),
        sa.Column("timestamps", postgresql.ARRAY(sa.BigInteger()), nullable=False),
        sa.Column(
            "updated_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("partition_id", "producer_id", name=op.f("producer_state_pkey")),
        postgresql_with={"fillfactor": "70"},
    )
    op.create_table(
        "record_batch",
        sa.Column("partition_id", sa.BigInteger(), nullable=False),
        sa.Column("base_offset", sa.BigInteger(), nullable=False),
        sa.Column("last_offset", sa.BigInteger(), nullable=False),
        sa.Column("payload_id", sa.BigInteger(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("segment_id", sa.Integer(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("max_timestamp", sa.BigInteger(), nullable=False),
        sa.Column("running_max_timestamp", sa.BigInteger(), nullable=False),
        sa.Column("producer_id", sa.BigInteger(), nullable=False),
        sa.Column("base_sequence", sa.Integer(), nullable=False),
        sa.Column("producer_epoch", sa.SmallInteger(), nullable=False),
        sa.Column("format", sa.SmallInteger(), nullable=False),
        sa.Column("is_transactional", sa.Boolean(), nullable=False),
        sa.Column("is_control", sa.Boolean(), nullable=False),
    )
    op.create_index(
        "record_batch_partition_id_last_offset_key",
        "record_batch",
        ["partition_id", "last_offset"],
        unique=True,
    )
    op.create_index(
        "record_batch_segment_id_idx",
        "record_batch",
        ["segment_id"],
        unique=False,
        postgresql_using="brin",
        postgresql_with={"pages_per_range": "16", "autosummarize": "on"},
    )
    op.create_table(
        "segment",
        sa.Column("segment_id", sa.Integer(), nullable=False),
        sa.Column("retention_class", sa.Text(), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column("sealed_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("segment_id", name=op.f("segment_pkey")),
    )
    op.create_index(
        "segment_retention_class_key",
        "segment",
        ["retention_class"],
        unique=True,
        postgresql_where=sa.text("sealed_at IS NULL"),
    )
    op.create_table(
        "topic",
        sa.Column("topic_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(collation="C"), nullable=False),
        sa.Column("is_internal", sa.Boolean(), server_default="false", nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("topic_id", name=op.f("topic_pkey")),
        sa.UniqueConstraint("name", name=op.f("topic_name_key")),
    )
    op.create_table(
        "topic_partition",
        sa.Column("partition_id", sa.BigInteger(), nullable=False),
        sa.Column("topic_id", sa.Uuid(), nullable=False),
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("next_offset", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("log_start_offset", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("leader_epoch", sa.Integer(), server_default="0", nullable=False),
        sa.Column("max_timestamp", sa.BigInteger(), server_default="-1", nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("batch_count", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.ForeignKeyConstraint(
            ["topic_id"],
            ["topic.topic_id"],
            name=op.f("topic_partition_topic_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("partition_id", name=op.f("topic_partition_pkey")),
        sa.UniqueConstraint("topic_id", "partition", name="topic_partition_topic_id_partition_key"),
        postgresql_with={"fillfactor": "40"},
    )
