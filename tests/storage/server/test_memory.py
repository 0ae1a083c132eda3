"""The memory a process may take, as the kernel's files of cgroups tell it."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.server.memory import available_memory, physical_memory

GB = 2**30


@pytest.mark.parametrize(
    ("proc", "limits", "expected"),
    [
        ("", {}, None),  # no cgroups
        ("0::/\n", {"memory.max": "max\n"}, None),
        ("0::/\n", {"memory.max": f"{GB}\n"}, GB),  # a container
        (
            "0::/system.slice/penstock.service\n",
            {"system.slice/memory.max": "max\n", "system.slice/penstock.service/memory.max": "7\n"},
            7,
        ),
        ("0::/a/b\n", {"a/memory.max": "5\n", "a/b/memory.max": "7\n"}, 5),
        ("4:memory:/docker/x\n0::/\n", {"memory/memory.limit_in_bytes": "9\n"}, 9),
        ("4:cpu,memory:/x\n", {"memory/x/memory.limit_in_bytes": "3\n"}, 3),
        ("0::/\n", {"memory.max": f"{2**62}\n"}, None),
    ],
)
def test_the_least_limit_of_the_cgroups_it_is_in_counts(
    tmp_path: Path, proc: str, limits: dict[str, str], expected: int | None
) -> None:
    (tmp_path / "proc").write_text(proc)
    for name, text in limits.items():
        path = tmp_path / "cgroups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = available_memory(tmp_path / "proc", tmp_path / "cgroups")
    assert found == (expected or physical_memory())


def test_without_proc_the_root_counts(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("11\n")
    assert available_memory(tmp_path / "none", tmp_path) == 11


def test_on_this_machine_there_is_some() -> None:
    assert 2**26 < available_memory() <= physical_memory()
