"""Produce (key 0): appends one record batch to each partition named.

Versions: v3 record batch v2; v5 log start offset; v7 Zstandard (KIP-110); v8 record errors
(KIP-467); v9 flexible; v11 knows TRANSACTION_ABORTABLE; v12 is V2 of transactions, which joins
partitions by writing (KIP-890); v13 topic ids (KIP-516). 0 to 2 are advertised, as Kafka does for
librdkafka's sake, and refused (KIP-896).
Behavior: acks=0 is never answered; if anything was refused the connection is closed, which is how
such a producer learns of it. acks=1 means the same as all: committed. `min.insync.replicas` has no
effect, and `compression.type` does not recompress: batches are stored as they came. A batch's
records are not looked into unless a rule of the topic's is about them, so one whose header is right
and whose records are not is stored, where Kafka refuses it. A partition that a request names twice
gets both batches; a topic without partitions is not answered, as in Kafka. A batch that is marked
as transactional and has no producer id is part of no transaction, as in Kafka. A topic that cannot
be looked up because the database is away: NOT_ENOUGH_REPLICAS, for it is not stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, TypeAlias
from uuid import UUID

from core.errors import Error, Refusal
from core.ports.log import StoreUnavailable
from core.topic.topic import Topic
from core.transaction.key import TransactionKey
from core.types import NO_TIMESTAMP
from gateway.kafka.api import CLOSE_CONNECTION, api
from gateway.kafka.codec import ProduceRequest, ProduceResponse, made
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code, log_error
from gateway.kafka.late_requests import Asked, refuse_late_parts
from gateway.kafka.records import (
    KafkaBatch,
    parse_produce_batch,
    refuse_frame,
    transactional_producer,
    validate_batch,
)
from gateway.kafka.unavailable import NOT_STORED
from gateway.kafka.validation import Rejected, accept
from gateway.runtime.flush.outcomes import Unconfirmed
from gateway.runtime.flush.work import AppendResult

_TopicResponse: TypeAlias = ProduceResponse.TopicProduceResponse
_PartitionResponse: TypeAlias = ProduceResponse.TopicProduceResponse.PartitionProduceResponse
_RecordError: TypeAlias = (
    ProduceResponse.TopicProduceResponse.PartitionProduceResponse.BatchIndexAndErrorMessage
)
TOPIC_IDS_SINCE: Final = 13
_WRITER_OF_INTERNAL_TOPICS: Final = "__admin_client"  # AdminUtils.ADMIN_CLIENT_ID
_UNKNOWN = Refusal(Error.UNKNOWN_TOPIC_OR_PARTITION)
_UNKNOWN_ID = Refusal(Error.UNKNOWN_TOPIC_ID)
_EARLIER_FIRST = Refusal(
    Error.NOT_ENOUGH_REPLICAS, "An earlier batch of this producer was refused and has to come first"
)
_NAMELESS = Refusal(Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)  # as in KafkaApis
_EMPTY_ID = Refusal(Error.INVALID_REQUEST)
_WRONG_ACKS = Refusal(Error.INVALID_REQUIRED_ACKS)


class _Partition:
    """One partition's part of the request, from what came to what is answered."""

    __slots__ = ("append_time", "appended", "index", "record_errors", "refusal")

    def __init__(self, index: int) -> None:
        self.index = index
        self.append_time = NO_TIMESTAMP
        self.appended: asyncio.Future[AppendResult | Unconfirmed] | None = None
        self.refusal: Refusal | None = None
        self.record_errors: Sequence[tuple[int, str]] = ()


def _place(topic: str, index: int) -> tuple[str, str, int]:
    return ("Produce", topic, index)


def _about(request: ProduceRequest) -> Sequence[Asked]:
    if request.transactional_id is None:
        return ()
    return [
        (producer, _place(topic.name, part.index))
        for topic in request.topic_data
        for part in topic.partition_data
        if (producer := transactional_producer(part.records)) is not None
    ]


