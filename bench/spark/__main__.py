"""The command line of Spark's benchmark: `python -m bench.spark --help`, `make bench-spark`.

Composes brokers, Spark's cases, the runner and the report; measures nothing itself.
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
from bench.__main__ import add_broker_options, enter_brokers
from bench.brokers import Broker, scratch_directory
from bench.runner import Outcome, run_case
from bench.spark.cases import Engine, cases
from penstock.spark.session import Unready, session

SETTINGS = {
    "spark.driver.memory": "2g",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description=__doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="a tenth of the rows, two rounds")
    add("--only", nargs="+", metavar="NAME", help="cases whose name begins so, without spark/")
    add("--rounds", type=int, help="turns of each broker per case (default 5)")
    add("--master", default="local[2]", help="where Spark runs (default local[2])")
    add_broker_options(parser)
    add("--json", type=Path, metavar="FILE", help="write everything measured")
    options = parser.parse_args(arguments)
    options.database_url = None
    return options


def measured(
    engine: Engine, options: argparse.Namespace, brokers: Sequence[Broker], console: Console
) -> list[Outcome]:
    """Every case, after one unmeasured turn of each broker; what was measured until Ctrl-C."""
    rounds = options.rounds or (2 if options.quick else None)
    beside = [engine.beside(broker) for broker in brokers]
    outcomes: list[Outcome] = []
    try:
        for case in cases(engine):
            named = case.name.removeprefix("spark/")
            if options.only and not named.startswith(tuple(options.only)):
                continue
            run_case(case, beside, None, 1, lambda turn: console.print(f"warming up: {turn}"))
            outcomes.append(run_case(case, beside, None, rounds or case.rounds, console.print))
    except KeyboardInterrupt:
        console.print("[yellow]interrupted: what was measured until then")
    return outcomes


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 if a case failed anywhere, 2 if there is nothing to do."""
    options = parsed(arguments)
    console = Console(width=None if sys.stdout.isatty() else 160)
    # Both unwind, so that everything is stopped; a shell's background jobs start with SIGINT off.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(scratch_directory())
        facts = machine.described(scratch)
        places = {"spark.local.dir": str(scratch), "spark.sql.warehouse.dir": str(scratch / "sql")}
        try:
            spark = session("penstock-bench", options.master, settings=SETTINGS | places)
            brokers = enter_brokers(options, scratch, stack, console)
        except (Unready, RuntimeError, TimeoutError) as failed:
            console.print(f"cannot start: {failed}", markup=False)
            return 2 if isinstance(failed, Unready) else 1
        if not brokers:
            console.print("nothing to measure: no Penstock, no peer")
            return 2
        from penstock.spark import PenstockDataSource

        spark.dataSource.register(PenstockDataSource)
        facts |= {"spark": spark.version, "begun": datetime.now(UTC).isoformat(timespec="seconds")}
        engine = Engine(spark, 0.1 if options.quick else 1.0, stack)
        outcomes = measured(engine, options, brokers, console)
        names = [broker.name for broker in brokers]
        console.print(report.table(outcomes, names), report.goals_table(outcomes))
        report.tell_missing(outcomes, console)
        if options.json:
            settings = {key: str(value) for key, value in vars(options).items() if value}
            written = report.as_json(outcomes, facts, settings)
            options.json.write_text(json.dumps(written, indent=1) + "\n")
        spark.stop()
    return int(any(outcome.failed for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
