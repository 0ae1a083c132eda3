"""The deadlines of a classic group: its members' sessions, and the ends of what it waits for.

Does not know what a missed deadline means.
"""

from core.group.classic.member import ClassicMember
from core.group.classic.roster import ClassicRoster
from core.group.values import Instant


class ClassicDeadlines:
    """In the caller's monotonic milliseconds.

    next_ms: no deadline is earlier; it may be too early. join_ms: of the present rebalance's joins.
    sync_ms: of the present generation's SyncGroups. shown_ms: when people are shown again what the
    group waits for. Sessions are the members' own, and the roster has the ids given out.
    """

    def __init__(self, roster: ClassicRoster) -> None:
        self._roster = roster
        self.next_ms: int | None = None
        self.join_ms: int | None = None
        self.sync_ms: int | None = None
        self.shown_ms: int | None = None

    def join_by(self, at_ms: int) -> None:
        """Joins end then."""
        self.join_ms = at_ms
        self._schedule(at_ms)

    def sync_by(self, at_ms: int) -> None:
        """SyncGroups end then."""
        self.sync_ms = at_ms
        self._schedule(at_ms)

    def show_by(self, at_ms: int) -> None:
        """People are shown more then."""
        self.shown_ms = at_ms
        self._schedule(at_ms)

    def forget_by(self, member_id: str, at_ms: int) -> None:
        """An id that was given out is forgotten then, unless a client has joined with it."""
        self._roster.pending_join_members[member_id] = at_ms
        self._schedule(at_ms)

    def renew(self, member: ClassicMember, now: Instant, timeout_ms: int | None = None) -> None:
        """The member's session starts again."""
        timeout_ms = member.session_timeout_ms if timeout_ms is None else timeout_ms
        member.deadline_ms = now.monotonic_ms + timeout_ms
        self._schedule(member.deadline_ms)

    def unused_ids(self, now: Instant) -> list[str]:
        """Ids given out that nobody has joined with in time."""
        pending = self._roster.pending_join_members
        return [member_id for member_id, at_ms in pending.items() if at_ms <= now.monotonic_ms]

    def ended_sessions(self, now: Instant) -> list[str]:
        """Members whose sessions have ended."""
        return [
            member.member_id
            for member in self._roster.members.values()
            if member.deadline_ms <= now.monotonic_ms and member.is_watched
        ]

    def reset(self) -> None:
        """Finds the earliest of all."""
        deadlines = [m.deadline_ms for m in self._roster.members.values() if m.is_watched]
        deadlines += self._roster.pending_join_members.values()
        others = (self.join_ms, self.sync_ms, self.shown_ms)
        deadlines += [each for each in others if each is not None]
        self.next_ms = min(deadlines, default=None)

    def cancel_all(self) -> None:
        """The group has gone."""
        self.next_ms = self.join_ms = self.sync_ms = self.shown_ms = None

    def _schedule(self, at_ms: int) -> None:
        if self.next_ms is None or at_ms < self.next_ms:
            self.next_ms = at_ms


def is_due(deadline_ms: int | None, now: Instant) -> bool:
    """Whether a deadline is set and over."""
    return deadline_ms is not None and deadline_ms <= now.monotonic_ms
