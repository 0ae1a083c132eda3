"""The registry of Pulsar's commands: each handler file enters itself with `@command(type)`.

The connection reads it, and metrics do. It does not know any command itself.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from core.security.pulsar_operations import COMMANDS
from gateway.pulsar.commands import CommandType, ServerError

Handler = Callable[..., Any]
"""Called with the command's message and the session; SEND's with what follows the message, too.

A plain function is called at once, in the order of commands. A coroutine function begins in that
order, and others go on while it waits. What it gives is the answer: a message; `Refused` or a
Refusal, which becomes an ERROR to the command's request_id; None where there is nothing to say.
"""


class Refused(NamedTuple):
    """A refusal that the log has no word for. message: for people."""

    error: ServerError
    message: str


@dataclass(frozen=True, slots=True)
class Served:
    """One command as this broker serves it. waits: whether its handler is a coroutine function."""

    type: CommandType
    handler: Handler
    waits: bool

    @property
    def name(self) -> str:
        """As metrics have it, which no request of another protocol is called."""
        return "Pulsar" + self.type.name.title().replace("_", "")


class Registry:
    """Commands by type. The server uses `REGISTRY`; a test may fill one of its own."""

    __slots__ = ("_served",)

    def __init__(self) -> None:
        self._served: dict[CommandType, Served] = {}

    def command(self, command_type: CommandType) -> Callable[[Handler], Handler]:
        """Enter the decorated function as the handler of a command. ValueError: there is one, or
        nobody has said which rights it takes."""
        if command_type in self._served:
            raise ValueError(f"two handlers for {command_type.name}")
        if command_type.name not in COMMANDS:
            raise ValueError(f"core/security/pulsar_operations.py has no {command_type.name}")

        def enter(handler: Handler) -> Handler:
            waits = inspect.iscoroutinefunction(handler)
            self._served[command_type] = Served(command_type, handler, waits)
            return handler

        return enter

    def find(self, command_type: CommandType) -> Served | None:
        """The command, or None where this broker does not serve it."""
        return self._served.get(command_type)

    def table(self) -> tuple[Served, ...]:
        """Every command, by number."""
        return tuple(self._served[each] for each in sorted(self._served))


REGISTRY = Registry()
command = REGISTRY.command


def load_handlers() -> Registry:
    """Import every module of `gateway.pulsar.handlers`: now `REGISTRY` is complete; return it."""
    package = importlib.import_module("gateway.pulsar.handlers")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return REGISTRY
