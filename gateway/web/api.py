"""Endpoints by path and method: each handler enters itself with `@endpoint(method, path)`.

As `gateway/pulsar/api.py` does for commands. Knows no endpoint itself, and no web server.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    from gateway.web.call import Call


class Refused(NamedTuple):
    """A request that is not done: the status, and why, for people."""

    status: int
    reason: str


class Redirected(NamedTuple):
    """Another broker does it: its address, as `http://HOST:PORT`. The path stays."""

    base_url: str


Handler = Callable[["Call[Any]"], Awaitable[Any]]
"""Gives a value, which is sent as JSON; None, which is 204; Refused or Redirected; or a Response of
Starlette's. Raises StoreUnavailable where the database is away, which is 503."""

Given = TypeVar("Given", bound=Handler)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method of one path. path: with `{names}`, each one segment. about: one line. needs: which
    right it takes, in the words of its part's rights."""

    method: str
    path: str
    handler: Handler
    needs: Any = None

    @property
    def about(self) -> str:
        """The handler's first line."""
        return (inspect.getdoc(self.handler) or "").partition("\n")[0]


class Registry:
    """The endpoints of one part of the web, such as one front-end's REST."""

    def __init__(self) -> None:
        self._endpoints: dict[tuple[str, str], Endpoint] = {}

    def endpoint(self, method: str, path: str, needs: Any = None) -> Callable[[Given], Given]:
        """Enter the decorated function. needs: see Endpoint. ValueError: there is one."""
        if (path, method) in self._endpoints:
            raise ValueError(f"two handlers for {method} {path}")

        def enter(handler: Given) -> Given:
            self._endpoints[path, method] = Endpoint(method, path, handler, needs)
            return handler

        return enter

    def __iter__(self) -> Iterator[Endpoint]:
        """All, in the order in which they were entered."""
        return iter(self._endpoints.values())
