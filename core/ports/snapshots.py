"""What the runtime hears of snapshots held open in the database. Knows no SQL."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HeldSnapshot:
    """A transaction that keeps the versions of rows which it might still see.

    seconds: since it began. holder: who, for people and to tell one from another.
    """

    seconds: float
    holder: str
