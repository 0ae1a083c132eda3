"""What the runtime asks of the store for the inbox, and the answers.

Implemented by `storage`; only what `gateway.runtime` really calls. Knows no SQL.
Every call may raise `core.ports.log.StoreUnavailable`.
"""

from typing import Protocol

from core.inbox.values import InboxPosition, Look, WaitingRecord


class InboxOvertaken(Exception):
    """Another broker has moved the inbox's position; nothing took effect."""


class InboxStore(Protocol):
    """The inbox."""

    async def position(self) -> InboxPosition:
        """How far it is published."""

    async def look(self, position: InboxPosition, *, records: int, max_bytes: int) -> Look:
        """What comes next from a position on: at most so many records and bytes, but one more than
        that if there are more."""

    async def page(
        self, transaction: int, era: int, after_number: int, *, records: int, max_bytes: int
    ) -> list[WaitingRecord]:
        """Records of one transaction, from behind a number on; at least one if there is any."""

    @property
    def has_the_watch(self) -> bool:
        """Whether this broker looks for all, as far as is known without asking."""

    async def take_the_watch(self) -> bool:
        """Looks for all brokers from now on, until `leave_the_watch` or the connection is lost.
        False if another broker does."""

    async def leave_the_watch(self) -> None:
        """Whoever commits wakes brokers again."""

    async def break_the_watch(self, silent_s: float) -> bool:
        """Ends the connection of the broker that has the watch, if it has asked nothing there for
        so long; whether it had. May raise EffectRefused."""

    async def is_watched(self) -> bool:
        """Whether a broker looks for all."""

    async def are_commits_under_way(self) -> bool:
        """Whether a transaction is at its COMMIT, so that it may wake nobody any more."""

    async def empty(self, position: InboxPosition) -> None:
        """Now and then: empties what is published and nobody writes to, and has the next slot
        written to, if that is worth it."""
