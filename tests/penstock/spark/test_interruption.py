"""Signals while a pipeline runs: raised, or kept until it is asked for them."""

from __future__ import annotations

import os
import signal

import pytest

from penstock.spark.pipelines import interruption

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_raised(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in SIGNALS]
    with interruption.heard() as heard:
        assert interruption.current is heard
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
        assert heard.number == number
        os.kill(os.getpid(), number)  # told to a group and to each: once is enough
    assert [signal.getsignal(each) for each in SIGNALS] == before


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_waits_where_it_is_asked_for(number: signal.Signals) -> None:
    quiet: list[bool] = []
    with interruption.heard() as heard:
        heard.quieten = lambda: quiet.append(True)
        with heard.asked_for() as shall_end:
            assert not shall_end()
            os.kill(os.getpid(), number)
            assert quiet == []
            assert shall_end()
        assert quiet == [True]


def test_who_tells_it_again_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    monkeypatch.setattr(interruption, "_MEANT_AFTER_S", -1.0)
    with interruption.heard() as heard, heard.asked_for():
        os.kill(os.getpid(), signal.SIGINT)
        assert codes == []
        os.kill(os.getpid(), signal.SIGTERM)
    assert codes == [143]
    assert heard.number == signal.SIGINT
