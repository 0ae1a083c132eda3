"""Where new payload goes: the open segment of a class of retention, and ids for payloads.

Remembers both. Another broker may seal a segment meanwhile; late writes to it do no harm
(docs/non-obvious.md). Knows when a segment is large or old enough to be sealed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from core.log.effects import StoredBytes
from core.log.retention import seal_after_s
from storage.schema import create_chunk_table_sql

if TYPE_CHECKING:
    from storage.connection.pool import Database

ALLOCATE_PAYLOAD_IDS = """
UPDATE penstock.cluster SET next_batch_id = next_batch_id + %(count)s
RETURNING next_batch_id - %(count)s
"""
CURRENT_SEGMENT = """
SELECT segment_id FROM penstock.segment
WHERE retention_class = %(retention_class)s AND sealed_at IS NULL
"""
OPEN_SEGMENT = """
INSERT INTO penstock.segment (retention_class) VALUES (%(retention_class)s)
ON CONFLICT (retention_class) WHERE sealed_at IS NULL DO NOTHING RETURNING segment_id
"""

PAYLOAD_ID_BLOCK: Final = 10_000
EMPTY_SEGMENT_BYTES: Final = 32 * 1024
"""The size of a chunk table and its index without a row."""


@dataclass(frozen=True, slots=True)
class Position(StoredBytes):
    """Where a batch's bytes begin: segment, payload, and position in bytes."""

    segment_id: int
    payload_id: int
    position: int


class Segments:
    """The open segments that this process knows, and the payload ids that it may give out."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._open: dict[str, int] = {}
        self._payload_ids: deque[int] = deque()
        database.on_identity_change(self.forget_everything)

    async def prepare(self, retention_classes: Iterable[str]) -> None:
        """Makes sure of an open segment for each class, and of a payload id for each, which hold
        until the caller's next `await`. Raises StoreUnavailable.
        """
        classes = set(retention_classes)
        while True:  # while one is fetched, others may be used or forgotten
            if len(self._payload_ids) < len(classes):
                self._payload_ids.extend(await self._allocate())
            elif unknown := classes - self._open.keys():
                name = min(unknown)
                self._open[name] = await self._current(name)
            else:
                return

    def current(self, retention_class: str) -> int:
        """The open segment of a prepared class."""
        return self._open[retention_class]

    def next_payload_id(self) -> int:
        """An id that is never given out again; one for each prepared class."""
        return self._payload_ids.popleft()

    def forget(self) -> None:
        """Reads the open segments again: some may have been sealed or dropped."""
        self._open.clear()

    def forget_everything(self) -> None:
        """The database has another history: it may give out the same ids."""
        self._open.clear()
        self._payload_ids.clear()

    async def _allocate(self) -> range:
        async with self._database.reader("allocate_payload_ids") as cursor:
            await cursor.execute(ALLOCATE_PAYLOAD_IDS, {"count": PAYLOAD_ID_BLOCK})
            row = await cursor.fetchone()
            assert row is not None, "the cluster row exists since the first migration"
            return range(row[0], row[0] + PAYLOAD_ID_BLOCK)

    async def _current(self, retention_class: str) -> int:
        """The open segment of a class of retention, made if there is none."""
        parameters = {"retention_class": retention_class}
        async with self._database.reader("current_segment") as cursor:
            while True:
                await cursor.execute(CURRENT_SEGMENT, parameters)
                row = await cursor.fetchone()
                if row is not None:
                    break
                async with cursor.connection.transaction():
                    await cursor.execute(OPEN_SEGMENT, parameters)
                    row = await cursor.fetchone()
                    if row is not None:
                        for statement in create_chunk_table_sql(row[0]):
                            await cursor.execute(statement.encode())
                        break
        segment_id: int = row[0]
        return segment_id


# Sealing.


@dataclass(frozen=True, slots=True)
class OpenSegment:
    """The segment that a class of retention writes to now. is_used: a live or staged batch points
    to it."""

    segment_id: int
    retention_class: str
    size_bytes: int
    age_s: float
    is_used: bool


def should_seal(segment: OpenSegment, segment_bytes: int) -> bool:
    """Whether the next segment of its class should be opened.

    An empty one is never sealed. If all of its batches have expired, it is sealed at once, so that
    its table can be dropped.
    """
    if segment.size_bytes <= EMPTY_SEGMENT_BYTES:
        return False
    return (
        not segment.is_used
        or segment.size_bytes >= segment_bytes
        or segment.age_s >= seal_after_s(segment.retention_class)
    )
