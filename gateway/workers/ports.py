"""Whether the ports of all workers are free, before anything is started.

Knows where workers listen; what a socket is, `gateway.listener` knows. What is free now may be
taken before it is needed: then the worker says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from gateway.config import LISTENERS, Endpoint, Settings
from gateway.listener import ConnectionLimits, Listener
from gateway.listeners import LateFrontEnd, listening_on
from gateway.workers.plan import settings_of


def check_free(settings: Settings) -> None:
    """Listens on each for a moment, as its broker will. Raises SettingsError."""
    asyncio.run(_check_free(settings))


async def _check_free(settings: Settings) -> None:
    for endpoint, flag, whose in _ports(settings):
        listener = Listener(LateFrontEnd(), endpoint.host, endpoint.port, ConnectionLimits())
        with listening_on(endpoint, flag, whose):
            await listener.start()
        await listener.shutdown(0)


def _ports(settings: Settings) -> Iterator[tuple[Endpoint, str, str]]:
    """Those that are set, each with what sets it, and whose it is where nobody has written it."""
    metrics = settings.metrics_listen
    if metrics is not None and metrics.port:
        yield metrics, "--metrics-listen", ""
    for number in range(settings.workers):
        own = settings_of(settings, number, {})
        for listener in LISTENERS:
            set_, counted = (each.listen_addresses(listener) for each in (settings, own))
            for first, each in zip(set_, counted, strict=True):
                whose = f"worker {number}'s, counted up from {first.flag} {first.listen}"
                if each.listen.port:
                    yield each.listen, each.flag, whose if number else ""
