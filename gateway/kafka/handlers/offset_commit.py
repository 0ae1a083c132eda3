"""OffsetCommit (key 8): how far a group has come in its partitions; durable when answered.

Behavior: unknown topics and partitions, and metadata that is too long, are errors of their own; for
the others the group gives one verdict. It is not asked if nothing is left to commit, as in Kafka
(KafkaApis.handleOffsetCommitRequest). Whoever is no member (generation -1) may commit to a group
without members, and so creates one; also to the group "".

Versions: v2 to v4 say how long to keep the offsets, later `offsets.retention.minutes` does; v6
leader epoch (KIP-320); v7 static members (KIP-345); v8 flexible; v9 member epochs of consumer
groups (KIP-848), whose members are UNSUPPORTED_VERSION before, and GROUP_ID_NOT_FOUND instead of
ILLEGAL_GENERATION; v10 topic ids.
"""

from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

from core.errors import Error
from core.group.records import CommittedOffset
from core.security.operations import REQUIREMENTS
from core.topic.topic import Topic
from gateway.kafka.api import api
from gateway.kafka.codec import OffsetCommitRequest, OffsetCommitResponse, java_length
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code

_Topic = OffsetCommitResponse.OffsetCommitResponseTopic
_Partition = _Topic.OffsetCommitResponsePartition
_FIRST_VERSION_WITH_MEMBER_EPOCHS: Final = 9
_FIRST_VERSION_WITH_IDS: Final = 10
_BY_THE_SETTING: Final = -1  # OffsetCommitRequest.DEFAULT_RETENTION_TIME
_LATEST: Final = 2**63 - 1

_READ, _READ_TOPIC = REQUIREMENTS["OffsetCommit"]
# Of partitions that exist: where the group refuses, its word counts.
_UP_TO_THE_GROUP: Final = {Error.NONE, Error.OFFSET_METADATA_TOO_LARGE}


def _unavailable(request: OffsetCommitRequest, ctx: RequestContext) -> OffsetCommitResponse:
    error = Error.COORDINATOR_NOT_AVAILABLE
    return _answer(request, [[error] * len(topic.partitions) for topic in request.topics])


@api(
    8,
    versions=range(2, 11),
    unavailable=_unavailable,
    known_since={Error.GROUP_ID_NOT_FOUND: _FIRST_VERSION_WITH_MEMBER_EPOCHS},
)
async def offset_commit(request: OffsetCommitRequest, ctx: RequestContext) -> OffsetCommitResponse:
    """Commit what can be; one error for each partition."""
    if not ctx.may(_READ, request.group_id):
        refused = Error.GROUP_AUTHORIZATION_FAILED
        return _answer(request, [[refused] * len(topic.partitions) for topic in request.topics])
    topics = await _find_topics(request, ctx)
    hidden = _hidden(request, topics, ctx)
    max_length = ctx.configs.broker_int("offset.metadata.max.bytes")
    now = ctx.clock()
    expiry = _expiry(request, ctx, now)
    errors: list[list[Error]] = []
    offsets: dict[int, CommittedOffset] = {}
    for each in request.topics:
        topic = topics.get(_key(each, ctx))
        found = []
        for asked in each.partitions:
            partition_id = None if topic is None else topic.partition_id(asked.partition_index)
            if _key(each, ctx) in hidden:
                found.append(Error.TOPIC_AUTHORIZATION_FAILED)
            elif partition_id is None:
                found.append(_unknown(topic, ctx))
            elif java_length(asked.committed_metadata) > max_length:
                found.append(Error.OFFSET_METADATA_TOO_LARGE)
            else:
                found.append(Error.NONE)
                # Of several for one partition, the last counts.
                offsets[partition_id] = _offset(partition_id, asked, now, expiry)
        errors.append(found)
    if any(error in _UP_TO_THE_GROUP for found in errors for error in found):
        verdict = await _commit(request, offsets, ctx)
        if verdict is not Error.NONE:
            errors = [[verdict if e in _UP_TO_THE_GROUP else e for e in found] for found in errors]
    return _answer(request, errors)


async def _commit(
    request: OffsetCommitRequest, offsets: Mapping[int, CommittedOffset], ctx: RequestContext
) -> Error:
    verdict = await ctx.groups.commit_offsets(
        request.group_id,
        request.member_id,
        request.group_instance_id,
        request.generation_id_or_member_epoch,
        list(offsets.values()),
        knows_member_epochs=ctx.api_version >= _FIRST_VERSION_WITH_MEMBER_EPOCHS,
    )
    return ctx.known(verdict)


async def _find_topics(
    request: OffsetCommitRequest, ctx: RequestContext
) -> Mapping[str, Topic] | Mapping[UUID, Topic]:
    if ctx.api_version < _FIRST_VERSION_WITH_IDS:
        return await ctx.topics.get_many({each.name for each in request.topics})
    ids = {each.topic_id for each in request.topics}
    return await ctx.topics.get_many_by_id(ids - {None})


def _hidden(
    request: OffsetCommitRequest,
    topics: Mapping[str, Topic] | Mapping[UUID, Topic],
    ctx: RequestContext,
) -> set[Any]:
    """Of the topics asked for, by name or id, those that the client may not read."""
    found: Mapping[Any, Topic] = topics
    keys = {_key(each, ctx) for each in request.topics}
    if ctx.api_version < _FIRST_VERSION_WITH_IDS:
        return {name for name in keys if not ctx.may(_READ_TOPIC, name)}
    return {
        key
        for key in keys
        if (topic := found.get(key)) is not None and not ctx.may(_READ_TOPIC, topic.name)
    }


def _key(topic: Any, ctx: RequestContext) -> Any:
    return topic.name if ctx.api_version < _FIRST_VERSION_WITH_IDS else topic.topic_id


def _unknown(topic: Topic | None, ctx: RequestContext) -> Error:
    if topic is None and ctx.api_version >= _FIRST_VERSION_WITH_IDS:
        return Error.UNKNOWN_TOPIC_ID
    return Error.UNKNOWN_TOPIC_OR_PARTITION


def _expiry(request: OffsetCommitRequest, ctx: RequestContext, now: int) -> int:
    keep_ms: int = request.retention_time_ms
    if not 2 <= ctx.api_version <= 4 or keep_ms == _BY_THE_SETTING:
        return _BY_THE_SETTING
    return min(now + max(keep_ms, 0), _LATEST)


def _offset(partition_id: int, asked: Any, now: int, expiry: int) -> CommittedOffset:
    return CommittedOffset(
        partition_id=partition_id,
        offset=asked.committed_offset,
        leader_epoch=asked.committed_leader_epoch,
        metadata=asked.committed_metadata or "",
        commit_timestamp=now,
        expire_timestamp=expiry,
    )


def _answer(request: OffsetCommitRequest, errors: list[list[Error]]) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            _Topic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    _Partition(partition_index=asked.partition_index, error_code=kafka_code(error))
                    for asked, error in zip(topic.partitions, found, strict=True)
                ],
            )
            for topic, found in zip(request.topics, errors, strict=True)
        ]
    )
