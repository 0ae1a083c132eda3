"""One read for many callers; it began after each of them asked.

A caller that comes during a read does not get its answer, which may be older than the question, but
shares the next read. Does not know what is read.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class SharedRead(Generic[Key, Value]):
    """Reads values by key, one read at a time.

    read: returns the values that exist; its exceptions go to all callers that share the read.
    """

    def __init__(self, read: Callable[[Collection[Key]], Awaitable[Mapping[Key, Value]]]) -> None:
        self._read = read
        self._one_read = asyncio.Lock()
        self._wanted: set[Key] = set()
        self._next: asyncio.Task[Mapping[Key, Value]] | None = None

    async def find(self, keys: Collection[Key]) -> dict[Key, Value]:
        """The values of the keys that exist, from a read that begins after this call."""
        self._wanted.update(keys)
        if self._next is None:
            self._next = asyncio.create_task(self._run())
            self._next.add_done_callback(_take_exception)
        # A cancelled caller must not cancel the read for the others.
        found = await asyncio.shield(self._next)
        return {key: found[key] for key in keys if key in found}

    async def _run(self) -> Mapping[Key, Value]:
        async with self._one_read:
            wanted, self._wanted, self._next = self._wanted, set(), None
            return await self._read(wanted)


def _take_exception(task: asyncio.Task[Mapping[Key, Value]]) -> None:
    """Retrieves an exception, in case all callers have given up."""
    if not task.cancelled():
        task.exception()
