"""Brings a database to this version's schema: Alembic's migrations, then functions and views.

`upgrade` is quick if there is nothing to do, so `penstock serve` calls it at each start. All that
is ours lies in the schema `penstock`; what is beside it is not looked at.
"""

from __future__ import annotations

import secrets
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Any

import psycopg
from psycopg import errors

from core.ports.log import StoreUnavailable
from storage import relocation, views
from storage.connection.url import check_url
from storage.schema import SCHEMA

HEAD = "0024"
"""The newest revision in `migrations/versions`; a test compares it with Alembic's."""

# A migration holds this advisory lock; a broker that starts meanwhile waits for it.
_LOCK = 0x50454E53544F434B

MIGRATIONS = Path(__file__).resolve().parent.parent / "migrations"


_NOT_OURS = (
    "The database's schema penstock has tables that this version of Penstock did not make ({}): "
    "give them another name, or run the version of Penstock that made them."
)

# Whether this role may do to tables what brokers do. They create and drop segments as they run, so
# rights to read and write are not enough.
_RIGHTS = """
SELECT has_schema_privilege('penstock', 'CREATE'), bool_and(pg_has_role(relowner, 'USAGE'))
FROM pg_class
WHERE oid IN ('penstock.cluster'::regclass, 'penstock.topic_partition'::regclass)
"""


class SchemaRefused(Exception):
    """The database cannot have this version's schema; the text says why and what to do."""


class SchemaTooNew(SchemaRefused):
    """The database was migrated by a newer version of Penstock."""


def upgrade(url: str) -> bool:
    """Migrates; returns whether anything was done.

    Raises StoreUnavailable if the database does not answer, or its URL cannot be read;
    SchemaRefused.
    """
    check_url(url)
    try:
        with psycopg.connect(url, connect_timeout=5) as connection:
            connection.autocommit = True
            _check_encoding(connection)
            if _is_current(connection):
                _check_rights(connection)
                return False
            connection.execute("SELECT pg_advisory_lock(%s)", [_LOCK])
            try:
                if _is_current(connection):
                    return False
                _make_schema(connection)
                _run_alembic(url)
                _finish(connection)
            finally:
                connection.execute("SELECT pg_advisory_unlock(%s)", [_LOCK])
            return True
    except (psycopg.OperationalError, OSError) as error:
        raise StoreUnavailable(str(error).strip()) from error
    except psycopg.Error as error:
        raise SchemaRefused(_sentence(error)) from error


def _sentence(error: psycopg.Error) -> str:
    """The error in words for people, and what to do about it."""
    reason = error.diag.message_primary or str(error)
    match error:
        case errors.InsufficientPrivilege():
            return _missing_right(reason)
        case errors.DependentObjectsStillExist():
            detail = (error.diag.message_detail or reason).splitlines()[0].rstrip(".")
            return (
                f"Penstock's views are to be replaced, and something of yours needs them ({detail})"
                ": drop it, run `penstock migrate`, and create it again."
            )
        case errors.DuplicateTable() | errors.UndefinedTable() | errors.UndefinedColumn():
            return _NOT_OURS.format(reason)
    return f"The schema cannot be brought up to date ({reason}): nothing was changed."


def _missing_right(reason: str) -> str:
    return (
        f"The database's role lacks a right ({reason}): let it own the database, or make the schema"
        " for it (CREATE SCHEMA penstock AUTHORIZATION role); all in it must be its own."
    )


def _check_encoding(connection: psycopg.Connection[Any]) -> None:
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise SchemaRefused(
            f"The database's encoding is {encoding}, and clients' text may hold any character: "
            "create the database with ENCODING 'UTF8' TEMPLATE template0."
        )


def _check_rights(connection: psycopg.Connection[Any]) -> None:
    may_create, is_owner = connection.execute(_RIGHTS).fetchone() or (False, False)
    if not may_create:
        raise SchemaRefused(_missing_right("it may not create tables in schema penstock"))
    if not is_owner:
        raise SchemaRefused(_missing_right("Penstock's tables are another role's"))


def _is_current(connection: psycopg.Connection[Any]) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT to_regclass('penstock.alembic_version'), to_regclass('penstock.cluster')"
        )
        if None in (cursor.fetchone() or (None,)):
            return False
        cursor.execute(
            "SELECT (SELECT max(version_num) FROM penstock.alembic_version), max(views_digest)"
            " FROM penstock.cluster"
        )
        revision, digest = cursor.fetchone() or (None, None)
    if revision is not None and revision > HEAD:
        raise SchemaTooNew(
            f"The database's schema is at revision {revision}, newer than this program's {HEAD}:"
            " run the version of Penstock that migrated it, or a later one."
        )
    return bool(revision == HEAD and digest == views.digest())


def _make_schema(connection: psycopg.Connection[Any]) -> None:
    """Makes it unless it is there: whoever may not make one may have been given it."""
    found = connection.execute("SELECT to_regnamespace('penstock') IS NULL").fetchone()
    with connection.transaction():
        if found == (True,):
            connection.execute("CREATE SCHEMA penstock")
        try:
            relocation.move_here(connection)
        except relocation.OlderBrokersRun as error:
            raise SchemaRefused(str(error)) from error


def _run_alembic(url: str, revision: str = HEAD) -> None:
    from alembic import command  # costs a third of a second, needed once per version
    from alembic.config import Config
    from alembic.util.exc import CommandError
    from sqlalchemy.exc import DBAPIError

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["url"] = url
    try:
        command.upgrade(config, revision)
    except CommandError as error:  # for instance an unknown revision
        raise SchemaRefused(_NOT_OURS.format(str(error).rstrip("."))) from error
    except DBAPIError as error:
        if isinstance(error.orig, psycopg.Error):
            raise error.orig from error
        raise


def _finish(connection: psycopg.Connection[Any]) -> None:
    cluster_id = urlsafe_b64encode(secrets.token_bytes(16)).rstrip(b"=").decode()
    with connection.transaction():
        connection.execute(f"SET LOCAL search_path = {SCHEMA}")  # where views find their tables
        for statement in views.replace_statements():
            connection.execute(statement.encode())
        connection.execute(
            "INSERT INTO penstock.cluster (cluster_id, system_identifier, timeline)"
            " SELECT %s, system_identifier, timeline FROM penstock.current_history()"
            " ON CONFLICT DO NOTHING",
            [cluster_id],
        )
        connection.execute("UPDATE penstock.cluster SET views_digest = %s", [views.digest()])
