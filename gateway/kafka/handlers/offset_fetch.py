"""OffsetFetch (key 9): how far groups have come.

Behavior: of a group, partition or topic name that is unknown, nothing is committed: -1, no error.
Which consumer may ask (a member epoch that is not stale) is the group's to say, for all partitions.
No list of topics is everything that is committed.

Versions: v1 has errors at partitions only; v2 one for the group, and may ask for everything; v5
leader epochs (KIP-320); v6 flexible; v7 says whether to wait for open transactions (KIP-447); v8
several groups (KIP-709); v9 member id and epoch (KIP-848); v10 topic ids, of which one that is
unknown is an error.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from core.errors import Error
from core.group.records import CommittedOffset
from core.security.operations import REQUIREMENTS
from core.topic.topic import Topic
from gateway.kafka.api import api
from gateway.kafka.codec import OffsetFetchRequest, OffsetFetchResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code
from gateway.runtime.groups.groups import OffsetsWanted

_OneTopic = OffsetFetchResponse.OffsetFetchResponseTopic
_OnePartition = _OneTopic.OffsetFetchResponsePartition
_Group = OffsetFetchResponse.OffsetFetchResponseGroup
_Topic = _Group.OffsetFetchResponseTopics
_Partition = _Topic.OffsetFetchResponsePartitions
_FIRST_VERSION_WITH_GROUP_ERROR: Final = 2
_FIRST_VERSION_WITH_GROUPS: Final = 8
_FIRST_VERSION_WITH_IDS: Final = 10
_NOTHING: Final = CommittedOffset(-1, -1, -1, "", -1)
_DESCRIBE, _DESCRIBE_NAMED, _DESCRIBE_FOUND = REQUIREMENTS["OffsetFetch"]

# By name, or by id from v10 on.
_Key = str | UUID | None
_Topics = Mapping[_Key, Topic]
_Offsets = Mapping[int, CommittedOffset | Error]
_Found = Error | _Offsets


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is asked of a group, in any version. topics: partition numbers by topic; None is all."""

    group_id: str
    member_id: str | None
    member_epoch: int
    topics: Sequence[tuple[_Key, Sequence[int]]] | None


def _unavailable(request: OffsetFetchRequest, ctx: RequestContext) -> OffsetFetchResponse:
    asked = _asked(request, ctx)
    return _answer(asked, [Error.NOT_COORDINATOR] * len(asked), {}, ctx)


@api(9, versions=range(1, 11), unavailable=_unavailable)
async def offset_fetch(request: OffsetFetchRequest, ctx: RequestContext) -> OffsetFetchResponse:
    """Look up what each group has committed."""
    asked = _asked(request, ctx)
    topics = await _find_topics(asked, ctx)
    allowed = [group for group in asked if ctx.may(_DESCRIBE, group.group_id)]
    fetched = await ctx.groups.fetch_offsets(
        [
            OffsetsWanted(
                group_id=group.group_id,
                member_id=group.member_id,
                member_epoch=group.member_epoch,
                partition_ids=_partition_ids(group, topics),
                require_stable=request.require_stable,
            )
            for group in allowed
        ]
    )
    by_group = dict(zip(map(id, allowed), fetched, strict=True))
    refused = Error.GROUP_AUTHORIZATION_FAILED
    found = [by_group.get(id(group), refused) for group in asked]
    return _answer(asked, found, topics, ctx)


def _asked(request: OffsetFetchRequest, ctx: RequestContext) -> list[_Asked]:
    if ctx.api_version < _FIRST_VERSION_WITH_GROUPS:
        topics = request.topics and [(each.name, each.partition_indexes) for each in request.topics]
        return [_Asked(request.group_id, None, -1, topics)]
    return [
        _Asked(
            group.group_id,
            group.member_id,
            group.member_epoch,
            group.topics
            and [
                (
                    each.topic_id if ctx.api_version >= _FIRST_VERSION_WITH_IDS else each.name,
                    each.partition_indexes,
                )
                for each in group.topics
            ],
        )
        for group in request.groups
    ]


