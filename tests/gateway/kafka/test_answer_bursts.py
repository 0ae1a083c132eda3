"""When answers to a burst of requests are sent."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gateway.kafka.answer_bursts import AT_ONCE, AnswerBurst
from gateway.kafka.codec import Buffer


class Connection:
    """Answers one by one; `asked` is how many requests have come that are not answered."""

    def __init__(self, asked: int = 0) -> None:
        self.asked = asked
        self.sent: list[bytes] = []
        self.burst = AnswerBurst(self.send, lambda: self.asked > 0)

    def send(self, parts: Sequence[Buffer]) -> None:
        self.sent.append(b"".join(parts))

    def answer(self, count: int = 1, part: bytes = b"a") -> None:
        for _ in range(count):
            self.asked -= 1
            self.burst.count()
            self.burst.send([part])

    async def sends(self, count: int) -> None:
        """Until so many times something was sent."""
        async with asyncio.timeout(30):
            while len(self.sent) < count:
                await asyncio.sleep(0.005)


async def test_requests_that_wait_for_each_answer_are_answered_at_once() -> None:
    connection = Connection()
    for number in range(1, 10 * AT_ONCE):
        connection.asked += 1
        connection.answer()
        assert len(connection.sent) == number


async def test_a_few_requests_at_once_are_answered_at_once() -> None:
    connection = Connection(asked=AT_ONCE + 1)
    connection.answer(AT_ONCE + 1)
    assert len(connection.sent) == AT_ONCE + 1


async def test_answers_to_many_requests_at_once_leave_together_in_order() -> None:
    connection = Connection(asked=1_000)
    connection.answer(AT_ONCE)
    assert len(connection.sent) == AT_ONCE
    for number in range(1_000 - AT_ONCE):
        connection.answer(part=b"%d," % number)
    connection.burst.send([b"another API's"])
    assert len(connection.sent) == AT_ONCE
    await connection.sends(AT_ONCE + 1)
    expected = b"".join(b"%d," % number for number in range(1_000 - AT_ONCE))
    assert connection.sent[AT_ONCE] == expected + b"another API's"


async def test_a_burst_lasts_while_requests_are_not_answered() -> None:
    connection = Connection(asked=2 * AT_ONCE)
    connection.answer(2 * AT_ONCE - 1)
    held_up = asyncio.get_running_loop().time() + 0.2
    while asyncio.get_running_loop().time() < held_up:
        await asyncio.sleep(0.01)
        assert len(connection.sent) == AT_ONCE
    connection.answer()
    await connection.sends(AT_ONCE + 1)
    assert connection.sent[AT_ONCE] == b"a" * AT_ONCE


async def test_a_request_that_is_never_answered_holds_no_answer_for_ever() -> None:
    connection = Connection(asked=3 * AT_ONCE)
    connection.answer(2 * AT_ONCE)
    await connection.sends(AT_ONCE + 1)
    assert connection.asked == AT_ONCE


async def test_held_answers_are_bounded() -> None:
    connection = Connection(asked=1_000)
    connection.answer(AT_ONCE + 1)
    connection.burst.send([bytes(3 * 2**20)])
    assert len(connection.sent) == AT_ONCE + 1, "sent without waiting for the end of the burst"


async def test_after_a_burst_a_request_is_answered_at_once_again() -> None:
    connection = Connection(asked=100)
    connection.answer(100)
    await connection.sends(AT_ONCE + 1)
    connection.asked = 1
    connection.answer()
    assert len(connection.sent) == AT_ONCE + 2


async def test_what_is_held_is_sent_before_the_end_and_dropped_with_a_lost_connection() -> None:
    ends, is_lost = Connection(asked=100), Connection(asked=100)
    for each in (ends, is_lost):
        each.answer(50)
        assert len(each.sent) == AT_ONCE
    ends.burst.end()
    assert ends.sent[AT_ONCE:] == [b"a" * (50 - AT_ONCE)]
    is_lost.burst.drop()
    is_lost.burst.end()
    assert b"".join(is_lost.sent) == b"a" * AT_ONCE
