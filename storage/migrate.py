"""Brings a database to this version's schema: Alembic's migrations, then functions and views.

`upgrade` is quick where there is nothing to do, so `penstock serve` calls it at each start.
"""

from __future__ import annotations

import secrets
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Any

import psycopg

from core.ports import StoreUnavailable
from storage import views

HEAD = "0001"
"""The newest revision in `migrations/versions`; a test holds it to Alembic's own idea."""

# Whoever migrates holds this advisory lock; a second broker starting at once waits for it.
_LOCK = 0x50454E53544F434B

MIGRATIONS = Path(__file__).resolve().parent.parent / "migrations"


class SchemaTooNew(Exception):
    """The database was migrated by a newer version of Penstock."""


def upgrade(url: str) -> bool:
    """Migrates; returns whether anything was done.

    Raises StoreUnavailable where the database does not answer, SchemaTooNew.
    """
    try:
        with psycopg.connect(url, connect_timeout=5) as connection:
            connection.autocommit = True
            if _is_current(connection):
                return False
            connection.execute("SELECT pg_advisory_lock(%s)", [_LOCK])
            try:
                if _is_current(connection):
                    return False
                _run_alembic(url)
                _finish(connection)
            finally:
                connection.execute("SELECT pg_advisory_unlock(%s)", [_LOCK])
            return True
    except (psycopg.OperationalError, OSError) as error:
        raise StoreUnavailable(str(error).strip()) from error


def _is_current(connection: psycopg.Connection[Any]) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT to_regclass('alembic_version'), to_regclass('cluster')")
        if None in (cursor.fetchone() or (None,)):
            return False
        cursor.execute(
            "SELECT (SELECT max(version_num) FROM alembic_version), max(views_digest) FROM cluster"
        )
        revision, digest = cursor.fetchone() or (None, None)
    if revision is not None and revision > HEAD:
        raise SchemaTooNew(
            f"The database's schema is at revision {revision}, newer than this program's {HEAD}:"
            " run the version of Penstock that migrated it, or a later one."
        )
    return bool(revision == HEAD and digest == views.digest())


def _run_alembic(url: str) -> None:
    from alembic import command  # costs a third of a second, needed once per version
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["url"] = url
    command.upgrade(config, "head")


def _finish(connection: psycopg.Connection[Any]) -> None:
    cluster_id = urlsafe_b64encode(secrets.token_bytes(16)).rstrip(b"=").decode()
    with connection.transaction():
        for statement in views.replace_statements():
            connection.execute(statement.encode())
        connection.execute(
            "INSERT INTO cluster (cluster_id, system_identifier, timeline)"
            " SELECT %s, system_identifier, timeline FROM current_history()"
            " ON CONFLICT DO NOTHING",
            [cluster_id],
        )
        connection.execute("UPDATE cluster SET views_digest = %s", [views.digest()])
