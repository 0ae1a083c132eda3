"""The payload of a flush: one parameter per segment, which the server cuts into chunks; or, if it
is large and the server is on this machine, a file that the server copies from.

Knows where each batch begins, and how to prepare a segment's statements. Knows no index row.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import structlog

from core.log.effects import IncomingBatch, StoredBytes
from core.ports.log import EffectRefused, StoreUnavailable
from core.types import Payload
from storage.connection.session import HotSession, Statement
from storage.flush.handover import Handover, HandoverFile
from storage.flush.segments import Position, Segments
from storage.schema import CHUNK_BYTES, chunk_table_name

if TYPE_CHECKING:
    from storage.connection.pool import Database

log = structlog.get_logger(__name__)

COPIED_BYTES = range(64 * 1024, 16 * 2**20 + 1)
"""In this range a file costs less than a parameter (docs/decisions/0007), and takes little enough
memory meanwhile: a container's /dev/shm has 64 MiB."""

# One parameter holds all of a flush's payload for a segment; the server cuts it. As fast as a
# binary COPY of the same chunks, and in the guard's round trip (docs/decisions/0001).
_PUT_PAYLOAD = """
INSERT INTO {table} (payload_id, seq, data)
SELECT $1::bigint, seq, substr($2::bytea, seq * {chunk_bytes} + 1, {chunk_bytes})
FROM generate_series(0, (octet_length($2::bytea) - 1) / {chunk_bytes}) AS seq
"""

_BIGINT = struct.Struct(">q")


class FlushPayload:
    """The bytes that a flush adds to each segment, one payload each."""

    def __init__(self) -> None:
        self._by_segment: dict[int, tuple[int, list[Payload]]] = {}
        self._positions: dict[IncomingBatch, Position] = {}

    @classmethod
    async def of(cls, batches: Iterable[IncomingBatch], segments: Segments) -> FlushPayload:
        """The payload of those of these batches that are not stored yet, each once, in this order.

        Raises StoreUnavailable.
        """
        payload = cls()
        new = {each: None for each in batches if not isinstance(each.content, StoredBytes)}
        if new:
            await segments.prepare({each.retention_class for each in new})
            payload._add(new, segments)
        return payload

    def _add(self, batches: Iterable[IncomingBatch], segments: Segments) -> None:
        sizes: dict[int, int] = {}
        for each in batches:
            content = each.content
            assert not isinstance(content, StoredBytes), "they are in a payload already"
            segment_id = segments.current(each.retention_class)
            if segment_id not in self._by_segment:
                self._by_segment[segment_id] = (segments.next_payload_id(), [])
            payload_id, parts = self._by_segment[segment_id]
            position = sizes.get(segment_id, 0)
            self._positions[each] = Position(segment_id, payload_id, position)
            sizes[segment_id] = position + len(content)
            parts.append(content)

    def position_of(self, incoming: IncomingBatch) -> Position:
        """Where a batch's bytes are: in this payload, or stored before."""
        if isinstance(incoming.content, Position):
            return incoming.content
        return self._positions[incoming]

    def by_segment(self) -> Iterator[tuple[int, int, Sequence[Payload]]]:
        """Segment, id of its payload, parts in order."""
        for segment_id, (payload_id, parts) in self._by_segment.items():
            yield segment_id, payload_id, parts


class PayloadWriter:
    """The statements that write payload on one session."""

    def __init__(self, session: HotSession, handover: Handover | None) -> None:
        """handover: passes files to a server on this machine; None: parameters only."""
        self._session = session
        self._prepared: set[int] = set()
        self._file: HandoverFile | None = None
        if handover is not None:
            try:
                self._file = handover.open()
            except OSError as error:
                log.warning("handover_unavailable", reason=str(error))

    async def prepare(self, payload: FlushPayload) -> None:
        """Prepares the statements of segments met for the first time.

        Raises what `HotSession.prepare_all` does.
        """
        for segment_id, _, _ in payload.by_segment():
            if segment_id not in self._prepared:
                table = chunk_table_name(segment_id)
                sql = {_put(segment_id): _PUT_PAYLOAD.format(table=table, chunk_bytes=CHUNK_BYTES)}
                if self._file is not None:
                    sql[_copy(segment_id)] = self._file.statement(table)
                await self._session.prepare_all(sql)
                self._prepared.add(segment_id)

    def statements(self, payload: FlushPayload) -> list[Statement]:
        """The prepared statements that write it. Run them before this is called again."""
        copied = self._hand_over(payload)
        return [
            (_copy(segment_id), ())
            if segment_id == copied
            else (_put(segment_id), (_BIGINT.pack(payload_id), b"".join(parts)))
            for segment_id, payload_id, parts in payload.by_segment()
        ]

    def _hand_over(self, payload: FlushPayload) -> int | None:
        """Writes the payload of a segment to the file, if that is worth it; returns which segment.

        Not while a statement is unanswered (its sender was cancelled): the server may be about to
        read the file for it.
        """
        if self._file is None or not self._session.is_idle:
            return None
        for segment_id, payload_id, parts in payload.by_segment():
            if sum(map(len, parts)) in COPIED_BYTES:
                try:
                    self._file.write(payload_id, parts, CHUNK_BYTES)
                except OSError as error:
                    self._give_up(str(error))
                    return None
                return segment_id
        return None

    @contextmanager
    def blaming_the_file(self) -> Iterator[None]:
        """Wraps the run of `statements`. Raises StoreUnavailable if the server could not read the
        file, for instance after systemd's RemoveIPC removed it. Then the file is no longer used,
        and the flush may be tried again."""
        try:
            yield
        except EffectRefused as error:
            reason = str(error)
            if self._file is None or error.out_of_space or not self._file.is_named_in(reason):
                raise
            self._give_up(reason)
            raise StoreUnavailable("the server could not read what was handed over") from error

    def _give_up(self, reason: str) -> None:
        log.warning("handover_failed", reason=reason)
        self.close()

    def close(self) -> None:
        """Removes the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


class WritingSession:
    """A hot session and its payload writer, opened together when first used, and again when the
    session is lost.

    statements: by name, prepared when a session is opened. begin_with: run once on each session.
    """

    def __init__(
        self, database: Database, statements: Mapping[bytes, str], *, begin_with: bytes = b""
    ) -> None:
        self._database = database
        self._statements = statements
        self._begin_with = begin_with
        self._open: tuple[HotSession, PayloadWriter] | None = None

    @property
    def session(self) -> HotSession | None:
        """The session, if it is open and not lost."""
        if self._open is None or self._open[0].is_broken:
            return None
        return self._open[0]

    async def open(self) -> tuple[HotSession, PayloadWriter]:
        """Both, ready for use. Raises StoreUnavailable, RowLocked."""
        if self._open is not None and not self._open[0].is_broken:
            return self._open
        self._forget()
        session = await HotSession.open(self._database, self._statements)
        try:
            if self._begin_with:
                await session.execute(self._begin_with)
        except BaseException:
            await session.close()
            raise
        self._open = session, PayloadWriter(session, self._database.handover)
        return self._open

    async def close(self) -> None:
        """Closes the connection and removes the writer's file."""
        if self._open is not None:
            await self._open[0].close()
            self._forget()

    def _forget(self) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None


def _put(segment_id: int) -> bytes:
    return b"put_payload_%d" % segment_id


def _copy(segment_id: int) -> bytes:
    return b"copy_payload_%d" % segment_id
