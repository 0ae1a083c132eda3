"""Nobody overtakes whoever waits."""

from __future__ import annotations

import asyncio
import contextlib

from gateway.runtime.log.append_gate import AppendGate


async def test_it_is_not_free_between_a_release_and_the_next_waiters_turn() -> None:
    admission = AppendGate()
    order: list[str] = []
    looked_up = asyncio.Event()

    async def slow(name: str) -> None:
        async with admission:
            if name == "first":
                await looked_up.wait()
            order.append(name)

    first, second = asyncio.create_task(slow("first")), asyncio.create_task(slow("second"))
    await asyncio.sleep(0)
    assert not admission.is_free
    looked_up.set()
    # Comes on every turn of the loop, as requests do, and passes only where it may.
    while not second.done():
        if admission.is_free:
            order.append("overtook")
        await asyncio.sleep(0)
    await asyncio.gather(first, second)
    assert [name for name in order if name != "overtook"] == ["first", "second"]
    assert "overtook" not in order[: order.index("second")]
    assert admission.is_free


async def test_who_gives_up_waiting_leaves_it_free() -> None:
    admission = AppendGate()
    async with admission:
        waiting = asyncio.create_task(admission.__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
        assert not admission.is_free
    assert admission.is_free
