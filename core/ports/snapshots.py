"""What the runtime learns of snapshots held open in the database. Knows no SQL."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HeldSnapshot:
    """A transaction that keeps old versions of rows, which it might still see.

    seconds: since it began. holder: names it, for people, and to tell one from another.
    """

    seconds: float
    holder: str
