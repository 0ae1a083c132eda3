"""gateway.console.history: what is kept of numbers that are looked at."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest

from gateway.console import history
from gateway.console.history import History


class Clock:
    """Instead of the module `time`."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    time = monotonic


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(history, "time", clock)
    return clock


async def looked_at(clock: Clock, moments: Collection[float], took_s: float) -> list[float]:
    """When samples were taken that are kept, of something that is looked at at these moments."""

    async def read(names: Collection[str]) -> Mapping[str, Mapping[str, int]]:
        clock.now += took_s
        return {name: {"0": 1} for name in names}

    kept = History(read)
    for clock.now in moments:
        kept.of("orders")
        await kept.look()
    return [at for at, _ in kept.of("orders")["0"]]


async def test_what_takes_long_is_asked_for_seldom(clock: Clock) -> None:
    assert await looked_at(clock, [0, 5, 10], 0.1) == [0.1, 5.1, 10.1]
    assert await looked_at(clock, [0, 10, 39, 41], 2) == [2, 43]


async def test_what_is_older_than_the_plot_is_dropped(clock: Clock) -> None:
    assert await looked_at(clock, [0, 200, 400, 700], 0) == [200, 400, 700]
