"""Leader epochs of a partition: the epoch of an offset, and the end of an epoch.

Kafka's LeaderEpochFileCache. Epochs rise only when the database comes back with another history.
"""

from bisect import bisect_right
from collections.abc import Sequence

from core.ports.log import EpochStart

UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1


def epoch_at(starts: Sequence[EpochStart], offset: int) -> int:
    """The epoch in which `offset` was written. starts: by epoch, not empty."""
    at = bisect_right(starts, offset, key=lambda start: start.start_offset)
    return starts[max(at - 1, 0)].leader_epoch


def end_of_epoch(
    starts: Sequence[EpochStart], end_offset: int, leader_epoch: int
) -> tuple[int, int]:
    """The greatest known epoch that is at most `leader_epoch`, and its end offset.

    end_offset: the log's. (-1, -1) for no epoch and for one later than all known
    (LeaderEpochFileCache.endOffsetFor).
    """
    if not starts or leader_epoch == UNDEFINED_EPOCH or leader_epoch > starts[-1].leader_epoch:
        return UNDEFINED_EPOCH, UNDEFINED_OFFSET
    if leader_epoch == starts[-1].leader_epoch:
        return leader_epoch, end_offset
    later = bisect_right(starts, leader_epoch, key=lambda start: start.leader_epoch)
    known = starts[later - 1].leader_epoch if later > 0 else leader_epoch
    return known, starts[later].start_offset


def check_leader_epoch(current: int, asked: int) -> bool | None:
    """Compares the leader epoch that a client knows (-1: none) with the current one.

    True: the same, or none given. False: the client's is older. None: the client's is newer.
    """
    if asked in (UNDEFINED_EPOCH, current):
        return True
    return None if asked > current else False
