"""Tenants and namespaces are rows, and namespaces have policies, for clients of Pulsar."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies the change."""
    op.create_table(
        "tenant",
        sa.Column("name", sa.Text(collation="C"), nullable=False),
        sa.Column("admin_roles", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("allowed_clusters", postgresql.ARRAY(sa.Text()), nullable=False),
        _created_at(),
        sa.PrimaryKeyConstraint("name", name=op.f("tenant_pkey")),
    )
    op.create_table(
        "namespace",
        sa.Column("tenant", sa.Text(collation="C"), nullable=False),
        sa.Column("name", sa.Text(collation="C"), nullable=False),
        sa.Column("policies", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        _created_at(),
        sa.ForeignKeyConstraint(["tenant"], ["tenant.name"], name=op.f("namespace_tenant_fkey")),
        sa.PrimaryKeyConstraint("tenant", "name", name=op.f("namespace_pkey")),
    )
    # Those that every cluster of Pulsar's has.
    op.execute(
        "INSERT INTO tenant (name, admin_roles, allowed_clusters)"
        " VALUES ('public', '{}', '{standalone}'), ('pulsar', '{}', '{standalone}')"
    )
    op.execute(
        "INSERT INTO namespace (tenant, name, policies)"
        " VALUES ('public', 'default', '{}'), ('pulsar', 'system', '{}')"
    )


def _created_at() -> sa.Column[object]:
    return sa.Column(
        "created_at",
        sa.DateTime(timezone=True),
        server_default=sa.text("clock_timestamp()"),
        nullable=False,
    )
