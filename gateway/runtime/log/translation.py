"""Batches that one front-end has stored, for the clients of another: translated and remembered.

A front-end has a `Translator` into its own format; how each format is read is handed in where rooms
are wired, so that front-ends do not know each other. What was made is remembered by partition and
base offset, and making it again gives the same bytes. Knows no format's bytes and no wire.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from core.log.records import RecordSet
from core.ports.log import StoredBatch
from core.types import BatchFormat

Read = Callable[[StoredBatch], RecordSet]
"""The records of a batch: one, or None, for each of its offsets. What cannot be read is a record
too, so that nobody who reads the partition is stuck there."""
Write = Callable[[StoredBatch, RecordSet], bytes]
"""The payload of these records in another format. The batch is where and whose they are."""

REMEMBERED_BYTES: Final = 32 * 2**20
# What is larger keeps the event loop for longer than others should wait: a thread does it.
_MOST_BYTES_AT_ONCE: Final = 64 * 1024
_MOST_RECORDS_AT_ONCE: Final = 1_000

_Key = tuple[BatchFormat, int, int]  # into which, partition id, base offset


class Translations:
    """What has been translated, into whatever format; one per process.

    readers: of each format that may be stored, whether or not its front-end listens.
    """

    def __init__(
        self, readers: Mapping[BatchFormat, Read], budget_bytes: int = REMEMBERED_BYTES
    ) -> None:
        self._readers = readers
        self._budget = budget_bytes
        self._payloads: OrderedDict[_Key, bytes] = OrderedDict()
        self._history = 0
        self.size_bytes = 0

    def read(self, batch: StoredBatch) -> RecordSet:
        """The records of a stored batch; not remembered."""
        return self._readers[batch.format](batch)

    def into(self, wanted: BatchFormat, write: Write) -> Translator:
        """What a front-end translates with, into its own format."""
        return Translator(self, wanted, write)

    def forget_everything(self) -> None:
        """The database has another history: offsets are others' now."""
        self._history += 1
        self._payloads.clear()
        self.size_bytes = 0

    def recall(self, key: _Key) -> bytes | None:
        """What was made of this batch, if it is still known."""
        found = self._payloads.get(key)
        if found is not None:
            self._payloads.move_to_end(key)
        return found

    async def make(self, key: _Key, batch: StoredBatch, write: Write) -> bytes:
        """Makes it, and remembers it."""
        history = self._history
        if (
            len(batch.payload) <= _MOST_BYTES_AT_ONCE
            and batch.record_count <= _MOST_RECORDS_AT_ONCE
        ):
            payload = write(batch, self.read(batch))
        else:
            payload = await asyncio.to_thread(lambda: write(batch, self.read(batch)))
        if history == self._history:
            self._remember(key, payload)
        return payload

    def _remember(self, key: _Key, payload: bytes) -> None:
        self.size_bytes += len(payload) - len(self._payloads.pop(key, b""))
        self._payloads[key] = payload
        while self.size_bytes > self._budget:
            _, oldest = self._payloads.popitem(last=False)
            self.size_bytes -= len(oldest)


class Translator:
    """Gives batches in one format, whatever they were stored in."""

    def __init__(self, translations: Translations, wanted: BatchFormat, write: Write) -> None:
        self._translations = translations
        self._wanted = wanted
        self._write = write

    async def translated(self, partition_id: int, batch: StoredBatch) -> StoredBatch:
        """The same batch in the wanted format. Markers that end transactions stay as they are."""
        if batch.format is self._wanted or batch.is_control:
            return batch
        key = (self._wanted, partition_id, batch.base_offset)
        payload = self._translations.recall(key)
        if payload is None:
            payload = await self._translations.make(key, batch, self._write)
        return replace(batch, payload=payload, format=self._wanted)

    async def all_translated(
        self, partition_id: int, batches: Sequence[StoredBatch], max_bytes: int
    ) -> list[StoredBatch]:
        """The first of them, at least one, until they are more than `max_bytes`.

        Others have their turn between one that had to be made and the next.
        """
        found: list[StoredBatch] = []
        size = 0
        for batch in batches:
            each = await self.translated(partition_id, batch)
            found.append(each)
            size += len(each.payload)
            if size > max_bytes:
                break
            if each is not batch:
                await asyncio.sleep(0)
        return found
