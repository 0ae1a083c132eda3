"""What partitions remember of producers that are known by their names: deduplication."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies the change."""
    op.create_table(
        "named_producer",
        sa.Column("partition_id", sa.BigInteger(), nullable=False),
        sa.Column("name_key", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("claim", sa.BigInteger(), nullable=False),
        sa.Column(
            "highest_sequence_id", sa.Numeric(20, 0), server_default=sa.text("-1"), nullable=False
        ),
        sa.Column(
            "chunked_sequence_id", sa.Numeric(20, 0), server_default=sa.text("-1"), nullable=False
        ),
        sa.Column("chunk_id", sa.Integer(), server_default=sa.text("-1"), nullable=False),
        sa.Column(
            "updated_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("partition_id", "name_key", name=op.f("named_producer_pkey")),
        postgresql_with={"fillfactor": "50"},
    )