async def _find_topics(asked: Sequence[_Asked], ctx: RequestContext) -> _Topics:
    """The topics named; where a group asks for everything, all there are."""
    by_id = ctx.api_version >= _FIRST_VERSION_WITH_IDS
    if any(group.topics is None for group in asked):
        every = await ctx.topics.all()
        return {(topic.topic_id if by_id else topic.name): topic for topic in every}
    keys = {key for group in asked for key, _ in group.topics or ()}
    if by_id:
        ids = {key for key in keys if isinstance(key, UUID)}
        return dict((await ctx.topics.get_many_by_id(ids)).items())
    names = {key for key in keys if isinstance(key, str)}
    return dict((await ctx.topics.get_many(names)).items())


def _partition_ids(group: _Asked, topics: _Topics) -> list[int] | None:
    if group.topics is None:
        return None
    return [
        partition_id
        for key, numbers in group.topics
        if (topic := topics.get(key)) is not None
        for number in numbers
        if (partition_id := topic.partition_id(number)) is not None
    ]


def _answer(
    asked: Sequence[_Asked], found: Sequence[_Found], topics: _Topics, ctx: RequestContext
) -> OffsetFetchResponse:
    groups = [_group(*each, topics, ctx) for each in zip(asked, found, strict=True)]
    if ctx.api_version >= _FIRST_VERSION_WITH_GROUPS:
        return OffsetFetchResponse(groups=groups)
    [group] = groups
    return OffsetFetchResponse(
        topics=[
            _OneTopic(
                name=topic.name,
                partitions=[
                    _OnePartition(
                        partition_index=each.partition_index,
                        committed_offset=each.committed_offset,
                        committed_leader_epoch=each.committed_leader_epoch,
                        metadata=each.metadata,
                        error_code=each.error_code,
                    )
                    for each in topic.partitions
                ],
            )
            for topic in group.topics
        ],
        error_code=group.error_code,
    )


def _group(group: _Asked, found: _Found, topics: _Topics, ctx: RequestContext) -> Any:
    error, offsets = (found, {}) if isinstance(found, Error) else (Error.NONE, found)
    if error is Error.COORDINATOR_NOT_AVAILABLE:
        error = Error.NOT_COORDINATOR  # see `unavailable`
    answers: list[Any] = []
    if error is Error.NONE and group.topics is None:
        answers = _everything(offsets, topics, ctx)
    elif error is Error.NONE or ctx.api_version < _FIRST_VERSION_WITH_GROUP_ERROR:
        answers = [
            _topic(key, numbers, topics.get(key), offsets, error, ctx)
            for key, numbers in group.topics or ()
        ]
    return _Group(group_id=group.group_id, topics=answers, error_code=kafka_code(error))


def _topic(
    key: _Key,
    numbers: Sequence[int],
    topic: Topic | None,
    offsets: _Offsets,
    error: Error,
    ctx: RequestContext,
) -> Any:
    name = topic.name if topic is not None else key
    if error is Error.NONE and isinstance(name, str) and not ctx.may(_DESCRIBE_NAMED, name):
        topic, error = None, Error.TOPIC_AUTHORIZATION_FAILED
    if topic is None and error is Error.NONE and ctx.api_version >= _FIRST_VERSION_WITH_IDS:
        error = Error.UNKNOWN_TOPIC_ID
    partitions = []
    for number in numbers:
        partition_id = None if topic is None else topic.partition_id(number)
        committed = _NOTHING if partition_id is None else offsets.get(partition_id, _NOTHING)
        partitions.append(_partition(number, committed, error))
    if isinstance(key, str):
        return _Topic(name=key, partitions=partitions)
    return _Topic(topic_id=key, partitions=partitions)


def _everything(offsets: _Offsets, topics: _Topics, ctx: RequestContext) -> list[Any]:
    answers = []
    for topic in topics.values():
        if not ctx.may(_DESCRIBE_FOUND, topic.name):
            continue
        partitions = [
            _partition(number, offsets[partition_id], Error.NONE)
            for number, partition_id in enumerate(topic.partition_ids)
            if partition_id in offsets
        ]
        if partitions:
            answers.append(_Topic(name=topic.name, topic_id=topic.topic_id, partitions=partitions))
    return answers


def _partition(number: int, committed: CommittedOffset | Error, error: Error) -> Any:
    if isinstance(committed, Error):
        error, committed = committed, _NOTHING
    return _Partition(
        partition_index=number,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        error_code=kafka_code(error),
    )
