"""Threads that put load on brokers until told to stop; what fails in one, fails the test.

Knows threads and waits; must not know what they do nor what is being broken.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Self


class Workers(ABC):
    """Some named threads. `_add` each before `running`; they watch `_stop`.

    progress: how much more each does before a test believes that it goes on, within progress_s.
    """

    finish_within_s = 90.0
    progress = 2
    progress_s = 90.0

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._failures: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    @abstractmethod
    def done(self) -> Mapping[str, int]:
        """How much each worker has brought to its end so far."""

    @abstractmethod
    def told(self) -> object:
        """What brokers and clients have said, for the message when nothing goes on."""

    def _add(self, name: str, work: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - told to the test
                self._failures.append(error)

        self._threads.append(threading.Thread(target=guarded, name=name, daemon=True))

    @contextlib.contextmanager
    def running(self) -> Iterator[Self]:
        """Load while the block runs; finished at its end, also where the block raises. Raises what
        a worker raised."""
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            deadline = time.monotonic() + self.finish_within_s
            for thread in self._threads:
                thread.join(max(0.1, deadline - time.monotonic()))
        self._check()
        assert not any(thread.is_alive() for thread in self._threads), f"no end: {self._report()}"

    def wait_for_progress(self, more: int | None = None, within_s: float | None = None) -> float:
        """Waits until each worker has done so much more; gives the seconds taken.

        The measure of "clients go on by themselves".
        """
        started = time.monotonic()
        more, within_s = more or self.progress, within_s or self.progress_s
        wanted = {name: count + more for name, count in self.done().items()}
        while True:
            self._check()
            done = self.done()
            if all(done[name] >= count for name, count in wanted.items()):
                return time.monotonic() - started
            if time.monotonic() - started > within_s:
                raise AssertionError(f"no progress within {within_s} s: {self._report()}")
            time.sleep(0.02)

    def _check(self) -> None:
        if self._failures:
            raise self._failures[0]

    def _report(self) -> str:
        """What was said, how far each has come, and where in the code each one is."""
        frames = sys._current_frames()
        places = [
            f"{thread.name}:\n{''.join(traceback.format_stack(frames[thread.ident])[-2:])}"
            for thread in self._threads
            if thread.ident in frames
        ]
        return f"{self.told()}; done: {dict(self.done())}\n" + "\n".join(places)
