"""Counts how many small faults in `core` its tests notice: `make mutants`, over mutmut.

mutmut makes a mutant for each operator, constant, argument and assignment of a function (it leaves
out decorated functions, properties among them) and runs the tests that reach it. Draws the same
sample for the same seed and code, and scores it. Must not know what a rule of `core` means.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

WORK = Path("mutants")  # where mutmut writes; in .gitignore
MUTMUT = Path(sys.executable).with_name("mutmut")
FOLDERS = ("core/log", "core/transaction", "core/group")
FAILED, TIMED_OUT = {1, 3}, {24, 36, 152, 255, -24}  # mutmut's exit codes that say: noticed
# A survivor costs every test that reaches it, so the machines make few runs.
MACHINES = ("LOG", "GROUP", "STAGING", "TXN")
EXAMPLES = {f"PENSTOCK_{machine}_MACHINE_EXAMPLES": "15" for machine in MACHINES}
ENVIRONMENT = {**os.environ, **EXAMPLES}


def generate() -> None:
    """Writes all mutants and measures which tests reach which function.

    mutmut has no command for that alone: it stops because no mutant has the name.
    """
    shutil.rmtree(WORK, ignore_errors=True)
    done = subprocess.run(
        [MUTMUT, "run", "--max-children", "1", "none"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    if not (WORK / "mutmut-stats.json").exists():
        sys.exit(f"mutmut could not run the tests:\n{done.stdout}\n{done.stderr}")


def results(folder: str) -> dict[str, int | None]:
    """Every mutant below the folder, and the exit code of its tests where they have run."""
    found: dict[str, int | None] = {}
    for path in sorted((WORK / folder).rglob("*.meta")):
        found.update(json.loads(path.read_text())["exit_code_by_key"])
    return found


def sample(folder: str, size: int, seed: int) -> list[str]:
    """The folder's share of the sample; the same for the same seed and code."""
    names = sorted(results(folder))
    return random.Random(seed).sample(names, min(size, len(names)))


def interval(noticed: int, tried: int) -> tuple[float, float]:
    """Between which shares the true one lies, with 95 % confidence (Wilson)."""
    z, share = 1.96, noticed / tried
    middle = share + z * z / (2 * tried)
    reach = z * math.sqrt(share * (1 - share) / tried + z * z / (4 * tried * tried))
    return (middle - reach) / (1 + z * z / tried), (middle + reach) / (1 + z * z / tried)


def report(folder: str, chosen: Sequence[str]) -> list[str]:
    """Prints the folder's score; returns the mutants that nothing noticed."""
    found = results(folder)
    missed = [name for name in chosen if found[name] not in FAILED | TIMED_OUT]
    late = sum(found[name] in TIMED_OUT for name in chosen)
    noticed = len(chosen) - len(missed)
    low, high = interval(noticed, len(chosen))
    print(
        f"{folder:17} noticed {noticed:3} of {len(chosen):3} (by running too long: {late}),"
        f" {noticed / len(chosen):6.1%}; of all {len(found)}: {low:.1%} to {high:.1%}"
    )
    return missed


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("folders", nargs="*", default=FOLDERS, help=f"of {', '.join(FOLDERS)}")
    parser.add_argument("--sample", type=int, default=300, help="mutants, over all folders")
    parser.add_argument("--seed", type=int, default=1, help="which sample")
    options = parser.parse_args()
    generate()
    share = math.ceil(options.sample / len(options.folders))
    chosen = {folder: sample(folder.rstrip("/"), share, options.seed) for folder in options.folders}
    if empty := [folder for folder, each in chosen.items() if not each]:
        sys.exit(f"no mutants below {', '.join(empty)}: see tool.mutmut in pyproject.toml")
    names = [name for each in chosen.values() for name in each]
    subprocess.run(
        [MUTMUT, "run", "--max-children", "1", *names],
        env=ENVIRONMENT,
        stdout=(WORK / "run.log").open("w"),
        check=True,
    )
    missed = [name for folder, each in chosen.items() for name in report(folder, each)]
    for name in missed:
        print(flush=True)
        subprocess.run([MUTMUT, "show", name], check=True)


if __name__ == "__main__":
    main()
