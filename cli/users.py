"""`penstock users`: who may log in, made and deleted in the broker's database.

Works without a broker, for the first user has to come from somewhere. Passwords are asked for, or
read from standard input: never an argument, which every user of the machine can read. Knows flags
and tables. Exit codes: 0 done, 1 there is no such user, 2 a wrong argument, or no database.
"""

from __future__ import annotations

import secrets
import sys
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from cli.client import AsJson, fail, print_json, print_table
from cli.errors import suggestion
from cli.serve import ConfigFile, DatabaseUrl, DataDirectory, settings_of

if TYPE_CHECKING:
    from storage.users import UserView

users = typer.Typer(
    help="Add, list and delete the users that log in where the broker asks who they are.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Name = Annotated[str, typer.Argument(metavar="NAME")]
BOTH = ["SCRAM-SHA-256", "SCRAM-SHA-512"]


@users.command()
def add(
    name: Name,
    mechanism: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SCRAM-SHA-256|SCRAM-SHA-512",
            help="A mechanism to log in with; may be repeated; default both. PLAIN goes by either.",
        ),
    ] = None,
    iterations: Annotated[
        int, typer.Option(help="Rounds of PBKDF2, 4096 to 16384: what a guess costs.")
    ] = 4096,
    data: DataDirectory = None,
    database_url: DatabaseUrl = None,
    config: ConfigFile = None,
) -> None:
    """Add a user, or give one another password, which is asked for, or read from a pipe."""
    from core.security.credentials import check_iterations, check_user
    from core.security.verifier import SALT_BYTES, ScramMechanism, Verifier

    if refusal := check_user(name) or check_iterations(iterations):
        fail(f"{refusal.message}.", 2)
    if unknown := [each for each in mechanism or BOTH if each not in BOTH]:
        fail(f"There is no mechanism {unknown[0]}: name {' or '.join(BOTH)}.", 2)
    url = _url(config, data, database_url)
    password = _password(name)
    verifiers = [
        Verifier.of_password(
            ScramMechanism(each), secrets.token_bytes(SALT_BYTES), iterations, password
        )
        for each in dict.fromkeys(mechanism or BOTH)
    ]
    _with_store("put_user", url, name, verifiers)
    how = " and ".join(each.mechanism.value for each in verifiers)
    _say(f"{name} may log in with {how}.")


@users.command("list")
def list_users(
    data: DataDirectory = None,
    database_url: DatabaseUrl = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """List users and their mechanisms."""
    rows = [
        {"user": name, "mechanisms": [_shown(each) for each in those]}
        for name, those in groupby(_read(_url(config, data, database_url)), lambda row: row.user)
    ]
    if as_json:
        print_json(rows)
    elif not rows:
        _say("There are no users.")
    else:
        cells = [
            (
                row["user"],
                ", ".join(
                    f"{each['mechanism']} ({each['iterations']})" for each in row["mechanisms"]
                ),
            )
            for row in rows
        ]
        print_table(("User", "Mechanisms (iterations)"), cells)


@users.command()
def delete(
    name: Name,
    data: DataDirectory = None,
    database_url: DatabaseUrl = None,
    config: ConfigFile = None,
) -> None:
    """Delete a user; whoever has logged in as it is disconnected within a second."""
    url = _url(config, data, database_url)
    if not _with_store("delete_user", url, name):
        known = sorted({each.user for each in _read(url)})
        fail(f"There is no user {name}.{suggestion(name, known)}")
    _say(f"Deleted {name}.")


def _shown(view: UserView) -> dict[str, Any]:
    return {"mechanism": view.mechanism, "iterations": view.iterations}


def _say(sentence: str) -> None:
    Console(soft_wrap=True).print(sentence, markup=False, highlight=False)


def _password(name: str) -> str:
    if sys.stdin.isatty():
        password = typer.prompt(f"Password of {name}", hide_input=True, confirmation_prompt=True)
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    try:
        password.encode()
    except UnicodeEncodeError:
        fail("The password is not UTF-8.", 2)
    if not password or "\0" in password:
        fail("The password must not be empty, or contain NUL.", 2)
    return str(password)


def _url(config: ConfigFile, data: DataDirectory, database_url: DatabaseUrl) -> str:
    settings = settings_of(config, data=data, database_url=database_url)
    from storage.server.embedded import EmbeddedPostgresError, running_url

    try:
        return settings.database_url or running_url(settings.data_dir)
    except EmbeddedPostgresError as error:
        fail(str(error), 2)


def _read(url: str) -> list[UserView]:
    found: list[UserView] = _with_store("read_users", url)
    return found


def _with_store(name: str, *arguments: Any) -> Any:
    from core.ports.log import StoreUnavailable
    from storage import users as store

    try:
        return getattr(store, name)(*arguments)
    except StoreUnavailable as error:
        fail(f"The database cannot be used ({error}): check --data and --database-url.", 2)
