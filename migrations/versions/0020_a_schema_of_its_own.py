"""All that is ours lies in the schema `penstock`, and what runs there finds it by that name.

An installation in another schema is moved before the first step runs (`storage/relocation.py`).
"""

from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies the change."""
    for table, channel in (
        ("acl", "penstock_acl"),
        ("client_quota", "penstock_quota"),
        ("delegation_token", "penstock_delegation_token"),
    ):
        op.execute(
            f"""
CREATE OR REPLACE FUNCTION penstock.{table}_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE penstock.{table}_version SET version = version + 1;
    PERFORM pg_catalog.pg_notify('{channel}', '');
    RETURN NULL;
END $$
"""
        )
