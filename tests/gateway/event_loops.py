"""Runs a test on each event loop the gateway may be run on."""

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from gateway.event_loop import new_event_loop

AsyncTest = Callable[..., Coroutine[Any, Any, None]]


def on_every_loop(test: AsyncTest) -> Callable[..., None]:
    """The coroutine test as a plain one, once on asyncio's own loop and once on the server's."""

    @functools.wraps(test)
    def run(new_loop: Callable[[], asyncio.AbstractEventLoop], **fixtures: Any) -> None:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(test(**fixtures))

    wanted = inspect.signature(test)
    extra = inspect.Parameter("new_loop", inspect.Parameter.KEYWORD_ONLY)
    run.__signature__ = wanted.replace(  # type: ignore[attr-defined]  # what pytest reads
        parameters=[*wanted.parameters.values(), extra]
    )
    loops = [asyncio.new_event_loop, new_event_loop]
    return pytest.mark.parametrize("new_loop", loops, ids=["asyncio", "the server's"])(run)
