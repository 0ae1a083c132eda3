"""The flights through Spark: delays per carrier and hour, to a topic and to Parquet, killed twice.

The flights of New York are produced to a topic. `penstock pipeline transform` keeps the totals of
each carrier and hour (a stateful aggregation) and writes each that changed to a second topic;
`penstock pipeline archive` brings those to a Parquet lake. The driver of each is killed (SIGKILL)
in the middle, and started again with the same command. What must come out, in the topic and in
Parquet: the totals that plain pandas computes, and no change of a total twice. Knows clients and
command lines, as any user does; must not know the server.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kafka import KafkaConsumer, TopicPartition
from rich.console import Console
from rich.table import Table

from demo.delays import DelaysFailed, make_topic
from demo.flights import DemoFailed, create_topic, flights, own_broker, produce

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PATIENCE_S = 300.0  # of one run of a pipeline
BATCHES = 6  # micro-batches of each pipeline, about
KILLED_AFTER = ("batch 0:", "batch 2:")  # the lines after which a driver is killed, run by run

Record = tuple[bytes | None, bytes]  # key, value
Totals = dict[str, tuple[int, int]]  # of each carrier and hour: flights, minutes of delay
FLIGHT = "carrier STRING, time_hour STRING, arr_delay DOUBLE"


# --- what runs on Spark ---


def delays_by_hour(records: DataFrame) -> DataFrame:
    """For `--python demo.pipeline:delays_by_hour`: from flights to totals.

    A flight that never arrived has no minutes.
    """
    from pyspark.sql import functions as f

    flight = f.from_json(f.col("value").cast("string"), FLIGHT).alias("flight")
    totals = (
        records.select(flight)
        .groupBy("flight.carrier", "flight.time_hour")
        .agg(
            f.count("*").alias("flights"),
            f.coalesce(f.sum("flight.arr_delay"), f.lit(0)).cast("long").alias("minutes"),
        )
    )
    return totals.select(
        f.concat_ws(" ", "carrier", "time_hour").alias("key"),
        f.to_json(f.struct("carrier", "time_hour", "flights", "minutes")).alias("value"),
    )


# --- the same without Spark ---


def expected_totals(records: Iterable[Record]) -> Totals:
    """By pandas, out of the very records."""
    import pandas

    frame = pandas.DataFrame([json.loads(value) for _, value in records])
    grouped = frame.groupby(["carrier", "time_hour"])["arr_delay"]
    totals = pandas.DataFrame({"flights": grouped.size(), "minutes": grouped.sum()})
    return {
        f"{carrier} {hour}": (int(row.flights), int(row.minutes))
        for (carrier, hour), row in totals.iterrows()
    }


def problems(changes: Iterable[Record], expected: Totals) -> Iterator[str]:
    """What is wrong with totals as they changed, in their order."""
    totals: Totals = {}
    repeated = 0
    for key, value in changes:
        name, change = (key or b"").decode(), json.loads(value)
        before = totals.get(name, (0, 0))
        totals[name] = (change["flights"], change["minutes"])
        repeated += totals[name][0] <= before[0]  # a change is by one flight at least
    if repeated:
        yield f"{repeated:,} totals came twice"
    wrong = [name for name in {*expected, *totals} if expected.get(name) != totals.get(name)]
    if wrong:
        yield f"{len(wrong):,} totals are wrong, of {wrong[0]} for example"


# --- a pipeline's process ---


def run_killed(arguments: Sequence[str], kills: int, log: Path, console: Console) -> int:
    """`penstock pipeline …` again and again until it ends by itself; how often it was killed.

    A run that ends before its time to be killed has come is the last one.
    """
    for killed in range(kills):
        if not run_pipeline(arguments, KILLED_AFTER[killed], log, console):
            return killed
    if run_pipeline(arguments, None, log, console):
        raise AssertionError("killed without being asked to")
    return kills


def run_pipeline(
    arguments: Sequence[str], last_line: str | None, log: Path, console: Console
) -> bool:
    """Runs it and shows its lines; True if it was killed, with all its processes, after a line
    that begins so. DemoFailed if it fails."""
    command = [sys.executable, "-m", "penstock", "pipeline", *arguments]
    with log.open("a") as errors:
        process = subprocess.Popen(
            command,
            cwd=Path(__file__).parents[1],  # where `demo.pipeline` is found
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
    assert process.stdout is not None
    too_late = threading.Timer(PATIENCE_S, kill, [process])
    too_late.start()
    try:
        for line in process.stdout:
            console.print(f"  {line.rstrip()}", style="dim", markup=False, highlight=False)
            if last_line is not None and line.startswith(last_line):
                kill(process)
                console.print("  killed", style="yellow")
                return True
        if code := process.wait():
            raise DemoFailed(f"{' '.join(arguments)} ended with {code}:\n{log.read_text()[-3000:]}")
        return False
    finally:
        too_late.cancel()
        kill(process)
        process.stdout.close()


def kill(process: subprocess.Popen[str]) -> None:
    """SIGKILL to the driver: its Python and its Java."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


# --- what came out ---


