"""DeleteRecords (key 21): moves a partition's log start offset up.

Versions: v2 flexible. Behavior: offset -1 is the high watermark; the answer's low watermark is the
log start offset that holds then. Of several requests for one partition the last counts. What lies
before is gone for readers at once, and its disk space once no live batch shares its segment.
"""

from typing import TypeAlias

from core.errors import Error
from core.ports.log import StoreUnavailable
from core.security.operations import REQUIREMENTS
from gateway.kafka.api import api
from gateway.kafka.codec import DeleteRecordsRequest, DeleteRecordsResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code

_Topic: TypeAlias = DeleteRecordsResponse.DeleteRecordsTopicResult
_Partition: TypeAlias = DeleteRecordsResponse.DeleteRecordsTopicResult.DeleteRecordsPartitionResult
(_DELETE_RECORDS,) = REQUIREMENTS["DeleteRecords"]


@api(21, versions=range(3))
async def delete_records(
    request: DeleteRecordsRequest, ctx: RequestContext
) -> DeleteRecordsResponse:
    """Ask for each partition, answer."""
    wanted: dict[str, dict[int, int]] = {}  # of several for one partition, the last counts
    for asked in request.topics:
        for each in asked.partitions:
            wanted.setdefault(asked.name, {})[each.partition_index] = each.offset
    topics = []
    for name, offsets in wanted.items():
        partitions = []
        for index, offset in offsets.items():
            error, low_watermark = await _delete(name, index, offset, ctx)
            partitions.append(
                _Partition(
                    partition_index=index,
                    low_watermark=low_watermark,
                    error_code=kafka_code(error),
                )
            )
        topics.append(_Topic(name=name, partitions=partitions))
    return DeleteRecordsResponse(topics=topics)


async def _delete(name: str, index: int, offset: int, ctx: RequestContext) -> tuple[Error, int]:
    if not ctx.may(_DELETE_RECORDS, name):
        return Error.TOPIC_AUTHORIZATION_FAILED, -1
    try:
        topic = await ctx.topics.get(name)
        partition_id = None if topic is None else topic.partition_id(index)
        if topic is None or partition_id is None:
            return Error.UNKNOWN_TOPIC_OR_PARTITION, -1
        if refusal := topic.why_records_stay():
            return refusal.error, -1
        return await ctx.partitions.delete_records(partition_id, offset)
    except StoreUnavailable:
        return Error.NOT_LEADER_OR_FOLLOWER, -1
