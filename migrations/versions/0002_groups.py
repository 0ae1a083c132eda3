"""Groups: leases of coordinators, groups, members, committed offsets

Creating `record_batch_control_idx` keeps writers of `record_batch` out for one scan of that index
table (SHARE lock; some seconds for ten million batches). Running brokers of the version before park
their appends meanwhile. Not CONCURRENTLY: that cannot be rolled back as a whole.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies the change."""
    op.create_table(
        "coordinator_lease",
        sa.Column("shard", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("broker_id", sa.Integer(), nullable=False),
        sa.Column("incarnation", sa.Uuid(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column(
            "acquired_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("shard", name=op.f("coordinator_lease_pkey")),
    )
    op.create_table(
        "consumer_group",
        sa.Column("group_key", sa.Uuid(), nullable=False),
        sa.Column("group_id", sa.Text(), nullable=False),
        sa.Column("shard", sa.Integer(), nullable=False),
        sa.Column("protocol", sa.Text(), nullable=False),
        sa.Column("protocol_type", sa.Text(), nullable=False),
        sa.Column("protocol_name", sa.Text(), nullable=True),
        sa.Column("leader", sa.Text(), nullable=True),
        sa.Column("generation_id", sa.Integer(), nullable=False),
        sa.Column("assignment_epoch", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("state_timestamp", sa.BigInteger(), nullable=False),
        sa.Column("waiting_for", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("metadata_hash", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("group_key", name=op.f("consumer_group_pkey")),
        postgresql_with={"fillfactor": "70"},
    )
    op.create_index("consumer_group_shard_idx", "consumer_group", ["shard"], unique=False)
    op.create_table(
        "group_member",
        sa.Column("group_key", sa.Uuid(), nullable=False),
        sa.Column("member_key", sa.Uuid(), nullable=False),
        sa.Column("member_id", sa.Text(), nullable=False),
        sa.Column("protocol", sa.Text(), nullable=False),
        sa.Column("group_instance_id", sa.Text(), nullable=True),
        sa.Column("client_id", sa.Text(), nullable=False),
        sa.Column("client_host", sa.Text(), nullable=False),
        sa.Column("rack_id", sa.Text(), nullable=True),
        sa.Column("session_timeout_ms", sa.Integer(), nullable=False),
        sa.Column("rebalance_timeout_ms", sa.Integer(), nullable=False),
        sa.Column("protocols", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("assignment", sa.LargeBinary(), nullable=False),
        sa.Column("member_epoch", sa.Integer(), nullable=False),
        sa.Column("previous_member_epoch", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("subscribed_topic_names", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("subscribed_topic_regex", sa.Text(), nullable=True),
        sa.Column("server_assignor", sa.Text(), nullable=True),
        sa.Column("assigned", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("revoking", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("target", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.PrimaryKeyConstraint("group_key", "member_key", name=op.f("group_member_pkey")),
        postgresql_with={"fillfactor": "50"},
    )
    op.create_table(
        "committed_offset",
        sa.Column("group_key", sa.Uuid(), nullable=False),
        sa.Column("partition_id", sa.BigInteger(), nullable=False),
        sa.Column("committed_offset", sa.BigInteger(), nullable=False),
        sa.Column("leader_epoch", sa.Integer(), nullable=False),
        sa.Column("metadata", sa.Text(), nullable=False),
        sa.Column("commit_timestamp", sa.BigInteger(), nullable=False),
        sa.Column("expire_timestamp", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("group_key", "partition_id", name=op.f("committed_offset_pkey")),
        postgresql_with={"fillfactor": "40"},
    )
    op.create_index(
        "record_batch_control_idx",
        "record_batch",
        ["partition_id", "last_offset"],
        unique=False,
        postgresql_include=["base_offset"],
        postgresql_where=sa.text("is_control"),
    )
