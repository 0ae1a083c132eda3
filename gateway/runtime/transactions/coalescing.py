"""Writes of transactions outside of the log's flush: what waits for one goes into the next.

Writes that fail together are tried one by one, so that each caller gets its own result. Knows no
rule.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

from core.ports.log import EffectRefused, VersionMismatch
from gateway.runtime.flush.queue import FlushQueue

_AT_ONCE: Final = 256

W = TypeVar("W")
R = TypeVar("R")


class CoalescedWrites(Generic[W, R]):
    """All writes of one kind of this process. put: stores all that it is given, or nothing; gives a
    result for each. wait_s: for how long so many writes wait for more."""

    def __init__(
        self,
        put: Callable[[Sequence[W]], Awaitable[Sequence[R]]],
        wait_s: Callable[[int], float],
    ) -> None:
        self._put = put
        self._queue: FlushQueue[tuple[W, asyncio.Future[R]]] = FlushQueue(
            self._settle,
            limit=_AT_ONCE,
            weigh=lambda _: 1,
            gather=lambda _, count: wait_s(count),
        )

    async def write(self, wanted: W) -> R:
        """Returns once it is stored.

        Raises VersionMismatch, EffectRefused, StoreUnavailable, CommitUnknown.
        """
        done: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._queue.put((wanted, done))
        return await done

    async def _settle(self, writes: Sequence[tuple[W, asyncio.Future[R]]]) -> None:
        try:
            results = await self._put([wanted for wanted, _ in writes])
        except (VersionMismatch, EffectRefused) as error:
            if len(writes) == 1:
                _fail(writes, error)
                return
            for each in writes:
                await self._settle([each])
        except Exception as error:  # noqa: BLE001 - no error may leave a caller waiting
            _fail(writes, error)
        else:
            for (_, done), result in zip(writes, results, strict=True):
                if not done.done():
                    done.set_result(result)


def _fail(writes: Sequence[tuple[W, asyncio.Future[R]]], error: Exception) -> None:
    for _, done in writes:
        if not done.done():
            done.set_exception(error)
