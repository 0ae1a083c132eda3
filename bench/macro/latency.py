"""Latencies of single records: acknowledgement, and producer to consumer at the tail."""

from __future__ import annotations

from functools import partial

from bench.brokers import Broker
from bench.case import Case, Figures, Skipped, charged
from bench.clients import end_to_end_java, run_workers
from compat.java.tools import unavailable

SECONDS = 4.0
SIZE = 1_000


def by_worker(work: str, seconds: float, broker: Broker) -> Figures:
    """A worker sends records one at a time for `seconds`."""
    with broker.topic(1) as topic:
        before = broker.cpu_seconds()
        result = run_workers(
            work, bootstrap=broker.bootstrap, topic=topic, seconds=seconds, size=SIZE
        )
        figures = {key: value for key, value in result.items() if key.endswith("_ms")}
        return figures | charged(broker, before, result["records"], result["cpu_s"])


def end_to_end_tool(records: int, broker: Broker) -> Figures:
    """Kafka's EndToEndLatency (its consumer polls without waiting)."""
    if reason := unavailable():
        raise Skipped(reason)
    with broker.topic(1) as topic:
        result = end_to_end_java(broker.bootstrap, topic, records, SIZE)
    return {key: value for key, value in result.items() if key.endswith("_ms")}


def cases(share: float) -> list[Case]:
    """`share` scales the time of each turn."""
    seconds = SECONDS * share
    return [
        Case(
            "ack/confluent/1kB", "p50_ms", partial(by_worker, "ack_confluent", seconds), quick=True
        ),
        Case("ack/aiokafka/1kB", "p50_ms", partial(by_worker, "ack_aiokafka", seconds)),
        Case(
            "end-to-end/confluent/1kB",
            "mean_ms",
            partial(by_worker, "end_to_end_confluent", seconds),
            quick=True,
        ),
        Case(
            "end-to-end/aiokafka/1kB", "mean_ms", partial(by_worker, "end_to_end_aiokafka", seconds)
        ),
        Case("end-to-end/java/1kB", "mean_ms", partial(end_to_end_tool, int(3000 * share))),
    ]
