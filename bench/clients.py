"""Runs client programs (workers of bench.worker, Kafka's Java tools) and adds up what they report.

Knows processes and their output; must not know brokers' insides or how figures are shown.
"""

from __future__ import annotations

import contextlib
import json
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.processes import stop_process
from compat.java.tools import java_command, java_tool, unavailable

JAVA_SOURCES = Path(__file__).with_name("java")
PULSAR_CLIENT = JAVA_SOURCES / "pulsar-client.pom.xml"


class ClientFailed(RuntimeError):
    """A client ended without a result; the message holds what it said."""


@dataclass(slots=True)
class Worker:
    """One client process that has said it is ready."""

    process: subprocess.Popen[str]

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def wait_until_ready(self) -> None:
        """Until it says so, as each does before it begins; ClientFailed if it ends instead."""
        assert self.process.stdout is not None and self.process.stderr is not None
        if self.process.stdout.readline() != "ready\n":
            raise ClientFailed(f"{self.process.args!r}\n{self.process.stderr.read()[-2000:]}")

    def result(self, timeout_s: float) -> dict[str, Any]:
        out, err = self.process.communicate(timeout=timeout_s)
        if self.process.returncode or not out.strip():
            raise ClientFailed(f"{self.process.args!r}\n{err[-2000:]}")
        parsed: dict[str, Any] = json.loads(out.splitlines()[-1])
        return parsed


@contextlib.contextmanager
def prepared(work: str, count: int = 1, **parameters: Any) -> Iterator[list[Worker]]:
    """`count` workers doing the same, all ready to go; killed on the way out if still there."""
    command = [sys.executable, "-m", "bench.worker", work, json.dumps(parameters)]
    with contextlib.ExitStack() as stack:
        workers = []
        for _ in range(count):
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
                cwd=Path(__file__).parents[1],
            )
            stack.callback(stop_process, process, 2.0)
            workers.append(Worker(process))
        for worker in workers:
            worker.wait_until_ready()
        yield workers


def run_workers(
    work: str, count: int = 1, timeout_s: float = 300, **parameters: Any
) -> dict[str, Any]:
    """Let `count` workers go at once and add their results up.

    Counts, bytes and CPU are sums; `seconds` is from the first beginning to the last end; the
    latencies of several workers are averaged.
    """
    with prepared(work, count, **parameters) as workers:
        for worker in workers:
            worker.go()
        return added_up([worker.result(timeout_s) for worker in workers])


def added_up(results: list[dict[str, Any]]) -> dict[str, Any]:
    total: dict[str, Any] = {}
    for key in results[0]:
        values = [result[key] for result in results]
        total[key] = sum(values) / len(values) if key.endswith("_ms") else sum(values)
    if "begun" in total:
        total["begun"] = min(result["begun"] for result in results)
        total["ended"] = max(result["ended"] for result in results)
        total["seconds"] = total["ended"] - total["begun"]
    return total


_PRODUCED = re.compile(
    r"(\d+) records sent, ([\d.]+) records/sec.*, ([\d.]+) ms avg latency, [\d.]+ ms max latency, "
    r"(\d+) ms 50th, (\d+) ms 95th, (\d+) ms 99th"
)


@contextlib.contextmanager
def children_cpu() -> Iterator[list[float]]:
    """The CPU seconds of the processes reaped meanwhile, put into the list that is yielded."""
    spent: list[float] = []
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    yield spent
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def produce_java(
    bootstrap: str,
    topic: str,
    records: int,
    size: int,
    producers: int = 1,
    linger_ms: int = 5,
    transaction_ms: int | None = None,
) -> dict[str, Any]:
    """Kafka's ProducerPerformance, `producers` of them in one JVM; rates are its own, summed.

    `transaction_ms`: in transactions that last so long, or without any (None). `cpu_s` is the whole
    JVM's, its start included. Raises JavaUnavailable, RuntimeError.
    """
    settings = [
        f"bootstrap.servers={bootstrap}",
        "acks=all",
        f"linger.ms={linger_ms}",
        "client.id=producer-@",
    ]
    transactions = (
        []
        if transaction_ms is None
        else ["--transactional-id", f"{topic}-@", "--transaction-duration-ms", transaction_ms]
    )
    with children_cpu() as cpu:
        out = java_tool(
            JAVA_SOURCES / "Producers.java",
            producers,
            "--topic",
            topic,
            "--num-records",
            records // producers,
            "--record-size",
            size,
            "--throughput",
            -1,
            *transactions,
            "--producer-props",
            *settings,
            timeout=300,
        ).stdout
    finals = _PRODUCED.findall(out)
    if len(finals) != producers:
        raise ClientFailed(f"ProducerPerformance said:\n{out}")
    return {
        "records": sum(int(final[0]) for final in finals),
        "records_per_s": sum(float(final[1]) for final in finals),
        "p50_ms": sum(float(final[3]) for final in finals) / producers,
        "p99_ms": max(float(final[5]) for final in finals),
        "cpu_s": cpu[0],
    }


