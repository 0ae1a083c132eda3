"""What is counted of staging: what lies unpublished, and publications. Knows no rule."""

from prometheus_client import Counter

from gateway.metrics.registry import Metrics
from gateway.runtime.staging import Staging


def watch_staging(metrics: Metrics, staging: Staging) -> None:
    """Makes the metrics."""
    published = Counter(
        "penstock_staged_published",
        "Publications of staged records by this broker.",
        registry=metrics.registry,
    )
    staging.on_published(published.inc)
    metrics.watch(
        "penstock_staged_bytes",
        "Bytes staged and not yet published in the whole cluster.",
        lambda: staging.staged_bytes,
    )
