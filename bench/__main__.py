"""The command line of the benchmark: `python -m bench --help`.

Composes brokers, cases, the runner and the report; measures nothing itself.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import json
import signal
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench import machine, report
from bench.brokers import Broker, scratch_directory, started_penstock
from bench.case import Case
from bench.macro import (
    console,
    consume,
    groups,
    growth,
    idle,
    latency,
    produce,
    pulsar,
    quotas,
    snapshot,
    sql,
    start,
    transactions,
)
from bench.peer.kafka import TOPIC_CONFIG, started_kafka
from bench.peer.least import KINDS, started_least
from bench.peer.pulsar import DURABILITIES, started_pulsar
from bench.peer.pulsar import POM as PULSAR_SERVER
from bench.processes import ProcessGroup
from bench.runner import Outcome, run_case, warm_up
from compat.java.tools import unavailable

GROUPS = (
    produce,
    consume,
    growth,
    latency,
    transactions,
    groups,
    pulsar,
    quotas,
    start,
    idle,
    snapshot,
    sql,
    console,
)


def add_broker_options(parser: argparse.ArgumentParser) -> None:
    """Which brokers are measured; see `enter_brokers`."""
    add = parser.add_argument
    add("--peer", action="append", default=[], metavar="HOST:PORT", help="a broker to compare")
    add(
        "--peer-kafka",
        action="append",
        default=[],
        choices=sorted(TOPIC_CONFIG),
        help="start an Apache Kafka and compare (both may be given)",
    )
    add(
        "--peer-pulsar",
        action="append",
        default=[],
        choices=sorted(DURABILITIES),
        help="start an Apache Pulsar and compare what Pulsar's clients do (both may be given)",
    )
    add(
        "--peer-checkout",
        action="append",
        default=[],
        type=Path,
        metavar="DIR",
        help="start the Penstock of another checkout, an earlier commit's say",
    )
    add(
        "--peer-workers",
        action="append",
        default=[],
        type=int,
        metavar="N",
        help="start this Penstock once more, with so many workers",
    )
    add(
        "--peer-least",
        action="append",
        default=[],
        choices=KINDS,
        help="the least a broker in Python could do (producers only; several may be given)",
    )
    add(
        "--bootstrap-server",
        dest="bootstrap",
        metavar="HOST:PORT",
        help="measure a Penstock that runs already",
    )
    add("--pid", type=int, help="with --bootstrap-server: the broker's process id")
    add("--postgres-pid", type=int, help="with --bootstrap-server: the postmaster's process id")
    add("--peers-only", action="store_true", help="start no Penstock: peers alone")


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="a sample of the cases, less of each: 3 minutes")
    add("--long", action="store_true", help="every combination, and the ten-minute snapshot")
    add("--only", nargs="+", metavar="NAME", help="cases whose name begins so, or matches a glob")
    add("--list", action="store_true", help="show the names of the cases and end")
    add("--figures", action="store_true", help="show all figures, not the headlines alone")
    add("--rounds", type=int, help="turns of each broker per case (default 2 or 3; --quick 1)")
    add_broker_options(parser)
    add("--database-url", help="with --bootstrap-server: where its records lie (COPY, snapshot)")
    add("--json", type=Path, metavar="FILE", help="write everything measured")
    add("--plot", type=Path, metavar="FILE", help="draw the headline figures (.png, .svg)")
    return parser.parse_args(arguments)


def chosen_cases(options: argparse.Namespace) -> list[Case]:
    share = 0.25 if options.quick else 1.0
    every = [case for group in GROUPS for case in group.cases(share)]
    if options.only:

        def wanted(case: Case) -> bool:
            return any(
                case.name.startswith(pattern) or fnmatch.fnmatch(case.name, pattern)
                for pattern in options.only
            )

        return [case for case in every if wanted(case) and (options.long or not case.long)]
    if options.quick:
        return [case for case in every if case.quick]
    return [case for case in every if options.long or not case.long]


def running_penstock(options: argparse.Namespace) -> Broker:
    """The broker somebody started, as far as it was described."""
    processes = {}
    if options.pid:
        aside = (options.postgres_pid,) if options.postgres_pid else ()
        processes["gateway"] = ProcessGroup(options.pid, aside)
    if options.postgres_pid:
        processes["postgres"] = ProcessGroup(options.postgres_pid)
    return Broker(report.US, options.bootstrap, processes, {}, options.database_url)


def enter_brokers(
    options: argparse.Namespace, scratch: Path, stack: contextlib.ExitStack, console: Console
) -> list[Broker]:
    """Ours first, then the peers; all of them stop when `stack` unwinds."""
    brokers: list[Broker] = []
    if options.bootstrap:
        brokers.append(running_penstock(options))
    elif not options.peers_only:
        ours, took_s = stack.enter_context(started_penstock(scratch / "penstock"))
        console.print(f"penstock at {ours.bootstrap}, started in {took_s:.2f} s")
        brokers.append(ours)
    if options.peer_kafka:
        if reason := unavailable():
            console.print(f"[yellow]no Kafka peer: {reason}")
        else:
            kafka = started_kafka(scratch / "kafka", list(dict.fromkeys(options.peer_kafka)))
            peers, took_s = stack.enter_context(kafka)
            console.print(f"Apache Kafka at {peers[0].bootstrap}, started in {took_s:.2f} s")
            brokers += peers
    for durability in dict.fromkeys(options.peer_pulsar):
        if reason := unavailable(PULSAR_SERVER):
            console.print(f"[yellow]no Pulsar peer: {reason}")
            break
        pulsar_peer = started_pulsar(scratch / f"pulsar-{durability}", durability)
        peer, took_s = stack.enter_context(pulsar_peer)
        console.print(f"Apache Pulsar at {peer.pulsar_url}, started in {took_s:.2f} s")
        brokers.append(peer)
    for number, checkout in enumerate(options.peer_checkout):
        name = checkout.resolve().name
        other = started_penstock(scratch / f"checkout-{number}", checkout.resolve(), name)
        brokers.append(stack.enter_context(other)[0])
    for count in dict.fromkeys(options.peer_workers):
        several = started_penstock(
            scratch / f"workers-{count}", name=f"{count} workers", workers=count
        )
        brokers.append(stack.enter_context(several)[0])
    for kind in dict.fromkeys(options.peer_least):
        brokers.append(stack.enter_context(started_least(scratch / f"least-{kind}", kind)))
    brokers += [Broker(address, address) for address in options.peer]
    return brokers


def measured(
    options: argparse.Namespace, cases: Sequence[Case], brokers: list[Broker], console: Console
) -> list[Outcome]:
    """Every case in turn, under a progress bar; after Ctrl-C what was measured until then."""
    database_url = options.database_url or brokers[0].database_url
    rounds = [options.rounds or (1 if options.quick else case.rounds) for case in cases]
    outcomes: list[Outcome] = []
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=(sum(rounds) + 1) * len(brokers))

        def tell(turn: str) -> None:
            progress.update(task, description=turn, advance=1)

        try:
            for broker in brokers:
                tell(f"warming up {broker.name}")
                warm_up(broker, cases)
            for case, count in zip(cases, rounds, strict=True):
                outcomes.append(run_case(case, brokers, database_url, count, tell))
        except KeyboardInterrupt:
            console.print("[yellow]interrupted: what was measured until then")
    return outcomes


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 if a case failed anywhere, 2 if there is nothing to do."""
    options = parsed(arguments)
    console = Console(width=None if sys.stdout.isatty() else 160)
    cases = chosen_cases(options)
    if options.list or not cases:
        console.print("\n".join(case.name for case in cases) or "no case has such a name")
        return 0 if cases else 2
    # Both unwind, so that everything is stopped; a shell's background jobs start with SIGINT off.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(scratch_directory())
        facts = machine.described(scratch)
        console.print(
            f"{facts['cpu']}, {facts['cores']} cores, fdatasync {facts['fsync_ms']} ms, "
            f"commit {facts['commit']}"
        )
        try:
            brokers = enter_brokers(options, scratch, stack, console)
        except (RuntimeError, TimeoutError) as failed:  # with what the broker said
            console.print(f"cannot start: {failed}", markup=False)
            return 1
        if not brokers:
            console.print("nothing to measure: no Penstock, no peer")
            return 2
        facts["begun"] = datetime.now(UTC).isoformat(timespec="seconds")
        outcomes = measured(options, cases, brokers, console)
    names = [broker.name for broker in brokers]
    console.print(report.table(outcomes, names))
    if options.figures:
        console.print(report.figures_table(outcomes, names))
    console.print(report.goals_table(outcomes))
    report.tell_missing(outcomes, console)
    if options.json:
        settings = {key: str(value) for key, value in vars(options).items() if value}
        written = report.as_json(outcomes, facts, settings)
        options.json.write_text(json.dumps(written, indent=1) + "\n")
    if options.plot:
        report.plot(outcomes, names, options.plot)
    return int(any(outcome.failed for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
