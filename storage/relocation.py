"""Moves an installation into the schema `penstock`: up to revision 0019 it lay in whatever schema
the role's search_path began with, `public` mostly.

Its brokers have to be stopped: they would not find their tables any more. What else is in that
schema stays there. Knows no column but those by which it tells our tables from others.
"""

from __future__ import annotations

import time
from typing import Any, Final

import psycopg

from storage.schema import metadata

LAST_REVISION: Final = "0019"

# By the connection's own search_path, as those brokers found it. Ours has all three, and the number
# of one of our steps.
_FIND: Final = """
SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = to_regclass('cluster') AND n.nspname <> 'penstock'
  AND EXISTS (SELECT FROM pg_attribute WHERE attrelid = c.oid AND attname = 'views_digest')
  AND EXISTS (SELECT FROM pg_class WHERE relnamespace = n.oid AND relname = 'topic_partition')
  AND EXISTS (SELECT FROM pg_class WHERE relnamespace = n.oid AND relname = 'alembic_version')
"""

# Seconds until the last of its brokers' sessions ends; null if none is live.
_LIVE: Final = """
SELECT max(extract(epoch FROM heartbeat_at - clock_timestamp()) + session_timeout_s)::float
FROM {}.broker
WHERE heartbeat_at + make_interval(secs => session_timeout_s) > clock_timestamp()
"""

_MOVE: Final = """
DO $do$
DECLARE
    old CONSTANT name := {old};
    moved text;
BEGIN
    SELECT string_agg(format('%I.%I', old, relname), ', ') INTO moved FROM pg_class
    WHERE relnamespace = old::regnamespace AND relkind = 'v' AND relname = ANY ({views}::name[]);
    IF moved IS NOT NULL THEN
        EXECUTE 'DROP VIEW ' || moved;
    END IF;
    FOR moved IN
        SELECT format('TABLE %I.%I', old, relname) FROM pg_class
        WHERE relnamespace = old::regnamespace AND relkind = 'r'
          AND (relname = ANY ({tables}::name[]) OR relname ~ '^record_chunk_[0-9]+$')
    UNION ALL
        SELECT format('SEQUENCE %I.%I', old, relname) FROM pg_class
        WHERE relnamespace = old::regnamespace AND relkind = 'S' AND relname = 'offset_commit_seq'
    UNION ALL
        SELECT 'FUNCTION ' || oid::regprocedure::text FROM pg_proc
        WHERE pronamespace = old::regnamespace AND proname = ANY ({functions}::name[])
    LOOP
        EXECUTE format('ALTER %s SET SCHEMA penstock', moved);
    END LOOP;
END $do$
"""

# What there was in schemas that are moved, beside the tables of today: they do not change any more.
_TABLES: Final = ("alembic_version", "transaction_group")
_VIEWS: Final = (
    *("v_topic", "v_topic_partition", "v_record_batch", "v_segment", "v_broker", "v_schema"),
    *("v_producer_state", "v_named_producer", "v_staged_token", "v_published_batch"),
    *("v_transaction", "v_pending_ack", "v_open_transaction_blocking", "v_aborted_transaction"),
    *("v_coordinator_lease", "v_group", "v_group_member", "v_group_lag", "v_namespace"),
    *("v_subscription", "v_consumer", "v_subscription_backlog"),
    *("v_user", "v_delegation_token", "v_acl", "v_quota"),
)
_FUNCTIONS: Final = (
    *("version_mismatch", "current_history", "from_unix_ms", "partitions_text", "schema_text"),
    *("acl_changed", "client_quota_changed", "delegation_token_changed"),
)


class OlderBrokersRun(Exception):
    """Brokers that look for the tables where they are now; the text says what to do."""


def move_here(connection: psycopg.Connection[Any]) -> bool:
    """Moves it, if there is one, within the caller's transaction; whether there was.

    Brokers that were killed are waited for until their sessions end. Raises OlderBrokersRun.
    """
    found = connection.execute(_FIND).fetchone()
    if found is None:
        return False
    (old,) = found
    live = psycopg.sql.SQL(_LIVE).format(psycopg.sql.Identifier(old))
    if (seconds := _seconds(connection, live)) is not None:
        time.sleep(seconds + 0.1)
        if _seconds(connection, live) is not None:
            raise OlderBrokersRun(
                f"Brokers of an older version run over this database. Its tables move from schema "
                f"{old} to schema penstock: stop those brokers first."
            )
    tables = [*_TABLES, *(table.name for table in metadata.tables.values())]
    connection.execute(
        psycopg.sql.SQL(_MOVE).format(
            old=psycopg.sql.Literal(old),
            tables=psycopg.sql.Literal(tables),
            views=psycopg.sql.Literal(list(_VIEWS)),
            functions=psycopg.sql.Literal(list(_FUNCTIONS)),
        )
    )
    return True


def _seconds(connection: psycopg.Connection[Any], live: psycopg.sql.Composed) -> float | None:
    row = connection.execute(live).fetchone()
    return None if row is None else row[0]
