"""Ctrl-C and SIGTERM, so that a pipeline ends with a sentence wherever it is.

PySpark's own handler cancels jobs and raises, in the middle of a question to the JVM: that comes
out as one of several errors, or as none. Knows signals; must not know Spark's queries.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

_ENDING: Final = (signal.SIGINT, signal.SIGTERM)
# Whoever ends a group of processes may tell this one twice; a person who has waited means it.
_MEANT_AFTER_S: Final = 1.0


class Interruption:
    """Whether somebody wants the pipeline to end, in the main thread; elsewhere nobody can.

    number: of the first signal that has come, 0 for none. quieten: called before what is under way
    is cut off, which others report at length.
    """

    def __init__(self) -> None:
        self.number = 0
        self.quieten: Callable[[], None] = lambda: None
        self._since = 0.0
        self._is_asked_for = False

    def listen(self) -> None:
        """From now on, also where somebody else has put a handler of theirs."""
        if threading.current_thread() is threading.main_thread():
            for number in _ENDING:
                signal.signal(number, self._come)

    @contextmanager
    def asked_for(self) -> Iterator[Callable[[], bool]]:
        """While it is asked often enough whether it shall end, nothing is raised."""

        def shall_end() -> bool:
            if self.number:
                self.quieten()
            return bool(self.number)

        self._is_asked_for = True
        try:
            yield shall_end
        finally:
            self._is_asked_for = False

    def _come(self, number: int, frame: FrameType | None) -> None:
        if self.number:
            if time.monotonic() - self._since > _MEANT_AFTER_S:
                os._exit(128 + number)  # the JVM sees it, and ends, too
            return
        self.number, self._since = number, time.monotonic()
        logging.disable()  # py4j reports it, with the stack
        if not self._is_asked_for:
            raise KeyboardInterrupt


current = Interruption()


@contextmanager
def heard() -> Iterator[Interruption]:
    """While a pipeline runs in this process: its own interruption, `current`."""
    global current
    before: dict[signal.Signals, Any] = {number: signal.getsignal(number) for number in _ENDING}
    current, outer = Interruption(), current
    current.listen()
    try:
        yield current
    finally:
        logging.disable(logging.NOTSET)
        current = outer
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                signal.signal(number, handler)


@contextmanager
def told_to_this_process_only() -> Iterator[None]:
    """A JVM that is started meanwhile does not end at a SIGTERM to all of a service's processes.

    It would while it is still in use, with many words. PySpark itself keeps SIGINT from it.
    """
    _starting.set()
    try:
        yield
    finally:
        _starting.clear()


_starting: Final = threading.Event()


def _in_a_child() -> None:
    if _starting.is_set():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


os.register_at_fork(after_in_child=_in_a_child)
