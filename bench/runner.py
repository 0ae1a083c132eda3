"""Runs cases: brokers take turns within each case, the medians count, failures do not stop it.

Must not know any case or how results are shown.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import psutil
import psycopg
from confluent_kafka import KafkaException

from bench.brokers import Broker
from bench.case import Case, Figures, Skipped
from bench.clients import (
    ClientFailed,
    produce_java,
    pulsar_java,
    pulsar_unavailable,
    run_workers,
)
from bench.copy_yardstick import copy_mb_per_s
from compat.java.tools import unavailable

# A figure of every turn: CPU taken by programs that are not part of the benchmark.
OTHERS = "others_cpu_percent"

# What may go wrong in a turn without its being the harness's own fault.
FAILURES = (
    ClientFailed,
    KafkaException,
    OSError,
    RuntimeError,
    psycopg.Error,
    subprocess.TimeoutExpired,
)


@dataclass(slots=True)
class Outcome:
    """All turns of one case: per broker its figures in order, or why there are none."""

    case: Case
    turns: dict[str, list[Figures]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    copies_mb_per_s: list[float] = field(default_factory=list)

    def figures(self, broker: str) -> Figures:
        """The median of each figure over a broker's turns."""
        turns = self.turns.get(broker, [])
        names = turns[0] if turns else ()
        return {name: median(turn[name] for turn in turns) for name in names}

    def headline(self, broker: str) -> float | None:
        return self.figures(broker).get(self.case.headline)

    def others_percent(self) -> float | None:
        """CPU that strangers took in the worst turn, in percent of one core."""
        seen = [turn[OTHERS] for turns in self.turns.values() for turn in turns if OTHERS in turn]
        return max(seen, default=None)

    def copy(self) -> float | None:
        return median(self.copies_mb_per_s) if self.copies_mb_per_s else None


def warm_up(broker: Broker, cases: Sequence[Case]) -> None:
    """Let a JIT and caches see the traffic of the cases before anything counts."""
    of_pulsar = [case for case in cases if case.name.startswith("pulsar/")]
    if of_pulsar and broker.pulsar_url and pulsar_unavailable() is None:
        with broker.topic(4) as topic:
            url = broker.pulsar_url
            sent = pulsar_java("PulsarProducer", url, topic, 200_000, 1_024, "true", 0)["sent"]
            pulsar_java("PulsarConsumer", url, topic, sent, 1)
        with broker.topic(1) as topic:
            pulsar_java("PulsarAcks", url, topic, 20_000, 100, "false")
    if len(of_pulsar) == len(cases) or not broker.can_run("produce/java"):
        return
    with broker.topic(4) as topic:
        common: dict[str, Any] = {"bootstrap": broker.bootstrap, "topic": topic, "size": 1_000}
        run_workers("produce_confluent", records=50_000, **common)
        run_workers("ack_confluent", seconds=1.0, **common)
        if unavailable() is None:
            produce_java(records=100_000, **common)
        if broker.can_run("catch-up/confluent"):
            del common["size"]
            run_workers("consume_confluent", records=50_000, partitions=4, **common)


def run_case(
    case: Case,
    brokers: Sequence[Broker],
    database_url: str | None,
    rounds: int,
    tell: Callable[[str], None],
) -> Outcome:
    """`rounds` rounds; in each every broker has a turn, and raw COPY one if the case asks.

    `tell` hears before each turn whose it is.
    """
    outcome = Outcome(case)
    for _ in range(rounds):
        for broker in brokers:
            tell(f"{case.name}: {broker.name}")
            if not broker.can_run(case.name):
                outcome.skipped[broker.name] = "it does not serve this"
            if broker.name in outcome.skipped or broker.name in outcome.failed:
                continue
            write_out_all(brokers)
            try:
                before = (time.monotonic(), strangers_cpu_seconds(brokers))
                figures = case.run(broker)
                elapsed = time.monotonic() - before[0]
                taken = strangers_cpu_seconds(brokers) - before[1]
                figures[OTHERS] = max(0.0, 100 * taken / elapsed)
                outcome.turns.setdefault(broker.name, []).append(figures)
            except Skipped as reason:
                outcome.skipped[broker.name] = str(reason)
            except FAILURES as failure:
                outcome.failed[broker.name] = f"{type(failure).__name__}: {failure}"
        if case.copied_bytes and database_url:
            write_out_all(brokers)
            copied = copy_mb_per_s(database_url, case.copied_bytes)
            outcome.copies_mb_per_s.append(copied)
    return outcome


def strangers_cpu_seconds(brokers: Sequence[Broker]) -> float:
    """CPU time spent so far by whatever is neither a broker nor ours: only differences count.

    A broker whose process ids are not known counts as a stranger.
    """
    times = psutil.cpu_times()
    busy = times.user + times.nice + times.system + times.irq + times.softirq + times.steal
    groups = {group for broker in brokers for group in broker.processes.values()}
    known = sum(group.cpu_seconds() for group in groups)
    own = sum(os.times()[:4])  # user, system, and the same of children that were waited for
    return busy - known - own


def write_out_all(brokers: Sequence[Broker]) -> None:
    """One broker's dirty pages and deleted topics must not be written in another's turn.

    A database that is gone, or does not let us, is no reason to fail the turn of another broker.
    """
    for broker in brokers:
        with contextlib.suppress(psycopg.Error):
            broker.write_out()
    time.sleep(0.3)
