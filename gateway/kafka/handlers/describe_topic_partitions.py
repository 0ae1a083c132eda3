"""DescribeTopicPartitions (key 75): topics and partitions page by page (KIP-966).

Behavior: topics in order of their names; an answer holds as many partitions as the client and
`max.request.partition.size.limit` allow, and a cursor to go on from. No list is all topics.
Eligible leader replicas do not exist: there is one log, and any broker serves it.

Versions: v0, flexible.
"""

from collections.abc import Mapping
from typing import Any

from core.errors import Error, Refusal
from core.security.acls import ResourceType
from core.security.operations import REQUIREMENTS
from core.topic.rules import is_internal, unknown_topic
from core.topic.topic import Topic
from gateway.kafka.acl_codes import NOT_ASKED
from gateway.kafka.api import api
from gateway.kafka.codec import DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code
from gateway.kafka.unavailable import TIMED_OUT

TopicAnswer = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
PartitionAnswer = TopicAnswer.DescribeTopicPartitionsResponsePartition
_DESCRIBE_NAMED, _DESCRIBE_FOUND = REQUIREMENTS["DescribeTopicPartitions"]
_INVALID = Refusal(Error.INVALID_REQUEST)


def _refuse_all(
    request: DescribeTopicPartitionsRequest, ctx: RequestContext
) -> DescribeTopicPartitionsResponse:
    return _whole(request, TIMED_OUT)


@api(75, versions=range(1), unavailable=_refuse_all)
async def describe_topic_partitions(
    request: DescribeTopicPartitionsRequest, ctx: RequestContext
) -> DescribeTopicPartitionsResponse:
    """Describe one page of topics."""
    asked = {each.name for each in request.topics}
    cursor, start = "", 0
    if request.cursor is not None:
        cursor, start = request.cursor.topic_name, request.cursor.partition_index
        if start < 0 or (asked and cursor not in asked):
            return _whole(request, _INVALID)
    hidden = {name for name in asked if not ctx.may(_DESCRIBE_NAMED, name)}
    if asked:
        found: Mapping[str, Topic] = await ctx.topics.get_many(asked - hidden)
    else:
        found = {
            topic.name: topic
            for topic in await ctx.topics.all()
            if ctx.may(_DESCRIBE_FOUND, topic.name)
        }
    names = sorted(name for name in asked or found if name >= cursor)
    limit = ctx.configs.broker_int("max.request.partition.size.limit")
    remaining = max(min(limit, request.response_partition_limit), 1)
    answers: list[Any] = []
    for name in names:
        if remaining == 0:
            return _page(answers, name, 0)
        topic = found.get(name)
        if name in hidden:
            answers.append(_hidden(name))
            continue
        if topic is None:
            # Kafka tells what a client may do with a name, be there such a topic or not.
            operations = ctx.authorized_operations(ResourceType.TOPIC, name)
            answers.append(_refused(name, unknown_topic(name), operations))
            continue
        first = start if name == cursor else 0
        end = min(len(topic.partition_ids), first + remaining)
        answers.append(_topic(topic, range(first, end), ctx))
        if end < len(topic.partition_ids):
            return _page(answers, name, end)
        remaining -= max(end - first, 0)
    return DescribeTopicPartitionsResponse(topics=answers, next_cursor=None)


def _hidden(name: str) -> Any:
    """As if there were nothing of that name, whatever there is."""
    return TopicAnswer(
        error_code=kafka_code(Error.TOPIC_AUTHORIZATION_FAILED),
        name=name,
        topic_id=None,
        is_internal=False,
        partitions=[],
        topic_authorized_operations=NOT_ASKED,
    )


def _page(answers: list[Any], name: str, partition: int) -> DescribeTopicPartitionsResponse:
    cursor = DescribeTopicPartitionsResponse.Cursor(topic_name=name, partition_index=partition)
    return DescribeTopicPartitionsResponse(topics=answers, next_cursor=cursor)


def _whole(
    request: DescribeTopicPartitionsRequest, refusal: Refusal
) -> DescribeTopicPartitionsResponse:
    """Kafka's answer to a request it throws away (`getErrorResponse`)."""
    answers = [_refused(each.name, refusal) for each in request.topics]
    return DescribeTopicPartitionsResponse(topics=answers, next_cursor=None)


def _topic(topic: Topic, partitions: range, ctx: RequestContext) -> Any:
    answers = []
    for partition in partitions:
        leader = ctx.cluster.leader_of(topic.partition_ids[partition])
        answers.append(
            PartitionAnswer(
                error_code=0,
                partition_index=partition,
                leader_id=leader,
                leader_epoch=topic.leader_epochs[partition],
                replica_nodes=[leader],
                isr_nodes=[leader],
                eligible_leader_replicas=[],
                last_known_elr=[],
                offline_replicas=[],
            )
        )
    return TopicAnswer(
        error_code=0,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=answers,
        topic_authorized_operations=ctx.authorized_operations(ResourceType.TOPIC, topic.name),
    )


def _refused(name: str, refusal: Refusal, operations: int = NOT_ASKED) -> Any:
    return TopicAnswer(
        error_code=kafka_code(refusal.error),
        name=name,
        topic_id=None,
        is_internal=is_internal(name),
        partitions=[],
        topic_authorized_operations=operations,
    )
