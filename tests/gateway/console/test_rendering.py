"""gateway.console: how numbers, times and names are written; lists in parts; plots."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from core.ports.log import StoreUnavailable
from gateway.console.paging import part_of
from gateway.console.plots import HEIGHT, WIDTH, plot, rates
from gateway.console.rendering import count, duration, link, moment, shown, size
from gateway.console.shared import Shared


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0123, "12 ms"),
        (59.9, "59 s"),
        (60, "1 min"),
        (250, "4 min 10 s"),
        (3600, "1 h"),
        (3661, "1 h 1 min"),
        (90_000, "1 d 1 h"),
        (86_460, "1 d"),
        (-250, "-4 min 10 s"),
        (timedelta(minutes=5), "5 min"),
        (None, "\N{EN DASH}"),
    ],
)
def test_spans(seconds: float | timedelta | None, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**20 * 300, "300 MiB"), (None, "–")],  # noqa: RUF001
)
def test_sizes(number: int | None, text: str) -> None:
    assert size(number) == text


def test_counts() -> None:
    assert [count(each) for each in (0, 12345, 1.25, 1234.5, None)] == [
        *("0", "12,345", "1.2", "1,234"),
        "\N{EN DASH}",
    ]


def test_times_are_for_the_script() -> None:
    at = datetime(2026, 11, 26, 7, 44, 12, 5000, UTC)
    assert str(moment(at)) == (
        '<time datetime="2026-11-26T07:44:12.005000+00:00">2026-11-26 07:44:12.005 UTC</time>'
    )
    assert moment(int(at.timestamp() * 1000)) == moment(at)
    assert moment(2**62) == f"{2**62} ms"  # a client may say anything


def test_what_hides_is_shown() -> None:
    assert shown("a\u202eb\x00c\nd\u200be") == "a\\u202eb\\u0000c\\u000ad\\u200be"
    assert shown("Grüße 🦀") == "Grüße 🦀"


def test_names_are_in_the_query() -> None:
    assert link("/group", id="a/../b?&#é", x=None) == "/group?id=a%2F..%2Fb%3F%26%23%C3%A9"
    assert link("/group", id="") == "/group?id="


def test_a_list_in_parts() -> None:
    rows = list(range(120))
    assert part_of(rows, 1).rows == rows[:50]
    last = part_of(rows, 3)
    assert (last.rows, last.first, last.last, last.pages) == (rows[100:], 101, 120, 3)
    assert part_of(rows, 99) == last
    assert part_of([], 1).pages == 1


def test_rates_and_their_plot() -> None:
    line = rates([(0.0, 100.0), (5.0, 200.0), (10.0, 150.0), (10.0, 150.0)])
    assert line == [(5.0, 20.0), (10.0, 0.0)]  # a log that was made anew has not shrunk
    made = plot([line, []], "words", until=10.0, span_s=10.0)
    assert made.lines == [f"{WIDTH / 2:.1f},4.0 {WIDTH:.1f},{HEIGHT - 4:.1f}"]


async def test_all_who_look_share_a_read() -> None:
    reads = 0

    async def read() -> int:
        nonlocal reads
        reads += 1
        await asyncio.sleep(0.01)
        return reads

    shared = Shared(read)
    assert await asyncio.gather(*(shared.get() for _ in range(20))) == [1] * 20


async def test_what_takes_long_is_asked_for_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("gateway.console.shared.time.monotonic", lambda: now)

    async def read() -> float:
        nonlocal now
        now += 1.0
        return now

    shared = Shared(read)
    assert await shared.get() == 1
    now = 19.0
    assert await shared.get() == 1
    now = 20.5
    assert await shared.get() == 21.5


async def test_an_error_is_not_kept() -> None:
    answers = [RuntimeError, 5]

    async def read() -> int:
        answer = answers.pop(0)
        if isinstance(answer, int):
            return answer
        raise answer

    shared = Shared(read)
    with pytest.raises(RuntimeError):
        await shared.get()
    assert await shared.get() == 5


async def test_what_cannot_be_read_is_not_asked_for_by_everybody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, reads = 0.0, 0
    monkeypatch.setattr("gateway.console.shared.time.monotonic", lambda: now)

    async def read() -> int:
        nonlocal now, reads
        now, reads = now + 3.0, reads + 1
        raise StoreUnavailable("it takes too long")

    shared = Shared(read)
    for _ in range(20):
        with pytest.raises(StoreUnavailable, match="it takes too long"):
            await shared.get()
    assert reads == 1
    now = 9.0
    with pytest.raises(StoreUnavailable):
        await shared.get()
    assert reads == 2
