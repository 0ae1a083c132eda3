"""Transactions: ids and their state, participants, pending offsets, aborted stretches.

The index on `producer_state` keeps its writers out for one scan of that table (SHARE lock).
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies the change."""
    op.execute(sa.schema.CreateSequence(sa.Sequence("offset_commit_seq", data_type=sa.BigInteger)))
    op.create_table(
        "aborted_transaction",
        sa.Column("partition_id", sa.BigInteger(), nullable=False),
        sa.Column("last_offset", sa.BigInteger(), nullable=False),
        sa.Column("producer_id", sa.BigInteger(), nullable=False),
        sa.Column("first_offset", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(
            "partition_id", "last_offset", name=op.f("aborted_transaction_pkey")
        ),
    )
    op.create_table(
        "pending_offset",
        sa.Column("group_key", sa.Uuid(), nullable=False),
        sa.Column("producer_id", sa.BigInteger(), nullable=False),
        sa.Column("partition_id", sa.BigInteger(), nullable=False),
        sa.Column("committed_offset", sa.BigInteger(), nullable=False),
        sa.Column("leader_epoch", sa.Integer(), nullable=False),
        sa.Column("metadata", sa.Text(), nullable=False),
        sa.Column("commit_timestamp", sa.BigInteger(), nullable=False),
        sa.Column("commit_order", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(
            "group_key", "producer_id", "partition_id", name=op.f("pending_offset_pkey")
        ),
    )
    op.add_column(
        "committed_offset",
        sa.Column("commit_order", sa.BigInteger(), server_default="0", nullable=False),
    )
    op.create_table(
        "transaction_group",
        sa.Column("txn_key", sa.Uuid(), nullable=False),
        sa.Column("group_key", sa.Uuid(), nullable=False),
        sa.Column("group_id", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("txn_key", "group_key", name=op.f("transaction_group_pkey")),
    )
    op.create_table(
        "transaction_partition",
        sa.Column("txn_key", sa.Uuid(), nullable=False),
        sa.Column("partition_id", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("txn_key", "partition_id", name=op.f("transaction_partition_pkey")),
    )
    op.create_table(
        "transaction_state",
        sa.Column("txn_key", sa.Uuid(), nullable=False),
        sa.Column("transactional_id", sa.Text(), nullable=False),
        sa.Column("producer_id", sa.BigInteger(), nullable=False),
        sa.Column("producer_epoch", sa.SmallInteger(), nullable=False),
        sa.Column("previous_producer_id", sa.BigInteger(), nullable=False),
        sa.Column("last_producer_epoch", sa.SmallInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("transaction_version", sa.SmallInteger(), nullable=False),
        sa.Column("timeout_ms", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.Column("coordinator_epoch", sa.Integer(), nullable=False),
        sa.Column("client_id", sa.Text(), nullable=False),
        sa.Column("client_host", sa.Text(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("txn_key", name=op.f("transaction_state_pkey")),
        sa.UniqueConstraint("producer_id", name=op.f("transaction_state_producer_id_key")),
        postgresql_with={"fillfactor": "50"},
    )
    op.create_index(
        "transaction_state_open_idx",
        "transaction_state",
        ["started_at"],
        unique=False,
        postgresql_where=sa.text("started_at >= 0"),
    )
    op.add_column("producer_state", sa.Column("txn_first_offset", sa.BigInteger(), nullable=True))
    op.add_column(
        "producer_state",
        sa.Column("coordinator_epoch", sa.Integer(), server_default="-1", nullable=False),
    )
    op.create_index(
        "producer_state_open_transaction_idx",
        "producer_state",
        ["partition_id", "txn_first_offset"],
        unique=False,
        postgresql_where=sa.text("txn_first_offset IS NOT NULL"),
    )
