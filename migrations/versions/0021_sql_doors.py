"""What applications produce and commit in transactions of their own."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql
from sqlalchemy.types import UserDefinedType

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

_SLOTS = 3


class _Named(UserDefinedType[str]):
    """A type that SQLAlchemy does not have."""

    cache_ok = True

    def __init__(self, name: str) -> None:
        self.name = name

    def get_col_spec(self, **_: object) -> str:
        """PostgreSQL's name."""
        return self.name


def upgrade() -> None:
    """Applies the change."""
    op.execute(  # it is written by storage/sql_doors, as those below are
        "CREATE FUNCTION present_cluster(only_row boolean) RETURNS bigint LANGUAGE sql IMMUTABLE "
        "AS 'SELECT system_identifier FROM pg_control_system()'"
    )
    op.create_table(
        "sql_door",
        sa.Column("only_row", sa.Boolean(), server_default="true", nullable=False),
        sa.Column("slot", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("era", sa.Integer(), server_default="0", nullable=False),
        sa.Column(
            "secret",
            sa.Text(),
            server_default=sa.text("'penstock.s' || translate(gen_random_uuid()::text, '-', '_')"),
            nullable=False,
        ),
        sa.Column(
            "cluster",
            sa.BigInteger(),
            sa.Computed("penstock.present_cluster(only_row)", persisted=True),
            nullable=True,
        ),
        sa.Column("cluster_of_era", sa.BigInteger(), nullable=True),
        sa.Column("max_message_bytes", sa.Integer(), server_default="1048588", nullable=False),
        sa.Column("is_compacted", sa.Boolean(), server_default="false", nullable=False),
        sa.Column(
            "timestamp_before_max_ms",
            sa.BigInteger(),
            server_default="9223372036854775807",
            nullable=False,
        ),
        sa.Column(
            "timestamp_after_max_ms", sa.BigInteger(), server_default="3600000", nullable=False
        ),
        sa.Column(
            "max_transaction_bytes", sa.BigInteger(), server_default="536870912", nullable=False
        ),
        sa.Column("max_metadata_bytes", sa.Integer(), server_default="4096", nullable=False),
        sa.Column("asks_rights", sa.Boolean(), server_default="false", nullable=False),
        sa.Column("allows_without_acl", sa.Boolean(), server_default="false", nullable=False),
        sa.Column("super_users", postgresql.ARRAY(sa.Text()), server_default="{}", nullable=False),
        sa.CheckConstraint("only_row", name=op.f("sql_door_single_check")),
        sa.PrimaryKeyConstraint("only_row", name=op.f("sql_door_pkey")),
    )
    op.execute("INSERT INTO sql_door DEFAULT VALUES")
    op.execute("UPDATE sql_door SET cluster_of_era = cluster")
    op.execute(sa.schema.CreateSequence(sa.Sequence("inbox_number_seq", cache=50)))
    op.execute(sa.schema.CreateSequence(sa.Sequence("inbox_stamp_seq")))
    for function in ("begin_commit", "stamp_commit"):  # they are written by storage/sql_doors
        op.execute(f"CREATE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN END'")
    for slot in range(_SLOTS):
        _create_slot(slot)
    op.create_table(
        "inbox_position",
        sa.Column("version", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("era", sa.Integer(), nullable=False),
        sa.Column("published", _Named("pg_snapshot"), nullable=False),
        sa.Column("target", _Named("pg_snapshot"), nullable=True),
        sa.Column("after_stamp", sa.BigInteger(), server_default="0", nullable=False),
        _timestamp("moved_at"),
        sa.PrimaryKeyConstraint("version", name=op.f("inbox_position_pkey")),
    )
    op.execute("INSERT INTO inbox_position (version, era, published) VALUES (0, 0, '1:1:')")
    op.create_table(
        "inbox_refused",
        sa.Column("refused_id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("partition", sa.Integer(), nullable=True),
        sa.Column("records", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        _timestamp("refused_at"),
        sa.PrimaryKeyConstraint("refused_id", name=op.f("inbox_refused_pkey")),
    )


def _timestamp(name: str) -> sa.Column[object]:
    return sa.Column(
        name,
        sa.DateTime(timezone=True),
        server_default=sa.text("clock_timestamp()"),
        nullable=False,
    )


def _create_slot(slot: int) -> None:
    record = f"inbox_record_{slot}"
    op.create_table(
        record,
        sa.Column("xid", _Named("xid8"), nullable=False),
        sa.Column("era", sa.Integer(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("is_first", sa.Boolean(), nullable=False),
        sa.Column("topic_id", sa.Uuid(), nullable=False),
        sa.Column("topic", sa.Text(collation="C"), nullable=False),
        sa.Column("partition", sa.Integer(), nullable=True),
        sa.Column("timestamp_ms", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.LargeBinary(), nullable=True),
        sa.Column("value", sa.LargeBinary(), nullable=True),
        sa.Column("header_names", postgresql.ARRAY(sa.Text()), nullable=True),
        sa.Column("header_values", postgresql.ARRAY(sa.LargeBinary()), nullable=True),
    )
    op.create_index(f"{record}_xid_number_idx", record, ["xid", "number"])
    # What lies there for a moment is not compressed.
    for column in ("key", "value"):
        op.execute(f"ALTER TABLE {record} ALTER COLUMN {column} SET STORAGE EXTERNAL")
    op.create_table(
        f"inbox_transaction_{slot}",
        sa.Column("xid", _Named("xid8"), nullable=False),
        sa.Column("era", sa.Integer(), nullable=False),
        sa.Column("is_of_offsets", sa.Boolean(), server_default="false", nullable=False),
        prefixes=["UNLOGGED"],  # it means something in its own transaction only
    )
    op.create_table(
        f"inbox_commit_{slot}",
        sa.Column("xid", _Named("xid8"), nullable=False),
        sa.Column("era", sa.Integer(), nullable=False),
        sa.Column("stamp", sa.BigInteger(), nullable=False),
        _timestamp("committed_at"),
        sa.PrimaryKeyConstraint("stamp", name=op.f(f"inbox_commit_{slot}_pkey")),
    )
    op.create_index(f"inbox_commit_{slot}_xid_idx", f"inbox_commit_{slot}", ["xid"])
    op.create_table(
        f"inbox_offset_{slot}",
        sa.Column("xid", _Named("xid8"), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("group_key", sa.Uuid(), nullable=False),
        sa.Column("group_id", sa.Text(), nullable=False),
        sa.Column("partition_id", sa.BigInteger(), nullable=False),
        sa.Column("committed_offset", sa.BigInteger(), nullable=False),
        sa.Column("metadata", sa.Text(), nullable=False),
        sa.Column("member_id", sa.Text(), nullable=True),
        sa.Column("generation", sa.Integer(), nullable=True),
        sa.Column("instance_id", sa.Text(), nullable=True),
        sa.Column("previous", sa.BigInteger(), nullable=True),
    )
    op.create_index(f"inbox_offset_{slot}_xid_idx", f"inbox_offset_{slot}", ["xid"])
    for table, function, when in (
        ("record", "begin_commit", "WHEN (NEW.is_first) "),
        ("transaction", "stamp_commit", "WHEN (NOT NEW.is_of_offsets) "),
        ("offset", "begin_offsets", ""),
        ("transaction", "end_offsets", "WHEN (NEW.is_of_offsets) "),
    ):
        # Written by storage/sql_doors.
        op.execute(
            f"CREATE FUNCTION {function}_{slot}() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN END'"
        )
        op.execute(
            f"CREATE CONSTRAINT TRIGGER {function} AFTER INSERT ON inbox_{table}_{slot} "
            f"DEFERRABLE INITIALLY DEFERRED FOR EACH ROW {when}EXECUTE FUNCTION {function}_{slot}()"
        )
