"""CreatePartitions (key 37): adds partitions to topics, all of them in one commit.

Behavior: as CreateTopics, assignments are checked and not kept.

Versions: v2 is flexible; v3 may be throttled (KIP-599), which does not happen here.
"""

from typing import Any

from core.errors import Error, Refusal
from core.security.operations import REQUIREMENTS
from gateway.kafka.api import api
from gateway.kafka.codec import CreatePartitionsRequest, CreatePartitionsResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code
from gateway.kafka.unavailable import CHANGE_REFUSED
from gateway.runtime.topics.topics import PartitionIncrease

(_ALTER,) = REQUIREMENTS["CreatePartitions"]


def _refuse_all(request: CreatePartitionsRequest, ctx: RequestContext) -> CreatePartitionsResponse:
    names = dict.fromkeys(each.name for each in request.topics)
    return CreatePartitionsResponse(results=[_result(name, CHANGE_REFUSED) for name in names])


@api(37, versions=range(4), unavailable=_refuse_all)
async def create_partitions(
    request: CreatePartitionsRequest, ctx: RequestContext
) -> CreatePartitionsResponse:
    """Add (or only validate) partitions; one result for each different topic."""
    names = dict.fromkeys(each.name for each in request.topics)
    hidden = {name for name in names if not ctx.may(_ALTER, name)}
    wanted = [_increase(each) for each in request.topics if each.name not in hidden]
    done = await ctx.topics.create_partitions(wanted, validate_only=request.validate_only)
    results = {**done, **dict.fromkeys(hidden, Refusal(Error.TOPIC_AUTHORIZATION_FAILED))}
    return CreatePartitionsResponse(results=[_result(name, results[name]) for name in names])


def _increase(each: Any) -> PartitionIncrease:
    assignments = None
    if each.assignments is not None:
        assignments = tuple(tuple(assignment.broker_ids) for assignment in each.assignments)
    return PartitionIncrease(each.name, each.count, assignments)


def _result(name: str, refusal: Refusal | None) -> Any:
    return CreatePartitionsResponse.CreatePartitionsTopicResult(
        name=name,
        error_code=kafka_code(refusal.error if refusal else Error.NONE),
        error_message=refusal.message if refusal else None,
    )
