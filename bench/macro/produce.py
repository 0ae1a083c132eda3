"""Produce throughput: record sizes, partitions, producers, three clients."""

from __future__ import annotations

from functools import partial
from itertools import product

from bench.brokers import Broker
from bench.case import Case, Figures, Skipped, charged, throughput
from bench.clients import produce_java, run_workers
from bench.processes import PeakMemory
from compat.java.tools import unavailable

# Records of a turn, by their size in bytes: some seconds for a broker that syncs.
RECORDS = {100: 1_000_000, 1_000: 300_000, 10_000: 20_000}
HEADLINE_RECORDS = 500_000  # of 1 kB: long enough for the client's JIT not to set the figure

HEADLINE = ("java", 1_000, 4, 1)

# What confluent-kafka and aiokafka, busy in Python, send in about as long.
PYTHON_SHARE = {"confluent": 0.7, "aiokafka": 0.15}

SHOWN = {100: "100B", 1_000: "1kB", 10_000: "10kB"}


def produce(
    client: str, size: int, partitions: int, producers: int, records: int, broker: Broker
) -> Figures:
    """One turn on a topic of its own: rates, CPU per record, peak memory of the server's side."""
    if client == "java" and (reason := unavailable()):
        raise Skipped(reason)
    with broker.topic(partitions) as topic, PeakMemory(dict(broker.processes)) as memory:
        before = broker.cpu_seconds()
        if client == "java":
            result = produce_java(broker.bootstrap, topic, records, size, producers)
        else:
            result = run_workers(
                f"produce_{client}",
                producers,
                bootstrap=broker.bootstrap,
                topic=topic,
                records=records // producers,
                size=size,
            )
        figures = throughput(result, size)
        figures |= charged(broker, before, result["records"], result["cpu_s"])
    for name, peak in memory.peaks.items():
        figures |= {f"{name}_peak_rss_mb": peak.rss, f"{name}_peak_pss_mb": peak.pss}
    return figures


def case(
    client: str, size: int, partitions: int, producers: int, share: float, **options: bool
) -> Case:
    shape = (client, size, partitions, producers)
    records = int(RECORDS[size] * share * PYTHON_SHARE.get(client, 1.0)) // producers * producers
    if shape == HEADLINE:
        records = int(HEADLINE_RECORDS * max(share, 0.5))
    return Case(
        name=f"produce/{client}/{SHOWN[size]}/{partitions}p/{producers}x",
        headline="mb_per_s",
        run=partial(produce, client, size, partitions, producers, records),
        rounds=3 if shape == HEADLINE else 2,
        copied_bytes=records * size,
        **options,
    )


def cases(share: float) -> list[Case]:
    """`share` scales the records of each turn. --long takes every combination with Java."""
    sampled = [
        HEADLINE,
        ("java", 100, 4, 1),
        ("java", 10_000, 4, 1),
        ("java", 1_000, 1, 1),
        ("java", 1_000, 64, 1),
        ("java", 1_000, 4, 8),
        ("confluent", 1_000, 4, 1),
        ("confluent", 1_000, 64, 8),
        ("aiokafka", 1_000, 4, 1),
    ]
    quick = {HEADLINE, ("confluent", 1_000, 4, 1)}
    every = [("java", *shape) for shape in product(RECORDS, (1, 4, 64), (1, 8))]
    return [case(*shape, share, quick=shape in quick) for shape in sampled] + [
        case(*shape, share, long=True) for shape in every if shape not in sampled
    ]
