"""The command line of security's benchmark: `python -m bench.security --help`, `make
bench-security`.

Composes brokers, the cases of security, the runner and the report; measures nothing itself.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from bench import machine, report
from bench.brokers import Broker, scratch_directory
from bench.case import Case
from bench.runner import Outcome, run_case
from bench.security import servers
from bench.security.cases import cases
from compat.java.tools import unavailable

QUICK, WARM_UP = 0.2, 0.1
"""Shares of what a turn does: of one of --quick, and of the unmeasured one."""


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.security", description=__doc__)
    add = parser.add_argument
    add("--peer-kafka", action="store_true", help="start an Apache Kafka and compare")
    add("--quick", action="store_true", help="a fifth of each turn, one round")
    add("--only", nargs="+", metavar="NAME", help="cases whose name begins so, without security/")
    add("--list", action="store_true", help="show the names of the cases and end")
    add("--rounds", type=int, help="turns of each broker per case (default 3 or 5)")
    add("--json", type=Path, metavar="FILE", help="write everything measured")
    return parser.parse_args(arguments)


def chosen_cases(share: float, only: Sequence[str] | None) -> list[Case]:
    return [
        case
        for case in cases(share)
        if not only or case.name.removeprefix("security/").startswith(tuple(only))
    ]


def enter_brokers(
    options: argparse.Namespace,
    names: Sequence[str],
    scratch: Path,
    stack: contextlib.ExitStack,
    console: Console,
) -> list[Broker]:
    """Ours, then Kafka; both stop when `stack` unwinds. names: of the cases."""
    certificate = servers.made_certificate(scratch)
    acls = any(name.startswith("security/acls/") for name in names)
    brokers: list[Broker] = [
        stack.enter_context(servers.penstocks(scratch, certificate, acls=acls))
    ]
    if options.peer_kafka:
        if reason := unavailable():
            console.print(f"[yellow]no Kafka peer: {reason}")
        else:
            brokers.append(stack.enter_context(servers.kafka(scratch / "kafka", certificate)))
    return brokers


def measured(
    options: argparse.Namespace, brokers: Sequence[Broker], console: Console
) -> list[Outcome]:
    """Every case, after one unmeasured turn of each broker; what was measured until Ctrl-C."""
    outcomes: list[Outcome] = []
    warming = {case.name: case for case in chosen_cases(WARM_UP, options.only)}
    try:
        for case in chosen_cases(QUICK if options.quick else 1.0, options.only):
            rounds = options.rounds or (1 if options.quick else case.rounds)
            warm_up = warming[case.name]
            run_case(warm_up, brokers, None, 1, lambda turn: console.print(f"warming up: {turn}"))
            outcomes.append(run_case(case, brokers, None, rounds, console.print))
    except KeyboardInterrupt:
        console.print("[yellow]interrupted: what was measured until then")
    return outcomes


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 if a case failed anywhere, 2 if there is nothing to do."""
    options = parsed(arguments)
    console = Console(width=None if sys.stdout.isatty() else 160)
    names = [case.name for case in chosen_cases(1.0, options.only)]
    if options.list or not names:
        console.print("\n".join(names) or "no case has such a name")
        return 0 if names else 2
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
            brokers = enter_brokers(options, names, scratch, stack, console)
        except (RuntimeError, TimeoutError) as failed:  # with what the broker said
            console.print(f"cannot start: {failed}", markup=False)
            return 1
        facts["begun"] = datetime.now(UTC).isoformat(timespec="seconds")
        outcomes = measured(options, brokers, console)
    shown = [broker.name for broker in brokers]
    console.print(
        report.table(outcomes, shown),
        report.figures_table(outcomes, shown),
        report.goals_table(outcomes),
    )
    report.tell_missing(outcomes, console)
    if options.json:
        settings = {key: str(value) for key, value in vars(options).items() if value}
        written = report.as_json(outcomes, facts, settings)
        options.json.write_text(json.dumps(written, indent=1) + "\n")
    return int(any(outcome.failed for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
