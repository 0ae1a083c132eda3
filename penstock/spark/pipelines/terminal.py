"""What a pipeline shows of its progress: a moving line where it is a terminal, plain lines else.

Knows figures and words; nothing of Spark.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.status import Status


class Terminal:
    """Lines to standard output; complaints to standard error."""

    def __init__(self, console: Console | None = None, errors: Console | None = None) -> None:
        self._console = console or Console()
        self._errors = errors or Console(stderr=True)

    @property
    def is_live(self) -> bool:
        """Whether lines can move."""
        return self._console.is_terminal

    def say(self, line: str) -> None:
        """A line that stays. At once, whoever reads it: it may be a pipe."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)
        self._console.file.flush()

    def complain(self, line: str) -> None:
        """What went wrong."""
        self._errors.print(line, style="red", markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """While something of unknown length goes on; tells how long it took."""
        started = time.monotonic()
        if self.is_live:
            with self._console.status(f"{what} …"):
                yield
        else:
            yield
        self.say(f"{what}: {time.monotonic() - started:.1f} s")

    @contextmanager
    def moving(self) -> Iterator[Callable[[str], None]]:
        """Gives what replaces the text of a moving line; it does nothing but in a terminal."""
        if not self.is_live:
            yield lambda text: None
            return
        status = Status("", console=self._console)
        with status:
            yield lambda text: status.update(text)

    @contextmanager
    def counting(self, what: str) -> Iterator[Callable[[int, int], None]]:
        """While something goes on whose parts can be counted: call with (done, total)."""
        started = time.monotonic()
        if self.is_live:
            columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn())
            with Progress(
                *columns, TimeElapsedColumn(), console=self._console, transient=True
            ) as bar:
                task = bar.add_task(what, total=None)

                def show(done: int, total: int) -> None:
                    bar.update(task, completed=done, total=total or None)

                yield show
        else:
            yield lambda done, total: None
        self.say(f"{what}: {time.monotonic() - started:.1f} s")
