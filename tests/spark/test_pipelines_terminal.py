"""What is shown of progress: plain lines in a pipe, moving ones in a terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from penstock.spark.pipelines.streams import batch_line, offsets_behind
from penstock.spark.pipelines.terminal import Terminal

PROGRESS = {
    "batchId": 3,
    "numInputRows": 12_000,
    "durationMs": {"triggerExecution": 1500},
    "sources": [
        {"endOffset": {"t": {"0": 10, "1": 5}}, "latestOffset": {"t": {"0": 400, "1": 115}}}
    ],
}


def shown(*, is_terminal: bool) -> str:
    written, errors = io.StringIO(), io.StringIO()
    terminal = Terminal(
        Console(file=written, force_terminal=is_terminal, width=60), Console(file=errors)
    )
    with terminal.moving() as tell:
        tell("batch 1 …")
        terminal.say("[a line] that is longer than the terminal is wide, and yet it is one")
    with terminal.waiting("Something"):
        pass
    with terminal.counting("Offsets") as show:
        show(3, 10)
    terminal.complain("wrong")
    assert errors.getvalue() == "wrong\n"
    return written.getvalue()


def test_a_pipe_gets_plain_lines() -> None:
    first, second, third, *rest = shown(is_terminal=False).splitlines()
    assert first == "[a line] that is longer than the terminal is wide, and yet it is one"
    assert second.startswith("Something: 0.")
    assert third.startswith("Offsets: 0.")
    assert rest == []


def test_a_terminal_shows_what_goes_on() -> None:
    text = shown(is_terminal=True)
    assert "Something …" in text
    assert "batch 1 …" in text
    assert "\x1b[" in text
    assert "Offsets: 0." in text


def test_a_batch_is_a_line() -> None:
    assert batch_line(PROGRESS) == "batch 3: 12,000 rows in 1.5 s, 8,000 rows/s, 500 behind"
    nothing_waits = {**PROGRESS, "sources": [{"endOffset": None, "latestOffset": None}]}
    assert batch_line(nothing_waits) == "batch 3: 12,000 rows in 1.5 s, 8,000 rows/s"


@pytest.mark.parametrize(
    ("end", "latest", "behind"),
    [
        ({"t": {"0": 5}}, {"t": {"0": 5}}, 0),
        ({"t": {"0": 5}}, {"t": {"0": 4}}, 0),  # the log was cut
        ({"t": {"0": 5}}, {"t": {"0": 7, "1": 9}}, 2),  # a partition not read from yet
        ("{}", {"t": {"0": 7}}, 0),
    ],
)
def test_what_is_behind_is_counted(end: object, latest: object, behind: int) -> None:
    assert offsets_behind({"endOffset": end, "latestOffset": latest}) == behind