def _granted(answer: Any, asked: Sequence[Asked]) -> Sequence[Asked]:
    if answer is None:
        return asked  # acks=0, and nothing was refused
    if answer is CLOSE_CONNECTION:
        return ()
    granted = {
        _place(topic.name, part.index)
        for topic in answer.responses
        for part in topic.partition_responses
        if part.error_code == 0
    }
    return [each for each in asked if each[1] in granted]


@api(
    0,
    versions=range(3, 14),
    advertised=range(14),
    runs_side_by_side=True,
    v2_since=12,
    known_since={Error.TRANSACTION_ABORTABLE: 11},
)
@refuse_late_parts(_about, _granted)
async def produce(request: ProduceRequest, ctx: RequestContext) -> ProduceResponse | object | None:
    """Queues every batch before the first wait, so that requests keep their order."""
    answers = await _submit(request, ctx)
    for _, partitions in answers:
        for each in partitions:
            if each.appended is not None:
                await each.appended  # as a rule all are done at once
    topics = [
        _TopicResponse(
            name=topic.name,
            topic_id=topic.topic_id,
            partition_responses=[_answer(each, ctx) for each in partitions],
        )
        for topic, partitions in answers
    ]
    if request.acks != 0:
        return ProduceResponse(responses=topics)
    refused = any(part.error_code for topic in topics for part in topic.partition_responses)
    return CLOSE_CONNECTION if refused else None


async def _submit(request: ProduceRequest, ctx: RequestContext) -> _Answers:
    """Topics are known, as a rule. Where one has to be looked up, later requests wait behind it."""
    gate = ctx.partitions.append_gate
    if gate.is_free and all(_cached(topic, ctx) for topic in request.topic_data):
        return _submit_now(request, ctx, {})
    failures = gate.failures
    async with gate:
        if failures == gate.failures:
            try:
                return _submit_now(request, ctx, await _look_up(request, ctx))
            except StoreUnavailable:
                gate.failures += 1
        # What needs no looking up goes its way; an earlier request was refused what this one asks.
        return _submit_now(request, ctx, {}, is_away=True)


async def _look_up(request: ProduceRequest, ctx: RequestContext) -> _Topics:
    ids = {topic.topic_id for topic in request.topic_data if topic.topic_id is not None}
    names = {topic.name for topic in request.topic_data if topic.name}
    found: dict[Any, Topic] = {**await ctx.topics.get_many(names)}
    return found | await ctx.topics.get_many_by_id(ids)


def _cached(topic: ProduceRequest.TopicProduceData, ctx: RequestContext) -> Topic | None:
    if topic.topic_id is not None:
        return ctx.topics.cached_by_id(topic.topic_id)
    return ctx.topics.cached(topic.name)


def _submit_now(
    request: ProduceRequest, ctx: RequestContext, found: _Topics, *, is_away: bool = False
) -> _Answers:
    """is_away: whether topics neither cached nor found could not be looked up."""
    answers: _Answers = []
    retry_order = bool(ctx.partitions.append_gate.retry_order)
    has_wrong_acks = request.acks not in (0, 1, -1)
    name = request.transactional_id
    transaction = TransactionKey.of_kafka(name) if name else None
    for data in request.topic_data:
        topic = found.get(data.topic_id or data.name) or _cached(data, ctx)
        partitions: list[_Partition] = []
        for part in data.partition_data:
            answer = _Partition(part.index)
            partitions.append(answer)
            if topic is None and is_away:
                answer.refusal = _WRONG_ACKS if has_wrong_acks else _turn_away(part, data, ctx)
            elif topic is None:
                answer.refusal = _UNKNOWN_ID if ctx.api_version >= TOPIC_IDS_SINCE else _UNKNOWN
            elif not 0 <= part.index < len(topic.partition_ids):
                answer.refusal = _UNKNOWN
            else:
                batch = _checked(part.records, topic, has_wrong_acks, ctx)
                if isinstance(batch, Refusal):
                    answer.refusal = batch
                elif batch.is_marked_transactional and request.transactional_id is None:
                    answer.refusal = _NAMELESS
                elif batch.batch.is_transactional and not request.transactional_id:
                    answer.refusal = _EMPTY_ID
                elif retry_order and _is_early(batch, data, part.index, ctx):
                    answer.refusal = _EARLIER_FIRST
                else:
                    _append(batch, topic, answer, ctx, transaction)
        if partitions:
            answers.append((data, partitions))
    return answers


