"""What pages about records share: how the log is read, in which turns, and what streams run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Final

from gateway.console.records.log import LogReader, Stretch
from gateway.console.records.schemas import AvroSchemas
from gateway.console.records.search import Search, Sought
from gateway.console.records.streams import Streams
from gateway.console.records.turns import Turns
from gateway.web.call import ClientError

if TYPE_CHECKING:
    from starlette.requests import Request

    from core.topic.topic import Topic
    from gateway.runtime.runtime import Runtime

_REST_OF_PAGES: Final = 1.0
_REST_OF_STREAMS: Final = 4.0


class RecordRoom:
    """One per process. All pages together read for half of the time at most, and streams for a
    fifth: the rest is the clients'."""

    def __init__(self, runtime: Runtime) -> None:
        self.reader = LogReader(runtime.partitions, runtime.translations, runtime.console.records)
        self.schemas = AvroSchemas(runtime.schemas)
        self.streams = Streams()
        self._page_turns = Turns(_REST_OF_PAGES)
        self._stream_turns = Turns(_REST_OF_STREAMS)

    @asynccontextmanager
    async def page_turn(self, request: Request) -> AsyncIterator[None]:
        """A turn of somebody who waits for a page. Raises ClientError where he has gone."""
        async with self._page_turns.turn():
            if await request.is_disconnected():
                raise ClientError(400, "Whoever asked has gone")
            yield

    def stream_turn(self) -> AbstractAsyncContextManager[None]:
        """A turn of a stream."""
        return self._stream_turns.turn()

    def search(self, topic: Topic, sought: Sought, stretches: Sequence[Stretch]) -> Search:
        """A new one."""
        return Search(self.reader, self.schemas, topic, sought, stretches)
