"""Refusals by ACLs: how many, by request and operation. Knows no user and no resource."""

from prometheus_client import CollectorRegistry, Counter


class Refusals:
    """Those of a process; made where clients are asked for rights."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._refusals = Counter(
            "penstock_refusals",
            "Times that a client lacked a right, by what it asked for and the operation.",
            ("request", "operation"),
            registry=registry,
        )

    def count(self, request: str, operation: str) -> None:
        """One was refused."""
        self._refusals.labels(request, operation).inc()
