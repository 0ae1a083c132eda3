"""The endpoints of Pulsar's REST, and what their handlers are given."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from core.security.pulsar_operations import Need
from gateway.pulsar.session import Services
from gateway.runtime.rights import RefusalObserver
from gateway.web.api import Given, Refused, Registry
from gateway.web.call import Call
from gateway.web.peers import Peers

ADMIN: Final = Registry()

PREFIX: Final = "/admin/"
NOT_SERVED: Final = Refused(
    501,
    "Penstock does not serve this of Pulsar's REST; docs/protocol-support.md has what it serves",
)
CLUSTER: Final = "standalone"
"""The only cluster there is, by the name that Pulsar gives one that stands alone."""


@dataclass(frozen=True, slots=True)
class AdminServices:
    """What handlers may ask. pulsar: as the handlers of commands have it. on_refused: counts
    refusals for lack of a right."""

    pulsar: Services
    peers: Peers
    on_refused: RefusalObserver = lambda *_: None


AdminCall = Call[AdminServices]


def endpoint(method: str, path: str, needs: Need | None) -> Callable[[Given], Given]:
    """Enter the decorated function. needs: what it asks for; None: nothing, or handlers do."""
    return ADMIN.endpoint(method, path, needs)


def load_endpoints() -> Registry:
    """Import every module of this folder: now `ADMIN` is complete; return it."""
    package = importlib.import_module("gateway.pulsar.admin")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return ADMIN
