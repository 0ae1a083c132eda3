"""A front-end as the process sees it: the name of its listener, how to make it, how to end it.

A front-end is one protocol, in a folder beside this file. `gateway.app` has the table of them;
this file knows none.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gateway import listener
from gateway.config import ListenAddress, Settings
from gateway.metrics.registry import Metrics
from gateway.request_memory import RequestMemory
from gateway.runtime.runtime import Runtime


class FrontEnd(listener.ConnectionMaker, Protocol):
    """One protocol, as the process sees it."""

    async def drain(self, timeout_s: float) -> None:
        """Waits, up to a time, for unfinished requests of clients that have disconnected."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a front-end gets beside the runtime; all front-ends share it.

    metrics: it counts its requests here, under its own names, and registers other metrics.
    front_ends: those that were made before it, by address; a first address has the listener's name.
    """

    settings: Settings
    limits: listener.ConnectionLimits
    memory: RequestMemory
    metrics: Metrics
    front_ends: Mapping[str, FrontEnd] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FrontEndFactory:
    """Makes a front-end once the broker has joined its cluster.

    listener: the name under which brokers publish its address (`broker_endpoint`), and under which
    `gateway.config.LISTENERS` has the settings of its addresses. beside: makes that of a further
    address, of what was made for the first; None where there is one address only.
    """

    listener: str
    make: Callable[[Runtime, Surroundings], FrontEnd]
    beside: Callable[[Runtime, Surroundings, FrontEnd, ListenAddress], FrontEnd] | None = None
