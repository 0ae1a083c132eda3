"""The `penstock` command: serve, migrate, check, produce, consume, psql, topics, groups,
subscriptions, txn, users, tokens, pipeline.

Knows flags, exit codes and sentences for people; what each command does is imported when it runs,
so that `--help` is quick. Exit codes: 0 done, 1 the broker said no or could not go on, 2 a wrong
setting.
"""

from typing import Annotated

import typer
from rich.console import Console

from cli.client import CommandConfig
from cli.consume import consume
from cli.groups import groups
from cli.inbox import inbox
from cli.produce import produce
from cli.psql import HANDED_ON, psql
from cli.serve import migrate, serve
from cli.subscriptions import subscriptions
from cli.tokens import tokens
from cli.topics import topics
from cli.transactions import transactions
from cli.users import users
from cli.worker import worker
from core.version import VERSION
from penstock.flags import Program
from penstock.spark.pipelines.command import pipeline

app = typer.Typer(
    name="penstock",
    cls=Program,
    help="Kafka's and Pulsar's wire protocols over PostgreSQL.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(serve)
app.command(hidden=True)(worker)
app.command()(migrate)
app.command()(produce)
app.command()(consume)
app.command(context_settings=HANDED_ON)(psql)
app.command()(inbox)
app.add_typer(topics, name="topics")
app.add_typer(groups, name="groups")
app.add_typer(subscriptions, name="subscriptions")
app.add_typer(transactions, name="txn")
app.add_typer(users, name="users")
app.add_typer(tokens, name="tokens")
app.add_typer(pipeline, name="pipeline")


def main() -> None:
    """Entry point of the `penstock` program."""
    app()


def _print_version(wanted: bool) -> None:
    if wanted:
        Console().print(f"penstock {VERSION}", highlight=False)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    pass


@app.command()
def check(
    bootstrap_server: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="The broker to ask.")
    ] = "localhost:9092",
    # What --bootstrap-server was called until 0.1.0; in health checks for some time to come.
    bootstrap: Annotated[str | None, typer.Option("--bootstrap", hidden=True)] = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for its answer.")] = 3.0,
    tls: Annotated[
        bool, typer.Option("--tls", help="Ask by TLS; any certificate will do.")
    ] = False,
    ready: Annotated[
        bool, typer.Option("--ready", help="Have it read from its database as well.")
    ] = False,
    command_config: CommandConfig = None,
) -> None:
    """Ask whether a broker answers; exit code 0 if it does, 1 if not. For health checks.

    At a listener that asks for a login, it is enough that the broker asks; --ready needs
    --command-config there.
    """
    from cli.check import Presence, any_certificate, database_answers, presence
    from cli.client import context_of, fail, told
    from penstock.connection import LoginRefused

    address = bootstrap or bootstrap_server
    given = told(command_config, is_tls=tls)
    # Without a login nothing is told that is a secret.
    context = any_certificate() if tls else context_of(given)
    try:
        found = presence(address, timeout_s=timeout, tls=context, login=given.login)
        if found in (Presence.ABSENT, Presence.SILENT):
            fail(f"No broker answers at {address}.")
        if found is Presence.ASKS_FOR_LOGIN:
            if ready:
                fail(f"The broker at {address} asks for a login: name one by --command-config.")
            typer.echo(f"A broker answers at {address}, and asks for a login.")
            return
        if ready and not database_answers(
            address, timeout_s=timeout, tls=context, login=given.login
        ):
            fail(
                f"The broker at {address} answers, but could not read from its database within "
                f"{timeout:g} s: is PostgreSQL running?"
            )
    except LoginRefused as refused:
        fail(f"{refused}.")
    also = " and reads from its database" if ready else ""
    typer.echo(f"A broker answers at {address}{also}.")


if __name__ == "__main__":
    main()
