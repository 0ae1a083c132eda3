"""ListOffsets (key 2): earliest, latest, by timestamp, or of the greatest timestamp.

Versions: v2 isolation level; v4 leader epochs; v6 flexible; v7 -3 greatest timestamp (KIP-734);
v8 -4 earliest local and v9 -5 latest tiered (KIP-405, KIP-1005); v11 -6 earliest pending upload
(KIP-1023). Behavior: a fresh read, but for the earliest offset while no other broker is live
(Spark's source asks for both ends with every 500 records it reads); requests of one connection
share it (librdkafka asks for each partition by itself). Nothing is tiered: the local
log starts where the log does, and nothing is ever tiered or pending upload. A lookup by timestamp
is exact to the record, or to the batch where its records cannot be read; none found is offset -1.
Batches of Pulsar's are translated, and looked into alike. A partition asked for twice is
INVALID_REQUEST, and answered once.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Final, TypeAlias

from core.errors import Error
from core.log.leader_epochs import check_leader_epoch, epoch_at
from core.log.partition_log import PartitionState
from core.ports.log import StoredBatch
from core.security.operations import REQUIREMENTS
from core.types import IsolationLevel
from gateway.kafka.api import api
from gateway.kafka.codec import ListOffsetsRequest, ListOffsetsResponse, isolation_level
from gateway.kafka.compression import InvalidRecords
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code
from gateway.kafka.records import iterate_records, max_timestamp

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6

_SINCE: Final = {
    LATEST: 0,
    EARLIEST: 0,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}

(_DESCRIBE,) = REQUIREMENTS["ListOffsets"]
_NEVER: Final = 2**15
_MANY: Final = 1_000

_Topic: TypeAlias = ListOffsetsResponse.ListOffsetsTopicResponse
_Partition: TypeAlias = ListOffsetsResponse.ListOffsetsTopicResponse.ListOffsetsPartitionResponse
_Asked: TypeAlias = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition


def _unavailable(request: ListOffsetsRequest, ctx: RequestContext) -> ListOffsetsResponse:
    return _all_refused(request, Error.NOT_LEADER_OR_FOLLOWER)


def _is_of_many(request: ListOffsetsRequest) -> bool:
    """Whether a topic has so many partitions that librdkafka gains by waiting for all answers."""
    return any(
        asked.partition_index >= _MANY for topic in request.topics for asked in topic.partitions
    )


@api(
    2,
    versions=range(1, 12),
    unavailable=_unavailable,
    runs_side_by_side=True,
    comes_in_bursts=_is_of_many,
)
async def list_offsets(request: ListOffsetsRequest, ctx: RequestContext) -> ListOffsetsResponse:
    """Read every partition asked for at once; look records up where a timestamp is asked for."""
    isolation = isolation_level(request.isolation_level)
    if isolation is None:
        return _all_refused(request, Error.UNKNOWN_SERVER_ERROR)
    counted = Counter(
        (topic.name, asked.partition_index)
        for topic in request.topics
        for asked in topic.partitions
    )
    hidden = {name for name in {each for each, _ in counted} if not ctx.may(_DESCRIBE, name)}
    ids = await ctx.resolve([place for place in counted if place[0] not in hidden])
    states = await _states(request, list(ids.values()), ctx)
    answered: dict[str, dict[int, _Partition]] = {}
    for topic in request.topics:
        for asked in topic.partitions:
            place = (topic.name, asked.partition_index)
            state = states.get(ids[place]) if place in ids else None
            if topic.name in hidden:
                answer = _refused(asked, Error.TOPIC_AUTHORIZATION_FAILED)
            elif counted[place] > 1:
                answer = _refused(asked, Error.INVALID_REQUEST)
            elif asked.timestamp < 0 and ctx.api_version < _SINCE.get(asked.timestamp, _NEVER):
                answer = _refused(asked, Error.UNSUPPORTED_VERSION)
            elif state is None:
                answer = _refused(asked, Error.UNKNOWN_TOPIC_OR_PARTITION)
            else:
                answer = await _find(asked, state, isolation, ctx)
            answered.setdefault(topic.name, {})[asked.partition_index] = answer
    return ListOffsetsResponse(
        topics=[
            _Topic(name=name, partitions=list(partitions.values()))
            for name, partitions in answered.items()
        ]
    )


async def _states(
    request: ListOffsetsRequest, partition_ids: list[int], ctx: RequestContext
) -> dict[int, PartitionState]:
    asked = [each for topic in request.topics for each in topic.partitions]
    if all(each.timestamp == EARLIEST for each in asked):
        alone_since = ctx.cluster.live if ctx.cluster.is_alone else None
        states = await ctx.partitions.with_log_starts(partition_ids, alone_since)
        epochs = {state.leader_epoch for state in states.values()}
        if all(each.current_leader_epoch in (-1, epoch) for each in asked for epoch in epochs):
            return states  # else one may have to be refused, which takes a fresh look
    return await ctx.partitions.refresh_together(partition_ids)


async def _find(
    asked: _Asked, state: PartitionState, isolation: IsolationLevel, ctx: RequestContext
) -> _Partition:
    match check_leader_epoch(state.leader_epoch, asked.current_leader_epoch):
        case None:
            return _refused(asked, Error.UNKNOWN_LEADER_EPOCH)
        case False:
            return _refused(asked, Error.FENCED_LEADER_EPOCH)
    committed = isolation is IsolationLevel.READ_COMMITTED
    end = state.last_stable_offset if committed else state.high_watermark
    match asked.timestamp:
        case -1:
            return _at(asked, end, -1, state.leader_epoch)
        case -2 | -4:
            start = state.log_start_offset
            return _at(asked, start, -1, await _epoch(state, start, ctx))
        case -5 | -6:
            return _none(asked)
        case -3:
            found = await _find_greatest(state, ctx)
        case timestamp:
            found = await _find_timestamp(state, timestamp, ctx)
    if found is None or found[0] >= end:
        return _none(asked)
    return _at(asked, *found, await _epoch(state, found[0], ctx))


async def _find_timestamp(
    state: PartitionState, timestamp: int, ctx: RequestContext
) -> tuple[int, int] | None:
    """Offset and timestamp of the first live record stamped `timestamp` (ms) or later."""
    start = state.log_start_offset
    partition_id = state.partition_id
    while batch := await ctx.partitions.find_timestamp(partition_id, timestamp, start):
        for offset, stamp in _stamps(await ctx.translator.translated(partition_id, batch), start):
            if stamp >= timestamp:
                return offset, stamp
        start = batch.last_offset + 1
    return None


async def _find_greatest(state: PartitionState, ctx: RequestContext) -> tuple[int, int] | None:
    """Offset and timestamp of the first live record with the greatest timestamp."""
    batch = await ctx.partitions.find_max_timestamp(state.partition_id)
    if batch is None:
        return None
    batch = await ctx.translator.translated(state.partition_id, batch)
    return max(_stamps(batch, state.log_start_offset), key=lambda found: found[1], default=None)


def _stamps(batch: StoredBatch, start: int) -> Iterator[tuple[int, int]]:
    """Offset and timestamp of the batch's records from `start` on."""
    try:
        for record in iterate_records(batch.payload):
            offset = batch.base_offset + record.offset_delta
            if offset >= start:
                yield offset, record.timestamp
    except InvalidRecords:
        # Produce does not look into batches, so such a one may be stored. It counts as a whole: by
        # its header, at its first offset, so that who asks for a time skips no record.
        yield max(batch.base_offset, start), max_timestamp(batch.payload)


async def _epoch(state: PartitionState, offset: int, ctx: RequestContext) -> int:
    if state.leader_epoch == 0:
        return 0
    return epoch_at(await ctx.partitions.epoch_starts(state.partition_id), offset)


def _at(asked: _Asked, offset: int, timestamp: int, leader_epoch: int) -> _Partition:
    return _Partition(
        partition_index=asked.partition_index,
        error_code=0,
        timestamp=timestamp,
        offset=offset,
        leader_epoch=leader_epoch,
    )


def _none(asked: _Asked) -> _Partition:
    return _at(asked, -1, -1, -1)


def _refused(asked: _Asked, error: Error) -> _Partition:
    return _Partition(
        partition_index=asked.partition_index,
        error_code=kafka_code(error),
        timestamp=-1,
        offset=-1,
        leader_epoch=-1,
    )


def _all_refused(request: ListOffsetsRequest, error: Error) -> ListOffsetsResponse:
    return ListOffsetsResponse(
        topics=[
            _Topic(
                name=topic.name, partitions=[_refused(asked, error) for asked in topic.partitions]
            )
            for topic in request.topics
        ]
    )
