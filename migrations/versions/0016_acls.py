"""ACLs are rows, and whatever changes them says so: a counter, and news to the brokers."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

_KEY = (
    "md5(resource_type || ' ' || pattern_type || ' ' || operation || ' ' || permission || ' ' || "
    "length(resource_name) || ' ' || length(principal) || ' ' || "
    "resource_name || principal || host)::uuid"
)


def upgrade() -> None:
    """Applies the change."""
    op.create_table(
        "acl",
        sa.Column("acl_key", sa.Uuid(), sa.Computed(_KEY, persisted=True), nullable=False),
        sa.Column("principal", sa.Text(collation="C"), nullable=False),
        sa.Column("permission", sa.Text(), server_default="ALLOW", nullable=False),
        sa.Column("operation", sa.Text(), nullable=False),
        sa.Column("resource_type", sa.Text(), nullable=False),
        sa.Column("resource_name", sa.Text(collation="C"), nullable=False),
        sa.Column("pattern_type", sa.Text(), server_default="LITERAL", nullable=False),
        sa.Column("host", sa.Text(collation="C"), server_default="*", nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.CheckConstraint("permission IN ('ALLOW', 'DENY')", name=op.f("acl_permission_check")),
        sa.CheckConstraint(
            "operation IN ('ALL', 'READ', 'WRITE', 'CREATE', 'DELETE', 'ALTER', 'DESCRIBE', "
            "'CLUSTER_ACTION', 'DESCRIBE_CONFIGS', 'ALTER_CONFIGS', 'IDEMPOTENT_WRITE', "
            "'CREATE_TOKENS', 'DESCRIBE_TOKENS', 'TWO_PHASE_COMMIT')",
            name=op.f("acl_operation_check"),
        ),
        sa.CheckConstraint(
            "resource_type IN ('TOPIC', 'GROUP', 'CLUSTER', 'TRANSACTIONAL_ID', "
            "'DELEGATION_TOKEN', 'USER')",
            name=op.f("acl_resource_type_check"),
        ),
        sa.CheckConstraint(
            "pattern_type IN ('LITERAL', 'PREFIXED')", name=op.f("acl_pattern_type_check")
        ),
        sa.CheckConstraint(
            "resource_name <> '' AND (resource_type <> 'CLUSTER' OR "
            "resource_name = 'kafka-cluster')",
            name=op.f("acl_resource_name_check"),
        ),
        sa.CheckConstraint("principal LIKE '%:%'", name=op.f("acl_principal_check")),
        sa.PrimaryKeyConstraint("acl_key", name=op.f("acl_pkey")),
    )
    op.create_table(
        "acl_version",
        sa.Column("only_row", sa.Boolean(), server_default="true", nullable=False),
        sa.Column("version", sa.BigInteger(), server_default="0", nullable=False),
        sa.CheckConstraint("only_row", name=op.f("acl_version_single_check")),
        sa.PrimaryKeyConstraint("only_row", name=op.f("acl_version_pkey")),
    )
    op.execute("INSERT INTO acl_version DEFAULT VALUES")
    # Whoever changes them, psql too, and also by TRUNCATE.
    op.execute(
        """
CREATE FUNCTION acl_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE acl_version SET version = version + 1;
    PERFORM pg_notify('penstock_acl', '');
    RETURN NULL;
END $$
"""
    )
    op.execute(
        "CREATE TRIGGER acl_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON acl "
        "FOR EACH STATEMENT EXECUTE FUNCTION acl_changed()"
    )
