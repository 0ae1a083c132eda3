"""Transactions per second and what one takes; a Java producer with and without transactions."""

from __future__ import annotations

from functools import partial

from bench.brokers import Broker
from bench.case import Case, Figures, Skipped, charged
from bench.clients import produce_java, run_workers
from compat.java.tools import unavailable

SECONDS = 5.0
RECORDS = 4  # of a transaction; one for each partition where there are more

# How many producers: processes, and threads in each.
PRODUCERS = {1: (1, 1), 8: (8, 1), 64: (8, 8)}

JAVA_RECORDS = 500_000
JAVA_TRANSACTION_MS = 100
SIZE = 1_000


def transactions(
    producers: int, partitions: int, offsets: bool, seconds: float, broker: Broker
) -> Figures:
    """Each producer does one after the other."""
    # A call for offsets keeps Python's lock while it waits: a process for each of these.
    processes, threads = (producers, 1) if offsets else PRODUCERS[producers]
    with broker.topic(partitions) as topic:
        before = broker.cpu_seconds()
        result = run_workers(
            "transactions_confluent",
            processes,
            bootstrap=broker.bootstrap,
            topic=topic,
            partitions=partitions,
            records=max(RECORDS, partitions),
            seconds=seconds,
            producers=threads,
            offsets=offsets,
        )
        figures = charged(broker, before, result["records"], result["cpu_s"])
    figures["transactions_per_s"] = result["records"] / result["seconds"]
    return figures | {key: float(value) for key, value in result.items() if key.endswith("_ms")}


def beside_plain(records: int, broker: Broker) -> Figures:
    """Kafka's ProducerPerformance without transactions, twice with, and without again."""
    if reason := unavailable():
        raise Skipped(reason)
    rates: dict[bool, float] = {False: 0.0, True: 0.0}
    for transactional in (False, True, True, False):
        with broker.topic(4) as topic:
            transaction_ms = JAVA_TRANSACTION_MS if transactional else None
            result = produce_java(
                broker.bootstrap, topic, records, SIZE, transaction_ms=transaction_ms
            )
        rates[transactional] += float(result["records_per_s"]) / 2
    return {
        "to_plain_ratio": rates[True] / rates[False],
        "plain_records_per_s": rates[False],
        "transactional_records_per_s": rates[True],
    }


def cases(share: float) -> list[Case]:
    """`share` scales the time of each turn. --long has 64 processes with offsets."""
    shapes = [(number, places) for number in PRODUCERS for places in (1, 4, 100)]
    return [
        *(
            Case(
                f"transactions/confluent/{number}x/{places}p" + ("/offsets" if offsets else ""),
                "transactions_per_s",
                partial(transactions, number, places, offsets, SECONDS * share),
                quick=places == 4 and number == 1,
                long=offsets and (number == 64 or (number == 8 and places != 4)),
            )
            for offsets in (False, True)
            for number, places in shapes
        ),
        Case(
            "transactions/java/1kB/4p/100ms",
            "to_plain_ratio",
            partial(beside_plain, int(JAVA_RECORDS * max(share, 0.5))),
        ),
    ]
