"""Pending acknowledgements are of a transaction, not of its producer, which may begin another."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies the change. Those of open transactions are told which one that is; others have
    ended, and any number will do."""
    op.add_column(
        "pending_ack",
        sa.Column("open_version", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
    )
    op.execute(
        "UPDATE pending_ack a SET open_version = t.version FROM transaction_state t"
        " WHERE t.producer_id = a.producer_id AND NOT a.is_committed"
    )
    op.alter_column("pending_ack", "open_version", server_default=None)
    op.drop_constraint(op.f("pending_ack_pkey"), "pending_ack")
    op.create_primary_key(
        op.f("pending_ack_pkey"),
        "pending_ack",
        ["subscription_id", "producer_id", "open_version", "start_offset"],
    )
