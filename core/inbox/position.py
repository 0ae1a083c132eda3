"""What to publish next, and what is published then: from a position and a look at the inbox.

Decides; reads and stores nothing. Transactions are published in the order of their stamps, each
whole. A snapshot says what is done, so that a transaction which stays open delays only itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from core.inbox.values import EVERYTHING, NOTHING, InboxPosition, Look, WaitingRecord


@dataclass(frozen=True, slots=True)
class Bite:
    """records: of whole transactions. position: where the inbox is once they are published."""

    records: tuple[WaitingRecord, ...]
    position: InboxPosition


@dataclass(frozen=True, slots=True)
class TooLarge:
    """The next transaction is too large to be published at once; it is to be staged. position:
    where the inbox is once it is published."""

    transaction: int
    stamp: int
    position: InboxPosition


@dataclass(frozen=True, slots=True)
class LookAgain:
    """There is too much to be ordered in one look, or an era ends: look from this position on. It
    need not be stored."""

    position: InboxPosition


def next_step(position: InboxPosition, look: Look) -> Bite | TooLarge | LookAgain | None:
    """What follows from a look that was taken from this position; None: nothing waits."""
    if position.era < look.era and position.target is None:
        # What is left of a cluster whose transactions had other ids: all of them have ended.
        return LookAgain(replace(position, target=EVERYTHING, after_stamp=0))
    if look.is_crowded:
        # In the order of stamps from now on, up to what this look has seen.
        return LookAgain(replace(position, target=look.snapshot, after_stamp=0))
    if not look.is_cut:
        is_done = not look.records and position.target is None
        return None if is_done else Bite(look.records, _done(position, look))
    last = look.last_stamp
    if not look.records:  # transactions that have none: the last of them, too
        return Bite((), _up_to(position, look, last))
    if look.records[0].stamp == last:
        first = look.records[0]
        return TooLarge(first.transaction, last, _up_to(position, look, last))
    end = len(look.records)
    while look.records[end - 1].stamp == last:
        end -= 1
    return Bite(look.records[:end], _up_to(position, look, look.records[end - 1].stamp))


def _done(position: InboxPosition, look: Look) -> InboxPosition:
    """Everything that the look was to find is published."""
    version = position.version + 1
    if position.target == EVERYTHING:
        return InboxPosition(version, position.era + 1, NOTHING)
    return InboxPosition(version, position.era, position.target or look.snapshot)


def _up_to(position: InboxPosition, look: Look, stamp: int) -> InboxPosition:
    """The same up to a stamp."""
    return InboxPosition(
        position.version + 1,
        position.era,
        position.published,
        position.target or look.snapshot,
        stamp,
    )
