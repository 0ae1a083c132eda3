"""Which client asked for an idempotent producer's id, so that a record tells who wrote it."""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies the change."""
    op.create_table(
        "producer_client",
        sa.Column("producer_id", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("client_id", sa.Text(), nullable=False),
        sa.Column("client_host", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("begun_at", sa.DateTime(timezone=True), nullable=False),
        prefixes=["UNLOGGED"],
    )
    op.create_index("producer_client_begun_at_idx", "producer_client", ["begun_at"])
