"""Users are rows: who may log in at a listener that asks, and with which verifier."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies the change."""
    op.add_column(
        "cluster",
        sa.Column(
            "login_secret", sa.Uuid(), server_default=sa.text("gen_random_uuid()"), nullable=False
        ),
    )
    op.create_table(
        "scram_credential",
        sa.Column("user_name", sa.Text(collation="C"), nullable=False),
        sa.Column(
            "mechanism",
            sa.Text(),
            sa.Computed("split_part(verifier, '$', 1)", persisted=True),
            nullable=False,
        ),
        sa.Column("verifier", sa.Text(), nullable=False),
        sa.Column(
            "changed_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.CheckConstraint(
            r"verifier ~ '^SCRAM-SHA-(256|512)\$[0-9]+:[A-Za-z0-9+/=]+"
            r"\$[A-Za-z0-9+/=]+:[A-Za-z0-9+/=]+$'",
            name=op.f("scram_credential_verifier_check"),
        ),
        sa.PrimaryKeyConstraint("user_name", "mechanism", name=op.f("scram_credential_pkey")),
    )
