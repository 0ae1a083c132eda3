"""WriteTxnMarkers (key 27): ends what a producer has open in some partitions, from outside.

Behavior: brokers of Kafka send it to each other, and `kafka-transactions abort` to them. Here an
abort of one partition ends its transaction as a whole and fences the producer; a commit of a part
is INVALID_TXN_STATE. Where the producer has nothing open, nothing is done, and that is no error.
A marker older than what the partition has seen is refused: by its producer epoch
(INVALID_PRODUCER_EPOCH), or its coordinator's (TRANSACTION_COORDINATOR_FENCED).

Versions: v1 flexible; v2 says which version of transactions (KIP-1228): a marker of V2 carries a
new epoch, so that one with the partition's own is late.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from core.errors import Error
from core.security.operations import REQUIREMENTS
from core.transaction.values import Marker, TransactionVersion
from gateway.kafka.api import api
from gateway.kafka.codec import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import coordinator_error, kafka_code
from gateway.runtime.flush.outcomes import Unconfirmed

_Result = WriteTxnMarkersResponse.WritableTxnMarkerResult
_Topic = _Result.WritableTxnMarkerTopicResult
_Partition = _Topic.WritableTxnMarkerPartitionResult

_TopicPartition = tuple[str, int]
(_ALTER,) = REQUIREMENTS["WriteTxnMarkers"]
_AWAY: Final = Error.COORDINATOR_NOT_AVAILABLE


def _unavailable(request: WriteTxnMarkersRequest, ctx: RequestContext) -> WriteTxnMarkersResponse:
    return _refused(request, _AWAY)


def _refused(request: WriteTxnMarkersRequest, error: Error) -> WriteTxnMarkersResponse:
    return WriteTxnMarkersResponse(
        markers=[_result(each, dict.fromkeys(_partitions(each), error)) for each in request.markers]
    )


@api(27, versions=range(1, 3), unavailable=_unavailable, is_exempt_from_quotas=True)
async def write_txn_markers(
    request: WriteTxnMarkersRequest, ctx: RequestContext
) -> WriteTxnMarkersResponse:
    """One marker after the other; each partition has its own answer."""
    if not ctx.may(_ALTER):
        return _refused(request, Error.CLUSTER_AUTHORIZATION_FAILED)
    found = await ctx.resolve(
        {partition for each in request.markers for partition in _partitions(each)}
    )
    results = []
    for each in request.markers:
        ids = {partition: found[partition] for partition in _partitions(each) if partition in found}
        is_v2 = each.transaction_version >= TransactionVersion.V2.value
        errors = await ctx.transactions.write_marker(
            Marker(
                producer_id=each.producer_id,
                producer_epoch=each.producer_epoch,
                is_commit=each.transaction_result,
                coordinator_epoch=each.coordinator_epoch,
            ),
            list(ids.values()),
            TransactionVersion.V2 if is_v2 else TransactionVersion.V1,
        )
        results.append(
            _result(each, {partition: _named(errors[ids[partition]]) for partition in ids})
        )
    return WriteTxnMarkersResponse(markers=results)


def _named(verdict: Error | Unconfirmed) -> Error:
    return coordinator_error(verdict) if isinstance(verdict, Unconfirmed) else verdict


def _partitions(marker: Any) -> Sequence[_TopicPartition]:
    return [(topic.name, number) for topic in marker.topics for number in topic.partition_indexes]


def _result(marker: Any, errors: Mapping[_TopicPartition, Error]) -> Any:
    """What is not in `errors` does not exist."""
    return _Result(
        producer_id=marker.producer_id,
        topics=[
            _Topic(
                name=topic.name,
                partitions=[
                    _Partition(
                        partition_index=number,
                        error_code=kafka_code(
                            errors.get((topic.name, number), Error.UNKNOWN_TOPIC_OR_PARTITION)
                        ),
                    )
                    for number in topic.partition_indexes
                ],
            )
            for topic in marker.topics
        ],
    )
