"""The outcomes of work that a flush did not confirm as stored, in no protocol's words.

A refusal by a rule is core's decision; here are outcomes of work that no rule refused. Each
front-end translates a reason when it answers.
"""

from dataclasses import dataclass
from enum import Enum, auto


class Reason(Enum):
    """NOT_STORED: certainly not; the database is away, or has another history now. UNKNOWN: the
    commit was sent, but its outcome is unknown. HELD_ELSEWHERE: another broker has held a row for
    too long. OUT_OF_SPACE: the database is full. TOO_EARLY: an earlier batch of the producer must
    come first. FAILED: a bug, or something that the database refuses.
    """

    NOT_STORED = auto()
    UNKNOWN = auto()
    HELD_ELSEWHERE = auto()
    OUT_OF_SPACE = auto()
    TOO_EARLY = auto()
    FAILED = auto()


@dataclass(frozen=True, slots=True)
class Unconfirmed:
    """It is not known to be stored. A retry may store it."""

    reason: Reason
    message: str
