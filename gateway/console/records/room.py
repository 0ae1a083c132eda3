"""What pages about records share: how the log is read, in which turns, and what streams run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from gateway.console.records.log import LogReader, Stretch
from gateway.console.records.schemas import AvroSchemas
from gateway.console.records.search import Search, Sought
from gateway.console.records.streams import Streams
from gateway.console.records.turns import Turns

if TYPE_CHECKING:
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

    def search(
        self, topic: Topic, sought: Sought, stretches: Sequence[Stretch], *, for_page: bool
    ) -> Search:
        """A new one. for_page: somebody waits for it."""
        turns = self._page_turns if for_page else self._stream_turns
        return Search(self.reader, self.schemas, turns, topic, sought, stretches)
