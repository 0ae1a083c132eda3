"""Makes the front-end for HTTP: its own endpoints, and those that other front-ends bring.

The only file of this folder that `gateway.app` knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from gateway.front_ends import FrontEnd, FrontEndFactory, Surroundings
from gateway.runtime.runtime import Runtime

if TYPE_CHECKING:
    from gateway.web.server import Part, WebServer

LISTENER: Final = "http"
"""The name under which brokers tell each other of their address for HTTP."""

Bring = Callable[[FrontEnd, Surroundings], "Part"]
"""What a front-end serves by HTTP. It is called with the first connection, and imports then."""
BringPages = Callable[[Runtime, Surroundings], "Part"]
"""The same of what is served by HTTP only. Its paths come last."""


class WebFrontEnd:
    """`gateway.front_ends.FrontEnd`. The server is loaded with the first connection."""

    def __init__(
        self,
        runtime: Runtime,
        around: Surroundings,
        bring: Mapping[str, Bring],
        pages: BringPages | None,
    ) -> None:
        self._runtime = runtime
        self._around = around
        self._bring = bring
        self._pages = pages
        self._server: WebServer | None = None

    def connection(self, on_lost: Callable[[], None]) -> Any:
        """See ConnectionMaker."""
        if self._server is None:
            self._server = self._load()
        return self._server.connection(on_lost)

    async def drain(self, timeout_s: float) -> None:
        """See FrontEnd."""
        if self._server is not None:
            await self._server.drain(timeout_s)

    def _load(self) -> WebServer:
        from gateway.web.guard import Guard
        from gateway.web.operations import HEALTH, METRICS, OPERATIONS, Operations
        from gateway.web.server import Part, WebServer

        around, configs = self._around, self._runtime.configs
        asks = configs.broker_bool("authenticateMetricsEndpoint")
        parts = [
            Part(
                OPERATIONS,
                Operations(self._runtime.cluster, around.metrics),
                open_paths={HEALTH} if asks else {HEALTH, METRICS},
            )
        ]
        parts += [
            bring(around.front_ends[listener], around)
            for listener, bring in self._bring.items()
            if listener in around.front_ends
        ]
        if self._pages is not None:
            parts.append(self._pages(self._runtime, around))
        guard = None
        if self._runtime.authentication.is_on:
            guard = Guard(
                LISTENER,
                self._runtime.authentication,
                configs,
                partial(around.metrics.logins.count, LISTENER),
            )
        return WebServer(parts, around.limits, around.metrics.requests, guard)


def front_end(bring: Mapping[str, Bring], pages: BringPages | None = None) -> FrontEndFactory:
    """The front-end. bring: by the listener of the front-end that brings it."""
    return FrontEndFactory(LISTENER, partial(_make, bring, pages))


def _make(
    bring: Mapping[str, Bring],
    pages: BringPages | None,
    runtime: Runtime,
    around: Surroundings,
) -> WebFrontEnd:
    return WebFrontEnd(runtime, around, bring, pages)
