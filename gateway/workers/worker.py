"""One worker, through all the processes that it has been: starts again what ends.

Knows when; what a process is, `process.py` knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from gateway.workers.backoff import Backoff
from gateway.workers.lines import Lines
from gateway.workers.orders import Orders
from gateway.workers.process import Ended, Process, Refused

log = structlog.get_logger(__name__)

_BEYOND_S: Final = 30.0
"""How much longer than its requests' time a worker may take to stop, before it is killed."""

MakeOrders = Callable[[int, Mapping[str, int]], Orders]


class Worker:
    """Number `number`, from 0. `prepare`, then keep `live` running.

    orders_of: its orders, by its number and the ports that it had. lines: take what it logs.
    patience_s: what its requests under way are given when it stops.
    """

    def __init__(
        self, number: int, orders_of: MakeOrders, lines: Callable[[], Lines], patience_s: float
    ) -> None:
        self.number = number
        self.ports: Mapping[str, int] = {}
        self.restarts = 0
        self._orders_of = orders_of
        self._lines = lines
        self._patience_s = patience_s + _BEYOND_S
        self._backoff = Backoff()
        self._next: Process | None = None
        self._process: Process | None = None
        self._serves = asyncio.Event()
        self._may_begin = asyncio.Event()

    @property
    def is_serving(self) -> bool:
        return self._serves.is_set()

    async def prepare(self) -> None:
        """Has its first process begin to load."""
        self._next = await Process.begin(self._lines())

    async def begin(self) -> None:
        """Has it serve; returns once it does."""
        self._may_begin.set()
        await self._serves.wait()

    async def replace(self) -> None:
        """Ends its process in order, and has another serve where it was; returns once that does.

        The other one loads beforehand: what cannot even be loaded replaces nothing.
        """
        await self._load_another()
        if self._next is not None:  # else it was needed meanwhile
            assert self._process is not None, "it has begun"
            self._serves.clear()
            log.info("worker_is_replaced", worker=self.number)
            await self._stop(self._process)
        await self._serves.wait()

    async def _load_another(self) -> None:
        backoff = Backoff()
        while True:
            self._next = process = await Process.begin(self._lines())
            try:
                await process.loaded()
            except Ended as ended:
                self._next = None
                wait_s = backoff.after(0)
                log.error(
                    "worker_not_replaced", worker=self.number, how=str(ended), again_in_s=wait_s
                )
                await asyncio.sleep(wait_s)
            else:
                return

    async def live(self) -> None:
        """Until cancelled; then its process has ended in order. Raises Refused where it could
        never serve."""
        clock = asyncio.get_running_loop().time
        try:
            await self._may_begin.wait()
            while True:
                self._process = await self._take()
                began = clock()
                how = await self._serve(self._process)
                self._serves.clear()
                if self._next is not None:
                    continue
                wait_s = self._backoff.after(clock() - began)
                log.error("worker_ended", worker=self.number, how=how, again_in_s=wait_s)
                await asyncio.sleep(wait_s)
                self.restarts += 1
        finally:
            self._serves.clear()
            for process in filter(None, (self._process, self._next)):
                await self._stop(process)

    async def _take(self) -> Process:
        """The process that is prepared, else a new one."""
        prepared, self._next = self._next, None
        return prepared or await Process.begin(self._lines())

    async def _serve(self, process: Process) -> str:
        """One process from its orders to its end; says how it ended."""
        try:
            self.ports = await process.serve(self._orders_of(self.number, self.ports))
        except Refused as refused:
            if not self.ports:
                # The first has found everything well that is the same for all.
                own = f"Worker {self.number}, whose ports are counted up: " if self.number else ""
                raise Refused(f"{own}{refused}") from refused
            return str(refused)
        except Ended as ended:
            return str(ended)
        self._serves.set()
        log.info("worker_serves", worker=self.number, pid=process.pid)
        return await process.ended()

    async def _stop(self, process: Process) -> None:
        if not await process.stop(self._patience_s):
            log.error("worker_killed", worker=self.number, reason="it did not stop in time")
