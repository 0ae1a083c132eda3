"""Staged batches: tokens, their batches, and the last published batch of each query."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies the change."""
    op.create_table(
        "staged_token",
        sa.Column("token", sa.Uuid(), nullable=False),
        sa.Column("batches", sa.Integer(), nullable=False),
        sa.Column("records", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column(
            "staged_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("token", name=op.f("staged_token_pkey")),
        postgresql_with={"fillfactor": "50"},
    )
    op.create_table(
        "staged_batch",
        sa.Column("token", sa.Uuid(), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("partition_id", sa.BigInteger(), nullable=False),
        sa.Column("payload_id", sa.BigInteger(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("segment_id", sa.Integer(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("record_count", sa.Integer(), nullable=False),
        sa.Column("max_timestamp", sa.BigInteger(), nullable=False),
        sa.Column("format", sa.SmallInteger(), nullable=False),
        sa.PrimaryKeyConstraint("token", "number", name=op.f("staged_batch_pkey")),
    )
    op.create_index("staged_batch_segment_id_idx", "staged_batch", ["segment_id"], unique=False)
    op.create_table(
        "published_batch",
        sa.Column("guard_key", sa.Uuid(), nullable=False),
        sa.Column("query_id", sa.Text(), nullable=False),
        sa.Column("sink", sa.Text(), nullable=False),
        sa.Column("batch_id", sa.BigInteger(), nullable=False),
        sa.Column(
            "published_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("guard_key", name=op.f("published_batch_pkey")),
        postgresql_with={"fillfactor": "50"},
    )
