"""What a front-end is to the process: the name of its listener, how it is made, how it ends.

A front-end is the protocol of one folder beside this file. `gateway.app` has the table of them;
this room knows none.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gateway import listener
from gateway.config import Settings
from gateway.metrics.registry import Metrics
from gateway.request_memory import RequestMemory
from gateway.runtime.runtime import Runtime


class FrontEnd(listener.FrontEnd, Protocol):
    """One protocol, as the process sees it."""

    async def drain(self, timeout_s: float) -> None:
        """Waits, up to a time, for what its clients have left under way. They have gone."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a front-end gets beside the runtime; all of it is shared by all front-ends.

    metrics: where it counts its requests, by names of its own, and enters what else it counts.
    """

    settings: Settings
    limits: listener.ConnectionLimits
    memory: RequestMemory
    metrics: Metrics


@dataclass(frozen=True, slots=True)
class FrontEndFactory:
    """A front-end to be made once the broker has joined its cluster.

    listener: its name, under which brokers tell each other of its address (`broker_endpoint`), and
    by which `gateway.config.LISTENERS` finds the settings of its addresses.
    """

    listener: str
    make: Callable[[Runtime, Surroundings], FrontEnd]
