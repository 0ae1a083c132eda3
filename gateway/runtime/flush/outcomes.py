"""What is answered where a flush does not confirm that something is stored, in nobody's words.

A rule's refusal is a decision of core; this is what became of work that no rule was against. Each
front-end names a reason where it answers.
"""

from dataclasses import dataclass
from enum import Enum, auto


class Reason(Enum):
    """NOT_STORED: certainly not; the database is away, or has another history by now. UNKNOWN: the
    commit was sent, and nobody heard how it went. HELD_ELSEWHERE: another broker has held a row for
    too long. OUT_OF_SPACE: of the database. TOO_EARLY: an earlier batch of the producer has to come
    first. FAILED: a bug, or something that the database will not take.
    """

    NOT_STORED = auto()
    UNKNOWN = auto()
    HELD_ELSEWHERE = auto()
    OUT_OF_SPACE = auto()
    TOO_EARLY = auto()
    FAILED = auto()


@dataclass(frozen=True, slots=True)
class Unconfirmed:
    """Nothing says that it is stored. Asked again, it may be."""

    reason: Reason
    message: str
