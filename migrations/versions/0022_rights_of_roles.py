"""Decisions on ACLs in SQL find those of a role, and any that nobody can read."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies the change."""
    op.create_index(
        "acl_decision_idx",
        "acl",
        ["principal", "resource_type", "pattern_type", sa.text('"left"(resource_name, 300)')],
        postgresql_where=sa.text("octet_length(principal) <= 300"),
    )
    op.create_index(
        "acl_unreadable_idx",
        "acl",
        ["acl_key"],
        postgresql_where=sa.text(
            "NOT (permission IN ('ALLOW', 'DENY') AND operation IN ('ALL', 'READ', 'WRITE', "
            "'CREATE', 'DELETE', 'ALTER', 'DESCRIBE', 'CLUSTER_ACTION', 'DESCRIBE_CONFIGS', "
            "'ALTER_CONFIGS', 'IDEMPOTENT_WRITE', 'CREATE_TOKENS', 'DESCRIBE_TOKENS', "
            "'TWO_PHASE_COMMIT') AND resource_type IN ('TOPIC', 'GROUP', 'CLUSTER', "
            "'TRANSACTIONAL_ID', 'DELEGATION_TOKEN', 'USER') AND pattern_type IN ('LITERAL', "
            "'PREFIXED'))"
        ),
    )
