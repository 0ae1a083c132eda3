"""Produce (key 0): appends one record batch to each partition named.

Versions: v3 record batch v2; v5 log start offset; v7 Zstandard (KIP-110); v8 record errors
(KIP-467); v9 flexible; v11 knows TRANSACTION_ABORTABLE; v12 is V2 of transactions, which joins
partitions by writing (KIP-890); v13 topic ids (KIP-516). 0 to 2 are advertised, as Kafka does for
librdkafka's sake, and refused (KIP-896).
Behavior: acks=0 is never answered; if anything was refused the connection is closed, which is how
such a producer learns of it. acks=1 means the same as all: committed. `min.insync.replicas` has no
effect. A batch in another codec than the topic's (`compression.type`) is opened, checked record by
record and compressed anew, where it is large in a thread: what comes after it for the same
partition waits, and nobody else. `max.message.bytes` is held against it as it came and as it is
stored. Records that are more than 64 MiB or a million are refused there (INVALID_RECORD), and so
are offsets that are not in order, which Kafka makes right. Else a batch's records are not looked
into unless a rule of the topic's is about them, so one whose header is right and whose records are
not is stored, where Kafka refuses it. A partition that a request names twice gets both batches; a
topic without partitions is not answered, as in Kafka. A batch that is marked as transactional and
has no producer id is part of no transaction, as in Kafka. Nobody writes to internal topics; Kafka
lets whoever calls himself `__admin_client` (KIP-1246). A topic that cannot be looked up because the
database is away: NOT_ENOUGH_REPLICAS, for it is not stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from core.errors import Error, Refusal
from core.security.operations import REQUIREMENTS
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
from gateway.kafka.validation import Accepted, Rejected, accept, accept_at_once
from gateway.runtime.flush.outcomes import Unconfirmed
from gateway.runtime.flush.work import AppendResult

_TopicResponse: TypeAlias = ProduceResponse.TopicProduceResponse
_PartitionResponse: TypeAlias = ProduceResponse.TopicProduceResponse.PartitionProduceResponse
_Part: TypeAlias = ProduceRequest.TopicProduceData.PartitionProduceData
_RecordError: TypeAlias = (
    ProduceResponse.TopicProduceResponse.PartitionProduceResponse.BatchIndexAndErrorMessage
)
TOPIC_IDS_SINCE: Final = 13
_WRITE_ID, _WRITE = REQUIREMENTS["Produce"]
_ACKS: Final = (0, 1, -1)
_UNKNOWN = Rejected(Refusal(Error.UNKNOWN_TOPIC_OR_PARTITION))
_UNKNOWN_ID = Rejected(Refusal(Error.UNKNOWN_TOPIC_ID))
_NOT_AUTHORIZED = Rejected(Refusal(Error.TOPIC_AUTHORIZATION_FAILED))
_NAMELESS = Refusal(Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)  # as in KafkaApis
_EMPTY_ID = Refusal(Error.INVALID_REQUEST)
_WRONG_ACKS = Refusal(Error.INVALID_REQUIRED_ACKS)


class _Queued(NamedTuple):
    """A batch on its way into the log. append_time: the log's stamp (ms), -1 where it has none."""

    append_time: int
    appended: asyncio.Future[AppendResult | Unconfirmed]


_Outcome: TypeAlias = _Queued | Rejected
_Unready: TypeAlias = asyncio.Task[_Outcome]
"""What becomes of a batch that is made ready first."""


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
    brings_records=True,
    v2_since=12,
    known_since={Error.TRANSACTION_ABORTABLE: 11},
)
@refuse_late_parts(_about, _granted)
async def produce(request: ProduceRequest, ctx: RequestContext) -> ProduceResponse | object | None:
    """Queues every batch before the first wait, so that requests keep their order; those that are
    not ready have their place in their partition."""
    if _is_not_authorized_for_id(request, ctx):
        return _all_refused(request, _NAMELESS, ctx)
    gate = ctx.partitions.append_gate
    keys = {topic.topic_id or topic.name for topic in request.topic_data}
    answers = await gate.with_topics(ctx.topics, keys, partial(_submit, request, ctx))
    settled = [(topic, [await _settled(each) for each in outcomes]) for topic, outcomes in answers]
    topics = [
        _TopicResponse(
            name=topic.name,
            topic_id=topic.topic_id,
            partition_responses=[
                _answer(part.index, outcome, ctx)
                for part, outcome in zip(topic.partition_data, outcomes, strict=True)
            ],
        )
        for topic, outcomes in settled
    ]
    if request.acks != 0:
        return ProduceResponse(responses=topics)
    refused = any(part.error_code for topic in topics for part in topic.partition_responses)
    return CLOSE_CONNECTION if refused else None


async def _settled(outcome: _Outcome | _Unready) -> _Outcome:
    if isinstance(outcome, asyncio.Task):
        outcome = await outcome
    if isinstance(outcome, _Queued):
        await outcome.appended  # as a rule all are done at once
    return outcome


