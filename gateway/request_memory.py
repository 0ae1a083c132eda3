"""The memory that requests of all connections hold, in all protocols.

Kafka's `queued.max.request.bytes`: when it is used up, no connection reads until half of it is free
again. Connections count what they hold and are told when to stop. Knows no socket and no frame.
"""

from typing import Protocol

import structlog

from gateway.listener import ConnectionLimits

log = structlog.get_logger(__name__)


class RequestHolder(Protocol):
    """A connection, as the memory sees it."""

    @property
    def stuck_bytes(self) -> int:
        """Bytes it holds that it will not release by itself: of an incomplete request, and of
        those that wait for the client, for a quota or for other clients. 0 once it closes."""

    def adjust_reading(self) -> None:
        """The memory is used up, or no longer is: `is_full` says which."""

    def close_for(self, reason: str) -> None:
        """Closes, with one line in the log."""


class RequestMemory:
    """One per process; front-ends share it. Connections `join`, `hold` and `leave`."""

    def __init__(self, limits: ConnectionLimits) -> None:
        # A single request must never be what fills the memory.
        self._most_bytes = max(limits.queued_max_request_bytes, 2 * limits.socket_request_max_bytes)
        self._holders: set[RequestHolder] = set()
        self._held_bytes = 0
        self._is_full = False

    @property
    def is_full(self) -> bool:
        """Whether requests of all connections hold `queued.max.request.bytes` or more."""
        return self._is_full

    @property
    def held_bytes(self) -> int:
        """Bytes of unanswered requests, incomplete ones included."""
        return self._held_bytes

    def join(self, holder: RequestHolder) -> None:
        """Registers a connection, to be told when to stop reading."""
        self._holders.add(holder)

    def leave(self, holder: RequestHolder) -> None:
        """The connection has closed; it releases what it still holds itself."""
        self._holders.discard(holder)

    def hold(self, count: int) -> None:
        """Counts `count` more bytes of requests (fewer if negative)."""
        self._held_bytes += count
        limit = self._most_bytes
        if self._is_full:
            if self._held_bytes <= limit // 2:
                self._is_full = False
                self._adjust_reading()
        elif count > 0 and self._held_bytes >= limit:
            self._is_full = True
            log.warning("request memory is used up; reading pauses", bytes=self._held_bytes)
            self._adjust_reading()
            self._cut_hoarders(limit // 2)

    def look(self, holder: RequestHolder) -> None:
        """The connection may have got stuck, with what it held before."""
        if self._is_full and holder.stuck_bytes:
            self._cut_hoarders(self._most_bytes // 2)

    def _adjust_reading(self) -> None:
        for holder in list(self._holders):
            holder.adjust_reading()

    def _cut_hoarders(self, allowance: int) -> None:
        """If stuck requests fill the memory, closes the connections that hold most of them.

        The others will be answered and released; these not for long, or never, since no connection
        reads.
        """
        stuck = [(holder.stuck_bytes, holder) for holder in self._holders]
        left = sum(size for size, _ in stuck)
        stuck.sort(key=lambda each: each[0])
        while left > allowance and stuck:
            size, largest = stuck.pop()
            left -= size
            largest.close_for("it holds the largest part of the memory for requests that are stuck")
