"""Answers to a burst of requests on one connection: held, and sent together when no more come.

librdkafka asks ListOffsets for each partition by itself, all at once. Each answer wakes its broker
thread, which then looks at every partition it has (rd_kafka_toppar_set_fetch_state,
rd_kafka_broker_consumer_serve), and does so ahead of sending what it still has to ask. So answers
that come between its requests hold these up, by the square of the partitions: with 10,000 for ten
seconds and more, at any broker that answers one by one. Answers that come when all is asked do not.
Knows bytes and time; must not know sockets, nor which requests come in bursts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from gateway.kafka.codec import Buffer

AT_ONCE: Final = 16
"""Answers to requests that others follow, before a burst is taken for one: a client with few
partitions does not wait, and one with many is held up by so many only."""
QUIET_S: Final = 0.05
_MOST_S: Final = 3.0
_MOST_BYTES: Final = 2 * 2**20


class AnswerBurst:
    """What one connection sends, all of it in order.

    send: takes parts of answers. is_going_on: whether requests have come that have no answer yet.
    """

    __slots__ = (
        "_began",
        "_bytes",
        "_count",
        "_held",
        "_is_going_on",
        "_last",
        "_loop",
        "_send",
        "_timer",
    )

    def __init__(
        self, send: Callable[[Sequence[Buffer]], None], is_going_on: Callable[[], bool]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._send = send
        self._is_going_on = is_going_on
        self._held: list[Buffer] = []
        self._bytes = 0
        self._count = 0
        self._began = self._last = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def count(self) -> None:
        """One of the answers sent next is to a request of the kind that comes in bursts."""
        if self._timer is None and not self._is_going_on():
            self._count = 0
            return
        self._count += 1
        self._last = self._loop.time()
        if self._timer is None and self._count > AT_ONCE:
            self._began = self._last
            self._timer = self._loop.call_later(QUIET_S, self._look)

    def send(self, parts: Sequence[Buffer]) -> None:
        """Sends these parts now, or with the burst: whatever else is answered keeps its place."""
        if self._timer is None:
            self._send(parts)
            return
        self._held += parts
        self._bytes += sum(map(len, parts))
        if self._bytes > _MOST_BYTES:
            self.end()

    def end(self) -> None:
        """Sends what is held."""
        held, self._held = self._held, []
        self.drop()
        self._send(held)

    def drop(self) -> None:
        """Forgets what is held: the connection is lost."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._held.clear()
        self._bytes = self._count = 0

    def _look(self) -> None:
        now = self._loop.time()
        quiet_at = (now if self._is_going_on() else self._last) + QUIET_S
        if now < quiet_at and now - self._began < _MOST_S:
            self._timer = self._loop.call_at(quiet_at, self._look)
        else:
            self.end()
