"""Staging: stores batches under a token, to be published later, all at once.

A flush like that of appends, in its own session: bulk staging does not delay appends, and waits for
no disk. Only the store has the truth: a token's number of batches guards it. Publications queue
among the appends (`flusher.py`). Knows no protocol and no SQL.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import structlog

from core.errors import Error
from core.log.partition_log import Refused
from core.ports.log import (
    CommitUnknown,
    EffectRefused,
    RowLocked,
    SegmentGone,
    StoreUnavailable,
    VersionMismatch,
)
from core.ports.staging import StagingStore
from core.staging.publication import malformed
from core.staging.token import Staged, StagedBefore, StageDecision, TokenDraft
from core.staging.values import (
    Outcome,
    Publication,
    PublicationAnswer,
    TokenBatch,
    TokenEffects,
)
from gateway.runtime.flush.flusher import Flusher
from gateway.runtime.flush.outcomes import Unconfirmed
from gateway.runtime.flush.queue import FlushQueue
from gateway.runtime.log.append_gate import AppendGate
from gateway.runtime.log.unready_appends import UnreadyAppends

log = structlog.get_logger(__name__)

TOKENS_IN_MEMORY: Final = 10_000
ATTEMPTS: Final = 20
TOTAL_IS_FRESH_S: Final = 1.0
LOOK_INTERVAL_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class StageResult:
    """A request's result. batches: how many its token has now, -1 if unknown."""

    error: Error = Error.NONE
    message: str | None = None
    batches: int = -1


@dataclass(slots=True)
class _StageRequest:
    """A request on its way into the store."""

    token: UUID
    first_batch: int
    batches: Sequence[TokenBatch]
    done: asyncio.Future[StageResult]
    size: int
    is_limited: bool

    def resolve(self, result: StageResult) -> None:
        if not self.done.done():
            self.done.set_result(result)


