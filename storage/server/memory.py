"""How much memory this process may take: the machine's, or what a cgroup leaves it.

A container sees its limit at the root of its cgroups; a systemd service (`MemoryMax=`) has its
limit further down, where /proc/self/cgroup says.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_PROC = Path("/proc/self/cgroup")
_CGROUPS = Path("/sys/fs/cgroup")


def available_memory(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """In bytes. proc, cgroups: where the kernel shows cgroups, of v2 or v1."""
    limits = [physical_memory()]
    for path in _limits(proc, cgroups):
        with contextlib.suppress(OSError, ValueError):  # missing, or "max"
            limits.append(int(path.read_text()))
    return min(limits)


def physical_memory() -> int:
    """The machine's, in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _limits(proc: Path, cgroups: Path) -> Iterator[Path]:
    """The files with the limits of this process's cgroup and of all its parents."""
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = proc.read_text().splitlines()
    own = PurePosixPath("/")
    own_v1 = PurePosixPath("/")
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            own = PurePosixPath(path)
        elif "memory" in controllers.split(","):
            own_v1 = PurePosixPath(path)
    for each in (own, *own.parents):
        yield cgroups / each.relative_to("/") / "memory.max"
    for each in (own_v1, *own_v1.parents):
        yield cgroups / "memory" / each.relative_to("/") / "memory.limit_in_bytes"
