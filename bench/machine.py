"""What the figures depend on: commit, hardware, versions, and what one fsync costs here.

Must not know brokers or cases.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from importlib.metadata import version
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]
CLIENTS = ("confluent-kafka", "aiokafka", "kafka-python", "psycopg", "uvloop")


def commit() -> str:
    """The checkout's commit, with "+changes" where tracked files differ from it."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no")
    return (git("rev-parse", "--short=12", "HEAD") or "unknown") + ("+changes" if changed else "")


def fsync_ms(directory: Path, times: int = 200) -> float:
    """Median of appending 4 kB and fdatasync, in ms: no durable acknowledgement can be quicker."""
    taken, path = [], directory / "fsync-probe"
    with path.open("wb", buffering=0) as probe:
        for _ in range(times):
            begun = time.perf_counter()
            probe.write(bytes(4096))
            os.fdatasync(probe.fileno())
            taken.append(time.perf_counter() - begun)
    path.unlink()
    return 1e3 * sorted(taken)[times // 2]


def described(data_directory: Path) -> dict[str, object]:
    """Everything about this machine and checkout that goes into the JSON."""
    cpu_file = Path("/proc/cpuinfo")
    model = re.search(r"model name\s*: (.*)", cpu_file.read_text() if cpu_file.exists() else "")
    return {
        "commit": commit(),
        "cpu": model[1] if model else platform.processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "kernel": platform.platform(),
        "load_before": os.getloadavg()[0],
        "fsync_ms": round(fsync_ms(data_directory), 3),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in CLIENTS},
    }
