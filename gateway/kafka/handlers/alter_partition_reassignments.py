"""AlterPartitionReassignments (key 45): moves nothing, as there is nothing to move (KIP-455).

Behavior: a partition has one replica, the broker that leads it, and any broker can serve it. Asking
for just that is granted; a list that Kafka would refuse is refused in Kafka's words, any other with
the reason; there is never a reassignment to cancel (NO_REASSIGNMENT_IN_PROGRESS).

Versions: both flexible; v1 says whether the number of replicas may change: here it cannot.
"""

from typing import Any

from core.errors import Error, Refusal
from core.security.operations import REQUIREMENTS
from core.topic.rules import check_reassignment
from core.topic.topic import Topic
from gateway.kafka.api import api
from gateway.kafka.codec import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code
from gateway.kafka.unavailable import CHANGE_REFUSED

TopicAnswer = AlterPartitionReassignmentsResponse.ReassignableTopicResponse
PartitionAnswer = TopicAnswer.ReassignablePartitionResponse
(_ALTER,) = REQUIREMENTS["AlterPartitionReassignments"]


def _refuse_all(
    request: AlterPartitionReassignmentsRequest, ctx: RequestContext
) -> AlterPartitionReassignmentsResponse:
    return _response(request, CHANGE_REFUSED, [])


@api(45, versions=range(2), unavailable=_refuse_all)
async def alter_partition_reassignments(
    request: AlterPartitionReassignmentsRequest, ctx: RequestContext
) -> AlterPartitionReassignmentsResponse:
    """Judge the replicas wanted for each partition."""
    if not ctx.may(_ALTER):
        return _response(request, Refusal(Error.CLUSTER_AUTHORIZATION_FAILED), [])
    topics = await ctx.topics.get_many({each.name for each in request.topics})
    answers = [
        TopicAnswer(
            name=each.name,
            partitions=[
                _partition(wanted, _judge(topics.get(each.name), each.name, wanted, ctx))
                for wanted in each.partitions
            ],
        )
        for each in request.topics
    ]
    return _response(request, None, answers)


def _judge(topic: Topic | None, name: str, wanted: Any, ctx: RequestContext) -> Refusal | None:
    number = wanted.partition_index
    if topic is None:
        message = f"Unable to find a topic named {name}."
        return Refusal(Error.UNKNOWN_TOPIC_OR_PARTITION, message)
    partition_id = topic.partition_id(number)
    if partition_id is None:
        message = f"Unable to find partition {name}:{number}."
        return Refusal(Error.UNKNOWN_TOPIC_OR_PARTITION, message)
    leader = ctx.cluster.leader_of(partition_id)
    return check_reassignment(wanted.replicas, leader, ctx.cluster.live_ids)


def _partition(wanted: Any, refusal: Refusal | None) -> Any:
    return PartitionAnswer(
        partition_index=wanted.partition_index,
        error_code=kafka_code(refusal.error if refusal else Error.NONE),
        error_message=refusal.message if refusal else None,
    )


def _response(
    request: AlterPartitionReassignmentsRequest, refusal: Refusal | None, answers: list[Any]
) -> AlterPartitionReassignmentsResponse:
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_code=kafka_code(refusal.error if refusal else Error.NONE),
        error_message=refusal.message if refusal else None,
        responses=answers,
    )
