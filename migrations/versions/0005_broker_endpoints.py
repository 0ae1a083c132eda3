"""Endpoints of a broker are rows: one address per listener."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies the change."""
    op.create_table(
        "broker_endpoint",
        sa.Column("broker_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("listener", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("port", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["broker_id"],
            ["broker.broker_id"],
            name=op.f("broker_endpoint_broker_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("broker_id", "listener", name=op.f("broker_endpoint_pkey")),
    )
    op.execute(
        "INSERT INTO broker_endpoint (broker_id, listener, host, port)"
        " SELECT broker_id, 'kafka', host, port FROM broker"
    )
    # Views name the columns; they are made again after the migrations.
    op.execute("DROP VIEW IF EXISTS v_broker, v_coordinator_lease, v_group")
    op.drop_column("broker", "host")
    op.drop_column("broker", "port")
