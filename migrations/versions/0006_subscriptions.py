"""Cursors of subscriptions are rows, and so are the ranges that they have acknowledged."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies the change."""
    op.create_table(
        "subscription",
        sa.Column("subscription_id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("partition_id", sa.BigInteger(), nullable=False),
        sa.Column("name_key", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("type", sa.Text(), nullable=True),
        sa.Column("mark_delete", sa.BigInteger(), nullable=False),
        sa.Column("properties", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("subscription_id", name=op.f("subscription_pkey")),
        sa.UniqueConstraint("partition_id", "name_key", name="subscription_partition_id_name_key"),
        postgresql_with={"fillfactor": "50"},
    )
    op.create_table(
        "subscription_range",
        sa.Column("subscription_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("start_offset", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("end_offset", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(
            "subscription_id", "start_offset", name=op.f("subscription_range_pkey")
        ),
        postgresql_with={"fillfactor": "50"},
    )
