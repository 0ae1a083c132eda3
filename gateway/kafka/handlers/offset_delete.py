"""OffsetDelete (key 47): deletes offsets of topics that the group does not read (KIP-496).

Versions: v0. Behavior: an unknown topic or partition is an error of its own. The group is looked at
also if nothing is left to delete; if it refuses, that is the whole answer.
"""

from core.errors import Error
from core.security.operations import REQUIREMENTS
from core.topic.topic import find_partition
from gateway.kafka.api import api
from gateway.kafka.codec import OffsetDeleteRequest, OffsetDeleteResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code

_Topic = OffsetDeleteResponse.OffsetDeleteResponseTopic
_Partition = _Topic.OffsetDeleteResponsePartition
_DELETE, _READ_TOPIC = REQUIREMENTS["OffsetDelete"]


def _unavailable(request: OffsetDeleteRequest, ctx: RequestContext) -> OffsetDeleteResponse:
    return _refused(Error.COORDINATOR_NOT_AVAILABLE)


@api(47, versions=range(1), unavailable=_unavailable)
async def offset_delete(request: OffsetDeleteRequest, ctx: RequestContext) -> OffsetDeleteResponse:
    """Delete what exists; one result for each partition."""
    if not ctx.may(_DELETE, request.group_id):
        return _refused(Error.GROUP_AUTHORIZATION_FAILED)
    names = {each.name for each in request.topics}
    hidden = {name for name in names if not ctx.may(_READ_TOPIC, name)}
    topics = await ctx.topics.get_many(names - hidden)
    known = [
        (each.name, partition_id)
        for each in request.topics
        for partition in each.partitions
        if (partition_id := find_partition(topics, each.name, partition.partition_index))
        is not None
    ]
    deleted = await ctx.groups.delete_offsets(request.group_id, known)
    if isinstance(deleted, Error):
        return _refused(deleted)
    answers = []
    for each in request.topics:
        partitions = []
        for partition in each.partitions:
            partition_id = find_partition(topics, each.name, partition.partition_index)
            error = (
                Error.TOPIC_AUTHORIZATION_FAILED
                if each.name in hidden
                else Error.UNKNOWN_TOPIC_OR_PARTITION
            )
            if partition_id is not None:
                error = deleted[partition_id]
            partitions.append(
                _Partition(partition_index=partition.partition_index, error_code=kafka_code(error))
            )
        answers.append(_Topic(name=each.name, partitions=partitions))
    return OffsetDeleteResponse(error_code=0, topics=answers)


def _refused(error: Error) -> OffsetDeleteResponse:
    return OffsetDeleteResponse(error_code=kafka_code(error), topics=[])
