"""Transactions have kinds of names, and subscriptions take part with pending acknowledgements."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies the change. A constant default costs no rewrite of a table."""
    op.add_column("transaction_state", _kind())
    op.rename_table("transaction_group", "transaction_participant")
    op.execute(
        "ALTER TABLE transaction_participant RENAME CONSTRAINT transaction_group_pkey"
        " TO transaction_participant_pkey"
    )
    op.alter_column("transaction_participant", "group_key", new_column_name="participant_key")
    op.alter_column("transaction_participant", "group_id", new_column_name="name")
    op.add_column("transaction_participant", _kind())
    op.create_table(
        "pending_ack",
        sa.Column("subscription_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("producer_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("start_offset", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("end_offset", sa.BigInteger(), nullable=False),
        sa.Column("is_cumulative", sa.Boolean(), nullable=False),
        sa.Column("is_committed", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.PrimaryKeyConstraint(
            "subscription_id", "producer_id", "start_offset", name=op.f("pending_ack_pkey")
        ),
        postgresql_with={"fillfactor": "70"},
    )


def _kind() -> sa.Column[int]:
    return sa.Column("kind", sa.SmallInteger(), server_default=sa.text("0"), nullable=False)
