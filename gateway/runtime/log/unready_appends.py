"""Keeps appends in order where a batch has to be made ready first, which takes long.

What makes it ready runs in a thread, so that the event loop goes on; what comes after it under the
same key waits for its turn, and nobody else does. Does not know what is made of a batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

Ready = TypeVar("Ready")
Result = TypeVar("Result")

# Few: each holds one batch, decompressed and compressed, and Python runs one of them at a time.
_THREADS: Final = ThreadPoolExecutor(2, thread_name_prefix="unready-append")


_LOOP_BYTES: Final = 128 * 1024


class UnreadyAppends:
    """Appends that have arrived and are not queued yet. Keys are what has an order of its own."""

    __slots__ = ("_last", "_loop_bytes")

    def __init__(self) -> None:
        self._last: dict[Hashable, asyncio.Task[Any]] = {}
        self._loop_bytes = 0  # made ready in the event loop in this turn of it

    def __contains__(self, key: Hashable) -> bool:
        """Whether an append under this key has to wait for earlier ones: `put` does."""
        return key in self._last

    def may_be_made_at_once(self, size: int) -> bool:
        """Whether the event loop may stop for so many bytes, too, in this turn; they count if so.

        A thread costs more than what is small takes: a tenth of a millisecond, and 5 where it has
        to wait for Python's lock. But a request may have thousands of batches.
        """
        if self._loop_bytes + size > _LOOP_BYTES:
            return False
        if not self._loop_bytes:
            asyncio.get_running_loop().call_soon(self._begin_turn)
        self._loop_bytes += size
        return True

    def _begin_turn(self) -> None:
        self._loop_bytes = 0

    def put(
        self, key: Hashable, prepare: Callable[[], Ready], append: Callable[[Ready], Result]
    ) -> asyncio.Task[Result]:
        """Runs `prepare` in a thread; then, in the order of these calls, `append` in the loop, with
        what was prepared. The task has what `append` has returned."""
        earlier = self._last.get(key)
        task = asyncio.get_running_loop().create_task(self._in_turn(earlier, prepare, append))
        self._last[key] = task
        task.add_done_callback(partial(self._forget, key))
        return task

    async def drain(self) -> None:
        """Returns when all that was put so far is queued, or has failed."""
        if self._last:
            await asyncio.wait(tuple(self._last.values()))

    async def _in_turn(
        self,
        earlier: asyncio.Task[Any] | None,
        prepare: Callable[[], Ready],
        append: Callable[[Ready], Result],
    ) -> Result:
        preparing = asyncio.get_running_loop().run_in_executor(_THREADS, prepare)
        if earlier is not None:
            await asyncio.wait((earlier,))  # whatever has become of it
        return append(await preparing)

    def _forget(self, key: Hashable, done: asyncio.Task[Any]) -> None:
        if self._last.get(key) is done:
            del self._last[key]
