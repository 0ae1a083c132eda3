"""Leads one member from its partitions to its target (Kafka's CurrentAssignmentBuilder).

Each member moves alone, without a barrier. It revokes partitions and confirms that, then it gets
the new epoch and the partitions that are free; the others follow as their owners revoke them. So a
partition has one owner at a time. Knows one member, its target, and whether a partition is taken.
"""

from collections.abc import Callable
from dataclasses import replace

from core.errors import Error, Refusal
from core.group.consumer.member import (
    STABLE,
    UNRELEASED_PARTITIONS,
    UNREVOKED_PARTITIONS,
    ascending,
    overlap,
)
from core.group.records import MemberRow, Partitions

IsTaken = Callable[[str, int], bool]
"""(topic id, partition) → whether another member owns it, or has not yet given it back. A partition
that the member itself was to give back is not taken: it may keep it after all."""


def reconcile(
    row: MemberRow, target_epoch: int, is_taken: IsTaken, owned: Partitions | None
) -> MemberRow | Refusal:
    """The member's row in its next state, or the same row if it cannot move.

    owned: what the member says it owns; None if it did not say.
    """
    if row.state == STABLE:
        if row.member_epoch == target_epoch:
            return row
        return _next(row, row.member_epoch, target_epoch, is_taken, owned)
    if row.state == UNREVOKED_PARTITIONS:
        if _still_owns(owned, row.revoking):
            return row
        # One epoch at a time: the partitions to revoke for the next one are revoked.
        return _next(row, row.member_epoch + 1, target_epoch, is_taken, owned)
    if row.state == UNRELEASED_PARTITIONS:
        return _next(row, row.member_epoch, target_epoch, is_taken, owned)
    # A state of a newer release, before a downgrade: begin anew, without partitions.
    if owned is None or any(owned.values()):
        return Refusal(
            Error.FENCED_MEMBER_EPOCH,
            "The consumer group member is in a unknown state. "
            "The member must abandon all its partitions and rejoin.",
        )
    return _next(row, target_epoch, target_epoch, is_taken, owned)


def _still_owns(owned: Partitions | None, revoking: Partitions) -> bool:
    return owned is None or overlap(owned, revoking)


def _next(
    row: MemberRow, epoch: int, target_epoch: int, is_taken: IsTaken, owned: Partitions | None
) -> MemberRow:
    """Revokes first; when that is done, moves to the target's epoch and its free partitions."""
    kept: dict[str, set[int]] = {}
    revoking: dict[str, set[int]] = {}
    added: dict[str, set[int]] = {}
    unreleased = False
    for topic_id in sorted(row.target.keys() | row.assigned.keys()):
        target = set(row.target.get(topic_id, ()))
        assigned = set(row.assigned.get(topic_id, ()))
        kept[topic_id] = assigned & target
        revoking[topic_id] = assigned - target
        missing = target - assigned
        added[topic_id] = {each for each in missing if not is_taken(topic_id, each)}
        unreleased = unreleased or len(added[topic_id]) < len(missing)
    to_revoke = ascending(revoking)
    if to_revoke and _still_owns(owned, to_revoke):
        return _moved(row, UNREVOKED_PARTITIONS, epoch, ascending(kept), to_revoke)
    return _moved(
        row,
        UNRELEASED_PARTITIONS if unreleased else STABLE,
        target_epoch,
        ascending({topic_id: kept[topic_id] | added[topic_id] for topic_id in kept}),
        {},
    )


def _moved(
    row: MemberRow, state: str, epoch: int, assigned: Partitions, revoking: Partitions
) -> MemberRow:
    """The row in its next state.

    The previous epoch is the one before the last *change* of the epoch, so an answer may be lost
    twice. (Kafka forgets it at the next reconciliation in the same epoch.)
    """
    previous = row.previous_member_epoch if epoch == row.member_epoch else row.member_epoch
    if (
        state == row.state
        and epoch == row.member_epoch
        and assigned == row.assigned
        and revoking == row.revoking
    ):
        return row
    return replace(
        row,
        state=state,
        member_epoch=epoch,
        previous_member_epoch=previous,
        assigned=assigned,
        revoking=revoking,
    )
