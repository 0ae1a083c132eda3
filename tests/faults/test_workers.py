"""The threads of fault tests: whatever ends a test, none of them outlives it."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

import pytest

from tests.faults.workers import Workers


class Slow(Workers):
    """One worker that takes a moment to end, or fails."""

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__()
        self.ended = threading.Event()
        self._fails = fails
        self._add("slow", self._work)

    def _work(self) -> None:
        self._stop.wait()
        time.sleep(0.3)
        self.ended.set()
        if self._fails:
            raise ValueError("of the worker")

    def done(self) -> Mapping[str, int]:
        return {"slow": 0}

    def told(self) -> object:
        return None


def test_a_test_that_fails_leaves_no_thread_behind() -> None:
    workers = Slow(fails=True)
    with pytest.raises(KeyError, match="of the test"), workers.running():
        raise KeyError("of the test")
    assert workers.ended.is_set()


def test_what_fails_in_a_worker_fails_the_test() -> None:
    workers = Slow(fails=True)
    with pytest.raises(ValueError, match="of the worker"), workers.running():
        pass
