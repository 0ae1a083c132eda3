"""The web server: uvicorn's HTTP on connections of our listeners, Starlette's routing.

The only file that knows uvicorn. Loaded with the first connection, so that it costs nothing where
nobody comes. Knows no endpoint.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import h11
import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from core.ports.log import StoreUnavailable
from core.security.principal import ANONYMOUS, Caller, java_host
from gateway.listener import ConnectionLimits
from gateway.metrics.requests import RequestObserver
from gateway.tls import peer_certificate
from gateway.web.api import Endpoint, Redirected, Refused, Registry
from gateway.web.call import Call, ClientError
from gateway.web.guard import (
    CERTIFICATE,
    Guard,
    is_by_anybodys_name,
    is_from_elsewhere,
    peer_of,
)

log = structlog.get_logger(__name__)

FINISHING: Final = "finishing"
"""In a request's state: an event, set when the broker stops. What would go on is to end then."""
_KEEP_ALIVE_S: Final = 75
_TAKEN_WITHIN_S: Final = 30
"""A client that takes nothing of its response for so long is left."""
_MOST_HEADER_BYTES: Final = 64 * 1024
_NO_METHOD: Final = Refused(405, "There is no such method here")
_AWAY: Final = Refused(503, "The database is away")
_BUG: Final = Refused(500, "An error in the broker: its log says more")
_FROM_ELSEWHERE: Final = Refused(403, "A page of another site has asked for this change")


Refuse = Callable[[Call[Any], Endpoint], Awaitable[Refused | None]]
ShowRefusal = Callable[[Request, Refused], Response]


def as_json(_: Request, refused: Refused) -> Response:
    """How programs are told of a refusal."""
    return JSONResponse({"reason": refused.reason}, refused.status)


@dataclass(frozen=True, slots=True)
class Part:
    """Endpoints, and the services that their handlers are given.

    prefix: paths below it that are no endpoint's get `otherwise`, and so do methods that an
    endpoint's path has not. refuse: why a caller may not ask for an endpoint, or None; raises
    ClientError.
    """

    registry: Registry
    services: Any
    prefix: str | None = None
    otherwise: Refused = _NO_METHOD
    refuse: Refuse | None = None
    open_paths: Collection[str] = ()
    for_people: bool = False
    show_refusal: ShowRefusal = as_json


class WebServer:
    """Makes connections, each with all parts behind it.

    observer_of: what counts the requests of endpoints with these names. guard: None where nobody is
    asked who he is.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        limits: ConnectionLimits,
        observer_of: Callable[[dict[int, str]], RequestObserver],
        guard: Guard | None = None,
    ) -> None:
        self._config = Config(
            make_app(parts, observer_of, guard),
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            h11_max_incomplete_event_size=_MOST_HEADER_BYTES,
        )
        self._config.load()
        self._state = ServerState()
        self._wait_s = limits.request_receive_timeout_ms / 1000

    def connection(self, on_lost: Callable[[], None]) -> WebConnection:
        """The protocol object of a new connection."""
        return WebConnection(self._config, self._state, on_lost, self._wait_s)

    async def drain(self, timeout_s: float) -> None:
        """Waits for handlers whose clients have gone, up to a time."""
        if self._state.tasks:
            await asyncio.wait(set(self._state.tasks), timeout=timeout_s)


class WebConnection(H11Protocol):
    """uvicorn's connection as a listener wants it. `gateway.listener.Connection`.

    wait_s: within this time a request's headers have to come.
    """

    def __init__(
        self, config: Config, state: ServerState, on_lost: Callable[[], None], wait_s: float
    ) -> None:
        super().__init__(config, state, {})
        self._on_lost = on_lost
        self._wait_s = wait_s
        self._waiting: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._finishing = asyncio.Event()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state[CERTIFICATE] = peer_certificate(transport)
        self.app_state[FINISHING] = self._finishing
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if is_answering and self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        elif not is_answering and self._waiting is None:
            self._wait()

    def send_400_response(self, msg: str) -> None:
        """As uvicorn does; where the request is answered already, closes without another answer."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # its handler has nobody to answer any more
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        is_begun = self.conn.their_state is h11.SEND_BODY or bool(self.conn.trailing_data[0])
        if is_begun and self.cycle.response_complete and self._waiting is None:
            self._wait()  # for the rest of what has come with the request

    def _wait(self) -> None:
        self._waiting = self.loop.call_later(self._wait_s, self._give_up)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._look_whether_read()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._forget_unread()

    def _look_whether_read(self, before: int | None = None) -> None:
        """Now and then, while more is written than read; to close would wait for that, too."""
        left = self.transport.get_write_buffer_size()
        if before is not None and left >= before:
            self.abort()
        else:
            self._unread = self.loop.call_later(_TAKEN_WITHIN_S, self._look_whether_read, left)

    def _forget_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _give_up(self) -> None:
        self._waiting = None
        if self.cycle is None or self.cycle.response_complete:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_unread()
        if self._waiting is not None:
            self._waiting.cancel()
        super().connection_lost(exc)
        self._on_lost()

    def finish(self) -> None:
        """See Connection."""
        self._finishing.set()
        if self.transport is not None and not self.transport.is_closing():
            self.shutdown()

    def abort(self) -> None:
        """See Connection."""
        if self.transport is not None:
            self.transport.abort()


