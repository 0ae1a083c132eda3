"""Small plots: points of lines in an SVG, and what they say in words. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from gateway.console.rendering import count, duration

WIDTH: Final = 600
HEIGHT: Final = 70
_EDGE: Final = 4

Series = Sequence[tuple[float, float]]
"""Times in seconds, ascending, and values."""


@dataclass(frozen=True, slots=True)
class Plot:
    """lines: each as `points` of a polyline; names: of them, where they have any. words: what it
    shows, for those who do not see it. top: the greatest value; since: where the scale begins."""

    lines: Sequence[str]
    words: str
    top: str
    since: str
    names: Sequence[str] = ()
    width: int = WIDTH
    height: int = HEIGHT


def plot(
    series: Sequence[Series], words: str, until: float, span_s: float, names: Sequence[str] = ()
) -> Plot:
    """Lines over the last span_s seconds before `until`, on one scale that begins at 0. names: of
    each line."""
    top = max((value for line in series for _, value in line), default=0) or 1
    usable = HEIGHT - 2 * _EDGE

    def point(at: float, value: float) -> str:
        x = WIDTH * (1 - (until - at) / span_s)
        return f"{x:.1f},{HEIGHT - _EDGE - usable * max(value, 0) / top:.1f}"

    lines = [" ".join(point(*each) for each in line) for line in series if line]
    return Plot(lines, words, count(top), f"{duration(span_s)} ago", names)


def rates(totals: Series) -> list[tuple[float, float]]:
    """What a growing total has grown by, per second, between each two points."""
    return [
        (at, max(0.0, (value - before) / (at - earlier)))
        for (earlier, before), (at, value) in pairwise(totals)
        if at > earlier
    ]


def rate_plot(what: str, totals: Series, until: float, span_s: float) -> Plot:
    """How fast a number of records grows. what: in words, that begin the plot's own."""
    line = rates(totals)
    now = f"{count(line[-1][1])} records/s" if line else "looking…"
    return plot([line], f"{what}: {now}", until, span_s)
