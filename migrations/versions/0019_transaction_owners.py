"""Transactions have an owner, whom Pulsar's coordinators ask for."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies the change. Transactions that are there are everybody's."""
    op.add_column(
        "transaction_state",
        sa.Column("owner", sa.Text(), server_default=sa.text("''"), nullable=False),
    )
