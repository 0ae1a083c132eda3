"""The endpoints of Pulsar's REST, and what their handlers are given."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from typing import Final

from gateway.pulsar.session import Services
from gateway.web.api import Refused, Registry
from gateway.web.call import Call
from gateway.web.peers import Peers

ADMIN: Final = Registry()
endpoint: Final = ADMIN.endpoint

PREFIX: Final = "/admin/"
NOT_SERVED: Final = Refused(
    501,
    "Penstock does not serve this of Pulsar's REST; docs/protocol-support.md has what it serves",
)
CLUSTER: Final = "standalone"
"""The only cluster there is, by the name that Pulsar gives one that stands alone."""


@dataclass(frozen=True, slots=True)
class AdminServices:
    """What handlers may ask. pulsar: as the handlers of commands have it."""

    pulsar: Services
    peers: Peers


AdminCall = Call[AdminServices]


def load_endpoints() -> Registry:
    """Import every module of this folder: now `ADMIN` is complete; return it."""
    package = importlib.import_module("gateway.pulsar.admin")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return ADMIN
