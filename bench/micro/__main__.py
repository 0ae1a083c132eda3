"""Times the steps and shows them. Knows no step by name."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from timeit import Timer

from rich.console import Console
from rich.table import Table

from bench import machine
from bench.micro import pulsar, steps
from bench.micro.steps import Step

REPEATS = 7


def microseconds(step: Step) -> float:
    """The best of several runs of about 0.1 s each: noise only ever adds."""
    timer = Timer(step.run)
    number, taken = 1, timer.timeit(1)
    while taken < 0.02:
        number *= 4
        taken = timer.timeit(number)
    number = max(1, int(number * 0.1 / taken))
    return 1e6 * min(timer.repeat(REPEATS, number)) / number


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.micro", description=__doc__)
    parser.add_argument("names", nargs="*", help="steps whose name begins so (default: all)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    every = [*steps.steps(), *pulsar.steps()]
    chosen = [s for s in every if not options.names or s.name.startswith(tuple(options.names))]
    grid = Table(title=f"best of {REPEATS}, one core")
    grid.add_column("step")
    grid.add_column("µs", justify="right")
    grid.add_column("MB/s", justify="right")
    taken = {step.name: microseconds(step) for step in chosen}
    for step in chosen:
        rate = f"{step.size / taken[step.name]:,.0f}" if step.size else ""
        grid.add_row(step.name, f"{taken[step.name]:.2f}", rate)
    Console().print(grid)
    if options.json:
        written = {"machine": machine.described(Path.cwd()), "microseconds": taken}
        options.json.write_text(json.dumps(written, indent=1) + "\n")
    return 0 if chosen else 2


if __name__ == "__main__":
    sys.exit(main())
