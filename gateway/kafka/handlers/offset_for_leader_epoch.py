"""OffsetForLeaderEpoch (key 23): where a leader epoch ends, so that a client notices truncation.

Versions: v2 current leader epoch (KIP-320); v4 flexible. Behavior: KIP-279; the epoch rises only
when the database comes back with another history (failover to a standby, restore).
"""

from typing import TypeAlias

from core.errors import Error
from core.log.leader_epochs import check_leader_epoch, end_of_epoch
from core.ports import StoreUnavailable
from gateway.kafka.api import api
from gateway.kafka.codec import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code

_Topic: TypeAlias = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
_Partition: TypeAlias = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult.EpochEndOffset


@api(23, versions=range(2, 5))
async def offset_for_leader_epoch(
    request: OffsetForLeaderEpochRequest, ctx: RequestContext
) -> OffsetForLeaderEpochResponse:
    """Ask for each partition, answer."""
    topics = []
    for asked in request.topics:
        partitions = []
        for each in asked.partitions:
            error, epoch, end = await _end(
                asked.topic, each.partition, each.current_leader_epoch, each.leader_epoch, ctx
            )
            partitions.append(
                _Partition(
                    error_code=kafka_code(error),
                    partition=each.partition,
                    leader_epoch=epoch,
                    end_offset=end,
                )
            )
        topics.append(_Topic(topic=asked.topic, partitions=partitions))
    return OffsetForLeaderEpochResponse(topics=topics)


async def _end(
    name: str, index: int, current: int, leader_epoch: int, ctx: RequestContext
) -> tuple[Error, int, int]:
    try:
        topic = await ctx.topics.get(name)
        if topic is None or not 0 <= index < len(topic.partition_ids):
            return Error.UNKNOWN_TOPIC_OR_PARTITION, -1, -1
        partition_id = topic.partition_ids[index]
        state = (await ctx.partitions.refresh([partition_id])).get(partition_id)
        if state is None:
            return Error.UNKNOWN_TOPIC_OR_PARTITION, -1, -1
        match check_leader_epoch(state.leader_epoch, current):
            case None:
                return Error.UNKNOWN_LEADER_EPOCH, -1, -1
            case False:
                return Error.FENCED_LEADER_EPOCH, -1, -1
        starts = await ctx.partitions.epoch_starts(partition_id)
        return Error.NONE, *end_of_epoch(starts, state.next_offset, leader_epoch)
    except StoreUnavailable:
        return Error.NOT_LEADER_OR_FOLLOWER, -1, -1
