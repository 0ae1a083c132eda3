"""Pages by path: each handler enters itself with `@page(path)` or `@action(path)`.

As `gateway/pulsar/api.py` does for commands. Knows no page itself.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, TypeVar

from starlette.responses import Response

from core.security.page_operations import PAGES
from gateway.console.rendering import HEADERS
from gateway.console.visit import Console, Visit
from gateway.web.api import Registry
from gateway.web.call import Call

CONSOLE: Final = Registry()


class Page(NamedTuple):
    """What is shown: a template, and what it is filled with."""

    template: str
    values: dict[str, Any]
    status: int = 200


class Done(NamedTuple):
    """An action is done: the browser goes to a page, and is told there what was done; a broker that
    asks for somebody's sake is told both, as JSON."""

    to: str
    text: str


Handler = Callable[[Visit], Awaitable[Any]]
"""Gives a Page, Done, Refused, a Response of Starlette's, or what is sent as JSON. Raises
StoreUnavailable or ClientError."""
Given = TypeVar("Given", bound=Handler)


def page(path: str) -> Callable[[Given], Given]:
    """Enter the decorated function as what is shown there. KeyError: `PAGES` has no row of it."""
    return _enter("GET", path)


def action(path: str) -> Callable[[Given], Given]:
    """Enter the decorated function as what changes something. KeyError: as above."""
    return _enter("POST", path)


def _enter(method: str, path: str) -> Callable[[Given], Given]:
    needs = PAGES[f"{method} {path}"]
    is_action = method == "POST"

    def enter(handler: Given) -> Given:
        @functools.wraps(handler)
        async def served(call: Call[Console]) -> Any:
            visit = Visit(call, needs)
            if is_action:
                visit.check_change()
            given = await handler(visit)
            if isinstance(given, Page):
                return visit.console.rendering.page(
                    visit, given.template, given.values, given.status
                )
            if isinstance(given, Done):
                if visit.is_of_broker:
                    return given._asdict()
                given = visit.console.rendering.done(given.to, given.text)
            if isinstance(given, Response):
                for name, value in HEADERS.items():
                    given.headers.setdefault(name, value)
            return given

        CONSOLE.endpoint(method, path, needs)(served)
        return handler

    return enter


def load_pages() -> Registry:
    """Import every module of `pages`: now `CONSOLE` is complete; return it."""
    package = importlib.import_module("gateway.console.pages")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return CONSOLE
