"""Where leader epochs end (LeaderEpochFileCache.endOffsetFor) and which one an offset is of."""

import pytest

from core.log.leader_epochs import check_leader_epoch, end_of_epoch, epoch_at
from core.ports.log import EpochStart

STARTS = [EpochStart(2, 10), EpochStart(4, 20), EpochStart(5, 30)]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (-1, (-1, -1)),  # no epoch: nothing can be said
        (0, (0, 10)),  # before all known: where the first known one begins
        (1, (1, 10)),
        (2, (2, 20)),
        (3, (2, 20)),  # between two: the one before, which ends where the next begins
        (4, (4, 30)),
        (5, (5, 99)),  # the current one ends at the log's end
        (6, (-1, -1)),
    ],
)
def test_end_of_epoch(asked: int, expected: tuple[int, int]) -> None:
    assert end_of_epoch(STARTS, 99, asked) == expected


def test_no_epoch_known_at_all() -> None:
    assert end_of_epoch([], 99, 0) == (-1, -1)


def test_epochs_in_which_nothing_was_written() -> None:
    starts = [EpochStart(0, 0), EpochStart(1, 5), EpochStart(2, 5), EpochStart(3, 5)]
    assert end_of_epoch(starts, 9, 1) == (1, 5)
    assert end_of_epoch(starts, 9, 0) == (0, 5)
    assert [epoch_at(starts, offset) for offset in (0, 4, 5, 8)] == [0, 0, 3, 3]


def test_epoch_at() -> None:
    assert [epoch_at(STARTS, offset) for offset in (0, 10, 19, 20, 29, 30, 10**12)] == [
        2,
        2,
        2,
        4,
        4,
        5,
        5,
    ]


def test_check_leader_epoch() -> None:
    assert check_leader_epoch(3, -1) is True
    assert check_leader_epoch(3, 3) is True
    assert check_leader_epoch(3, 2) is False
    assert check_leader_epoch(3, 4) is None
