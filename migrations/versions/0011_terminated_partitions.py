"""Partitions may be terminated: nothing is appended to them any more."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies the change. A constant default costs no rewrite of the table."""
    op.add_column(
        "topic_partition",
        sa.Column(
            "terminated_offset", sa.BigInteger(), server_default=sa.text("-1"), nullable=False
        ),
    )
