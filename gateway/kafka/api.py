"""The registry of Kafka APIs: each handler file enters itself with `@api(key, versions=…, …)`.

ApiVersions, the connection and the documentation's table read it. It does not know any API itself.
"""

import functools
import importlib
import pkgutil
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from core.errors import Error
from core.ports.log import StoreUnavailable
from core.security.operations import REQUIREMENTS
from gateway.kafka.codec import request_class
from gateway.kafka.context import RequestContext

Handler = Callable[[Any, RequestContext], Awaitable[Any]]
Unavailable = Callable[[Any, RequestContext], Any]
"""The answer to a request while the database is away (`unavailable.py` says which)."""

# What a handler returns to have the connection closed: Kafka's way to tell a producer with acks=0
# that something was wrong (KafkaApis.handleProduceRequest).
CLOSE_CONNECTION: Final = object()


@dataclass(frozen=True, slots=True)
class LastResponse:
    """What a handler returns to have the connection closed once this response is sent."""

    response: Any


@dataclass(frozen=True, slots=True)
class Api:
    """One Kafka API as this broker serves it.

    name: the request's name without "Request", as Kafka's documentation has it.
    versions: served. advertised: what ApiVersions lists: wider for Produce (see its handler),
    nothing for APIs that are not Kafka's.
    handler: returns the response message, None where nothing is sent (Produce with acks=0),
    CLOSE_CONNECTION, or a LastResponse.
    unsupported: the version-0 response to a version that is not served; None: close the connection,
    as Kafka does for everything but ApiVersions (KIP-511).
    is_long_poll: it may wait for minutes, and is cancelled when its client has gone; the others run
    to their end. runs_side_by_side: a request starts while earlier ones of its API have no answer.
    comes_in_bursts: whether this request may be one of thousands that its client sends at once; see
    `answer_bursts.py`.
    v2_since: the version that clients send in V2 of transactions (KIP-890); None: none does.
    is_exempt_from_quotas: as what brokers ask of each other is in Kafka, and logins.
    brings_records: its bytes count as what a producer writes.
    known_since: errors that older versions do not know; `errors.py` has what is said instead.
    """

    key: int
    name: str
    versions: range
    advertised: range
    handler: Handler
    unsupported: Callable[[], Any] | None = None
    is_long_poll: bool = False
    runs_side_by_side: bool = False
    comes_in_bursts: Callable[[Any], bool] | None = None
    v2_since: int | None = None
    known_since: Mapping[Error, int] = field(default_factory=dict)
    is_exempt_from_quotas: bool = False
    brings_records: bool = False


class Registry:
    """APIs by key. The server uses `REGISTRY`; a test may fill one of its own."""

    __slots__ = ("_apis",)

    def __init__(self) -> None:
        self._apis: dict[int, Api] = {}

    def api(
        self,
        key: int,
        *,
        versions: range,
        advertised: range | None = None,
        unsupported: Callable[[], Any] | None = None,
        unavailable: Unavailable | None = None,
        is_long_poll: bool = False,
        runs_side_by_side: bool = False,
        comes_in_bursts: Callable[[Any], bool] | None = None,
        v2_since: int | None = None,
        known_since: Mapping[Error, int] | None = None,
        is_exempt_from_quotas: bool = False,
        brings_records: bool = False,
    ) -> Callable[[Handler], Handler]:
        """Enter the decorated coroutine function as the handler of API `key`; see `Api`.

        unavailable: makes the answer where the handler raises StoreUnavailable. If that one raises
        it too, or there is none, the connection is closed, which clients take as "try again".
        Raises ValueError for a key or version the codec does not know, or a key entered twice.
        """
        message = request_class(key)
        if not versions or versions[0] < 0 or versions[-1] > message.max_version:
            raise ValueError(f"{message.name}: the codec has versions 0 to {message.max_version}")
        if key in self._apis:
            raise ValueError(f"{message.name}: two handlers for API key {key}")

        def enter(handler: Handler) -> Handler:
            if unavailable is not None:
                handler = _answering(handler, unavailable)
            name = message.name.removesuffix("Request")
            listed = versions if advertised is None else advertised
            self._apis[key] = Api(
                key,
                name,
                versions,
                listed,
                handler,
                unsupported,
                is_long_poll,
                runs_side_by_side,
                comes_in_bursts,
                v2_since,
                known_since or {},
                is_exempt_from_quotas,
                brings_records,
            )
            return handler

        return enter

    def find(self, key: int) -> Api | None:
        """The API with this key, or None where this broker has none."""
        return self._apis.get(key)

    def table(self) -> tuple[Api, ...]:
        """Every API, by key."""
        return tuple(self._apis[key] for key in sorted(self._apis))


def _answering(handler: Handler, unavailable: Unavailable) -> Handler:
    @functools.wraps(handler)
    async def guarded(request: Any, ctx: RequestContext) -> Any:
        try:
            return await handler(request, ctx)
        except StoreUnavailable:
            return unavailable(request, ctx)

    return guarded


REGISTRY = Registry()
api = REGISTRY.api


def load_handlers() -> Registry:
    """Import every module of `gateway.kafka.handlers`: now `REGISTRY` is complete; return it.

    Raises ValueError for an API of which nobody has said what rights it asks for.
    """
    package = importlib.import_module("gateway.kafka.handlers")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    for served in REGISTRY.table():
        if served.name not in REQUIREMENTS:
            raise ValueError(f"{served.name}: core/security/operations.py has no row for it")
    return REGISTRY
