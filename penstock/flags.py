"""Flags in `--help`: without a value, since they take none.

Typer shows the type of each option, and writes `--json <bool>`. Knows Typer; no command.
"""

from typing import Any

import typer
from typer.core import TyperGroup


class Program(TyperGroup):
    """The group of commands that a program is: `typer.Typer(cls=Program)`."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        _show_no_values(self)


def _show_no_values(command: Any) -> None:
    """Of a command, and of those below it."""
    context = typer.Context(command, **command.context_settings)
    for each in command.get_params(context):  # --help is among them, and made but once
        if getattr(each, "is_flag", False):
            each.metavar = ""
    for below in getattr(command, "commands", {}).values():
        _show_no_values(below)
