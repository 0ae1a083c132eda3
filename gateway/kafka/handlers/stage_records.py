"""StageRecords (key 10000): puts record batches into the store, to be published later.

Versions: v0, Penstock's own. A request is staged whole or not at all, behind what its token has.
Topics judge batches, and compress them anew, as in Produce, a token's requests in order; those that
stamp records stamp them now, and internal ones are not for clients. The answer does not wait for
the disk: the publication does, and finds out if a crash of the database has lost anything. A topic
that cannot be looked up because the database is away: NOT_ENOUGH_REPLICAS.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from core.config.values import TopicConfig
from core.errors import Error, Refusal
from core.log.effects import IncomingBatch
from core.log.retention import retention_class
from core.security.operations import REQUIREMENTS
from core.staging.ownership import owned_token
from core.staging.values import TokenBatch
from core.topic.topic import Topic
from gateway.kafka.api import api
from gateway.kafka.codec import StageRecordsRequest, StageRecordsResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code
from gateway.kafka.records import KafkaBatch, parse_produce_batch
from gateway.kafka.unavailable import NOT_STORED
from gateway.kafka.validation import Accepted, Rejected, accept, accept_at_once
from gateway.runtime.staging import StageResult

_AS_PRODUCE: Final = 13  # the version of Produce whose batches are taken
(_WRITE,) = REQUIREMENTS["StageRecords"]
_NO_TOKEN = Refusal(Error.INVALID_REQUEST, "A token is not all zeros.")
_UNKNOWN = Refusal(Error.UNKNOWN_TOPIC_OR_PARTITION, "There is no such partition.")
_NO_PRODUCERS = Refusal(Error.INVALID_RECORD, "Staged batches have no producer id.")
_Staged: TypeAlias = asyncio.Future[StageResult] | Refusal


class _Checked(NamedTuple):
    """A batch that is one, for a topic that there is."""

    topic: Topic
    number: int
    batch: KafkaBatch


@api(10000, versions=range(1), advertised=range(0), runs_side_by_side=True, brings_records=True)
async def stage_records(request: StageRecordsRequest, ctx: RequestContext) -> StageRecordsResponse:
    """Queues the batches before the first wait, so that requests keep their order."""
    names = {part.topic for part in request.partitions}
    gate = ctx.staging.append_gate
    staged = await gate.with_topics(ctx.topics, names, partial(_stage, request, ctx))
    if isinstance(staged, asyncio.Task):
        staged = await staged
    if isinstance(staged, Refusal):
        return _answer(StageResult(staged.error, staged.message), ctx)
    return _answer(_in_the_clients_words(await staged, request.token, ctx), ctx)


def _in_the_clients_words(result: StageResult, token: UUID, ctx: RequestContext) -> StageResult:
    """What is said of the token is said of it as the client calls it."""
    if result.message is None:
        return result
    own = str(owned_token(token, ctx.principal))
    return replace(result, message=result.message.replace(own, str(token)))


def _stage(
    request: StageRecordsRequest,
    ctx: RequestContext,
    topics: Mapping[str | UUID, Topic],
    is_away: bool,
) -> _Staged | asyncio.Task[_Staged]:
    """is_away: whether topics that are not given could not be looked up."""
    if is_away:
        return NOT_STORED
    if request.token is None:
        return _NO_TOKEN
    checked: list[_Checked] = []
    for part in request.partitions:
        if not ctx.may(_WRITE, part.topic):
            error = Error.TOPIC_AUTHORIZATION_FAILED
            return Refusal(error, f"{part.topic}-{part.index}: {error.name}")
        topic = topics.get(part.topic)
        batch = _check(part, topic)
        if isinstance(batch, Refusal):
            return _about(part.topic, part.index, batch)
        assert topic is not None, "it was checked"
        checked.append(_Checked(topic, part.index, batch))
    token = owned_token(request.token, ctx.principal)
    unready, now = ctx.staging.unready, ctx.clock()
    queue = partial(_queue, token, request.first_batch, ctx)
    if token not in unready:
        at_once = partial(accept_at_once, may=unready.may_be_made_at_once)
        accepted = _accepted(checked, now, at_once)
        if accepted is not None:
            return queue(accepted)
    return unready.put(token, partial(_accepted, checked, now, accept), queue)


def _queue(
    token: UUID,
    first_batch: int,
    ctx: RequestContext,
    accepted: Sequence[TokenBatch] | Refusal | None,
) -> _Staged:
    assert accepted is not None, "somebody has had the time"
    if isinstance(accepted, Refusal):
        return accepted
    return ctx.staging.stage(token, first_batch, accepted)


def _check(part: Any, topic: Topic | None) -> KafkaBatch | Refusal:
    if topic is None or topic.partition_id(part.index) is None:
        return _UNKNOWN
    if topic.is_internal:
        reason = f"Cannot append to internal topic {topic.name}"
        return Refusal(Error.INVALID_TOPIC_EXCEPTION, reason)
    batch = parse_produce_batch(part.records, _AS_PRODUCE)
    if isinstance(batch, Refusal):
        return batch
    if batch.batch.has_producer_id or batch.is_marked_transactional:
        return _NO_PRODUCERS
    return batch


def _accepted(
    checked: Sequence[_Checked],
    now: int,
    accept: Callable[[KafkaBatch, TopicConfig, int], Accepted | Rejected | None],
) -> list[TokenBatch] | Refusal | None:
    """None if `accept` says so of any."""
    batches: list[TokenBatch] = []
    for topic, index, batch in checked:
        accepted = accept(batch, topic.config, now)
        if accepted is None:
            return None
        if isinstance(accepted, Rejected):
            named = accepted.record_errors[:3]
            details = "; ".join(f"record {number}: {why}" for number, why in named)
            message = ". ".join(filter(None, (accepted.refusal.message, details)))
            return _about(topic.name, index, Refusal(accepted.refusal.error, message))
        incoming = IncomingBatch(accepted.batch, accepted.payload, retention_class(topic.config))
        batches.append(TokenBatch(topic.name, index, topic.partition_ids[index], incoming))
    return batches


def _about(topic: str, index: int, refusal: Refusal) -> Refusal:
    return Refusal(refusal.error, f"{topic}-{index}: {refusal.message or refusal.error.name}")


def _answer(result: StageResult, ctx: RequestContext) -> StageRecordsResponse:
    return StageRecordsResponse(
        error_code=kafka_code(result.error),
        error_message=result.message,
        staged=result.batches,
        expires_in_ms=ctx.staging.expiration_ms,
    )
