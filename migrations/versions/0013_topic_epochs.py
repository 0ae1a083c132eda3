"""Topic epochs are rows: who had a partition for itself is known after a restart, and elsewhere."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies the change. A constant default costs no rewrite of the table."""
    op.add_column(
        "topic_partition",
        sa.Column("topic_epoch", sa.BigInteger(), server_default=sa.text("-1"), nullable=False),
    )
