"""Migrations build exactly the schema, whoever comes first; views can be read."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from types import SimpleNamespace

import psycopg
import psycopg.conninfo
import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine
from sqlalchemy.dialects.postgresql.base import ischema_names
from sqlalchemy.pool import NullPool

from core.ports.log import StoreUnavailable
from storage import comments, migrate, relocation, schema, views
from storage.migrate import SchemaRefused, SchemaTooNew, upgrade
from storage.server.embedded import EmbeddedPostgres
from tests.batches import batch
from tests.storage.conftest import Log


def test_head_is_alembics_own() -> None:
    config = Config()
    config.set_main_option("script_location", str(migrate.MIGRATIONS))
    assert ScriptDirectory.from_config(config).get_current_head() == migrate.HEAD


def test_migrations_build_exactly_the_schema(any_url: str) -> None:
    engine = create_engine(
        "postgresql+psycopg://",
        creator=lambda: psycopg.connect(any_url, options="-c search_path=public"),
        poolclass=NullPool,
    )
    # Types that SQLAlchemy does not have.
    ischema_names.update(xid8=schema.Xid8, pg_snapshot=schema.PgSnapshot)
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={
                "compare_type": True,
                "compare_server_default": True,
                "include_schemas": True,
                "include_name": lambda name, kind, _: kind != "schema" or name == schema.SCHEMA,
                "version_table_schema": schema.SCHEMA,
            },
        )
        assert compare_metadata(context, schema.metadata) == []
        # What Alembic does not compare.
        for table in schema.metadata.tables.values():
            given = table.dialect_options["postgresql"]["with"] or {}
            wanted = {f"{name}={value}" for name, value in given.items()}
            options = connection.exec_driver_sql(
                "SELECT reloptions FROM pg_class WHERE oid = %s::regclass", (table.fullname,)
            ).scalar()
            assert set(options or ()) == wanted, table.name


NOT_TOLD_APART = """
SELECT c.relname FROM pg_class c
WHERE c.relnamespace = 'penstock'::regnamespace AND c.relkind = 'r' AND c.relreplident = 'd'
  AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)
"""


async def test_a_publication_of_all_tables_refuses_nothing(log: Log) -> None:
    """As an application has it whose changes are followed (Debezium): it counts for a guest's, too.
    Rows that are neither updated nor deleted need nothing that tells them apart."""
    log.rows("SET client_min_messages = error")  # wal_level does not matter here
    log.rows("CREATE PUBLICATION everything FOR ALL TABLES")
    (p,) = log.new_partitions()
    for _ in range(2):
        await log.append(p, batch(3))
    log.rows("DELETE FROM record_batch WHERE base_offset = 0")
    left = {name for (name,) in log.rows(NOT_TOLD_APART)}
    kinds = ("record", "transaction", "offset")
    never_changed = {f"inbox_{kind}_{n}" for kind in kinds for n in range(schema.INBOX_SLOTS)}
    assert {each for each in left if not each.startswith("record_chunk_")} == never_changed


def test_a_second_upgrade_has_nothing_to_do(empty_database_url: str) -> None:
    assert upgrade(empty_database_url) is True
    assert upgrade(empty_database_url) is False


def test_brokers_that_start_at_once_migrate_once(empty_database_url: str) -> None:
    done: list[bool] = []
    threads = [
        threading.Thread(target=lambda: done.append(upgrade(empty_database_url))) for _ in range(3)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert sorted(done) == [False, False, True]


def test_changed_views_are_put_in_place(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(views.VIEWS, "v_broker", "SELECT 1 AS another_column")
    assert upgrade(database_url) is True
    with psycopg.connect(database_url) as connection:
        row = connection.execute("SELECT another_column FROM v_broker").fetchone()
        before = connection.execute("SELECT cluster_id FROM cluster").fetchall()
    assert row == (1,)
    assert len(before) == 1
    assert upgrade(database_url) is False


def test_a_newer_schema_is_left_alone(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(SchemaTooNew, match="9999"):
        upgrade(database_url)


def test_a_database_that_cannot_hold_any_text_is_refused(postgres: EmbeddedPostgres) -> None:
    name = f"latin_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(
            f"CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0"
        )
        with pytest.raises(SchemaRefused, match=r"encoding is LATIN1.*ENCODING 'UTF8'"):
            upgrade(postgres.url_of(name))
        connection.execute(f"DROP DATABASE {name}")


def test_no_database() -> None:
    with pytest.raises(StoreUnavailable):
        upgrade("postgresql://nobody@127.0.0.1:1/none?connect_timeout=1")


@pytest.fixture
def stranger(database_url: str) -> Iterator[str]:
    """A role without any right of its own."""
    name = f"stranger_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {name} LOGIN")
        yield name
        connection.execute(f"DROP OWNED BY {name}")
        connection.execute(f"DROP ROLE {name}")


def as_role(url: str, role: str) -> str:
    """The URL for another role."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{role}@{rest.partition('@')[2]}"


