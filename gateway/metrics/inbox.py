"""What is counted of the inbox: records of applications' own transactions. Knows no rule."""

from __future__ import annotations

from prometheus_client import Counter, Histogram

from gateway.metrics.registry import Metrics
from gateway.runtime.inbox.inbox import Inbox

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 5, 30, 300)


def watch_inbox(metrics: Metrics, inbox: Inbox) -> None:
    """Makes the metrics."""
    published = Counter(
        "penstock_inbox_published_records",
        "Records of applications' own transactions that this broker has published.",
        registry=metrics.registry,
    )
    seconds = Histogram(
        "penstock_inbox_publication_seconds",
        "From the COMMIT of a bite's oldest transaction until the look that led to publication.",
        buckets=_SECONDS,
        registry=metrics.registry,
    )

    def count(waited_s: float, records: int) -> None:
        published.inc(records)
        seconds.observe(waited_s)

    inbox.on_published = count
    metrics.watch(
        "penstock_inbox_refused_records",
        "Records of applications' own transactions that could not be published, by this broker.",
        lambda: inbox.refused,
    )
    metrics.watch(
        "penstock_inbox_oldest_seconds",
        "Age of the oldest transaction that waited in this broker's last look at the inbox.",
        lambda: inbox.oldest_s,
    )