def read_topic(bootstrap: str, topic: str) -> list[Record]:
    """What is committed, in the order of each partition."""
    records: list[Record] = []
    with closing(
        KafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=None,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        )
    ) as consumer:
        numbers = consumer.partitions_for_topic(topic) or set()
        partitions = [TopicPartition(topic, number) for number in sorted(numbers)]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        deadline = time.monotonic() + PATIENCE_S
        while any(consumer.position(partition) < ends[partition] for partition in partitions):
            if time.monotonic() > deadline:
                raise DemoFailed(f"{topic} cannot be read to its end")
            for batch in consumer.poll(timeout_ms=500).values():
                records += [(record.key, record.value) for record in batch]
    return records


def read_lake(lake: Path) -> list[Record]:
    """All files there are, as somebody without Spark reads them, in the order of each partition."""
    import pyarrow.dataset

    table = pyarrow.dataset.dataset(lake, partitioning="hive").to_table(
        columns=["partition", "offset", "key", "value"]
    )
    rows = table.sort_by([("partition", "ascending"), ("offset", "ascending")]).to_pylist()
    return [(row["key"], row["value"]) for row in rows]


# --- all of it ---


@dataclass(frozen=True, slots=True)
class Step:
    """One line of the summary."""

    what: str
    records: int
    seconds: float
    killed: int = 0
    problems: tuple[str, ...] = ()


def run(bootstrap: str, directory: Path, arguments: argparse.Namespace) -> list[Step]:
    """Every step; DemoFailed where one cannot be finished."""
    console: Console = arguments.console
    source, target = arguments.topic, f"{arguments.topic}-delays-by-hour"
    with console.status("Reading the flights …"):
        records = flights(arguments.limit)
    create_topic(bootstrap, source, arguments.recreate)
    make_topic(bootstrap, target)
    expected = expected_totals(records)
    log, lake = directory / "spark.log", directory / "lake"
    where = ("--bootstrap-server", bootstrap, "--available-now")
    steps: list[Step] = []

    started = time.monotonic()
    with console.status("Producing …"):
        produce(bootstrap, source, records, lambda count: None)
    steps.append(Step("confluent-kafka produces flights", len(records), since(started)))

    started = time.monotonic()
    console.print("penstock pipeline transform", style="bold")
    batch = max(1, len(records) // BATCHES)
    killed = run_killed(
        [
            *("transform", *where, "--from", source, "--to", target),
            *("--python", "demo.pipeline:delays_by_hour", "--output-mode", "update"),
            *("--checkpoint", str(directory / "checkpoint"), "--max-offsets", str(batch)),
        ],
        arguments.kills,
        log,
        console,
    )
    changes = read_topic(bootstrap, target)
    found = tuple(problems(changes, expected))
    steps.append(Step("transform, to the topic", len(changes), since(started), killed, found))

    started = time.monotonic()
    console.print("penstock pipeline archive", style="bold")
    batch = max(1, len(changes) // BATCHES)
    killed = run_killed(
        ["archive", *where, "--from", target, "--lake", str(lake), "--max-offsets", str(batch)],
        arguments.kills,
        log,
        console,
    )
    archived = read_lake(lake)
    found = tuple(problems(archived, expected))
    if len(archived) != len(changes):
        found += (f"{len(changes):,} expected",)
    steps.append(Step("archive, to Parquet", len(archived), since(started), killed, found))
    if arguments.kills and sum(step.killed for step in steps) < 2:
        raise DemoFailed("the drivers ended before they could be killed")
    return steps


def since(started: float) -> float:
    return time.monotonic() - started


def summary(steps: Sequence[Step]) -> Table:
    """What a person wants to know of it."""
    table = Table("Step", title="Delays per carrier and hour")
    for head in ("Records", "Seconds", "Killed"):
        table.add_column(head, justify="right")
    table.add_column("As pandas computes")
    for step in steps:
        verdict = "[green]yes: every total, no change twice[/]"
        if step.problems:
            verdict = f"[red]no: {', '.join(step.problems)}[/]"
        elif step is steps[0]:
            verdict = "acknowledged"
        killed = str(step.killed) if step is not steps[0] else ""
        table.add_row(step.what, f"{step.records:,}", f"{step.seconds:.1f}", killed, verdict)
    return table


def main(argv: Sequence[str] | None = None, console: Console | None = None) -> int:
    """0 if all totals are right, 1 if not."""
    parser = argparse.ArgumentParser(prog="python -m demo.pipeline", description=__doc__)
    parser.add_argument(
        "--bootstrap-server",
        dest="bootstrap",
        metavar="HOST:PORT",
        help="a broker that runs already",
    )
    parser.add_argument("--topic", default="flights")
    parser.add_argument("--recreate", action="store_true", help="delete the topic first")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N flights")
    parser.add_argument(
        "--kills", type=int, choices=(0, 1, 2), default=2, help="of each driver (default: 2)"
    )
    arguments = parser.parse_args(argv)
    arguments.console = console = console or Console()
    try:
        with contextlib.ExitStack() as opened:
            directory = Path(opened.enter_context(tempfile.TemporaryDirectory()))
            bootstrap = arguments.bootstrap
            if bootstrap is None:
                bootstrap, _, _ = opened.enter_context(own_broker(console))
            steps = run(bootstrap, directory, arguments)
    except (DemoFailed, DelaysFailed) as failed:
        console.print(f"[red]{failed}[/]")
        return 1
    console.print(summary(steps))
    return 1 if any(step.problems for step in steps) else 0


if __name__ == "__main__":
    sys.exit(main())
