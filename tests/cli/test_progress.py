"""The line that says how far a command is: on a terminal only, not too often, gone in the end."""

import io

import pytest

import cli.progress
from cli.progress import Progress


class Terminal(io.StringIO):
    """Standard error. is_watched: whether it is a terminal."""

    def __init__(self, *, is_watched: bool) -> None:
        super().__init__()
        self._is_watched = is_watched

    def isatty(self) -> bool:
        return self._is_watched


class Clock:
    """`time`, as far as the line knows it."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(cli.progress, "time", clock)
    return clock


def terminal(monkeypatch: pytest.MonkeyPatch, *, is_watched: bool = True) -> Terminal:
    made = Terminal(is_watched=is_watched)
    monkeypatch.setattr("sys.stderr", made)
    return made


def test_a_line_is_written_over_twice_a_second(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = terminal(monkeypatch)
    progress = Progress("sent")
    for now, count in ((100.1, 1), (100.5, 1000), (100.9, 1500), (101.0, 2000), (102.0, 3000)):
        clock.now = now
        progress.at(count)
    progress.end("Sent 3,000 records to t.")
    assert shown.getvalue().split("\r\x1b[K") == [
        "",
        "1,000 records sent, 2,000 a second",
        "2,000 records sent, 2,000 a second",
        "3,000 records sent, 1,500 a second",
        "Sent 3,000 records to t.\n",
    ]


def test_a_quick_command_shows_its_end_only(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = terminal(monkeypatch)
    progress = Progress("sent")
    clock.now += 0.4
    progress.at(1)
    progress.end("Sent 1 record to t.")
    assert shown.getvalue() == "Sent 1 record to t.\n"


def test_nothing_but_the_end_goes_to_a_file(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = terminal(monkeypatch, is_watched=False)
    progress = Progress("read")
    clock.now += 60
    progress.at(1_000_000)
    progress.end("Read 1,000,000 records of t.")
    assert shown.getvalue() == "Read 1,000,000 records of t.\n"
