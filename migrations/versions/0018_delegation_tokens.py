"""Delegation tokens are rows without a secret, and whatever changes them says so."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies the change."""
    op.create_table(
        "delegation_token",
        sa.Column("token_id", sa.Text(collation="C"), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("requester", sa.Text(), nullable=False),
        sa.Column("renewers", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("issued_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("max_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "owner LIKE '%:%' AND requester LIKE '%:%'",
            name=op.f("delegation_token_principals_check"),
        ),
        sa.CheckConstraint(
            "coalesce(array_ndims(renewers), 1) = 1 AND array_position(renewers, NULL) IS NULL",
            name=op.f("delegation_token_renewers_check"),
        ),
        sa.CheckConstraint(
            "least(issued_at, expires_at, max_at) >= '1970-01-01 00:00:00+00' "
            "AND greatest(issued_at, expires_at, max_at) <= '9999-12-31 00:00:00+00'",
            name=op.f("delegation_token_times_check"),
        ),
        sa.PrimaryKeyConstraint("token_id", name=op.f("delegation_token_pkey")),
    )
    op.create_table(
        "delegation_token_version",
        sa.Column("only_row", sa.Boolean(), server_default="true", nullable=False),
        sa.Column("version", sa.BigInteger(), server_default="0", nullable=False),
        sa.CheckConstraint("only_row", name=op.f("delegation_token_version_single_check")),
        sa.PrimaryKeyConstraint("only_row", name=op.f("delegation_token_version_pkey")),
    )
    op.execute("INSERT INTO delegation_token_version DEFAULT VALUES")
    # Whoever changes them, psql too, and also by TRUNCATE.
    op.execute(
        """
CREATE FUNCTION delegation_token_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE delegation_token_version SET version = version + 1;
    PERFORM pg_notify('penstock_delegation_token', '');
    RETURN NULL;
END $$
"""
    )
    op.execute(
        "CREATE TRIGGER delegation_token_changed "
        "AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON delegation_token "
        "FOR EACH STATEMENT EXECUTE FUNCTION delegation_token_changed()"
    )
