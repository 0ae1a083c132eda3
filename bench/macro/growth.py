"""Growth: a consumer of thousands of partitions; random reads and lookups in a large log."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from bench.brokers import Broker
from bench.case import Case, Figures, charged, throughput
from bench.clients import run_workers

SIZE = 1_000
RECORDS = 100_000  # over all partitions
PARTITIONS = (100, 1_000, 5_000, 10_000)
LOG_PARTITIONS = 4
LOG_GB = (0.1, 1, 6)
LOOK_UPS = 300


def over_partitions(partitions: int, records: int, broker: Broker) -> Figures:
    """Load all partitions alike, then read them from the beginning with one consumer, twice."""
    with broker.topic(partitions) as topic:
        common: dict[str, Any] = {"bootstrap": broker.bootstrap, "topic": topic}
        common |= {"records": records, "partitions": partitions}
        loaded = run_workers("produce_confluent", size=SIZE, linger_ms=100, **common)
        figures = {f"load_{key}": value for key, value in throughput(loaded, SIZE).items()}
        for turn in ("first_", ""):
            before = broker.cpu_seconds()
            result = run_workers("consume_confluent", **common)
            if (result["records"], result["bytes"]) != (records, records * SIZE):
                raise RuntimeError(f"read {result['records']} of {records} records")
            rates = throughput(result, SIZE) | charged(broker, before, records, result["cpu_s"])
            figures |= {f"{turn}{key}": value for key, value in rates.items()}
    return figures


def in_a_large_log(gigabytes: float, broker: Broker) -> Figures:
    """Fill a log, then read at random offsets and look up random times, one after the other."""
    records = int(gigabytes * 1e9 / SIZE)
    with broker.topic(LOG_PARTITIONS) as topic:
        common: dict[str, Any] = {"bootstrap": broker.bootstrap, "topic": topic}
        common["partitions"] = LOG_PARTITIONS
        begun = int(time.time() * 1000)
        run_workers("produce_confluent", records=records, size=SIZE, **common)
        ended = int(time.time() * 1000)
        result = run_workers(
            "look_up_confluent",
            records=records // LOG_PARTITIONS,
            begun_ms=begun,
            ended_ms=ended,
            look_ups=LOOK_UPS,
            **common,
        )
    return {key: value for key, value in result.items() if key.endswith(("p50_ms", "p99_ms"))}


def cases(share: float) -> list[Case]:
    """`share` is ignored but for --quick's sample: how much there is, is what is measured."""
    records = int(RECORDS * max(share, 0.5))
    return [
        *(
            Case(
                f"partitions/confluent/1kB/{count}p",
                "records_per_s",
                partial(over_partitions, count, records),
                quick=count == 1_000,
                long=count > 5_000,
            )
            for count in PARTITIONS
        ),
        *(
            Case(
                f"log-size/confluent/1kB/{gigabytes:g}GB",
                "read_p50_ms",
                partial(in_a_large_log, gigabytes),
                rounds=1,
                long=gigabytes > 1,
            )
            for gigabytes in LOG_GB
        ),
    ]
