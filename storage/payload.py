"""The payload of a flush: one parameter a segment, cut into chunks by the server.

Knows where each batch begins, and how to prepare a segment's statement. Knows no index row.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from core.log.effects import Place, StagedBatch
from core.ports import Payload
from storage.schema import CHUNK_BYTES, chunk_table_name
from storage.session import HotSession, Statement

# One parameter holds all that a flush has for a segment; the server cuts it. As quick as a binary
# COPY of the same chunks, and it shares the round trip of the guard (docs/decisions/0001).
_PUT_PAYLOAD = """
INSERT INTO {table} (payload_id, seq, data)
SELECT $1::bigint, seq, substr($2::bytea, seq * {chunk_bytes} + 1, {chunk_bytes})
FROM generate_series(0, (octet_length($2::bytea) - 1) / {chunk_bytes}) AS seq
"""

_BIGINT = struct.Struct(">q")


class FlushPayload:
    """Batches of one segment lie in its payload in the order given, under the first one's id.

    places: by batch id.
    """

    def __init__(self, batches: Sequence[tuple[StagedBatch, Payload]] = ()) -> None:
        self._by_segment: dict[int, tuple[int, list[Payload]]] = {}
        self.places: dict[int, Place] = {}
        sizes: dict[int, int] = {}
        for staged, payload in batches:
            segment_id = staged.segment_id
            payload_id, parts = self._by_segment.setdefault(segment_id, (staged.batch_id, []))
            position = sizes.get(segment_id, 0)
            self.places[staged.batch_id] = Place(payload_id, position)
            sizes[segment_id] = position + len(payload)
            parts.append(payload)

    def place_of(self, staged: StagedBatch) -> Place:
        """Where a batch lies: staged before, or in this payload."""
        return staged.place or self.places[staged.batch_id]

    async def prepare(self, session: HotSession, prepared: set[int]) -> None:
        """Prepares the statements of segments that are not among `prepared`, and adds them."""
        for segment_id in self._by_segment:
            if segment_id not in prepared:
                table = chunk_table_name(segment_id)
                sql = _PUT_PAYLOAD.format(table=table, chunk_bytes=CHUNK_BYTES)
                await session.prepare(_name(segment_id), sql)
                prepared.add(segment_id)

    def statements(self) -> list[Statement]:
        """What writes it; prepared."""
        return [
            (_name(segment_id), (_BIGINT.pack(payload_id), b"".join(parts)))
            for segment_id, (payload_id, parts) in self._by_segment.items()
        ]


def _name(segment_id: int) -> bytes:
    return b"put_payload_%d" % segment_id
