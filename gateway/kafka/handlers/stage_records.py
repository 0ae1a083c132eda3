"""StageRecords (key 10000): puts record batches into the store, to be published later.

Versions: v0, Penstock's own. A request is staged whole or not at all, behind what its token has.
Topics judge batches as in Produce; those that stamp records stamp them now, and internal ones are
not for clients. The answer does not wait for the disk: the publication does, and finds out if a
crash of the database has lost anything. A topic that cannot be looked up because the database is
away: NOT_ENOUGH_REPLICAS.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final
from uuid import UUID

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
from gateway.kafka.records import parse_produce_batch
from gateway.kafka.unavailable import NOT_STORED
from gateway.kafka.validation import Accepted, Rejected, accept
from gateway.runtime.staging import StageResult

_AS_PRODUCE: Final = 13  # the version of Produce whose batches are taken
(_WRITE,) = REQUIREMENTS["StageRecords"]
_NO_TOKEN = Refusal(Error.INVALID_REQUEST, "A token is not all zeros.")
_UNKNOWN = Refusal(Error.UNKNOWN_TOPIC_OR_PARTITION, "There is no such partition.")
_NO_PRODUCERS = Refusal(Error.INVALID_RECORD, "Staged batches have no producer id.")


@api(10000, versions=range(1), advertised=range(0), runs_side_by_side=True, brings_records=True)
async def stage_records(request: StageRecordsRequest, ctx: RequestContext) -> StageRecordsResponse:
    """Queues the batches before the first wait, so that requests keep their order."""
    names = {part.topic for part in request.partitions}
    gate = ctx.staging.append_gate
    staged = await gate.with_topics(ctx.topics, names, partial(_stage, request, ctx))
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
) -> asyncio.Future[StageResult] | Refusal:
    """is_away: whether topics that are not given could not be looked up."""
    if is_away:
        return NOT_STORED
    if request.token is None:
        return _NO_TOKEN
    batches: list[TokenBatch] = []
    for part in request.partitions:
        if not ctx.may(_WRITE, part.topic):
            error = Error.TOPIC_AUTHORIZATION_FAILED
            return Refusal(error, f"{part.topic}-{part.index}: {error.name}")
        topic = topics.get(part.topic)
        accepted = _accepted(part, topic, ctx)
        if isinstance(accepted, Refusal):
            message = f"{part.topic}-{part.index}: {accepted.message or accepted.error.name}"
            return Refusal(accepted.error, message)
        assert topic is not None, "a batch was accepted for it"
        incoming = IncomingBatch(accepted.batch, accepted.payload, retention_class(topic.config))
        partition_id = topic.partition_ids[part.index]
        batches.append(TokenBatch(topic.name, part.index, partition_id, incoming))
    token = owned_token(request.token, ctx.principal)
    return ctx.staging.stage(token, request.first_batch, batches)


def _accepted(part: Any, topic: Topic | None, ctx: RequestContext) -> Accepted | Refusal:
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
    accepted = accept(batch, topic.config, ctx.clock())
    if isinstance(accepted, Rejected):
        details = "; ".join(f"record {index}: {why}" for index, why in accepted.record_errors[:3])
        message = ". ".join(filter(None, (accepted.refusal.message, details)))
        return Refusal(accepted.refusal.error, message)
    return accepted


def _answer(result: StageResult, ctx: RequestContext) -> StageRecordsResponse:
    return StageRecordsResponse(
        error_code=kafka_code(result.error),
        error_message=result.message,
        staged=result.batches,
        expires_in_ms=ctx.staging.expiration_ms,
    )
