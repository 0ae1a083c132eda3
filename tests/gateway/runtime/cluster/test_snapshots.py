"""Of a snapshot held for long people are told, once each."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from structlog.testing import capture_logs

from core.ports.log import StoreUnavailable
from core.ports.snapshots import HeldSnapshot
from gateway.runtime.cluster import snapshots
from gateway.runtime.cluster.snapshots import SnapshotWatch


async def test_each_holder_is_warned_of_once() -> None:
    found: list[HeldSnapshot | None] = [
        None,
        HeldSnapshot(599, "a"),
        HeldSnapshot(601, "a"),
        HeldSnapshot(631, "a"),
        HeldSnapshot(700, "b"),
        None,
        HeldSnapshot(650, "b"),
    ]
    seen = iter(found)

    async def oldest() -> HeldSnapshot | None:
        return next(seen)

    watch = SnapshotWatch(oldest)
    ages = []
    with capture_logs() as logs:
        for _ in found:
            await watch.look()
            ages.append(watch.seconds)
    assert ages == [0, 599, 601, 631, 700, 0, 650]
    assert [(line["log_level"], line["holder"]) for line in logs] == [
        ("warning", "a"),
        ("warning", "b"),
        ("warning", "b"),
    ]


async def test_it_goes_on_when_the_database_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "INTERVAL_S", 0.01)
    looks = 0

    async def oldest() -> HeldSnapshot | None:
        nonlocal looks
        looks += 1
        if looks < 3:
            raise StoreUnavailable("gone")
        return HeldSnapshot(5, "a")

    watch = SnapshotWatch(oldest)
    running = asyncio.create_task(watch.run())
    async with asyncio.timeout(30):
        while watch.seconds != 5:
            await asyncio.sleep(0.01)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