class Staging:
    """Stages and publishes for all clients of this process.

    append_gate: see Partitions. unready: by token. max_bytes, expiration_ms: the present settings.
    """

    def __init__(
        self,
        store: StagingStore,
        flusher: Flusher,
        *,
        max_flush_bytes: int,
        max_bytes: Callable[[], int],
        expiration_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._flusher = flusher
        self._max_bytes = max_bytes
        self._expiration_ms = expiration_ms
        self.append_gate = AppendGate()
        self.unready = UnreadyAppends()
        self._on_published: Callable[[], None] = lambda: None
        self._queue = FlushQueue(self._flush_safely, limit=max_flush_bytes, weigh=_size)
        self._tokens: OrderedDict[UUID, int] = OrderedDict()  # how many batches each has
        self._total = 0  # bytes staged in the whole cluster, as last read, and by this one since
        self._total_read_at = float("-inf")

    def on_published(self, listener: Callable[[], None]) -> None:
        """Registers a listener; it is called after each publication."""
        self._on_published = listener

    @property
    def staged_bytes(self) -> int:
        """Bytes staged and not published in the whole cluster, as far as this broker knows."""
        return self._total

    @property
    def expiration_ms(self) -> int:
        """How long batches staged now are kept unpublished."""
        return self._expiration_ms()

    def stage(
        self,
        token: UUID,
        first_batch: int,
        batches: Sequence[TokenBatch],
        *,
        is_limited: bool = True,
    ) -> asyncio.Future[StageResult]:
        """Queues a request at once; requests of a token are staged in the order of these calls.

        first_batch: how many batches its writer has sent under the token before. is_limited:
        refused where all that is staged would be more than `penstock.staged.max.bytes`. The future
        resolves when the request is stored (a crash of the database may undo that) or refused.
        """
        done: asyncio.Future[StageResult] = asyncio.get_running_loop().create_future()
        size = sum(each.incoming.batch.size for each in batches)
        self._queue.put(_StageRequest(token, first_batch, batches, done, size, is_limited))
        return done

    async def publish(
        self, publication: Publication, timeout_s: float | None = None
    ) -> PublicationAnswer | Unconfirmed:
        """Publishes all tokens, once; or says that this batch was published before.

        After `timeout_s` the answer is that the outcome is unknown; the publication goes on.
        """
        if refusal := malformed(publication):
            return refusal  # before anything is read or locked
        published = self._flusher.publish(publication)
        published.add_done_callback(self._count)
        await asyncio.wait((published,), timeout=timeout_s)
        self._forget(wanted.token for wanted in publication.tokens)
        if not published.done():
            message = "It takes longer than it may; ask again."
            return PublicationAnswer(Error.REQUEST_TIMED_OUT, message)
        return published.result()

    def _count(self, done: asyncio.Future[PublicationAnswer | Unconfirmed]) -> None:
        if done.cancelled():
            return
        answer = done.result()
        if not isinstance(answer, Unconfirmed) and answer.outcome is Outcome.PUBLISHED:
            self._on_published()

    async def drop(self, tokens: Sequence[UUID]) -> None:
        """Drops these tokens' staged batches, if any. Raises StoreUnavailable."""
        self._forget(tokens)
        await self._store.drop(tokens)

    async def topics_of(self, tokens: Sequence[UUID]) -> set[str]:
        """The topics of what these tokens have staged. Raises StoreUnavailable."""
        return await self._store.topics_of(tokens)

    def forget_everything(self) -> None:
        """Forgets all tokens: the database has another history."""
        self._tokens.clear()
        self._total_read_at = float("-inf")

    async def run(self) -> None:
        """Reads how much is staged, now and then, until cancelled."""
        is_away = False
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            try:
                await self._read_total()
            except StoreUnavailable as error:
                if not is_away:
                    log.info("staged_bytes_not_read", reason=str(error))
                is_away = True
            else:
                is_away = False

    async def close(self) -> None:
        """Finishes what is queued."""
        await self._queue.close()

    # The flusher.

    async def _flush_safely(self, work: Sequence[_StageRequest]) -> None:
        try:
            await self._flush(work)
        except Exception:  # a bug must leave nobody waiting
            log.exception("staging_failed", requests=len(work))
            message = "the broker failed; see its log"
            self._refuse(work, Error.UNKNOWN_SERVER_ERROR, message)

    async def _flush(self, work: Sequence[_StageRequest]) -> None:
        """Decides, stores and answers; if requests fail together, tries each alone."""
        try:
            await self._settle(work)
        except CommitUnknown as error:
            log.warning("staging_unknown", requests=len(work), reason=str(error))
            unknown = Error.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            self._refuse(work, unknown, "the commit's outcome is unknown")
        except StoreUnavailable as error:
            log.warning("database_unavailable", requests=len(work), reason=str(error))
            self._refuse(work, Error.NOT_ENOUGH_REPLICAS, "the database is not available")
        except (EffectRefused, RowLocked) as error:
            if isinstance(error, EffectRefused) and error.out_of_space:
                log.error("database_out_of_space", reason=str(error))
                self._refuse(work, Error.KAFKA_STORAGE_ERROR, "the database has no space left")
            elif len(work) > 1:
                for request in work:
                    await self._flush([request])
            elif isinstance(error, RowLocked):
                self._refuse(work, Error.NOT_ENOUGH_REPLICAS, "another broker holds the token")
            else:
                log.error("staging_refused_by_database", reason=str(error))
                self._refuse(work, Error.UNKNOWN_SERVER_ERROR, str(error))

    def _refuse(self, work: Iterable[_StageRequest], error: Error, message: str) -> None:
        for request in work:
            self._forget([request.token])
            request.resolve(StageResult(error, message))

    async def _settle(self, work: Sequence[_StageRequest]) -> None:
        """Decides on some work, stores and answers it; repeats as often as needed.

        A decision that stores nothing is released only if it rests on a fresh read.
        """
        tokens = {request.token for request in work}
        known = {token: self._tokens[token] for token in tokens & self._tokens.keys()}
        fresh: set[UUID] = set()
        is_total_fresh = False
        for _ in range(ATTEMPTS):
            known |= await self._load(tokens - known.keys())
            if self._now() - self._total_read_at > TOTAL_IS_FRESH_S:
                await self._read_total()
                is_total_fresh = True
            drafts, decisions = self._decide(work, known)
            if not is_total_fresh and any(map(_is_for_want_of_room, decisions)):
                self._total_read_at = float("-inf")
                continue
            doubtful = {
                request.token
                for request, decision in zip(work, decisions, strict=True)
                if not isinstance(decision, Staged)
            } - fresh
            if doubtful:
                known |= await self._load(doubtful)
                fresh |= doubtful
                continue
            effects = [effect for draft in drafts.values() if (effect := draft.effects())]
            try:
                if effects:
                    await self._store.stage(effects, self._expiration_ms() / 1000)
            except VersionMismatch:
                known, fresh = {}, set()
            except SegmentGone:
                continue
            else:
                self._answer(work, drafts, decisions, effects)
                return
        raise StoreUnavailable("tokens change faster than they can be read")

    def _decide(
        self, work: Sequence[_StageRequest], known: Mapping[UUID, int]
    ) -> tuple[dict[UUID, TokenDraft], list[StageDecision]]:
        drafts: dict[UUID, TokenDraft] = {}
        decisions: list[StageDecision] = []
        left = self._max_bytes() - self._total
        for request in work:
            draft = drafts.get(request.token)
            if draft is None:
                draft = drafts[request.token] = TokenDraft(request.token, known[request.token])
            decision = draft.prepare_stage(
                request.first_batch,
                request.batches,
                has_room=request.size <= left or not request.is_limited,
            )
            if isinstance(decision, Staged):
                left -= request.size
            decisions.append(decision)
        return drafts, decisions

    def _answer(
        self,
        work: Sequence[_StageRequest],
        drafts: Mapping[UUID, TokenDraft],
        decisions: Sequence[StageDecision],
        effects: Sequence[TokenEffects],
    ) -> None:
        for effect in effects:
            self._total += sum(each.incoming.batch.size for each in effect.added)
        for token, draft in drafts.items():
            self._tokens[token] = draft.batches
            self._tokens.move_to_end(token)
        while len(self._tokens) > TOKENS_IN_MEMORY:
            self._tokens.popitem(last=False)
        for request, decision in zip(work, decisions, strict=True):
            match decision:
                case Staged(batches) | StagedBefore(batches):
                    request.resolve(StageResult(batches=batches))
                case Refused(error, message):
                    batches = drafts[request.token].batches
                    request.resolve(StageResult(error, message, batches))

    # State for decisions.

    async def _load(self, tokens: Iterable[UUID]) -> dict[UUID, int]:
        """How many batches each has, by a fresh read; 0 if there is no such token."""
        wanted = sorted(tokens)
        found = await self._store.load(wanted) if wanted else {}
        return {token: found.get(token, 0) for token in wanted}

    def _forget(self, tokens: Iterable[UUID]) -> None:
        for token in tokens:
            self._tokens.pop(token, None)

    async def _read_total(self) -> None:
        self._total = await self._store.staged_bytes()
        self._total_read_at = self._now()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _size(request: _StageRequest) -> int:
    return request.size


def _is_for_want_of_room(decision: StageDecision) -> bool:
    return isinstance(decision, Refused) and decision.error is Error.THROTTLING_QUOTA_EXCEEDED
