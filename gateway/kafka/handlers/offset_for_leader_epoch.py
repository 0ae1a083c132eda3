"""OffsetForLeaderEpoch (key 23): where a leader epoch ends, so that a client notices truncation.

Versions: v2 current leader epoch (KIP-320); v4 flexible. Behavior: KIP-279; the epoch rises only
when the database comes back with another history (failover to a standby, restore).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from core.errors import Error
from core.log.leader_epochs import check_leader_epoch, end_of_epoch
from core.log.partition_log import PartitionState
from core.ports.log import EpochStart
from core.security.operations import REQUIREMENTS
from gateway.kafka.api import api
from gateway.kafka.codec import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code
from gateway.runtime.log.partitions import FIRST_EPOCH

_Topic: TypeAlias = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
_Partition: TypeAlias = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult.EpochEndOffset
_Asked: TypeAlias = OffsetForLeaderEpochRequest.OffsetForLeaderTopic.OffsetForLeaderPartition
(_DESCRIBE,) = REQUIREMENTS["OffsetForLeaderEpoch"]


def _unavailable(
    request: OffsetForLeaderEpochRequest, ctx: RequestContext
) -> OffsetForLeaderEpochResponse:
    return _answer(request, lambda *_: (Error.NOT_LEADER_OR_FOLLOWER, -1, -1))


@api(23, versions=range(2, 5), unavailable=_unavailable)
async def offset_for_leader_epoch(
    request: OffsetForLeaderEpochRequest, ctx: RequestContext
) -> OffsetForLeaderEpochResponse:
    """Read every partition asked for at once, and the epochs of those that have had several."""
    names = {asked.topic for asked in request.topics}
    hidden = {name for name in names if not ctx.may(_DESCRIBE, name)}
    ids = await ctx.resolve(
        {
            (asked.topic, each.partition)
            for asked in request.topics
            if asked.topic not in hidden
            for each in asked.partitions
        }
    )
    states, starts = await _read(list(ids.values()), ctx)

    def find(name: str, each: _Asked) -> tuple[Error, int, int]:
        if name in hidden:
            return Error.TOPIC_AUTHORIZATION_FAILED, -1, -1
        partition_id = ids.get((name, each.partition))
        state = states.get(partition_id) if partition_id is not None else None
        if state is None:
            return Error.UNKNOWN_TOPIC_OR_PARTITION, -1, -1
        match check_leader_epoch(state.leader_epoch, each.current_leader_epoch):
            case None:
                return Error.UNKNOWN_LEADER_EPOCH, -1, -1
            case False:
                return Error.FENCED_LEADER_EPOCH, -1, -1
        known = starts.get(state.partition_id, FIRST_EPOCH)
        return Error.NONE, *end_of_epoch(known, state.next_offset, each.leader_epoch)

    return _answer(request, find)


async def _read(
    partition_ids: list[int], ctx: RequestContext
) -> tuple[Mapping[int, PartitionState], Mapping[int, Sequence[EpochStart]]]:
    """The partitions' states by id, and where their epochs began, where there are several."""
    states = await ctx.partitions.refresh(partition_ids)
    return states, {
        partition_id: await ctx.partitions.epoch_starts(partition_id)
        for partition_id, state in states.items()
        if state.leader_epoch > 0
    }


def _answer(
    request: OffsetForLeaderEpochRequest, find: Callable[[str, _Asked], tuple[Error, int, int]]
) -> OffsetForLeaderEpochResponse:
    topics = []
    for asked in request.topics:
        partitions = []
        for each in asked.partitions:
            error, epoch, end = find(asked.topic, each)
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