def _checked(
    records: memoryview | None, topic: Topic, has_wrong_acks: bool, ctx: RequestContext
) -> KafkaBatch | Refusal:
    """In Kafka's order: what KafkaApis looks at, then ReplicaManager, then the log."""
    if refusal := refuse_frame(records, ctx.api_version):
        return refusal
    if has_wrong_acks:
        return _WRONG_ACKS
    if topic.is_internal and ctx.client_id != _WRITER_OF_INTERNAL_TOPICS:
        reason = f"Cannot append to internal topic {topic.name}"
        return Refusal(Error.INVALID_TOPIC_EXCEPTION, reason)
    assert records is not None, "refused"
    return validate_batch(records)


def _turn_away(part: Any, data: ProduceRequest.TopicProduceData, ctx: RequestContext) -> Refusal:
    """Refuses for now, and remembers it of an idempotent producer, so that none overtakes."""
    batch = parse_produce_batch(part.records, ctx.api_version)
    if isinstance(batch, Refusal):
        return batch
    place = (data.topic_id or data.name, part.index)
    ctx.partitions.append_gate.retry_order.note(place, batch.batch, _now())
    return NOT_STORED


def _is_early(
    batch: KafkaBatch, data: ProduceRequest.TopicProduceData, index: int, ctx: RequestContext
) -> bool:
    """Whether one that was turned away has to come first; if this is it, it has come."""
    retry_order = ctx.partitions.append_gate.retry_order
    place = (data.topic_id or data.name, index)
    if retry_order.is_early(place, batch.batch, _now()):
        return True
    retry_order.settle(place, batch.batch, is_new=True)
    return False


def _now() -> float:
    return asyncio.get_running_loop().time()


def _append(
    kafka_batch: KafkaBatch,
    topic: Topic,
    answer: _Partition,
    ctx: RequestContext,
    transaction: TransactionKey | None,
) -> None:
    """Queues the batch, if the topic takes it."""
    accepted = accept(kafka_batch, topic.config, ctx.clock())
    if isinstance(accepted, Rejected):
        answer.refusal = accepted.refusal
        answer.record_errors = accepted.record_errors
        return
    answer.append_time = accepted.append_time
    answer.appended = ctx.partitions.append(
        topic.partition_ids[answer.index],
        topic.config,
        accepted.batch,
        accepted.payload,
        ctx.transaction_version,
        transaction,
    )


def _answer(partition: _Partition, ctx: RequestContext) -> _PartitionResponse:
    if partition.appended is None:
        refusal = partition.refusal or _UNKNOWN
        return _PartitionResponse(
            index=partition.index,
            error_code=kafka_code(refusal.error),
            base_offset=-1,
            error_message=refusal.message,
            record_errors=[
                _RecordError(batch_index=index, batch_index_error_message=message)
                for index, message in partition.record_errors
            ],
        )
    result = partition.appended.result()
    if isinstance(result, Unconfirmed):
        result = AppendResult(log_error(result), result.message)
    error = ctx.known(result.error)
    append_time = partition.append_time
    if result.duplicate_timestamp != NO_TIMESTAMP:
        # The stored batch's greatest timestamp, also where producers stamp (UnifiedLog.append).
        append_time = result.duplicate_timestamp
    return made(
        _PartitionResponse,
        index=partition.index,
        error_code=kafka_code(error),
        base_offset=result.base_offset,
        log_append_time_ms=append_time if result.error is Error.NONE else NO_TIMESTAMP,
        log_start_offset=result.log_start_offset,
        error_message=result.message,
    )


_Topics = dict[str | UUID, Topic]
_Answers = list[tuple[ProduceRequest.TopicProduceData, list[_Partition]]]
