"""Staging: batches and payload of tokens, in one round trip that waits for no disk.

Implements StagingStore. A flush of the log (`flush/log.py`) publishes them, which also makes them
durable: PostgreSQL's log is in one order. SQL compares numbers here and nothing more.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from core.ports.log import SegmentGone
from core.staging.values import TokenEffects
from storage.connection.binary import integer, rows_of
from storage.connection.kept_session import KeptSession
from storage.flush.payload import FlushPayload, WritingSession
from storage.flush.staging import (
    DROP_LOCKED,
    LOAD_TOKENS,
    LOCK_TO_DROP,
    STAGE,
    STAGED_BYTES,
    TOKEN_TOPICS,
    stage_parameters,
    token_array,
)

if TYPE_CHECKING:
    from storage.connection.pool import Database
    from storage.flush.segments import Segments

STATEMENTS = {
    b"load_tokens": LOAD_TOKENS,
    b"staged_bytes": STAGED_BYTES,
    b"token_topics": TOKEN_TOPICS,
    b"lock_to_drop": LOCK_TO_DROP,
    b"drop_locked": DROP_LOCKED,
}


class PostgresStagingStore:
    """`core.ports.staging.StagingStore` on PostgreSQL. One `stage` at a time."""

    def __init__(self, database: Database, segments: Segments) -> None:
        self._database = database
        self._segments = segments
        self._kept = KeptSession(database, STATEMENTS)
        self._writing = WritingSession(
            database, {b"stage": STAGE}, begin_with=b"SET synchronous_commit = off"
        )
        database.on_close(self._writing.close)

    async def load(self, tokens: Sequence[UUID]) -> dict[UUID, int]:
        """See StagingStore."""
        statement = (b"load_tokens", (token_array(tokens),))
        (result, *_) = await self._kept.run_or_fail("load_tokens", [statement])
        return {UUID(bytes=token): integer(batches) for token, batches in rows_of(result)}

    async def stage(self, effects: Sequence[TokenEffects], expiration_s: float) -> None:
        """See StagingStore."""
        started = time.perf_counter()
        session, writer = await self._writing.open()
        batches = (batch.incoming for each in effects for batch in each.added)
        try:
            payload = await FlushPayload.of(batches, self._segments)
            await writer.prepare(payload)
            parameters = stage_parameters(effects, payload, expiration_s)
            statements = [*writer.statements(payload), (b"stage", parameters)]
            with writer.blaming_the_file():
                await session.run(statements, commits=True)
        except SegmentGone:
            self._segments.forget()
            raise
        finally:
            self._database.observe("stage", time.perf_counter() - started)

    async def drop(self, tokens: Sequence[UUID]) -> None:
        """See StagingStore."""
        statements = [(b"lock_to_drop", (token_array(tokens),)), (b"drop_locked", ())]
        await self._kept.run_or_fail("drop_tokens", statements)

    async def topics_of(self, tokens: Sequence[UUID]) -> set[str]:
        """See StagingStore."""
        statement = (b"token_topics", (token_array(tokens),))
        (result, *_) = await self._kept.run_or_fail("token_topics", [statement])
        return {(name or b"").decode() for (name,) in rows_of(result)}

    async def staged_bytes(self) -> int:
        """See StagingStore."""
        (result, *_) = await self._kept.run_or_fail("staged_bytes", [(b"staged_bytes", ())])
        ((value,),) = rows_of(result)
        return integer(value)
