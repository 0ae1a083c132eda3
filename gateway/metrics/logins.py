"""Logins: how many, by listener, mechanism and outcome. Knows no user."""

from typing import Final

from prometheus_client import CollectorRegistry, Counter

OUTCOMES: Final = ("success", "failure")


class Logins:
    """Those of a process; made when the first listener is there that asks who comes."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._logins = Counter(
            "penstock_logins",
            "Logins that have ended, by how: by the listener's name, and by SASL's mechanism, or"
            " unsupported. Those that prolong a session are among them.",
            ("listener", "mechanism", "outcome"),
            registry=registry,
        )

    def count(self, listener: str, mechanism: str, outcome: str) -> None:
        """One has ended."""
        self._logins.labels(listener, mechanism, outcome).inc()
