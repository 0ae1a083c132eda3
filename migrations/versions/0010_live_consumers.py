"""Consumers that are connected to brokers have rows, for people to see."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies the change."""
    op.create_table(
        "live_consumer",
        sa.Column("broker_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("incarnation", sa.Uuid(), nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("partition_id", sa.BigInteger(), nullable=False),
        sa.Column("subscription", sa.Text(), nullable=False),
        sa.Column("consumer", sa.Text(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("client", sa.Text(), nullable=False),
        sa.Column("connected_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("priority_level", sa.Integer(), nullable=False),
        sa.Column("permits", sa.BigInteger(), nullable=False),
        sa.Column("unacknowledged", sa.BigInteger(), nullable=False),
        sa.Column("is_active", sa.Boolean(), nullable=False),
        sa.Column("is_blocked", sa.Boolean(), nullable=False),
        sa.Column(
            "seen_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("broker_id", "number", name=op.f("live_consumer_pkey")),
        prefixes=["UNLOGGED"],
        postgresql_with={"fillfactor": "50"},
    )
