"""gateway.runtime.flush.queue: what goes together, in which order, and what closing waits for."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from gateway.runtime.flush.queue import FlushQueue


def weight(work: int) -> int:
    return work


async def settled(works: list[list[int]], limit: int) -> list[list[int]]:
    """The flushes made of works that arrive at once, while the one before is under way."""
    flushes: list[list[int]] = []
    arriving = iter(works)

    async def settle(work: list[int]) -> None:
        flushes.append(work)
        for each in next(arriving, []):
            queue.put(each)
        await asyncio.sleep(0)

    queue = FlushQueue(settle, limit=limit, weigh=weight)
    for each in next(arriving, []):
        queue.put(each)
    await queue.close()
    return flushes


async def test_what_comes_while_one_is_under_way_is_the_next_one() -> None:
    assert await settled([[1], [1, 2, 3], [4]], 10) == [[1], [1, 2, 3], [4]]


async def test_work_beyond_the_limit_goes_alone() -> None:
    assert await settled([[3, 3, 3, 99, 1, 1]], 6) == [[3, 3], [3], [99], [1, 1]]


async def test_what_waits_can_be_withdrawn() -> None:
    done: list[list[int]] = []

    async def settle(work: list[int]) -> None:
        done.append(work)

    queue = FlushQueue(settle, limit=99, weigh=weight)
    for each in range(6):
        queue.put(each)
    assert queue.withdraw(lambda work: work % 2 == 1) == [1, 3, 5]
    assert queue.withdraw(lambda work: work > 9) == []
    await queue.close()
    assert done == [[0, 2, 4]]


async def test_it_starts_again_after_it_was_idle() -> None:
    done: list[list[int]] = []

    async def settle(work: list[int]) -> None:
        done.append(work)

    queue = FlushQueue(settle, limit=1, weigh=weight)
    await queue.close()
    for each in (1, 2):
        queue.put(each)
        await queue.close()
    assert done == [[1], [2]]


@given(
    st.lists(st.lists(st.integers(0, 9), max_size=5), min_size=1, max_size=6), st.integers(1, 20)
)
def test_all_is_settled_once_in_order_and_within_the_limit(
    works: list[list[int]], limit: int
) -> None:
    flushes = asyncio.run(settled(works, limit))
    arrived = []
    for work in works[: len(flushes) + 1]:
        arrived += work
    assert [each for flush in flushes for each in flush] == arrived
    assert all(sum(flush) <= limit or len(flush) == 1 for flush in flushes)


FOR_EVER = 3_600.0


async def gathered(*turns: list[float]) -> list[list[float]]:
    """The flushes of work that comes turn by turn; each piece is how long it may wait, in s."""
    done: list[list[float]] = []

    async def settle(work: list[float]) -> None:
        done.append(work)

    queue: FlushQueue[float] = FlushQueue(
        settle, limit=99, weigh=lambda _: 1, gather=lambda work, count: 0 if count > 3 else work
    )
    for turn in turns:
        for each in turn:
            queue.put(each)
        for _ in range(3):
            await asyncio.sleep(0)
    await queue.close()
    return done


async def test_what_may_wait_goes_with_what_may_not() -> None:
    assert await gathered([FOR_EVER], [FOR_EVER], [0]) == [[FOR_EVER, FOR_EVER, 0]]
    assert await gathered([FOR_EVER, 0], [FOR_EVER, 0]) == [[FOR_EVER, 0]] * 2
    assert await gathered([0, FOR_EVER]) == [[0, FOR_EVER]]


async def test_a_wait_ends_when_enough_are_there() -> None:
    assert await gathered([FOR_EVER] * 2, [FOR_EVER], [FOR_EVER]) == [[FOR_EVER] * 4]


async def test_a_wait_ends_in_time() -> None:
    assert await gathered([0.001]) == [[0.001]]


async def test_all_that_waits_may_be_withdrawn() -> None:
    done: list[list[int]] = []

    async def settle(work: list[int]) -> None:
        done.append(work)

    queue: FlushQueue[int] = FlushQueue(
        settle, limit=99, weigh=weight, gather=lambda work, _: 0.01 * work
    )
    queue.put(1)
    await asyncio.sleep(0)
    assert queue.withdraw(lambda _: True) == [1]
    queue.put(0)
    await queue.close()
    queue.put(1)
    await asyncio.sleep(0)
    assert queue.withdraw(lambda _: True) == [1]
    await queue.close()  # its time is over, and there is nothing
    assert done == [[0]]
