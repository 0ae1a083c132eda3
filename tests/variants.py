"""Variants of a test that is slow by nature: CI runs one of them, `make faults` each."""

from __future__ import annotations

import os
from typing import Any

import pytest

ARE_ALL_RUN = "PENSTOCK_FAULT_SECONDS" in os.environ


def variants(*values: Any) -> list[Any]:
    """Parameters of a test, of which CI runs the first; they may be `pytest.param`s."""
    first, *others = values
    return [first, *(_of_a_long_run(each) for each in others)]


def _of_a_long_run(value: Any) -> Any:
    if isinstance(value, type(pytest.param())):
        return pytest.param(*value.values, id=value.id, marks=[*value.marks, pytest.mark.variant])
    values = value if isinstance(value, tuple) else (value,)
    return pytest.param(*values, marks=pytest.mark.variant)


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects what only a long run runs."""
    if ARE_ALL_RUN:
        return
    left_out = [item for item in items if item.get_closest_marker("variant")]
    if left_out:
        items[:] = [item for item in items if not item.get_closest_marker("variant")]
        config.hook.pytest_deselected(items=left_out)
