"""One connection held back by quotas: what its requests use, and for how long it is left unread.

KIP-219: an answer goes out at once and says how long its client is to wait; until then the
connection is not read. Knows no socket, and not which quota holds for whom.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from core.quota.rules import Limit
from gateway.runtime.throttling import ClientLimits, Throttles, to_ms

if TYPE_CHECKING:
    from core.security.principal import Principal

_PERCENT: Final = 100.0
SHORTEST_S: Final = 0.001
"""A client cannot be told of less, and to stop and begin again would cost more."""


class Usage:
    """What one request uses. seconds: of the event loop, so far."""

    __slots__ = ("is_throttled", "limits", "seconds")

    def __init__(self, limits: ClientLimits) -> None:
        self.limits = limits
        self.seconds = 0.0
        self.is_throttled = False


class Throttle:
    """That of one connection. resume: called when it may be read again."""

    __slots__ = ("_by", "_loop", "_resume", "_throttles", "_timer", "_until")

    def __init__(self, throttles: Throttles, resume: Callable[[], None]) -> None:
        self._throttles = throttles
        self._resume = resume
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._until = 0.0
        self._by: tuple[str, str] = ("", "")

    @property
    def is_on(self) -> bool:
        """Whether the connection is to be left unread, and nothing of it to be started."""
        return self._timer is not None

    def usage(self, principal: Principal, client_id: str) -> Usage | None:
        """That of a request, before it has used anything; None for a client without limits."""
        key = (principal.name, client_id)
        limits = self._throttles.limits_of(*key)
        if limits is None:
            return None
        self._by = key
        return Usage(limits)

    def take(self, usage: Usage, limit: Limit | None, amount: float) -> None:
        """The request uses so much: its connection waits, if that is more than the quota."""
        if limit is not None:
            self._hold(usage, limit, self._throttles.take(limit, amount))

    def settle(self, usage: Usage, told_ms: int) -> int:
        """The request is done: how long its client is to wait, in milliseconds. told_ms: what its
        handler says."""
        limits = usage.limits
        self.take(usage, limits.request, usage.seconds * _PERCENT)
        if told_ms and limits.mutation is not None:
            self._hold(usage, limits.mutation, told_ms / 1000)
        if not usage.is_throttled:
            return 0
        return to_ms(max(0.0, self._until - self._loop.time()))

    def _hold(self, usage: Usage, limit: Limit, wait_s: float) -> None:
        if wait_s < SHORTEST_S:
            return
        usage.is_throttled = True
        now = self._loop.time()
        before, until = max(self._until, now), now + wait_s
        if until <= before:
            return
        self._throttles.observe(limit.shared_by.key.value, until - before)
        self._wait_until(until)

    def _wait_until(self, until: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._until = until
        self._timer = self._loop.call_at(until, self._end)
        self._throttles.waiting.add(self)

    def look_again(self) -> None:
        """Quotas have changed: it may have to wait no longer, or not at all."""
        limits = self._throttles.limits_of(*self._by)
        found = (limits.produce, limits.consume, limits.request, limits.mutation) if limits else ()
        owed_s = [self._throttles.owed_s(each) for each in found if each is not None]
        self._wait_until(min(self._until, self._loop.time() + max(owed_s, default=0.0)))

    def _end(self) -> None:
        self.drop()
        self._resume()

    def drop(self) -> None:
        """The connection is lost, or may be read."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._throttles.waiting.discard(self)


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
