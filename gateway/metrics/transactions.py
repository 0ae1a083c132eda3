"""What is counted of transactions: how they end, how fast, what is open, and who is fenced.

Under penstock_… names: Kafka counts none of it but what is being loaded. Knows no rule.
"""

from collections.abc import Callable
from typing import Final

from prometheus_client import Counter, Histogram

from gateway.metrics.registry import Metrics
from gateway.runtime.flush.flusher import Flusher
from gateway.runtime.transactions.coordinator import Transactions

_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30)
_ENDS: Final = (
    (True, "client"),
    (False, "client"),
    (False, "fenced"),
    (False, "timeout"),
    (False, "marker"),
)


def watch_transactions(metrics: Metrics, transactions: Transactions, flusher: Flusher) -> None:
    """Makes the metrics."""
    ended = Counter(
        "penstock_transactions",
        "Transactions that this broker has ended, and who made it: the client, a later producer of"
        " the same id (fenced), the timeout, or a marker from outside.",
        ("outcome", "by"),
        registry=metrics.registry,
    )
    seconds = Histogram(
        "penstock_transaction_end_seconds",
        "Seconds to end a transaction, until it is durable.",
        ("outcome",),
        buckets=_SECONDS,
        registry=metrics.registry,
    )
    for is_commit, why in _ENDS:  # so that each is there before it happens
        ended.labels(_outcome(is_commit), why)

    def on_ended(is_commit: bool, why: str, took: float) -> None:
        ended.labels(_outcome(is_commit), why).inc()
        seconds.labels(_outcome(is_commit)).observe(took)

    transactions.on_ended(on_ended)
    metrics.watch(
        "penstock_transactions_open",
        "Transactions open in the whole cluster.",
        lambda: transactions.open_count,
    )
    metrics.watch(
        "penstock_transaction_oldest_seconds",
        "For how long the oldest open transaction is open.",
        lambda: transactions.oldest_s,
    )
    watch_fenced(metrics, "coordinator", lambda: transactions.fenced)
    watch_fenced(metrics, "produce", lambda: flusher.fenced)


def watch_fenced(metrics: Metrics, by: str, read: Callable[[], float]) -> None:
    """Makes the metric of what one place has refused; front-ends may have places of their own."""
    metrics.watch(
        "penstock_transactions_fenced_requests",
        "Requests and batches refused because their producer has been fenced, or (connection)"
        " because they are late and it has gone on on another connection.",
        read,
        {"by": by},
    )


def _outcome(is_commit: bool) -> str:
    return "commit" if is_commit else "abort"
