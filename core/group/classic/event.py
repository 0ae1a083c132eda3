"""What an event in a classic group comes to: answers to requests, and lines of the log.

They are collected while the event changes the group. Knows no state and no member.
"""

from collections.abc import Mapping
from typing import Final

from core.group.records import GroupEffects
from core.group.values import GroupAnswer, Outcome, Reply, Waiter

NOTHING: Final = Outcome()

NOTED_MEMBERS = 10
"""The most names in one line of the log."""


class ClassicEvent:
    """The present event, up to now."""

    def __init__(self) -> None:
        self._replies: list[Reply] = []
        self._notes: list[tuple[str, Mapping[str, object]]] = []

    def answer(self, waiter: Waiter | None, answer: GroupAnswer) -> None:
        """Answers a request, if it waits."""
        if waiter is not None:
            self._replies.append(Reply(waiter, answer))

    def note(self, event: str, **fields: object) -> None:
        """A line of the log."""
        self._notes.append((event, fields))

    def note_members(self, event: str, member_ids: list[str]) -> None:
        """A line of the log about members, perhaps many."""
        self.note(event, members=len(member_ids), some=member_ids[:NOTED_MEMBERS])

    def take(self, effects: GroupEffects | None) -> Outcome:
        """All since the last call, with the effects; what comes next is another event."""
        if effects is None and not self._replies and not self._notes:
            return NOTHING
        outcome = Outcome(tuple(self._replies), effects, tuple(self._notes))
        self._replies, self._notes = [], []
        return outcome
