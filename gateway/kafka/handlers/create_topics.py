"""CreateTopics (key 19): creates topics, each whole or not at all, all of them in one commit.

Behavior: the replication factor is held against the number of live brokers, as in Kafka, and
then Metadata shows one replica, the leader: the copies are PostgreSQL's. So the answer says 1.
A manual assignment is checked and not kept; leadership follows the live brokers. The timeout is
not used: a commit takes milliseconds, or fails.

Versions: v2 is Kafka 4's first; v4 lets -1 stand for the broker's defaults (KIP-464); v5 is
flexible and returns the settings (KIP-525); v6 knows THROTTLING_QUOTA_EXCEEDED (KIP-599); v7
returns the topic id (KIP-516).
"""

from typing import Any

from core.errors import Error, Refusal
from core.security.operations import REQUIREMENTS
from core.topic.rules import NewTopic, ReplicaAssignment
from gateway.kafka.api import api
from gateway.kafka.codec import CreateTopicsRequest, CreateTopicsResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code
from gateway.kafka.unavailable import CHANGE_REFUSED
from gateway.runtime.topics.topics import CreatedTopic

TopicResult = CreateTopicsResponse.CreatableTopicResult

_CREATE, _DESCRIBE_CONFIGS = REQUIREMENTS["CreateTopics"]
_STRICT_SINCE = 6
# A log has one replica as far as clients can see.
_REPLICATION_FACTOR = 1


def _refuse_all(request: CreateTopicsRequest, ctx: RequestContext) -> CreateTopicsResponse:
    names = dict.fromkeys(each.name for each in request.topics)
    return CreateTopicsResponse(topics=[_refused(name, CHANGE_REFUSED) for name in names])


@api(19, versions=range(2, 8), unavailable=_refuse_all)
async def create_topics(request: CreateTopicsRequest, ctx: RequestContext) -> CreateTopicsResponse:
    """Create (or only validate) the topics; one result for each different name."""
    names = dict.fromkeys(each.name for each in request.topics)
    hidden = {name for name in names if not ctx.may(_CREATE, name)}
    wanted = [_new_topic(each) for each in request.topics if each.name not in hidden]
    mutations = ctx.mutations(_STRICT_SINCE)
    above = mutations.refused({each.name: _partitions(each, ctx) for each in wanted})
    wanted = [each for each in wanted if each.name not in above]
    done = await ctx.topics.create(wanted, validate_only=request.validate_only)
    mutations.settle([name for name, each in done.items() if isinstance(each, Refusal)])
    refusal = Refusal(Error.TOPIC_AUTHORIZATION_FAILED, "Authorization failed.")
    results = {**done, **above, **dict.fromkeys(hidden, refusal)}
    return CreateTopicsResponse(
        throttle_time_ms=mutations.throttle_time_ms,
        topics=[_result(name, results[name], ctx) for name in names],
    )


def _partitions(topic: NewTopic, ctx: RequestContext) -> int:
    if topic.assignments:
        return len(topic.assignments)
    if topic.partition_count == -1:
        return ctx.configs.broker_int("num.partitions")
    return max(topic.partition_count, 0)


def _new_topic(each: Any) -> NewTopic:
    return NewTopic(
        name=each.name,
        partition_count=each.num_partitions,
        replication_factor=each.replication_factor,
        assignments=tuple(
            ReplicaAssignment(assignment.partition_index, tuple(assignment.broker_ids))
            for assignment in each.assignments
        ),
        configs=tuple((config.name, config.value) for config in each.configs),
    )


def _result(name: str, result: CreatedTopic | Refusal, ctx: RequestContext) -> Any:
    return _refused(name, result) if isinstance(result, Refusal) else _created(result, ctx)


def _created(topic: CreatedTopic, ctx: RequestContext) -> Any:
    if not ctx.may(_DESCRIBE_CONFIGS, topic.name):
        return TopicResult(
            name=topic.name,
            topic_id=topic.topic_id,
            error_code=0,
            error_message=None,
            topic_config_error_code=kafka_code(Error.TOPIC_AUTHORIZATION_FAILED),
            num_partitions=-1,
            replication_factor=-1,
            configs=[],
        )
    return TopicResult(
        name=topic.name,
        topic_id=topic.topic_id,
        error_code=0,
        error_message=None,
        topic_config_error_code=0,
        num_partitions=topic.partition_count,
        replication_factor=_REPLICATION_FACTOR,
        configs=[
            TopicResult.CreatableTopicConfigs(
                name=entry.name,
                value=entry.value,
                read_only=entry.is_read_only,
                config_source=entry.source.value,
                is_sensitive=entry.is_sensitive,
            )
            for entry in ctx.configs.describe_overrides(topic.overrides)
        ],
    )


def _refused(name: str, refusal: Refusal) -> Any:
    return TopicResult(
        name=name,
        topic_id=None,
        error_code=kafka_code(refusal.error),
        error_message=refusal.message,
        topic_config_error_code=0,
        num_partitions=-1,
        replication_factor=-1,
        configs=[],
    )
