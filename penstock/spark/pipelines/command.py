"""`penstock pipeline`: hands a pipeline's arguments on to its own program.

Knows names, exit codes and what must be installed; no option of a pipeline, nor Spark, nor a room
of the server: it runs users' modules, which may have the names of rooms. Exit codes are the
pipeline's own; 2 where something that it needs is missing.
"""

from collections.abc import Sequence
from importlib import import_module

import typer
from rich.console import Console

from penstock.flags import Program
from penstock.spark.pipelines import PIPELINES

pipeline = typer.Typer(
    cls=Program,
    help="Applications that run on Spark, and the jars that Spark needs. Needs the extra spark.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

# Everything after the name is the pipeline's, --help too.
_HANDED_ON = {"ignore_unknown_options": True, "allow_extra_args": True}


def run(name: str, arguments: Sequence[str]) -> int:
    """A pipeline's exit code; a sentence and 2 where PySpark or Java is missing.

    Asked for help, it needs neither.
    """
    if not {"-h", "--help"} & set(arguments):
        from penstock.spark.session import Unready, prepare_environment

        try:
            prepare_environment()
        except Unready as missing:
            Console(stderr=True).print(
                str(missing), style="red", markup=False, highlight=False, soft_wrap=True
            )
            raise typer.Exit(2) from None
    main = import_module(f"penstock.spark.pipelines.{name}").main
    return int(main(arguments))


def jars(context: typer.Context) -> None:
    """Find or fetch the connector's four jars; print what to give to spark.jars or --jars."""
    from penstock.spark import jars

    raise typer.Exit(jars.main(context.args))


def _add(name: str, sentence: str) -> None:
    def handed_on(context: typer.Context) -> None:
        raise typer.Exit(run(name, context.args))

    pipeline.command(name, help=sentence, add_help_option=False, context_settings=_HANDED_ON)(
        handed_on
    )


pipeline.command("jars", add_help_option=False, context_settings=_HANDED_ON)(jars)
for _name, _sentence in PIPELINES.items():
    _add(_name, _sentence)
