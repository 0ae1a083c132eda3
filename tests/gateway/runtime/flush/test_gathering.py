"""gateway.runtime.flush.gathering: who waits for whom, and who does not."""

import pytest

from gateway.runtime.flush.gathering import AT_WORK_S, LONG_S, MANY, SHORT_S, SOME, Gathering


class Clock:
    """Stands still until it is set."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("at_work", "wait_s"),
    [(0, 0), (1, 0), (SOME - 1, 0), (SOME, SHORT_S), (MANY - 1, SHORT_S), (MANY, LONG_S)],
)
def test_work_waits_where_many_are_at_work(at_work: int, wait_s: float) -> None:
    gathering = Gathering(Clock())
    for producer_id in range(at_work):
        gathering.note(producer_id)
        gathering.note(producer_id)
    assert gathering.wait_s(1) == wait_s


def test_nobody_is_waited_for_where_all_are_there() -> None:
    gathering = Gathering(Clock())
    for producer_id in range(SOME):
        gathering.note(producer_id)
    assert gathering.wait_s(SOME - 1) > 0
    assert gathering.wait_s(SOME) == 0
    assert gathering.wait_s(SOME + 1) == 0


def test_who_has_ended_is_not_waited_for() -> None:
    gathering = Gathering(Clock())
    for producer_id in range(SOME):
        gathering.note(producer_id)
    gathering.leave(0)
    gathering.leave(99)
    assert gathering.wait_s(1) == 0


def test_who_does_nothing_is_not_waited_for() -> None:
    gathering = Gathering(clock := Clock())
    for producer_id in range(SOME):
        gathering.note(producer_id)
    clock.now += AT_WORK_S
    gathering.note(0)
    assert gathering.wait_s(1) > 0
    clock.now += 0.001
    assert gathering.wait_s(1) == 0
    for producer_id in range(1, SOME):
        gathering.note(producer_id)
    assert gathering.wait_s(1) > 0
