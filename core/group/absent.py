"""The group that does not exist: what its would-be members and committers are told.

Kafka raises GroupIdNotFoundException there. It has the methods of a group that exists
(`classic.group`, `consumer.group`), so no caller has to check first.
"""

from collections.abc import Sequence
from typing import Final

from core.errors import Error
from core.group.values import (
    Instant,
    LeaveResult,
    LeavingMember,
    Outcome,
    Reply,
    SyncRequest,
    SyncResult,
    Waiter,
)


class AbsentGroup:
    """Has no members; only commits without a generation pass, as a simple consumer's do."""

    __slots__ = ()

    def sync(self, request: SyncRequest, waiter: Waiter, now: Instant) -> Outcome:
        """Nobody is a member."""
        return Outcome((Reply(waiter, SyncResult(Error.UNKNOWN_MEMBER_ID)),))

    def heartbeat(
        self, member_id: str, group_instance_id: str | None, generation_id: int, now: Instant
    ) -> tuple[Error, Outcome]:
        """Nobody is a member."""
        return Error.UNKNOWN_MEMBER_ID, Outcome()

    def leave(self, members: Sequence[LeavingMember], now: Instant) -> tuple[LeaveResult, Outcome]:
        """Nobody is a member."""
        return LeaveResult(tuple((each, Error.UNKNOWN_MEMBER_ID) for each in members)), Outcome()

    def commit_refusal(
        self,
        member_id: str,
        group_instance_id: str | None,
        generation_or_epoch: int,
        now: Instant,
        *,
        is_transactional: bool = False,
    ) -> Error:
        """Refuses a commit with a generation; one without makes the group, as Kafka's "simple" one.

        A transactional commit gets the classic protocol's error.
        """
        if generation_or_epoch < 0:
            return Error.NONE
        return Error.ILLEGAL_GENERATION if is_transactional else Error.GROUP_ID_NOT_FOUND

    def delete_refusal(self) -> Error:
        """There is nothing to delete."""
        return Error.GROUP_ID_NOT_FOUND

    def delete_offsets_refusal(self) -> Error:
        """There are no offsets to delete."""
        return Error.GROUP_ID_NOT_FOUND


ABSENT: Final = AbsentGroup()
