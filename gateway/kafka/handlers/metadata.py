"""Metadata (key 3): the brokers, and the topics with their partitions and leaders.

Behavior: a leader is a hint, any broker serves any partition; replicas and in-sync replicas are
the leader alone, for the copies are PostgreSQL's. The controller is whoever answers. A topic that
may be created is created at once and answered whole; Kafka answers UNKNOWN_TOPIC_OR_PARTITION
(KRaft) or LEADER_NOT_AVAILABLE (ZooKeeper) first and lets the client ask again. Without a
database, what is known is answered and the rest is LEADER_NOT_AVAILABLE; "all topics" before
anything is known closes the connection, because a consumer would take an empty list at its word.

Versions: v0 asks for all topics with an empty list, v1 and later with null; v4 lets the client
forbid creation; v7 adds the leader epoch; v8 authorized operations (KIP-430), the cluster's until
v10; v10 shows topic ids, v12 takes them (KIP-516); v13 has a top-level error, which is always 0
here (KIP-1102).
"""

from collections.abc import Collection, Mapping
from typing import Any
from uuid import UUID

from core.errors import Error
from core.ports.log import StoreUnavailable
from core.security.acls import ResourceType
from core.security.operations import REQUIREMENTS
from core.topic.rules import NewTopic, is_internal, unknown_topic
from core.topic.topic import Topic
from gateway.kafka.acl_codes import NOT_ASKED
from gateway.kafka.api import api
from gateway.kafka.codec import MetadataRequest, MetadataResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code
from gateway.runtime.topics.topics import CreatedTopic

TopicAnswer = MetadataResponse.MetadataResponseTopic
PartitionAnswer = TopicAnswer.MetadataResponsePartition
_DESCRIBE, _DESCRIBE_FOUND, _CREATE, _DESCRIBE_CLUSTER = REQUIREMENTS["Metadata"]

_FIRST_VERSION_WITH_IDS = 12


def _answer_known(request: MetadataRequest, ctx: RequestContext) -> MetadataResponse:
    if _asks_all(request, ctx):
        raise StoreUnavailable("nothing is known of the topics yet")
    answers = []
    for each in request.topics:
        topic = (
            ctx.topics.cached_by_id(each.topic_id)
            if each.topic_id
            else ctx.topics.cached(each.name or "")
        )
        if topic is not None and ctx.may(_DESCRIBE, topic.name):
            answers.append(_topic(topic, request, ctx))
        elif topic is not None or (each.name and not ctx.may(_DESCRIBE, each.name)):
            answers.append(_hidden(None if each.topic_id else each.name, each.topic_id))
        else:
            answers.append(_refused(each.name, Error.LEADER_NOT_AVAILABLE, each.topic_id))
    return _response(answers, request, ctx)


@api(3, versions=range(14), unavailable=_answer_known)
async def metadata(request: MetadataRequest, ctx: RequestContext) -> MetadataResponse:
    """Describe the cluster and the topics asked for, creating those that are missing and may be."""
    if _asks_all(request, ctx):
        every = await ctx.topics.all()
        topics = [topic for topic in every if ctx.may(_DESCRIBE_FOUND, topic.name)]
        return _response([_topic(topic, request, ctx) for topic in topics], request, ctx)
    if any(_is_malformed(each, ctx) for each in request.topics):
        # Kafka throws away the whole request: `MetadataRequest.getErrorResponse`.
        answers = [
            _refused(each.name or "", Error.INVALID_REQUEST, each.topic_id)
            for each in request.topics
        ]
        return _response(answers, request, ctx)
    if topic_ids := [each.topic_id for each in request.topics if each.topic_id]:
        # Ids win: names beside them are not looked at (`handleTopicMetadataRequest`).
        answers = await _by_id(topic_ids, request, ctx)
    else:
        answers = await _by_name([each.name for each in request.topics], request, ctx)
    return _response(answers, request, ctx)


def _asks_all(request: MetadataRequest, ctx: RequestContext) -> bool:
    return request.topics is None or (ctx.api_version == 0 and not request.topics)


def _is_malformed(each: Any, ctx: RequestContext) -> bool:
    if ctx.api_version < _FIRST_VERSION_WITH_IDS:
        return each.name is None or bool(each.topic_id)
    return each.name is None and not each.topic_id


async def _by_id(
    topic_ids: Collection[UUID], request: MetadataRequest, ctx: RequestContext
) -> list[Any]:
    found = await ctx.topics.get_many_by_id(topic_ids)
    answers = []
    for each in dict.fromkeys(topic_ids):
        topic = found.get(each)
        if topic is None:
            answers.append(_refused(None, Error.UNKNOWN_TOPIC_ID, each))
        elif ctx.may(_DESCRIBE, topic.name):
            answers.append(_topic(topic, request, ctx))
        else:
            answers.append(_hidden(None, each))
    return answers


