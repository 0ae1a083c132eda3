"""What is counted of transactions: how they end, how fast, what is open, and who is fenced.

Under penstock_… names, for both protocols: Kafka counts none of it but what is being loaded. What
Pulsar counts has its own names as well. Knows no rule.
"""

from collections.abc import Callable
from typing import Final

from prometheus_client import Counter, Histogram

from core.transaction.key import TransactionKind
from gateway.metrics.registry import Metrics
from gateway.runtime.flush.flusher import Flusher
from gateway.runtime.transactions.coordinator import Ended, Transactions

_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30)
# Of pulsar_txn_execution_latency, as Pulsar has them.
_MILLISECONDS: Final = (
    *(10, 20, 50, 100, 500, 1_000, 5_000, 15_000, 30_000, 60_000),
    *(300_000, 1_500_000, 3_000_000),
)
_PROTOCOLS: Final = {TransactionKind.TRANSACTIONAL_ID: "kafka", TransactionKind.TXN_ID: "pulsar"}
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
        ("outcome", "by", "protocol"),
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
        for protocol in _PROTOCOLS.values():
            if (why, protocol) != ("fenced", "pulsar"):  # nobody fences them
                ended.labels(_outcome(is_commit), why, protocol)
    on_pulsars = _watch_pulsars(metrics, transactions)

    def on_ended(of: Ended) -> None:
        ended.labels(_outcome(of.is_commit), of.why, _PROTOCOLS[of.kind]).inc()
        seconds.labels(_outcome(of.is_commit)).observe(of.seconds)
        if of.kind is TransactionKind.TXN_ID:
            on_pulsars(of)

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


def _watch_pulsars(metrics: Metrics, transactions: Transactions) -> Callable[[Ended], None]:
    """Makes the metrics that Pulsar has; gives what has to hear of each end."""
    metrics.watch(
        "pulsar_txn_active_count",
        "Pulsar's transactions open in the whole cluster.",
        lambda: transactions.open_single_use_count,
    )
    metrics.watch(
        "pulsar_txn_created_total",
        "Pulsar's transactions that clients have begun at this broker.",
        lambda: transactions.begun,
    )
    committed, aborted, timed_out = (
        Counter(f"pulsar_txn_{name}", f"{of} at this broker.", registry=metrics.registry)
        for name, of in (
            ("committed", "Pulsar's transactions that were committed"),
            ("aborted", "Pulsar's transactions that were aborted, also by their timeout,"),
            ("timeout", "Pulsar's transactions that were aborted by their timeout"),
        )
    )
    latency = Histogram(
        "pulsar_txn_execution_latency",
        "Milliseconds from the beginning of a transaction of Pulsar's to its end.",
        buckets=_MILLISECONDS,
        registry=metrics.registry,
    )

    def on_ended(of: Ended) -> None:
        (committed if of.is_commit else aborted).inc()
        if of.why == "timeout":
            timed_out.inc()
        latency.observe(of.open_ms)

    return on_ended


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
