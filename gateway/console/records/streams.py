"""Responses that go on: lines as they come, until the client goes or the broker stops.

Knows no record.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from core.security.principal import Caller
from gateway.web.call import ClientError
from gateway.web.server import FINISHING

_MOST: Final = 100
_MOST_OF_ONE: Final = 20

Ends = asyncio.Future[None]
"""Done when the client has gone, or the broker stops."""
Lines = Callable[[Ends], AsyncGenerator[bytes, None]]


class CutOff(Exception):
    """The response is cut off, so that the client sees that it has not all."""


class Streams:
    """Those that run; one per process."""

    def __init__(self) -> None:
        self.running: Counter[Caller] = Counter()

    @property
    def count(self) -> int:
        """How many run."""
        return self.running.total()

    def open(
        self, caller: Caller, lines: Lines, headers: Mapping[str, str], media_type: str
    ) -> Response:
        """A response of these lines. Raises ClientError where there are too many, of all or of the
        one who asks."""
        for most, count, whose in (
            (_MOST, self.count, "run at this broker"),
            (_MOST_OF_ONE, self.running[caller], "of yours run at this broker"),
        ):
            if count >= most:
                raise ClientError(503, f"{most} searches and live tails {whose}: stop one, or wait")
        return _Stream(self, caller, lines, headers, media_type)


class _Stream(Response):
    def __init__(
        self,
        streams: Streams,
        caller: Caller,
        lines: Lines,
        headers: Mapping[str, str],
        media_type: str,
    ) -> None:
        super().__init__(None, 200, headers, media_type)
        del self.headers["content-length"]
        self._streams = streams
        self._caller = caller
        self._lines = lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See Response."""
        ends: Ends = asyncio.get_running_loop().create_future()
        watching = asyncio.create_task(_watch(scope, receive, ends))
        running = self._streams.running
        running[self._caller] += 1
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            if scope["method"] != "HEAD":
                async with aclosing(self._lines(ends)) as lines:
                    async for line in lines:
                        await _send(send, line, more=True)
            await _send(send, b"", more=False)
        except CutOff:
            pass  # the server closes a connection whose response has no end
        finally:
            running[self._caller] -= 1
            if not running[self._caller]:
                del running[self._caller]
            watching.cancel()


async def _send(send: Send, line: bytes, *, more: bool) -> None:
    await send({"type": "http.response.body", "body": line, "more_body": more})


async def _watch(scope: Scope, receive: Receive, ends: Ends) -> None:
    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    waiting = {asyncio.create_task(gone()), asyncio.create_task(scope["state"][FINISHING].wait())}
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waiting:
            each.cancel()
        if not ends.done():
            ends.set_result(None)
