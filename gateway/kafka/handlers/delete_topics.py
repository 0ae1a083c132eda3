"""DeleteTopics (key 20): deletes topics by name or by id, all of them in one commit.

Behavior: the topic is gone at once; its records are removed in the background, as in Kafka.

Versions: v1 is Kafka 4's first; v3 may answer TOPIC_DELETION_DISABLED; v4 is flexible; v5 has error
messages, and knows THROTTLING_QUOTA_EXCEEDED (KIP-599); v6 takes topic ids (KIP-516).
"""

from collections.abc import Collection, Mapping
from typing import Any
from uuid import UUID

from core.errors import Error, Refusal
from core.security.operations import REQUIREMENTS
from gateway.kafka.api import api
from gateway.kafka.codec import DeleteTopicsRequest, DeleteTopicsResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code
from gateway.kafka.unavailable import CHANGE_REFUSED

_FIRST_VERSION_WITH_IDS = 6
_STRICT_SINCE = 5
_DESCRIBE, _DELETE = REQUIREMENTS["DeleteTopics"]
_DISABLED = "Topic deletion is disabled."
_NEITHER = Refusal(Error.INVALID_REQUEST, "Neither topic name nor id were specified.")
_BOTH = Refusal(Error.INVALID_REQUEST, "You may not specify both topic name and topic id.")


def _refuse_all(request: DeleteTopicsRequest, ctx: RequestContext) -> DeleteTopicsResponse:
    return _whole(request, ctx, CHANGE_REFUSED)


@api(
    20,
    versions=range(1, 7),
    unavailable=_refuse_all,
    known_since={Error.TOPIC_DELETION_DISABLED: 3},
)
async def delete_topics(request: DeleteTopicsRequest, ctx: RequestContext) -> DeleteTopicsResponse:
    """Delete the topics, unless `delete.topic.enable` is off; one result for each name or id."""
    if not ctx.configs.broker_bool("delete.topic.enable"):
        error = ctx.known(Error.TOPIC_DELETION_DISABLED)
        return _whole(request, ctx, Refusal(error, _DISABLED))
    names, topic_ids, results = [], [], []
    for name, topic_id in _asked(request, ctx):
        if name is not None and topic_id is not None:
            results.append(_result(name, topic_id, _BOTH))
        elif name is not None:
            names.append(name)
        elif topic_id is not None:
            topic_ids.append(topic_id)
        else:
            results.append(_result(None, None, _NEITHER))
    hidden, not_ours = await _not_authorized(names, topic_ids, ctx)
    results += hidden
    names = [each for each in names if each not in not_ours]
    topic_ids = [each for each in topic_ids if each not in not_ours]
    mutations = ctx.mutations(_STRICT_SINCE)
    if mutations.is_limited:
        above = mutations.refused(await _partitions(names, topic_ids, ctx))
        names = [each for each in names if each not in above]
        topic_ids = [each for each in topic_ids if each not in above]
        results += [
            _result(key, None, refusal) if isinstance(key, str) else _result(None, key, refusal)
            for key, refusal in above.items()
        ]
    deleted = await ctx.topics.delete(names, topic_ids)
    results += [_result(each.name, each.topic_id, each.refusal) for each in deleted]
    return DeleteTopicsResponse(
        throttle_time_ms=mutations.throttle_time_ms,
        responses=results,
    )


async def _partitions(
    names: Collection[str], topic_ids: Collection[UUID], ctx: RequestContext
) -> Mapping[str | UUID, int]:
    """Of topics, as the client calls them; what is not there is deleted for nothing."""
    by_name = await ctx.topics.get_many(names)
    by_id = await ctx.topics.get_many_by_id(topic_ids)
    return {
        **{name: len(topic.partition_ids) for name, topic in by_name.items()},
        **{topic_id: len(topic.partition_ids) for topic_id, topic in by_id.items()},
    }


async def _not_authorized(
    names: Collection[str], topic_ids: Collection[UUID], ctx: RequestContext
) -> tuple[list[Any], Collection[str | UUID]]:
    """Answers for the topics that the client may not delete, and what it calls them. By id it is
    told the name only if it may know it."""
    if ctx.rights is None:
        return [], ()
    refusal = Refusal(Error.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed.")
    there = await ctx.topics.get_many(names)
    answers: dict[str | UUID, Any] = {}
    for name in names:
        # Whether there is such a topic is said to those only who may know.
        if not ctx.may(_DESCRIBE, name) or (name in there and not ctx.may(_DELETE, name)):
            answers[name] = _result(name, None, refusal)
    for topic_id, topic in (await ctx.topics.get_many_by_id(topic_ids)).items():
        if not ctx.may(_DESCRIBE, topic.name):
            answers[topic_id] = _result(None, topic_id, refusal)
        elif not ctx.may(_DELETE, topic.name):
            answers[topic_id] = _result(topic.name, topic_id, refusal)
    return list(answers.values()), answers.keys()


def _asked(
    request: DeleteTopicsRequest, ctx: RequestContext
) -> list[tuple[str | None, UUID | None]]:
    if ctx.api_version < _FIRST_VERSION_WITH_IDS:
        return [(name, None) for name in request.topic_names]
    return [(each.name, each.topic_id) for each in request.topics]


def _whole(
    request: DeleteTopicsRequest, ctx: RequestContext, refusal: Refusal
) -> DeleteTopicsResponse:
    asked = _asked(request, ctx)
    return DeleteTopicsResponse(responses=[_result(name, each, refusal) for name, each in asked])


def _result(name: str | None, topic_id: UUID | None, refusal: Refusal | None) -> Any:
    return DeleteTopicsResponse.DeletableTopicResult(
        name=name,
        topic_id=topic_id,
        error_code=kafka_code(refusal.error if refusal else Error.NONE),
        error_message=refusal.message if refusal else None,
    )
