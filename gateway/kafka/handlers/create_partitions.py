"""CreatePartitions (key 37): adds partitions to topics, all of them in one commit.

Behavior: as CreateTopics, assignments are checked and not kept.

Versions: v2 is flexible; v3 knows THROTTLING_QUOTA_EXCEEDED (KIP-599).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from core.errors import Error, Refusal
from core.security.operations import REQUIREMENTS
from gateway.kafka.api import api
from gateway.kafka.codec import CreatePartitionsRequest, CreatePartitionsResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code
from gateway.kafka.unavailable import CHANGE_REFUSED
from gateway.runtime.topics.topics import PartitionIncrease

_STRICT_SINCE = 3
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
    mutations = ctx.mutations(_STRICT_SINCE)
    above = mutations.refused(await _added(wanted, ctx) if mutations.is_limited else {})
    wanted = [each for each in wanted if each.name not in above]
    done = await ctx.topics.create_partitions(wanted, validate_only=request.validate_only)
    mutations.settle([name for name, refusal in done.items() if refusal])
    no_right = Refusal(Error.TOPIC_AUTHORIZATION_FAILED)
    results = {**done, **above, **dict.fromkeys(hidden, no_right)}
    return CreatePartitionsResponse(
        throttle_time_ms=mutations.throttle_time_ms,
        results=[_result(name, results[name]) for name in names],
    )


async def _added(wanted: Sequence[PartitionIncrease], ctx: RequestContext) -> Mapping[str, int]:
    """Partitions that come to each topic; 0 where it is not there."""
    there = await ctx.topics.get_many({each.name for each in wanted})
    return {
        each.name: max(0, each.count - len(there[each.name].partition_ids))
        if each.name in there
        else 0
        for each in wanted
    }


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
