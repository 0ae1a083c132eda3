"""One process of a worker: it loads the program, gets its orders, serves, ends.

Knows pipes and exit codes; not when a process is to be started, nor what it does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import penstock
from gateway.config import ENVIRONMENT_PREFIX, SettingsError
from gateway.workers.lines import Lines
from gateway.workers.orders import Answer, Orders

COMMAND = "worker"
"""Of the program; hidden, for it is of no use to people."""
_PIECE = 2**16


class Refused(SettingsError):
    """A worker cannot start as it is set; the text is a sentence for people."""


class Ended(Exception):
    """A process has ended before it did what was waited for; the text says how."""


class Process:
    """`begin` one, `serve` with it, and `stop` it, or see it `ended`."""

    def __init__(self, process: asyncio.subprocess.Process, lines: Lines) -> None:
        self._process = process
        self._handed_on = asyncio.create_task(_hand_on(process.stderr, lines))
        self._loaded = asyncio.create_task(self._answer())
        self._loaded.add_done_callback(_seen)

    @classmethod
    async def begin(cls, lines: Lines) -> Self:
        """It loads the program as it lies on the disk now. lines: take what it logs."""
        # Our own files, whatever the current directory holds.
        program = str(Path(penstock.__file__).with_name("__main__.py"))
        variables = {
            name: value
            for name, value in os.environ.items()
            if not name.upper().startswith(ENVIRONMENT_PREFIX)
        }
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", program, COMMAND),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=variables,
            start_new_session=True,  # Ctrl-C is the supervisor's to handle
        )
        return cls(process, lines)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def loaded(self) -> None:
        """Waits until it has the program in its memory, which takes most of a start.

        Raises Ended.
        """
        await asyncio.shield(self._loaded)

    async def serve(self, orders: Orders) -> Mapping[str, int]:
        """Has it serve by these orders; gives the ports that it listens on, by address.

        Raises Refused; Ended.
        """
        await self.loaded()
        assert self._process.stdin is not None
        self._process.stdin.write(orders.line())
        answer = await self._answer()
        if answer.refusal is not None:
            await self.ended()
            raise Refused(answer.refusal)
        assert answer.ports is not None, "it says so once"
        return answer.ports

    async def _answer(self) -> Answer:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line.endswith(b"\n"):
            raise Ended(await self.ended())
        return Answer.read(line)

    async def ended(self) -> str:
        """Waits until it has ended and all that it wrote was handed on; says how."""
        code = await self._process.wait()
        await self._handed_on
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    async def stop(self, patience_s: float) -> bool:
        """Has it end in order, and waits; False if it had to be killed after so long."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(patience_s):
                await self.ended()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
            return False
        return True


def _seen(task: asyncio.Task[Answer]) -> None:
    """Whether it was loaded interests nobody where it was stopped before."""
    if not task.cancelled():
        task.exception()


async def _hand_on(stream: asyncio.StreamReader | None, lines: Lines) -> None:
    assert stream is not None
    while piece := await stream.read(_PIECE):
        lines.feed(piece)
    lines.end()
