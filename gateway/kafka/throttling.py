"""One connection held back by quotas: what its requests use, and for how long it is left unread.

KIP-219: an answer goes out at once and says how long its client is to wait; until then the
connection is not read. Knows no socket, and not which quota holds for whom.
"""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from gateway.runtime.throttling import ClientLimits, Hold, to_ms

if TYPE_CHECKING:
    from core.quota.rules import Limit
    from core.security.principal import Principal

_PERCENT: Final = 100.0


class Usage:
    """What one request uses. seconds: of the event loop, so far."""

    __slots__ = ("is_throttled", "limits", "seconds")

    def __init__(self, limits: ClientLimits) -> None:
        self.limits = limits
        self.seconds = 0.0
        self.is_throttled = False


class Throttle(Hold):
    """That of one connection."""

    def usage(self, principal: Principal, client_id: str) -> Usage | None:
        """That of a request, before it has used anything; None for a client without limits."""
        limits = self.limits_of(principal.name, client_id)
        return None if limits is None else Usage(limits)

    def take(self, usage: Usage, limit: Limit | None, amount: float) -> None:
        """The request uses so much: its connection waits, if that is more than the quota."""
        if limit is not None and self.use(limit, amount):
            usage.is_throttled = True

    def settle(self, usage: Usage, told_ms: int, told_for: Limit | None) -> int:
        """The request is done: how long its client is to wait, in milliseconds. told_ms, told_for:
        what its handler says, and because of which quota."""
        self.take(usage, usage.limits.request, usage.seconds * _PERCENT)
        if told_ms and told_for is not None and self.hold(told_for, told_ms / 1000):
            usage.is_throttled = True
        return to_ms(self.left_s) if usage.is_throttled else 0


class Timed:
    """Awaits a handler, and counts the time that it has the event loop for itself."""

    __slots__ = ("_handling", "_usage")

    def __init__(self, handling: Awaitable[Any], usage: Usage) -> None:
        self._handling = handling
        self._usage = usage

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._handling.__await__()
        thrown: BaseException | None = None
        while True:
            began = perf_counter()
            try:
                waits_for = next(steps) if thrown is None else steps.throw(thrown)
            except StopIteration as done:
                return done.value
            finally:
                self._usage.seconds += perf_counter() - began
            thrown = None
            try:
                yield waits_for
            except BaseException as error:  # noqa: BLE001 - it is handed to the handler
                thrown = error
