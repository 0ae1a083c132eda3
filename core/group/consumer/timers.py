"""Deadlines of the members of a consumer group, in the caller's monotonic milliseconds.

Made for thousands of members that postpone their deadline with every heartbeat: that changes one
entry in a dictionary, and nothing is sorted. Does not know what a missed deadline means.
"""

from enum import Enum

NEVER = 1 << 62


class Timer(Enum):
    """What a deadline is for.

    SESSION: its next heartbeat. REBALANCE: giving partitions back. JOIN, SYNC: a classic member's
    JoinGroup after it was told of a rebalance, and its SyncGroup after it has joined.
    """

    SESSION = "session"
    REBALANCE = "rebalance"
    JOIN = "join"
    SYNC = "sync"


class Timers:
    """All deadlines of a group. next_ms: no deadline is earlier; it may be too early."""

    __slots__ = ("_deadlines", "next_ms")

    def __init__(self) -> None:
        self._deadlines: dict[Timer, dict[str, int]] = {timer: {} for timer in Timer}
        self.next_ms = NEVER

    def set(self, timer: Timer, member_id: str, deadline_ms: int) -> None:
        """Sets or postpones a deadline."""
        self._deadlines[timer][member_id] = deadline_ms
        if deadline_ms < self.next_ms:
            self.next_ms = deadline_ms

    def set_if_absent(self, timer: Timer, member_id: str, deadline_ms: int) -> None:
        """Sets a deadline unless one is running."""
        if member_id not in self._deadlines[timer]:
            self.set(timer, member_id, deadline_ms)

    def cancel(self, timer: Timer, member_id: str) -> None:
        """Removes a deadline: the member met it, or no longer needs to."""
        self._deadlines[timer].pop(member_id, None)

    def cancel_all(self, member_id: str) -> None:
        """The member has gone."""
        for deadlines in self._deadlines.values():
            deadlines.pop(member_id, None)

    def due(self, now_ms: int) -> list[tuple[str, Timer]]:
        """The members that have missed a deadline, once each. The caller removes them and cancels
        all of their deadlines."""
        if now_ms < self.next_ms:
            return []
        late: dict[str, Timer] = {}
        next_ms = NEVER
        for timer, deadlines in self._deadlines.items():
            for member_id, deadline_ms in deadlines.items():
                if deadline_ms <= now_ms:
                    late.setdefault(member_id, timer)
                elif deadline_ms < next_ms:
                    next_ms = deadline_ms
        self.next_ms = next_ms
        return list(late.items())