def test_a_role_that_may_not_create_is_told_so(empty_database_url: str, stranger: str) -> None:
    with pytest.raises(SchemaRefused, match=r"lacks a right \(permission denied for database"):
        upgrade(as_role(empty_database_url, stranger))


@pytest.mark.parametrize(
    ("grants", "sentence"),
    [
        ((), r"lacks a right \(permission denied for schema penstock"),
        (
            ("USAGE ON SCHEMA penstock", "SELECT ON ALL TABLES IN SCHEMA penstock"),
            "may not create tables in schema penstock",
        ),
        (
            ("USAGE, CREATE ON SCHEMA penstock", "SELECT ON ALL TABLES IN SCHEMA penstock"),
            "tables are another role's",
        ),
    ],
    ids=["nothing", "reading", "creating"],
)
def test_a_role_that_may_not_use_the_schema_is_told_so(
    database_url: str, stranger: str, grants: tuple[str, ...], sentence: str
) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        for each in grants:
            connection.execute(f"GRANT {each} TO {stranger}")
    with pytest.raises(SchemaRefused, match=sentence):
        upgrade(as_role(database_url, stranger))
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(f"DROP OWNED BY {stranger}")


def test_a_view_that_needs_ours_is_named_and_kept(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("CREATE VIEW public.mine AS SELECT * FROM v_broker")
        monkeypatch.setitem(views.VIEWS, "v_broker", "SELECT 1 AS another_column")
        with pytest.raises(
            SchemaRefused, match=r"\(view public.mine depends on view v_broker\): drop it"
        ):
            upgrade(database_url)
        assert connection.execute("SELECT * FROM public.mine").fetchall() == []
        connection.execute("DROP VIEW public.mine")
    assert upgrade(database_url) is True


@pytest.mark.parametrize(
    "state",
    [
        "UPDATE alembic_version SET version_num = '0000'",
        "DELETE FROM alembic_version",
        "ALTER TABLE cluster RENAME COLUMN views_digest TO another",
        "DROP TABLE cluster CASCADE",
    ],
)
def test_an_unknown_state_of_the_schema_is_left_alone(database_url: str, state: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(state.encode())
        before = connection.execute("SELECT count(*) FROM pg_class").fetchone()
        with pytest.raises(SchemaRefused) as refused:
            upgrade(database_url)
        assert "\n" not in str(refused.value)
        assert connection.execute("SELECT count(*) FROM pg_class").fetchone() == before


async def test_every_view_can_be_read(log: Log) -> None:
    ids = log.new_partitions(20)
    for p in ids[:5]:
        await log.append(p, *[batch(2, producer=7, epoch=0, sequence=2 * n) for n in range(10)])
    # Stamps beyond what a timestamptz can hold must not break a view.
    for stamp in (-1, 2**63 - 1, -(2**63)):
        await log.append(ids[5], batch(timestamp=stamp))
    assert await log.store.claim_name(ids[0], "named", 1) is not None
    for name in views.VIEWS:
        found = log.rows(f"SELECT * FROM {name}")
        # test_views_*.py, test_staging.py, test_schemas.py
        elsewhere = ("v_broker", "v_coordinator_lease", "v_group", "v_transaction", "v_open", "v_a")
        staged = ("v_staged_token", "v_published_batch", "v_subscription", "v_schema")
        pulsar = ("v_consumer", "v_pending_ack")  # test_transactions.py of Pulsar's handlers
        # test_users.py, test_quotas.py, test_delegation_tokens.py of Kafka's handlers; sql_doors
        users = ("v_user", "v_quota", "v_delegation_token", "v_inbox", "v_producer_client")
        assert found or name.startswith((*elsewhere, *staged, *pulsar, *users)), name
    topic = log.rows("SELECT partitions, offsets, batches FROM v_topic")
    assert topic == [(20, 103, 53)]
    assert log.rows(
        "SELECT partition, high_watermark, batches FROM v_topic_partition"
        " WHERE high_watermark > 0 ORDER BY partition LIMIT 1"
    ) == [(0, 20, 10)]
    assert log.value("SELECT count(*) FROM v_record_batch WHERE kind = 'plain'") == 53
    assert log.rows("SELECT DISTINCT last_sequence, batches_remembered FROM v_producer_state") == [
        (19, 5)
    ]
    assert log.rows("SELECT state, retention_class FROM v_segment") == [("open", "week")]


def test_every_table_view_and_column_of_a_view_has_a_comment(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        lacking = connection.execute(
            """
            SELECT c.relname, a.attname FROM pg_class c
            LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND c.relkind = 'v'
            WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'v')
              AND c.relname <> 'alembic_version' AND c.relname !~ '^record_chunk_'
              AND (obj_description(c.oid, 'pg_class') IS NULL
                   OR a.attnum IS NOT NULL AND col_description(c.oid, a.attnum) IS NULL)
            """
        ).fetchall()
        assert lacking == []
        comment = connection.execute(
            "SELECT col_description('v_group_lag'::regclass, attnum) FROM pg_attribute"
            " WHERE attrelid = 'v_group_lag'::regclass AND attname = 'lag'"
        ).fetchone()
    assert comment == ("Records after it that a reader of committed data can see.",)


def test_no_comment_is_on_what_is_not_there(database_url: str) -> None:
    assert comments.TABLES.keys() == {each.name for each in schema.metadata.tables.values()}
    assert comments.VIEWS.keys() == views.VIEWS.keys()
    with psycopg.connect(database_url) as connection:
        for name, (_, columns) in comments.VIEWS.items():
            described = connection.execute(f"SELECT * FROM {name} LIMIT 0".encode()).description
            assert columns.keys() <= {each.name for each in described or ()}


# --- a guest in somebody's database ---

_AS_IT_WAS = """
DO $$
DECLARE thing text;
BEGIN
    FOR thing IN
        SELECT 'TABLE ' || oid::regclass FROM pg_class
        WHERE relnamespace = 'penstock'::regnamespace AND relkind = 'r'
    UNION ALL
        SELECT 'SEQUENCE penstock.offset_commit_seq'
    UNION ALL
        SELECT 'FUNCTION ' || oid::regprocedure FROM pg_proc
        WHERE pronamespace = 'penstock'::regnamespace
    LOOP
        EXECUTE format('ALTER %s SET SCHEMA public', thing);
    END LOOP;
END $$
"""


def in_public(url: str, revision: str) -> None:
    """An installation as it lay in `public` until revision 0019, with a topic and payload."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA penstock")
        migrate._run_alembic(url, revision)
        connection.execute(_AS_IT_WAS)
        connection.execute("DROP SCHEMA penstock")
        connection.execute("SET search_path = public")
        connection.execute("CREATE VIEW v_broker AS SELECT * FROM broker")
        connection.execute("CREATE VIEW v_group AS SELECT * FROM v_broker")
        connection.execute("INSERT INTO topic (topic_id, name) VALUES (gen_random_uuid(), 'kept')")
        connection.execute(
            "INSERT INTO cluster (cluster_id, system_identifier, timeline) VALUES ('same', 1, 1)"
        )
        connection.execute("CREATE TABLE record_chunk_7 (payload_id bigint)")
        # Somebody else's.
        connection.execute("CREATE TABLE segment_of_customers (name text)")
        connection.execute("CREATE VIEW v_mine AS SELECT * FROM segment_of_customers")


@pytest.mark.parametrize("revision", ["0011", "0019"])
def test_an_installation_in_public_is_moved(empty_database_url: str, revision: str) -> None:
    in_public(empty_database_url, revision)
    assert upgrade(empty_database_url) is True
    with psycopg.connect(empty_database_url) as connection:
        assert connection.execute("SELECT topic FROM penstock.v_topic").fetchall() == [("kept",)]
        kept = connection.execute("SELECT cluster_id FROM penstock.cluster").fetchall()
        assert kept == [("same",)]
        connection.execute("SELECT FROM penstock.record_chunk_7")
        left = connection.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace"
        ).fetchall()
        functions = connection.execute(
            "SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace"
        ).fetchall()
        assert {name for (name,) in left} == {"segment_of_customers", "v_mine"}
        assert functions == []
        # What its triggers do is found, whoever comes from wherever.
        connection.execute("SET search_path = public")
        connection.execute(
            "INSERT INTO penstock.acl (principal, operation, resource_type, resource_name)"
            " VALUES ('User:a', 'READ', 'TOPIC', 't')"
        )
        assert connection.execute("SELECT version FROM penstock.acl_version").fetchone() == (1,)
    assert upgrade(empty_database_url) is False


def test_nothing_is_moved_under_brokers_that_run(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_public(empty_database_url, "0019")
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO public.broker (broker_id, incarnation, version, session_timeout_s,"
            " heartbeat_at) VALUES (1, gen_random_uuid(), '0', 1, clock_timestamp() + '1 hour')"
        )
        connection.execute("UPDATE public.broker SET session_timeout_s = -3500")
        waited: list[float] = []

        def wait(seconds: float) -> None:
            waited.append(seconds)
            connection.execute("UPDATE public.broker SET session_timeout_s = 1")  # it goes on

        with monkeypatch.context() as patched:
            patched.setattr(relocation, "time", SimpleNamespace(sleep=wait))
            with pytest.raises(SchemaRefused, match="Brokers of an older version run"):
                upgrade(empty_database_url)
        assert len(waited) == 1
        assert 0 < waited[0] < 101
        there = connection.execute("SELECT to_regnamespace('penstock')").fetchone()
        assert there == (None,)
        # One that was killed does not hold it up for longer than its session.
        connection.execute("UPDATE public.broker SET session_timeout_s = -3599.5")
    assert upgrade(empty_database_url) is True


def test_tables_of_the_application_are_not_touched(empty_database_url: str) -> None:
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        connection.execute("SET search_path = public")
        connection.execute("CREATE TABLE alembic_version (version_num varchar PRIMARY KEY)")
        connection.execute("INSERT INTO alembic_version VALUES ('a-revision-of-its-own')")
        for name in ("topic", "cluster", "segment", "record_chunk_1"):
            connection.execute(f"CREATE TABLE {name} (mine text)".encode())
        connection.execute("CREATE VIEW v_topic AS SELECT mine FROM topic")
        connection.execute("CREATE FUNCTION version_mismatch() RETURNS int RETURN 1")
        before = connection.execute("SELECT oid, relname FROM pg_class").fetchall()
        assert upgrade(empty_database_url) is True
        after = connection.execute("SELECT oid, relname FROM pg_class").fetchall()
        assert set(before) <= set(after)
        version = connection.execute("SELECT version_num FROM public.alembic_version").fetchall()
        assert version == [("a-revision-of-its-own",)]