def _submit(
    request: ProduceRequest, ctx: RequestContext, topics: Mapping[str | UUID, Topic], is_away: bool
) -> list[tuple[ProduceRequest.TopicProduceData, list[_Outcome | _Unready]]]:
    """is_away: whether topics that are not given could not be looked up."""
    answers = []
    for data in request.topic_data:
        key = data.topic_id or data.name
        topic = topics.get(key)
        name = topic.name if topic is not None else data.name
        outcomes: list[_Outcome | _Unready]
        if name and not ctx.may(_WRITE, name):
            outcomes = [_NOT_AUTHORIZED] * len(data.partition_data)
        elif topic is not None:
            outcomes = [_append(part, topic, request, ctx) for part in data.partition_data]
        elif is_away:
            outcomes = [_turn_away(part, key, request, ctx) for part in data.partition_data]
        else:
            unknown = _UNKNOWN_ID if ctx.api_version >= TOPIC_IDS_SINCE else _UNKNOWN
            outcomes = [unknown] * len(data.partition_data)
        if outcomes:
            answers.append((data, outcomes))
    return answers


def _is_not_authorized_for_id(request: ProduceRequest, ctx: RequestContext) -> bool:
    """As KafkaApis: whatever is in a transaction is looked for in the request itself, with or
    without an id (CVE-2018-17196)."""
    if ctx.rights is None:
        return False
    is_transactional = any(
        transactional_producer(part.records) is not None
        for topic in request.topic_data
        for part in topic.partition_data
    )
    name = request.transactional_id
    return is_transactional and (name is None or not ctx.may(_WRITE_ID, name))


def _all_refused(
    request: ProduceRequest, refusal: Refusal, ctx: RequestContext
) -> ProduceResponse | object:
    if request.acks == 0:
        return CLOSE_CONNECTION
    rejected = Rejected(refusal)
    return ProduceResponse(
        responses=[
            _TopicResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    _answer(part.index, rejected, ctx) for part in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )


def _turn_away(
    part: _Part, key: str | UUID, request: ProduceRequest, ctx: RequestContext
) -> Rejected:
    if request.acks not in _ACKS:
        return Rejected(_WRONG_ACKS)
    batch = parse_produce_batch(part.records, ctx.api_version)
    if isinstance(batch, Refusal):
        return Rejected(batch)
    ctx.partitions.append_gate.turn_away(key, part.index, batch.batch)
    return Rejected(NOT_STORED)


def _append(
    part: _Part, topic: Topic, request: ProduceRequest, ctx: RequestContext
) -> _Outcome | _Unready:
    """Queues the batch, if the topic takes it."""
    partition_id = topic.partition_id(part.index)
    if partition_id is None:
        return _UNKNOWN
    batch = _checked(part.records, topic, request, ctx)
    if isinstance(batch, Refusal):
        return Rejected(batch)
    unready, now = ctx.partitions.unready, ctx.clock()
    if partition_id not in unready:
        accepted = accept_at_once(batch, topic.config, now, unready.may_be_made_at_once)
        if accepted is not None:
            return _queue(partition_id, topic, request, ctx, accepted)
    queue = partial(_queue, partition_id, topic, request, ctx)
    return unready.put(partition_id, partial(accept, batch, topic.config, now), queue)


def _queue(
    partition_id: int,
    topic: Topic,
    request: ProduceRequest,
    ctx: RequestContext,
    accepted: Accepted | Rejected,
) -> _Outcome:
    if isinstance(accepted, Rejected):
        return accepted
    name = request.transactional_id
    appended = ctx.partitions.append(
        partition_id,
        topic.config,
        accepted.batch,
        accepted.payload,
        ctx.transaction_version,
        TransactionKey.of_kafka(name) if name else None,
    )
    return _Queued(accepted.append_time, appended)


def _checked(
    records: memoryview | None, topic: Topic, request: ProduceRequest, ctx: RequestContext
) -> KafkaBatch | Refusal:
    """In Kafka's order: what KafkaApis looks at, then ReplicaManager, then the log."""
    if refusal := refuse_frame(records, ctx.api_version):
        return refusal
    if request.acks not in _ACKS:
        return _WRONG_ACKS
    if topic.is_internal:
        reason = f"Cannot append to internal topic {topic.name}"
        return Refusal(Error.INVALID_TOPIC_EXCEPTION, reason)
    assert records is not None, "refused"
    batch = validate_batch(records)
    if isinstance(batch, Refusal):
        return batch
    if batch.is_marked_transactional and request.transactional_id is None:
        return _NAMELESS
    if batch.batch.is_transactional and not request.transactional_id:
        return _EMPTY_ID
    return batch


def _answer(index: int, outcome: _Outcome, ctx: RequestContext) -> _PartitionResponse:
    if isinstance(outcome, Rejected):
        return _PartitionResponse(
            index=index,
            error_code=kafka_code(outcome.refusal.error),
            base_offset=-1,
            error_message=outcome.refusal.message,
            record_errors=[
                _RecordError(batch_index=number, batch_index_error_message=message)
                for number, message in outcome.record_errors
            ],
        )
    append_time, appended = outcome
    result = appended.result()
    if isinstance(result, Unconfirmed):
        result = AppendResult(log_error(result), result.message)
    if result.duplicate_timestamp != NO_TIMESTAMP:
        # The stored batch's greatest timestamp, also where producers stamp (UnifiedLog.append).
        append_time = result.duplicate_timestamp
    return made(
        _PartitionResponse,
        index=index,
        error_code=kafka_code(ctx.known(result.error)),
        base_offset=result.base_offset,
        log_append_time_ms=append_time if result.error is Error.NONE else NO_TIMESTAMP,
        log_start_offset=result.log_start_offset,
        error_message=result.message,
    )
