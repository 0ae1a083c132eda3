"""A queue in front of a flush: work that arrives during one goes into the next.

Knows neither the work nor how it is stored.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, TypeVar

Work = TypeVar("Work")


class FlushQueue(Generic[Work]):
    """Work in order of arrival, at most `limit` of it (as `weigh` counts) in one flush.

    settle: stores and answers some work, even if that fails; it must not raise. gather: for how
    long (seconds) what is queued waits for more; asked with one piece and how many there are.
    """

    def __init__(
        self,
        settle: Callable[[list[Work]], Awaitable[None]],
        *,
        limit: int,
        weigh: Callable[[Work], int],
        gather: Callable[[Work, int], float] | None = None,
    ) -> None:
        self._settle = settle
        self._gather = gather
        self._limit = limit
        self._weigh = weigh
        self._queue: deque[Work] = deque()
        self._task: asyncio.Task[None] | None = None
        self._pause: asyncio.Future[None] | None = None  # while what is queued waits for more

    def put(self, work: Work) -> None:
        """Queues work at once, in the order of calls."""
        self._queue.append(work)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        elif self._pause is not None and not self._pause_s([work]):
            self._go_on()

    def withdraw(self, is_wanted: Callable[[Work], bool]) -> list[Work]:
        """Takes out, in order, what is wanted of all that still waits."""
        found = [work for work in self._queue if is_wanted(work)]
        if found:
            self._queue = deque(work for work in self._queue if not is_wanted(work))
        return found

    async def close(self) -> None:
        """Returns when all queued work is settled."""
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        while self._queue:
            if pause_s := self._pause_s(self._queue):
                await self._wait(pause_s)
                if not self._queue:  # all of it was withdrawn
                    return
            await self._settle(self._take())

    def _pause_s(self, works: Iterable[Work]) -> float:
        """For how long these want the queue to wait: 0 if one of them does not."""
        if self._gather is None:
            return 0
        count, pause_s = len(self._queue), 0.0
        for work in works:
            pause_s = self._gather(work, count)
            if not pause_s:
                break
        return pause_s

    async def _wait(self, pause_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._pause = loop.create_future()
        timer = loop.call_later(pause_s, self._go_on)
        try:
            await self._pause
        finally:
            timer.cancel()
            self._pause = None

    def _go_on(self) -> None:
        if self._pause is not None and not self._pause.done():
            self._pause.set_result(None)

    def _take(self) -> list[Work]:
        """Takes the next flush's work; a single piece beyond the limit goes alone."""
        taken = [self._queue.popleft()]
        weight = self._weigh(taken[0])
        while self._queue:
            weight += self._weigh(self._queue[0])
            if weight > self._limit:
                break
            taken.append(self._queue.popleft())
        return taken
