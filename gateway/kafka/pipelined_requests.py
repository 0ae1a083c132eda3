"""What a connection has received behind a request that runs: a long poll ends early for it.

Answers leave in order, so what a client asks while its Fetch waits for records would wait as long,
500 ms by default. Spark's source asks ListOffsets after each poll, on the connection on which its
consumer has fetched on already: at the end of a partition every task would stand still that long
(with Kafka it does). Knows what waits; must not know sockets, nor what is done about it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final, Protocol

from gateway.kafka import codec


class _Waiting(Protocol):
    """A request received and not started. key: of its API."""

    key: int


class PipelinedRequests:
    """Those of one connection. Fetches do not count: a client that keeps two under way would have
    each end the other, in circles."""

    __slots__ = ("_arrival", "_waiting")

    def __init__(self, waiting: Collection[_Waiting]) -> None:
        """waiting: all of the connection's that have not started, at any time."""
        self._waiting: Final = waiting
        self._arrival: asyncio.Future[None] | None = None

    @property
    def is_any(self) -> bool:
        return any(request.key != codec.FETCH_KEY for request in self._waiting)

    def arrival(self) -> asyncio.Future[None]:
        """Done when something has come. Nobody else may wait for it: one request runs at a time."""
        if self._arrival is None or self._arrival.done():
            self._arrival = asyncio.get_running_loop().create_future()
        return self._arrival

    def look(self) -> None:
        """More has been received."""
        if self._arrival is not None and not self._arrival.done() and self.is_any:
            self._arrival.set_result(None)
