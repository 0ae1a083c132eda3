"""What counts as waiting behind a long poll."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.kafka.pipelined_requests import PipelinedRequests

FETCH, LIST_OFFSETS = 1, 2


@dataclass
class Request:
    key: int


async def test_a_request_that_is_no_fetch_is_told_of_when_it_comes() -> None:
    waiting: list[Request] = []
    behind = PipelinedRequests(waiting)
    arrival = behind.arrival()
    behind.look()
    assert not behind.is_any
    assert not arrival.done()
    waiting.append(Request(FETCH))
    behind.look()
    assert not behind.is_any
    assert not arrival.done()
    waiting.append(Request(LIST_OFFSETS))
    behind.look()
    behind.look()
    assert behind.is_any
    assert arrival.done()


async def test_each_wait_is_told_anew() -> None:
    waiting = [Request(LIST_OFFSETS)]
    behind = PipelinedRequests(waiting)
    behind.look()  # nobody waits
    first = behind.arrival()
    assert behind.arrival() is first
    behind.look()
    assert first.done()
    assert not behind.arrival().done()
