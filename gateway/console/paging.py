"""Long lists, a part at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

ROWS: Final = 50

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Found(Generic[Row]):
    """Part `number` (from 1) of a list with `total` rows."""

    rows: Sequence[Row]
    number: int
    total: int
    per_page: int = ROWS

    @property
    def first(self) -> int:
        """The number of its first row, from 1."""
        return (self.number - 1) * self.per_page + 1

    @property
    def last(self) -> int:
        """The number of its last row."""
        return self.first + len(self.rows) - 1

    @property
    def pages(self) -> int:
        """How many parts there are, at least one."""
        return max(1, -(-self.total // self.per_page))


def part_of(rows: Sequence[Row], number: int, per_page: int = ROWS) -> Found[Row]:
    """A part of all rows; the last one where there are not so many."""
    number = min(max(1, number), max(1, -(-len(rows) // per_page)))
    start = (number - 1) * per_page
    return Found(rows[start : start + per_page], number, len(rows), per_page)
