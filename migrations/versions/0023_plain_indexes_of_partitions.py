"""Updates of partitions' rows check no unique index, whatever versions an open snapshot keeps."""

from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies the change."""
    op.drop_constraint("topic_partition_pkey", "topic_partition")
    op.drop_constraint("topic_partition_topic_id_partition_key", "topic_partition")
    op.create_index("topic_partition_partition_id_idx", "topic_partition", ["partition_id"])
    op.create_index(
        "topic_partition_topic_id_partition_idx", "topic_partition", ["topic_id", "partition"]
    )
    # As a guest: a publication FOR ALL TABLES refuses changes of rows that nothing tells apart.
    op.execute("ALTER TABLE penstock.topic_partition REPLICA IDENTITY FULL")
    op.execute(
        "ALTER TABLE penstock.record_batch"
        " REPLICA IDENTITY USING INDEX record_batch_partition_id_last_offset_key"
    )
