"""How the audit's report looks and speaks: style, numbers in words, tables.

Knows HTML; must not know what is reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from html import escape
from typing import Final

UNKNOWN: Final = "\N{EN DASH}"

STYLE: Final = """
:root { color-scheme: light dark; --ink: #1d2530; --soft: #5d6b7c; --line: #d9dfe6; --page: #fff;
  --card: #f5f7f9; --a: #2f7d6d; --b: #c8553d; --c: #d9a441; --d: #b9c3ce;
  --t1: #3d6fb6; --t2: #8a5aa8; --t3: #c08a2d; --t4: #5b8c3a; --t5: #8c8f94; }
@media (prefers-color-scheme: dark) { :root { --ink: #e3e8ee; --soft: #98a6b5; --line: #333d48;
  --page: #14191f; --card: #1d242c; --a: #4fb3a0; --b: #e4785f; --d: #4b5966; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1040px; padding: 2.5rem 1.25rem 4rem; background: var(--page);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.7rem; margin: 0 0 .25rem; } h2 { font-size: 1.15rem; margin: 2.6rem 0 .5rem; }
p { margin: .4rem 0; max-width: 75ch; } .soft { color: var(--soft); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: .75rem;
  margin: 1.5rem 0 0; }
.tile { background: var(--card); border-radius: 8px; padding: .8rem 1rem; }
.tile b { display: block; font-size: 1.45rem; font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: .85rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th { color: var(--soft); font-weight: 500; text-align: left; }
th, td { padding: .3rem .7rem .3rem 0; border-bottom: 1px solid var(--line); white-space: nowrap; }
.n { text-align: right; font-variant-numeric: tabular-nums; }
td.k { max-width: 28rem; overflow: hidden; text-overflow: ellipsis; }
svg { display: block; width: 100%; height: auto; } svg.bar { width: 200px; height: 10px; }
svg text { fill: var(--soft); font: 11px system-ui, sans-serif; }
.tick { text-anchor: end; } .label { text-anchor: middle; }
.grid { stroke: var(--line); } .none { fill: transparent; } g:hover .none { fill: var(--card); }
rect.a, rect.t0 { fill: var(--a); } rect.b { fill: var(--b); } rect.c { fill: var(--c); }
rect.d { fill: var(--d); } rect.t1 { fill: var(--t1); } rect.t2 { fill: var(--t2); }
rect.t3 { fill: var(--t3); } rect.t4 { fill: var(--t4); } rect.t5 { fill: var(--t5); }
.legend span { margin-right: 1.2rem; color: var(--soft); font-size: .85rem; }
.legend i { display: inline-block; width: .7em; height: .7em; margin-right: .4em;
  border-radius: 2px; }
i.a, i.t0 { background: var(--a); } i.b { background: var(--b); } i.c { background: var(--c); }
i.d { background: var(--d); } i.t1 { background: var(--t1); } i.t2 { background: var(--t2); }
i.t3 { background: var(--t3); } i.t4 { background: var(--t4); } i.t5 { background: var(--t5); }
"""


def counted(number: float, word: str) -> str:
    return f"{number:,.0f} {word}{'' if number == 1 else 's'}"


def when(time: datetime | None) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S} UTC" if time else UNKNOWN


def percent(part: float, whole: float) -> str:
    if not whole:
        return UNKNOWN
    share = 100 * part / whole
    return f"{share:.1f} %" if share >= 0.05 or not part else "< 0.1 %"


def size(count: float) -> str:
    for limit, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= limit:
            return f"{count / limit:.1f} {unit}"
    return f"{count:.0f} B"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return UNKNOWN
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.1f} min"


def key_text(key: bytes) -> str:
    """A key as people read it; in hexadecimal where it is no text."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return f"0x{key.hex()}"
    return text if text.isprintable() else f"0x{key.hex()}"


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def table(heads: Sequence[str], rows: Iterable[Sequence[object]], words: int = 1) -> str:
    """The first `words` columns are text, the others numbers."""

    def cell(index: int, value: object) -> str:
        text = f"{value:,}" if isinstance(value, int) else str(value)
        shown = value if isinstance(value, Markup) else escape(text)
        css = ' class="k"' if index < words else ' class="n"'
        return f"<td{css}>{shown}</td>"

    head = "".join(
        f"<th{'' if index < words else ' class=n'}>{escape(name)}</th>"
        for index, name in enumerate(heads)
    )
    lines = "".join(
        f"<tr>{''.join(cell(index, value) for index, value in enumerate(row))}</tr>" for row in rows
    )
    inside = f"<thead><tr>{head}</tr></thead><tbody>{lines}</tbody>"
    return f'<div class="scroll"><table>{inside}</table></div>'
