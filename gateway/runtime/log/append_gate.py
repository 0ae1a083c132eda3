"""A door that lets appends through in the order they came, also those that look something up first.

Where that fails, whoever waited meanwhile fares alike. Does not know what is looked up.
"""

import asyncio
from types import TracebackType

from core.log.retry_order import RetryOrder


class AppendGate:
    """Held while something is looked up. Who comes when it is not free has to wait for it.

    A plain lock will not do: between its release and the next waiter's turn it says that it is not
    locked, and a request that comes just then would overtake the waiter.

    failures: counts what was looked up in vain; who saw fewer when coming need not look, too.
    retry_order: batches refused for it, by topic and partition, which must not be overtaken.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._inside = 0
        self.failures = 0
        self.retry_order = RetryOrder()

    @property
    def is_free(self) -> bool:
        """Whether nobody holds it or waits for it."""
        return self._inside == 0

    async def __aenter__(self) -> None:
        self._inside += 1
        try:
            await self._lock.acquire()
        except BaseException:
            self._inside -= 1
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._inside -= 1
        self._lock.release()
