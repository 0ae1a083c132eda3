"""Incremental fetch sessions (KIP-227): a client names its partitions once, then only changes.

Pure bookkeeping over wire requests: it reads no log and knows no SQL. Sources: FetchManager,
FullFetchContext, IncrementalFetchContext and FetchSessionCache in Kafka's FetchSession.scala.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from core.errors import Error
from core.types import NO_OFFSET

NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
_MAX_EPOCH: Final = 2**31 - 1
_EVICTION_MS: Final = 120_000

PartitionKey = tuple[str | UUID, int]
"""Topic name (before v13) or topic id (from v13), and partition."""


@dataclass(frozen=True, slots=True)
class FetchPartition:
    """What a client asks of one partition."""

    topic: str | UUID
    partition: int
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = -1

    @property
    def key(self) -> PartitionKey:
        """The partition it is about."""
        return self.topic, self.partition


@dataclass(frozen=True, slots=True)
class FetchedPartition:
    """What was read of a partition: whether an incremental response has to name it."""

    key: PartitionKey
    error: Error
    high_watermark: int
    log_start_offset: int
    size_bytes: int


@dataclass(slots=True)
class _Cached:
    """A partition of a session, and what the client was last told of it."""

    asked: FetchPartition
    high_watermark: int = NO_OFFSET
    log_start_offset: int = NO_OFFSET

    def must_answer(self, answer: FetchedPartition) -> bool:
        """Whether the client has to be told (CachedPartition.maybeUpdateResponseData)."""
        changed = (
            answer.size_bytes > 0
            or answer.high_watermark != self.high_watermark
            or answer.log_start_offset != self.log_start_offset
            or answer.error is not Error.NONE
        )
        # After an error the next good answer counts as a change, even with the same watermark.
        self.high_watermark = NO_OFFSET if answer.error is not Error.NONE else answer.high_watermark
        self.log_start_offset = answer.log_start_offset
        return changed


@dataclass(slots=True)
class _Session:
    session_id: int
    uses_topic_ids: bool
    partitions: OrderedDict[PartitionKey, _Cached]
    created_ms: int
    used_ms: int
    epoch: int = 1


class FetchContext:
    """One request within its session, or without one."""

    def __init__(
        self,
        sessions: FetchSessions,
        partitions: list[FetchPartition],
        *,
        session: _Session | None = None,
        creates: bool = False,
        uses_topic_ids: bool = False,
        now_ms: int = 0,
    ) -> None:
        self._sessions = sessions
        self._session = session
        self._epoch = session.epoch if session else INITIAL_EPOCH
        self._creates = creates
        self._uses_topic_ids = uses_topic_ids
        self._now_ms = now_ms
        self.partitions = partitions

    @property
    def session_id(self) -> int:
        """That of an answer which tells nothing; no session is made for it."""
        return NO_SESSION if self._session is None else self._session.session_id

    def close(
        self, answers: Iterable[FetchedPartition]
    ) -> tuple[int, set[PartitionKey] | None] | Error:
        """The session id to answer with, and the partitions to answer about (None: all).

        An error where the session has gone on meanwhile: the client has given this request up.
        """
        if self._creates:
            return self._sessions.create(
                self.partitions, answers, self._uses_topic_ids, self._now_ms
            ), None
        if self._session is None:
            return NO_SESSION, None
        if self._session.epoch != self._epoch:
            return Error.INVALID_FETCH_SESSION_EPOCH
        told: set[PartitionKey] = set()
        for answer in answers:
            cached = self._session.partitions.get(answer.key)
            if cached is not None and cached.must_answer(answer):
                told.add(answer.key)
                if answer.size_bytes > 0:
                    # Who got data goes to the end, so that a small limit starves nobody.
                    self._session.partitions.move_to_end(answer.key)
        return self._session.session_id, told


class FetchSessions:
    """This broker's sessions, at most `slots` (`max.incremental.fetch.session.cache.slots`)."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._sessions: dict[int, _Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def open(
        self,
        session_id: int,
        session_epoch: int,
        asked: list[FetchPartition],
        forgotten: Iterable[PartitionKey],
        *,
        uses_topic_ids: bool,
        now_ms: int,
    ) -> FetchContext | Error:
        """The partitions that this request is about, by session (FetchManager.newContext)."""
        if session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if session_id != NO_SESSION:
                self._sessions.pop(session_id, None)
            creates = session_epoch == INITIAL_EPOCH
            return FetchContext(
                self, asked, creates=creates, uses_topic_ids=uses_topic_ids, now_ms=now_ms
            )
        session = self._sessions.get(session_id)
        if session is None:
            return Error.FETCH_SESSION_ID_NOT_FOUND
        if session.epoch != session_epoch:
            return Error.INVALID_FETCH_SESSION_EPOCH
        if session.uses_topic_ids != uses_topic_ids:
            return Error.FETCH_SESSION_TOPIC_ID_ERROR
        for partition in asked:
            if cached := session.partitions.get(partition.key):
                cached.asked = partition
            else:
                session.partitions[partition.key] = _Cached(partition)
        for key in forgotten:
            session.partitions.pop(key, None)
        session.used_ms = now_ms
        if not session.partitions:
            del self._sessions[session_id]
            return FetchContext(self, [])
        session.epoch = 1 if session.epoch == _MAX_EPOCH else session.epoch + 1
        wanted = [cached.asked for cached in session.partitions.values()]
        return FetchContext(self, wanted, session=session)

    def create(
        self,
        asked: list[FetchPartition],
        answers: Iterable[FetchedPartition],
        uses_topic_ids: bool,
        now_ms: int,
    ) -> int:
        """A new session's id, or 0 where there is no room for one."""
        if not asked or (
            len(self._sessions) >= self._slots and not self._evict(len(asked), now_ms)
        ):
            return NO_SESSION
        partitions = OrderedDict((each.key, _Cached(each)) for each in asked)
        for answer in answers:
            if cached := partitions.get(answer.key):
                cached.must_answer(answer)
        session_id = random.randrange(1, _MAX_EPOCH)
        while session_id in self._sessions:
            session_id = random.randrange(1, _MAX_EPOCH)
        self._sessions[session_id] = _Session(
            session_id, uses_topic_ids, partitions, created_ms=now_ms, used_ms=now_ms
        )
        return session_id

    def _evict(self, size: int, now_ms: int) -> bool:
        """Makes room: a session unused for long, else a smaller one that is not new (tryEvict)."""
        if not self._sessions:
            return False
        stale = min(self._sessions.values(), key=lambda session: session.used_ms)
        if now_ms - stale.used_ms > _EVICTION_MS:
            del self._sessions[stale.session_id]
            return True
        old = [s for s in self._sessions.values() if now_ms - s.created_ms > _EVICTION_MS]
        smallest = min(old, key=lambda session: len(session.partitions), default=None)
        if smallest is None or len(smallest.partitions) >= size:
            return False
        del self._sessions[smallest.session_id]
        return True
