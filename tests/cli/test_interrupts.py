"""cli.interrupts: Ctrl-C is heard, also where a library has swallowed it; lines of a pipe."""

import contextlib
import os
import signal
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.interrupts import Interrupts


def lines_of(written: bytes) -> list[bytes]:
    reading, writing = os.pipe()
    writer = threading.Thread(target=write, args=(writing, written))
    writer.start()
    try:
        with open(reading, "rb") as pipe:  # noqa: PTH123 - a descriptor has no path
            return list(Interrupts().lines_of(pipe))
    finally:
        writer.join()


def write(descriptor: int, written: bytes) -> None:
    with open(descriptor, "wb") as pipe:
        pipe.write(written)


def test_a_swallowed_interrupt_is_raised_again() -> None:
    former = signal.getsignal(signal.SIGINT)
    with Interrupts() as interrupts:
        interrupts.check()
        with contextlib.suppress(KeyboardInterrupt):  # as kafka-python's selector does
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()
    assert signal.getsignal(signal.SIGINT) is former


def test_no_line_is_waited_for_once_interrupted() -> None:
    reading, writing = os.pipe()
    with Interrupts() as interrupts, open(reading, "rb") as pipe:  # noqa: PTH123
        lines = interrupts.lines_of(pipe)
        os.write(writing, b"one\nbegun")
        assert next(lines) == b"one"
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            next(lines)
    os.close(writing)


@given(st.lists(st.sampled_from([b"", b"a", b"b\r", b"long" * 40_000]), max_size=6), st.booleans())
def test_lines_come_whole(written: list[bytes], is_ended: bool) -> None:
    text = b"\n".join(written) + (b"\n" if is_ended else b"")
    expected = text.split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert lines_of(text) == [line.removesuffix(b"\r") for line in expected]
