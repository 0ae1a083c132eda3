"""What is made ready in a thread keeps its place, and holds up nobody else."""

from __future__ import annotations

import asyncio
import threading

import pytest

from gateway.runtime.log.unready_appends import UnreadyAppends


async def test_later_ones_under_the_same_key_wait_and_others_do_not() -> None:
    appends, order = UnreadyAppends(), []
    may_go_on = threading.Event()

    def slow() -> str:
        assert may_go_on.wait(30)
        return "slow"

    slow_one = appends.put(1, slow, order.append)
    quick_one = appends.put(1, lambda: "behind it", order.append)
    await appends.put(2, lambda: "other", order.append)
    assert 1 in appends
    assert order == ["other"]
    may_go_on.set()
    await asyncio.gather(slow_one, quick_one)
    assert order == ["other", "slow", "behind it"]
    await asyncio.sleep(0)
    assert 1 not in appends
    assert 2 not in appends


async def test_whoever_passes_when_nobody_waits_passes_behind_all_before() -> None:
    appends, order = UnreadyAppends(), []
    tasks = [appends.put(1, lambda n=n: n, order.append) for n in range(20)]  # type: ignore[misc]  # mypy: a lambda's default
    while not all(task.done() for task in tasks):
        if 1 not in appends:
            order.append(-1)
        await asyncio.sleep(0)
    assert order == list(range(20))


async def test_it_gives_what_was_appended() -> None:
    appends = UnreadyAppends()
    assert await appends.put("a", lambda: 20, lambda ready: ready + 1) == 21


async def test_a_turn_of_the_loop_has_only_so_much_made_at_once() -> None:
    appends = UnreadyAppends()
    for _ in range(3):
        assert [appends.may_be_made_at_once(50_000) for _ in range(4)] == [True, True, False, False]
        assert appends.may_be_made_at_once(1_000)
        await asyncio.sleep(0)


async def test_draining_waits_for_all() -> None:
    appends, order = UnreadyAppends(), []
    await appends.drain()
    for key in (1, 1, 2):
        appends.put(key, lambda: 0, order.append)
    await appends.drain()
    assert order == [0, 0, 0]


async def test_a_failure_is_told_to_whoever_asked_and_holds_up_nobody() -> None:
    appends, order = UnreadyAppends(), []
    failing = appends.put(1, lambda: 1 // 0, order.append)
    behind = appends.put(1, lambda: "behind it", order.append)
    with pytest.raises(ZeroDivisionError):
        await failing
    await behind
    assert order == ["behind it"]
