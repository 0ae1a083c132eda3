"""All rows of a table that brokers keep in memory, and read again when it changes.

Implemented by `storage/watched_rows.py`. Knows no SQL, and not what the rows mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Row = TypeVar("Row")

RowKey = bytes
"""What the store calls a row; the same row always has the same, and another row another one."""


@dataclass(frozen=True)  # with slots, Python 3.11 cannot make one of a generic alias
class WatchedRows(Generic[Row]):
    """All rows, at a version.

    version: differs whenever they do. unreadable: how many nobody can make sense of.
    """

    version: int = -1
    rows: Mapping[RowKey, Row] = field(default_factory=dict)
    unreadable: int = 0