def make_app(
    parts: Sequence[Part],
    observer_of: Callable[[dict[int, str]], RequestObserver],
    guard: Guard | None = None,
) -> ASGIApp:
    """All parts as one application; routes are matched on paths that are not decoded, so that a
    name may have a slash in it."""
    endpoints = [(each, part) for part in parts for each in part.registry]
    observe = observer_of(
        {number: f"HTTP {each.method} {each.path}" for number, (each, _) in enumerate(endpoints)}
    )
    by_path: dict[str, dict[str, _Served]] = {}
    part_of: dict[str, Part] = {}
    for number, (each, part) in enumerate(endpoints):
        by_path.setdefault(each.path, {})[each.method] = _Served(each, part, number, observe)
        part_of[each.path] = part
    # Where two paths fit, the one that says more of itself is meant.
    paths = sorted(by_path, key=lambda path: [part.startswith("{") for part in path.split("/")])
    routes = [Route(path, _Methods(by_path[path], part_of[path], guard, path)) for path in paths]
    routes += [
        Route(f"{part.prefix}{{rest:path}}", _Methods({}, part, guard))
        for part in parts
        if part.prefix is not None
    ]
    shown_to_people = next((each.show_refusal for each in parts if each.for_people), as_json)

    async def on_http_exception(request: Request, exception: Exception) -> Response:
        assert isinstance(exception, HTTPException)
        is_browser = "text/html" in request.headers.get("accept", "")
        show_refusal = shown_to_people if is_browser else as_json
        return show_refusal(request, Refused(exception.status_code, exception.detail))

    starlette = Starlette(routes=routes, exception_handlers={HTTPException: on_http_exception})

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await starlette({**scope, "path": scope["raw_path"].decode("ascii")}, receive, send)

    return app


@dataclass(frozen=True, slots=True)
class _Served:
    endpoint: Endpoint
    part: Part
    number: int
    observe: RequestObserver

    async def answer(self, request: Request, caller: Caller) -> Response:
        began = time.perf_counter()
        part, show_refusal = self.part, self.part.show_refusal
        try:
            call = Call(request, part.services, caller)
            refused = None if part.refuse is None else await part.refuse(call, self.endpoint)
            given = await self.endpoint.handler(call) if refused is None else refused
            response = _response(request, given, show_refusal)
        except ClientError as bad:
            response = show_refusal(request, bad.refused)
        except StoreUnavailable:
            response = show_refusal(request, _AWAY)
        except Exception:
            log.exception("http_request_failed", method=request.method, path=self.endpoint.path)
            response = show_refusal(request, _BUG)
        received = int(request.headers.get("content-length") or 0)
        seconds = time.perf_counter() - began
        self.observe(self.number, 0, seconds, received, len(getattr(response, "body", b"")))
        return response


class _Methods:
    """All methods of one path. An ASGI application. path: None for those that have no endpoint."""

    def __init__(
        self, served: dict[str, _Served], part: Part, guard: Guard | None, path: str | None = None
    ) -> None:
        self._served = served
        self._part = part
        self._guard = None if path in part.open_paths else guard
        self._is_guarded = guard is not None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        response = await self._answer(request)
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        show_refusal = self._part.show_refusal
        if is_from_elsewhere(request) or (
            # A browser shows no login to a name that it does not know it by.
            not self._is_guarded and is_by_anybodys_name(request)
        ):
            return show_refusal(request, _FROM_ELSEWHERE)
        caller: Caller | Refused
        if self._guard is None:
            caller = Caller(ANONYMOUS, java_host(peer_of(request)))
        else:
            by_cookie = self._part.for_people
            try:
                caller = await self._guard.admit(request, by_cookie=by_cookie)
            except StoreUnavailable:
                return show_refusal(request, _AWAY)
            if isinstance(caller, Refused):
                response = show_refusal(request, caller)
                for challenge in self._guard.challenges(request, by_cookie=by_cookie):
                    response.headers.append("www-authenticate", challenge)
                return response
        method = "GET" if request.method == "HEAD" else request.method
        found = self._served.get(method)
        if found is None:
            return show_refusal(request, self._part.otherwise)
        return await found.answer(request, caller)


def _response(request: Request, given: Any, show_refusal: ShowRefusal) -> Response:
    if isinstance(given, Response):
        return given
    if given is None:
        return Response(status_code=204)
    if isinstance(given, Refused):
        return show_refusal(request, given)
    if isinstance(given, Redirected):
        # Not by `request.url`, which believes the Host header, whatever it says.
        query = request.scope["query_string"].decode("ascii")
        path = request.scope["path"] + (f"?{query}" if query else "")
        return RedirectResponse(f"{given.base_url}{path}")  # 307
    return JSONResponse(given)
