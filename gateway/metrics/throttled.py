"""Time for which connections were left unread because of quotas, by quota. Knows no client."""

from prometheus_client import CollectorRegistry, Counter


class Throttled:
    """That of a process; made when the first client is held back."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._seconds = Counter(
            "penstock_throttled_seconds",
            "Seconds for which connections were left unread because of a quota, added up.",
            ("quota",),
            registry=registry,
        )

    def count(self, quota: str, seconds: float) -> None:
        """One is left unread for so long."""
        self._seconds.labels(quota).inc(seconds)