def consume_java(bootstrap: str, topic: str, records: int) -> dict[str, Any]:
    """The Java consumer by assignment, from the beginning."""
    with children_cpu() as cpu:
        out = java_tool(JAVA_SOURCES / "AssignedConsumer.java", bootstrap, topic, records).stdout
    parsed: dict[str, Any] = json.loads(out.splitlines()[-1])
    return parsed | {"cpu_s": cpu[0]}


def end_to_end_java(bootstrap: str, topic: str, records: int, size: int) -> dict[str, Any]:
    """Kafka's EndToEndLatency: its figures count, not its exit (it ends by committing offsets)."""
    begun = time.monotonic()
    done = java_tool(
        "org.apache.kafka.tools.EndToEndLatency",
        bootstrap,
        topic,
        records,
        "all",
        size,
        Path(__file__).with_name("java") / "end_to_end.properties",
        check=False,
        log_level="off",
    )
    mean = re.search(r"Avg latency: ([\d.]+) ms", done.stdout)
    percentiles = re.search(r"50th = (\d+), 99th = (\d+)", done.stdout)
    if mean is None or percentiles is None:
        raise ClientFailed(f"EndToEndLatency said:\n{done.stdout[-1000:]}\n{done.stderr[-1000:]}")
    return {
        "records": records,
        "mean_ms": float(mean[1]),
        "p50_ms": float(percentiles[1]),  # whole milliseconds, rounded down by the tool
        "p99_ms": float(percentiles[2]),
        "seconds": time.monotonic() - begun,
    }


# --- Pulsar's Java client ---


def pulsar_unavailable() -> str | None:
    """Why Pulsar's Java client cannot run here, in one sentence, or None if it can."""
    return unavailable(PULSAR_CLIENT)


def pulsar_java(program: str, *arguments: str | int | float) -> dict[str, Any]:
    """One of the programs Pulsar*.java to its end: what it printed, and the JVM's `cpu_s`.

    Raises JavaUnavailable, RuntimeError.
    """
    with children_cpu() as cpu:
        out = java_tool(
            JAVA_SOURCES / f"{program}.java",
            *map(str, arguments),
            timeout=600,
            heap="1g",
            pom=PULSAR_CLIENT,
        ).stdout
    parsed: dict[str, Any] = json.loads(out.splitlines()[-1])
    return parsed | {"cpu_s": cpu[0]}


@contextlib.contextmanager
def pulsar_steps(program: str, *arguments: str | int) -> Iterator[Iterator[dict[str, float]]]:
    """One of the programs that do a step, print its figures and wait to be told to go on.

    Yields what does the next step and gives its figures; it raises ClientFailed. The program is
    stopped on the way out.
    """
    source = JAVA_SOURCES / f"{program}.java"
    process = subprocess.Popen(
        java_command(source, *arguments, heap="1g", pom=PULSAR_CLIENT),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )

    def steps() -> Iterator[dict[str, float]]:
        assert process.stdin is not None and process.stdout is not None
        assert process.stderr is not None
        while True:
            line = process.stdout.readline()
            if not line:
                raise ClientFailed(f"{program} said:\n{process.stderr.read()[-2000:]}")
            yield json.loads(line)
            process.stdin.write("\n")
            process.stdin.flush()

    try:
        yield steps()
    finally:
        stop_process(process, 5.0)
