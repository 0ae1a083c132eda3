"""gateway.request_memory: who is told to stop reading, who is cut, and when all go on."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from gateway.listener import ConnectionLimits
from gateway.request_memory import RequestMemory

STUCK = "it holds the largest part of the memory for requests that are stuck"


@dataclass(eq=False)
class Holder:
    """A connection that notes what it is told."""

    memory: RequestMemory
    stuck_bytes: int = 0
    reads: list[bool] = field(default_factory=list)
    closed_for: str | None = None

    def __post_init__(self) -> None:
        self.memory.join(self)

    def adjust_reading(self) -> None:
        self.reads.append(not self.memory.is_full)

    def close_for(self, reason: str) -> None:
        self.closed_for = reason
        count, self.stuck_bytes = self.stuck_bytes, 0
        self.memory.hold(-count)

    def receive_part(self, count: int) -> None:
        self.stuck_bytes += count
        self.memory.hold(count)


@pytest.fixture
def memory() -> RequestMemory:
    return RequestMemory(
        ConnectionLimits(socket_request_max_bytes=10, queued_max_request_bytes=100)
    )


def test_reading_stops_when_all_is_held_and_goes_on_at_half(memory: RequestMemory) -> None:
    one, other = Holder(memory), Holder(memory)
    memory.hold(99)
    assert not memory.is_full
    memory.hold(1)
    assert memory.is_full
    memory.hold(-49)
    assert one.reads == other.reads == [False]
    memory.hold(-1)
    assert not memory.is_full
    assert one.reads == other.reads == [False, True]
    assert memory.held_bytes == 50


def test_more_of_what_is_full_is_told_once(memory: RequestMemory) -> None:
    holder = Holder(memory)
    memory.hold(100)
    memory.hold(100)
    assert holder.reads == [False]


def test_who_has_left_is_told_nothing(memory: RequestMemory) -> None:
    holder = Holder(memory)
    memory.leave(holder)
    memory.hold(100)
    assert holder.reads == []


def test_the_largest_parts_of_requests_are_cut_until_half_is_left(memory: RequestMemory) -> None:
    holders = [Holder(memory) for _ in range(4)]
    for holder, count in zip(holders, (10, 40, 30, 20), strict=True):
        holder.receive_part(count)
    assert [holder.closed_for for holder in holders] == [None, STUCK, STUCK, None]
    assert not memory.is_full


def test_complete_requests_cut_nobody(memory: RequestMemory) -> None:
    holder = Holder(memory)
    holder.receive_part(50)
    memory.hold(60)
    assert memory.is_full
    assert holder.closed_for is None


def test_who_gets_stuck_when_all_is_held_is_cut_then(memory: RequestMemory) -> None:
    one, other = Holder(memory), Holder(memory)
    memory.hold(99)
    one.stuck_bytes = 60
    memory.look(one)
    assert one.closed_for is None, "there is room still"
    one.stuck_bytes = 0
    memory.hold(1)
    one.stuck_bytes = 45
    memory.look(one)
    assert one.closed_for is None, "the rest will be released"
    other.stuck_bytes = 10
    memory.look(other)
    assert (one.closed_for, other.closed_for) == (STUCK, None)


def test_two_of_the_largest_requests_always_fit() -> None:
    memory = RequestMemory(
        ConnectionLimits(socket_request_max_bytes=10, queued_max_request_bytes=1)
    )
    memory.hold(19)
    assert not memory.is_full
    memory.hold(1)
    assert memory.is_full
