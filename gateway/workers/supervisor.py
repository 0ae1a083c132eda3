"""The process of `serve --workers`: owns the database's server, and starts and ends the workers.

Serves no client itself, and knows no broker's work: what a worker does is `gateway.app`'s, in a
process of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import structlog
from prometheus_client import CollectorRegistry, start_http_server

from core.config.values import broker_int
from gateway import logs
from gateway.config import Settings
from gateway.embedded import kept_running
from gateway.listeners import listening_on
from gateway.workers.lines import Lines, label_of
from gateway.workers.metrics import Gathered
from gateway.workers.orders import Orders
from gateway.workers.plan import settings_of
from gateway.workers.worker import Worker
from storage.flush.handover import remove_abandoned
from storage.server.embedded import EmbeddedPostgres

log = structlog.get_logger(__name__)

OnReady = Callable[[Sequence[Mapping[str, int]]], None]


def run(settings: Settings, server: EmbeddedPostgres | None, *, on_ready: OnReady) -> None:
    """Runs settings.workers brokers until SIGTERM or SIGINT; SIGHUP replaces them, one by one.

    server: the embedded PostgreSQL, started; stopped in the end. None: settings.database_url.
    on_ready: called with the ports of each worker, by address, once all of them serve.
    Raises SettingsError where a worker, or this process, cannot start as it is set.
    """
    logs.configure(settings.log_format, settings.log_level)
    asyncio.run(_Supervisor(settings, server, on_ready).run())


class _Supervisor:
    def __init__(
        self, settings: Settings, server: EmbeddedPostgres | None, on_ready: OnReady
    ) -> None:
        self._settings = settings
        self._server = server
        self._on_ready = on_ready
        patience_s = broker_int("penstock.shutdown.timeout.ms", settings.broker) / 1000
        self._workers = [
            Worker(number, self._orders_of, partial(self._lines, number), patience_s)
            for number in range(settings.workers)
        ]
        self._stop = asyncio.Event()
        self._replace = asyncio.Event()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._replace.set)
        try:
            with self._metrics_served():
                await self._run_workers()
        finally:
            remove_abandoned()  # of workers that were killed
            if self._server is not None:
                await asyncio.to_thread(self._server.stop)

    async def _run_workers(self) -> None:
        lives = [asyncio.create_task(each.live()) for each in self._workers]
        stop = asyncio.create_task(self._stop.wait())
        works = [stop, asyncio.create_task(self._serve())]
        if self._server is not None:
            works.append(asyncio.create_task(kept_running(self._server)))
        try:
            done, _ = await asyncio.wait([*lives, *works], return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
            log.info("stopping")
        finally:
            # At once: each lets its clients' work end by itself, and nobody takes it over.
            await _cancelled(lives)
            await _cancelled(works)

    async def _serve(self) -> None:
        """Has all of them serve, then replaces them as often as that is asked for."""
        for each in self._workers:
            await each.prepare()
        # The first one migrates the schema, and finds what is wrong with the settings.
        first, *others = self._workers
        await first.begin()
        await asyncio.gather(*(each.begin() for each in others))
        self._on_ready([each.ports for each in self._workers])
        while True:
            await self._replace.wait()
            self._replace.clear()
            for each in self._workers:
                await each.replace()
            log.info("workers_replaced")

    def _orders_of(self, number: int, ports: Mapping[str, int]) -> Orders:
        settings = settings_of(self._settings, number, ports)
        if self._server is None:
            return Orders(settings, None)
        at_ours = settings.model_copy(update={"data": None, "database_url": self._server.url})
        return Orders(at_ours, self._server.user)

    def _lines(self, number: int) -> Lines:
        return Lines(label_of(self._settings.log_format, number), _write)

    @contextlib.contextmanager
    def _metrics_served(self) -> Iterator[None]:
        endpoint = self._settings.metrics_listen
        if endpoint is None:
            yield
            return
        registry = CollectorRegistry()
        registry.register(Gathered(self._workers))
        with listening_on(endpoint, "--metrics-listen"):
            host = endpoint.host or "0.0.0.0"
            server, thread = start_http_server(endpoint.port, host, registry=registry)
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


async def _cancelled(tasks: Sequence[asyncio.Task[object]]) -> None:
    for each in tasks:
        each.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _write(line: bytes) -> None:
    sys.stderr.buffer.write(line)
    sys.stderr.buffer.flush()
