"""Client quotas are rows, and whatever changes them says so, as it is with ACLs."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

_ID = (
    "md5(quota_key || ' ' || coalesce('u' || length(user_name), '-') || ' ' || "
    "coalesce('c' || length(client_id), '-') || ' ' || coalesce(user_name, '') || "
    "coalesce(client_id, '') || coalesce(ip, ''))::uuid"
)


def upgrade() -> None:
    """Applies the change."""
    op.create_table(
        "client_quota",
        sa.Column("quota_id", sa.Uuid(), sa.Computed(_ID, persisted=True), nullable=False),
        sa.Column("user_name", sa.Text(collation="C"), nullable=True),
        sa.Column("client_id", sa.Text(collation="C"), nullable=True),
        sa.Column("ip", sa.Text(collation="C"), nullable=True),
        sa.Column("quota_key", sa.Text(), nullable=False),
        sa.Column("value", sa.Double(), nullable=False),
        sa.Column(
            "changed_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.CheckConstraint(
            "(ip IS NULL) <> (user_name IS NULL AND client_id IS NULL)",
            name=op.f("client_quota_entity_check"),
        ),
        sa.CheckConstraint(
            "CASE WHEN ip IS NULL THEN quota_key IN ('producer_byte_rate', 'consumer_byte_rate', "
            "'request_percentage', 'controller_mutation_rate') "
            "ELSE quota_key IN ('connection_creation_rate') END",
            name=op.f("client_quota_quota_key_check"),
        ),
        sa.CheckConstraint(
            "value > 0 AND value < 'Infinity'", name=op.f("client_quota_value_check")
        ),
        sa.PrimaryKeyConstraint("quota_id", name=op.f("client_quota_pkey")),
    )
    op.create_table(
        "client_quota_version",
        sa.Column("only_row", sa.Boolean(), server_default="true", nullable=False),
        sa.Column("version", sa.BigInteger(), server_default="0", nullable=False),
        sa.CheckConstraint("only_row", name=op.f("client_quota_version_single_check")),
        sa.PrimaryKeyConstraint("only_row", name=op.f("client_quota_version_pkey")),
    )
    op.execute("INSERT INTO client_quota_version DEFAULT VALUES")
    # Whoever changes them, psql too, and also by TRUNCATE.
    op.execute(
        """
CREATE FUNCTION client_quota_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE client_quota_version SET version = version + 1;
    PERFORM pg_notify('penstock_quota', '');
    RETURN NULL;
END $$
"""
    )
    op.execute(
        "CREATE TRIGGER client_quota_changed "
        "AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON client_quota "
        "FOR EACH STATEMENT EXECUTE FUNCTION client_quota_changed()"
    )
