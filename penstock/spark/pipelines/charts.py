"""Charts as SVG text: stacked columns and a bar of shares. Colours are classes of the page's style.

Knows numbers and words; must not know what they count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

_WIDTH: Final = 960
_HEIGHT: Final = 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 14, 34
_LABELS: Final = 8  # under the columns, at most


def short(number: float) -> str:
    """950, 1.2 k, 35 M: for an axis."""
    for limit, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(number) >= limit:
            return f"{number / limit:.3g}{unit}"
    return f"{number:.3g}"


def ticks(highest: float) -> list[float]:
    """From 0 to the highest or a little more, in steps of 1, 2 or 5; at least one step."""
    if highest <= 0:
        return [0.0, 1.0]
    step = 10.0 ** math.floor(math.log10(highest / 4))
    step *= next(factor for factor in (1, 2, 5, 10) if highest / (step * factor) <= 4.000001)
    return [step * n for n in range(math.ceil(highest / step - 1e-9) + 1)]


def columns(
    labels: Sequence[str],
    series: Mapping[str, Sequence[float]],
    *,
    classes: Mapping[str, str],
    unit: str,
    tips: Sequence[str] | None = None,
) -> str:
    """A column for each label, the series stacked in it, the first one at the bottom.

    classes: of each series' rectangles. tips: what is shown where a column is pointed at.
    """
    totals = [sum(values) for values in zip(*series.values(), strict=True)]
    steps = ticks(max(totals, default=0))
    inner_width, inner_height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    slot = inner_width / max(1, len(labels))
    bottom = _TOP + inner_height
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(unit)}">',
        f'<text class="unit" x="0" y="{_TOP - 3}">{escape(unit)}</text>',
    ]
    for step in steps:
        y = bottom - step / steps[-1] * inner_height
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        parts.append(f'<text class="tick" x="{_LEFT - 6}" y="{y + 4:.1f}">{short(step)}</text>')
    for index, label in enumerate(labels):
        x, y = _LEFT + index * slot, float(bottom)
        column = []
        for name, values in series.items():
            height = values[index] / steps[-1] * inner_height
            if height > 0:
                y -= height
                column.append(
                    f'<rect class="{classes[name]}" x="{x + slot * 0.08:.2f}" y="{y:.2f}"'
                    f' width="{slot * 0.84:.2f}" height="{height:.2f}"/>'
                )
        tip = tips[index] if tips else f"{label}: {totals[index]:,.6g}"
        parts.append(f"<g><title>{escape(tip)}</title>")
        parts.append(
            f'<rect class="none" x="{x:.2f}" y="{_TOP}" width="{slot:.2f}"'
            f' height="{inner_height}"/>'
        )
        parts += [*column, "</g>"]
        if index % max(1, math.ceil(len(labels) / _LABELS)) == 0:
            middle = x + slot / 2
            parts.append(
                f'<text class="label" x="{middle:.1f}" y="{bottom + 18}">{escape(label)}</text>'
            )
    return "\n".join([*parts, "</svg>"])


def shares(parts: Mapping[str, float], *, classes: Mapping[str, str]) -> str:
    """A bar whose parts are as wide as they are many."""
    total = sum(parts.values())
    if total <= 0:
        return ""
    drawn, x = [], 0.0
    for name, value in parts.items():
        width = value / total * 200
        if width > 0:
            drawn.append(
                f'<rect class="{classes[name]}" x="{x:.2f}" width="{width:.2f}" height="10">'
                f"<title>{escape(name)}: {value:,.0f}</title></rect>"
            )
        x += width
    return (
        f'<svg class="bar" viewBox="0 0 200 10" preserveAspectRatio="none">{"".join(drawn)}</svg>'
    )


def legend(names: Mapping[str, str]) -> str:
    """What each class stands for."""
    items = (f'<span><i class="{css}"></i>{escape(name)}</span>' for name, css in names.items())
    return f'<p class="legend">{" ".join(items)}</p>'
