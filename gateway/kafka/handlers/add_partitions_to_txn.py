"""AddPartitionsToTxn (key 24): partitions are to be part of a transaction, or are they already?

Behavior: all of a transaction's partitions join, or none: where one does not exist, or is a
client's wish for an internal topic, the others are OPERATION_NOT_ATTEMPTED
(KafkaApis.handleAddPartitionsToTxnRequest). It costs no fsync: what is written next makes it
durable. V2 clients do not send it.

Versions: v2 knows PRODUCER_FENCED; v3 flexible; v4 is for brokers: many transactions, or only asks
(verify only; TRANSACTION_ABORTABLE where not, in Kafka 4 not from v5 on only).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from core.errors import Error
from core.security.operations import REQUIREMENTS
from core.topic.rules import is_internal
from core.transaction.coordinator import transactional_id_refusal
from core.transaction.key import TransactionKey
from core.transaction.values import ProducerIdAndEpoch
from gateway.kafka.api import api
from gateway.kafka.codec import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code
from gateway.kafka.late_requests import note_asked, refuse_late

_Result = AddPartitionsToTxnResponse.AddPartitionsToTxnResult
_TopicResult = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
_PartitionResult = _TopicResult.AddPartitionsToTxnPartitionResult
_FIRST_VERSION_FOR_BROKERS: Final = 4
_WRITE, _WRITE_TOPIC, _CLUSTER_ACTION = REQUIREMENTS["AddPartitionsToTxn"]

_Place = tuple[str, int]


def _unavailable(
    request: AddPartitionsToTxnRequest, ctx: RequestContext
) -> AddPartitionsToTxnResponse:
    away = Error.COORDINATOR_NOT_AVAILABLE
    if ctx.api_version < _FIRST_VERSION_FOR_BROKERS:
        return _single(request, dict.fromkeys(_places(request.v3_and_below_topics), away), ctx)
    return AddPartitionsToTxnResponse(error_code=kafka_code(away), results_by_transaction=[])


def _about(request: AddPartitionsToTxnRequest) -> tuple[ProducerIdAndEpoch, str]:
    producer = ProducerIdAndEpoch(
        request.v3_and_below_producer_id, request.v3_and_below_producer_epoch
    )
    return producer, "AddPartitionsToTxn"


def _is_granted(answer: AddPartitionsToTxnResponse) -> bool:
    return all(
        each.partition_error_code == 0
        for topic in answer.results_by_topic_v3_and_below
        for each in topic.results_by_partition
    )


@api(
    24,
    versions=range(6),
    unavailable=_unavailable,
    v2_since=_FIRST_VERSION_FOR_BROKERS,
    known_since={Error.PRODUCER_FENCED: 2},
)
@refuse_late(_about, _is_granted)
async def add_partitions_to_txn(
    request: AddPartitionsToTxnRequest, ctx: RequestContext
) -> AddPartitionsToTxnResponse:
    """Have the partitions take part, or tell whether they do."""
    if ctx.api_version < _FIRST_VERSION_FOR_BROKERS:
        producer, _ = _about(request)
        errors = await _errors(
            request.v3_and_below_transactional_id,
            producer,
            _places(request.v3_and_below_topics),
            ctx,
        )
        return _single(request, errors, ctx)
    if not ctx.may(_CLUSTER_ACTION):
        return AddPartitionsToTxnResponse(
            error_code=kafka_code(Error.CLUSTER_AUTHORIZATION_FAILED), results_by_transaction=[]
        )
    results = []
    for each in request.transactions:
        producer = ProducerIdAndEpoch(each.producer_id, each.producer_epoch)
        errors = await _errors(
            each.transactional_id,
            producer,
            _places(each.topics),
            ctx,
            verify_only=each.verify_only,
        )
        results.append(
            _Result(
                transactional_id=each.transactional_id,
                topic_results=_topics(each.topics, errors, ctx),
            )
        )
    return AddPartitionsToTxnResponse(error_code=0, results_by_transaction=results)


async def _errors(
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    places: Sequence[_Place],
    ctx: RequestContext,
    *,
    verify_only: bool = False,
) -> Mapping[_Place, Error]:
    if not _is_of_broker(ctx) and not ctx.may(_WRITE, transactional_id):
        return dict.fromkeys(places, Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    found = await ctx.resolve(places)
    refused = _refused(places, found, ctx)
    if refused:
        return {place: refused.get(place, Error.OPERATION_NOT_ATTEMPTED) for place in places}
    refusal = transactional_id_refusal(transactional_id)
    if refusal is not Error.NONE:
        return dict.fromkeys(places, refusal)
    key, ids = TransactionKey.of_kafka(transactional_id), list(found.values())
    if verify_only:
        verdicts = await ctx.transactions.verify(key, producer, ids)
        return {place: verdicts[partition_id] for place, partition_id in found.items()}
    error = await ctx.transactions.add_partitions(key, producer, ids)
    if error is Error.NONE:
        note_asked(key, producer, ctx)
    return dict.fromkeys(places, error)


def _refused(
    places: Sequence[_Place], found: Mapping[_Place, int], ctx: RequestContext
) -> dict[_Place, Error]:
    """What is not there, and, for clients, what they may not write to, or is Kafka's own."""
    refused = {}
    hidden: set[str] = set()
    if not _is_of_broker(ctx):
        hidden = {name for name in {each for each, _ in places} if not _may_write(name, ctx)}
    for place in places:
        if place[0] in hidden:
            refused[place] = Error.TOPIC_AUTHORIZATION_FAILED
        elif place not in found:
            refused[place] = Error.UNKNOWN_TOPIC_OR_PARTITION
    return refused


def _may_write(name: str, ctx: RequestContext) -> bool:
    return not is_internal(name) and ctx.may(_WRITE_TOPIC, name)


def _is_of_broker(ctx: RequestContext) -> bool:
    return ctx.api_version >= _FIRST_VERSION_FOR_BROKERS


def _places(topics: Sequence[Any]) -> list[_Place]:
    return [(topic.name, number) for topic in topics for number in topic.partitions]


def _single(
    request: AddPartitionsToTxnRequest, errors: Mapping[_Place, Error], ctx: RequestContext
) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=_topics(request.v3_and_below_topics, errors, ctx)
    )


def _topics(
    topics: Sequence[Any], errors: Mapping[_Place, Error], ctx: RequestContext
) -> list[Any]:
    return [
        _TopicResult(
            name=topic.name,
            results_by_partition=[
                _PartitionResult(
                    partition_index=number,
                    partition_error_code=kafka_code(ctx.known(errors[topic.name, number])),
                )
                for number in topic.partitions
            ],
        )
        for topic in topics
    ]
