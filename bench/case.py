"""What a case is, what its figures are called, and how CPU time is charged to records.

Knows no case, no broker by name and no layout of a report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bench.brokers import Broker

Figures = dict[str, float]


class Skipped(Exception):
    """This case cannot run here or on this broker; the message says why."""


@dataclass(frozen=True, slots=True)
class Unit:
    shown: str
    more_is_better: bool = False


# A figure's unit is the longest of these its name ends with.
UNITS: Mapping[str, Unit] = {
    "_per_s": Unit("/s", more_is_better=True),
    "mb_per_s": Unit("MB/s", more_is_better=True),
    "_ms": Unit("ms"),
    "_s": Unit("s"),
    "_mb": Unit("MB"),
    "_us_per_record": Unit("µs"),
    "_percent": Unit("%"),
    "_kb_each": Unit("kB"),
    "_ratio": Unit("x", more_is_better=True),
    "_times": Unit("x"),
    "_s_per_gb": Unit("s/GB"),
}


def unit_of(figure: str) -> Unit:
    fitting = [suffix for suffix in UNITS if figure.endswith(suffix)]
    return UNITS[max(fitting, key=len)] if fitting else Unit("")


@dataclass(frozen=True, slots=True)
class Case:
    """One thing measured: `run(broker)` is one turn and returns its figures.

    `name` is group/client/parameters. `headline` is the figure tables and plots show. `rounds`
    turns are taken on each broker, the brokers taking turns; the median counts. `copied_bytes`:
    what raw COPY writes beside it, or 0 for none. `quick` cases are the sample of --quick;
    `long` ones run with --long only.
    """

    name: str
    headline: str
    run: Callable[[Broker], Figures]
    rounds: int = 2
    quick: bool = False
    long: bool = False
    copied_bytes: int = 0


def charged(
    broker: Broker, before: Mapping[str, float], records: float, client_cpu_s: float | None = None
) -> Figures:
    """CPU microseconds per record of the client and of each of the broker's process groups."""
    spent = {name: after - before[name] for name, after in broker.cpu_seconds().items()}
    figures = {f"{name}_us_per_record": 1e6 * cpu / records for name, cpu in spent.items()}
    if client_cpu_s is not None:
        figures["client_us_per_record"] = 1e6 * client_cpu_s / records
    return figures


def throughput(result: Mapping[str, Any], size: int) -> Figures:
    """records/s and MB/s of a client's result; the latencies under load, where it saw them."""
    rate = result.get("records_per_s") or result["records"] / result["seconds"]
    latencies = {key: float(value) for key, value in result.items() if key.endswith("_ms")}
    return {"records_per_s": rate, "mb_per_s": rate * size / 1e6} | latencies