async def _by_name(
    names: Collection[str], request: MetadataRequest, ctx: RequestContext
) -> list[Any]:
    hidden = {name for name in set(names) if not ctx.may(_DESCRIBE, name)}
    found = await ctx.topics.get_many(set(names) - hidden)
    missing = [name for name in dict.fromkeys(names) if name not in found and name not in hidden]
    errors: Mapping[str, Error] = {}
    if missing and request.allow_auto_topic_creation:
        created, errors = await _create(missing, ctx)
        found |= created
    answers = []
    for name in dict.fromkeys(names):
        error = errors.get(name) or unknown_topic(name).error
        if name in hidden or error is Error.TOPIC_AUTHORIZATION_FAILED:
            answers.append(_hidden(name, None))
        elif name in found:
            answers.append(_topic(found[name], request, ctx))
        else:
            answers.append(_refused(name, error, operations=_operations(name, request, ctx)))
    return answers


async def _create(
    names: Collection[str], ctx: RequestContext
) -> tuple[dict[str, Topic], dict[str, Error]]:
    """The topics that exist now, and why others do not; nothing where creation is switched off."""
    if not ctx.configs.broker_bool("auto.create.topics.enable"):
        return {}, {}
    hidden = {name for name in names if not ctx.may(_CREATE, name)}
    # Above the client's rate of changes none is made, and clients ask again (KIP-599).
    mutations = ctx.mutations(strict_since=0)
    partitions = ctx.configs.broker_int("num.partitions")
    above = mutations.refused({name: partitions for name in names if name not in hidden})
    wanted = [name for name in names if name not in hidden and name not in above]
    results = await ctx.topics.create([NewTopic(name) for name in wanted])
    refused = {
        name: result.error
        for name, result in results.items()
        if not isinstance(result, CreatedTopic)
    }
    mutations.settle(refused)
    errors = {
        **refused,
        **dict.fromkeys(hidden, Error.TOPIC_AUTHORIZATION_FAILED),
        **dict.fromkeys(above, Error.UNKNOWN_TOPIC_OR_PARTITION),
    }
    # Another broker may have been faster; then the topic is there just the same.
    there = [name for name in names if errors.get(name) in {None, Error.TOPIC_ALREADY_EXISTS}]
    return await ctx.topics.get_many(there), errors


def _topic(topic: Topic, request: MetadataRequest, ctx: RequestContext) -> Any:
    leaders = [ctx.cluster.leader_of(partition_id) for partition_id in topic.partition_ids]
    return TopicAnswer(
        error_code=0,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=[
            PartitionAnswer(
                error_code=0,
                partition_index=partition,
                leader_id=leader,
                leader_epoch=topic.leader_epochs[partition],
                replica_nodes=[leader],
                isr_nodes=[leader],
                offline_replicas=[],
            )
            for partition, leader in enumerate(leaders)
        ],
        authorized_operations=_operations(topic.name, request, ctx),
    )


def _operations(name: str, request: MetadataRequest, ctx: RequestContext) -> int:
    if not request.include_topic_authorized_operations:
        return NOT_ASKED
    return ctx.authorized_operations(ResourceType.TOPIC, name)


def _operations_on_cluster(request: MetadataRequest, ctx: RequestContext) -> int:
    if not request.include_cluster_authorized_operations:
        return NOT_ASKED
    if not ctx.may(_DESCRIBE_CLUSTER):
        return 0
    return ctx.authorized_operations(ResourceType.CLUSTER)


def _hidden(name: str | None, topic_id: UUID | None) -> Any:
    """As if there were nothing of that name, whatever there is. An id is no secret, and comes
    without its name."""
    return TopicAnswer(
        error_code=kafka_code(Error.TOPIC_AUTHORIZATION_FAILED),
        name=name,
        topic_id=topic_id,
        is_internal=False,
        partitions=[],
        authorized_operations=NOT_ASKED,
    )


def _refused(
    name: str | None, error: Error, topic_id: UUID | None = None, operations: int = NOT_ASKED
) -> Any:
    """operations: asked for by name Kafka tells them, be there such a topic or not."""
    return TopicAnswer(
        error_code=kafka_code(error),
        name=name,
        topic_id=topic_id,
        is_internal=name is not None and is_internal(name),
        partitions=[],
        authorized_operations=operations,
    )


def _response(
    answers: list[Any], request: MetadataRequest, ctx: RequestContext
) -> MetadataResponse:
    return MetadataResponse(
        brokers=[
            MetadataResponse.MetadataResponseBroker(
                node_id=broker.broker_id, host=broker.host, port=broker.port, rack=broker.rack
            )
            for broker in ctx.brokers
        ],
        cluster_id=ctx.cluster.cluster_id,
        controller_id=ctx.cluster.broker_id,
        topics=answers,
        authorized_operations=_operations_on_cluster(request, ctx),
        error_code=0,
    )
