"""ConsumerGroupHeartbeat (key 68): what a member of a consumer group says and hears (KIP-848).

Behavior: joins (epoch 0), goes on, leaves (-1, or -2 for a static member that will be back). The
answer holds the assignment where it has changed, or where the member may have missed it.

Versions: v1 subscribes by regular expression, evaluated here; from it on the member makes its own
id (KIP-1082), before it is given one.
"""

import base64
import uuid
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

from core.errors import Error
from core.group.expressions import Viewer, seen_by
from core.group.records import Partitions
from core.group.values import ConsumerHeartbeat, ConsumerHeartbeatResult
from core.security.operations import REQUIREMENTS
from core.security.principal import java_host
from gateway.kafka.api import api
from gateway.kafka.codec import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code
from gateway.kafka.unavailable import COORDINATOR_AWAY

_Assignment = ConsumerGroupHeartbeatResponse.Assignment
_JOINING: Final = 0  # the member epoch
_FIRST_VERSION_WITH_OWN_IDS: Final = 1
_READ, _DESCRIBE_NAMED, _DESCRIBE_FOUND = REQUIREMENTS["ConsumerGroupHeartbeat"]
_NO_TOPIC: Final = UUID(int=0)
# Other APIs say INVALID_GROUP_ID (GroupCoordinatorService.throwIfConsumerGroupHeartbeat…IsInvalid).
_NO_GROUP_ID: Final = ConsumerHeartbeatResult(Error.INVALID_REQUEST, "GroupId can't be empty.")


def _unavailable(
    request: ConsumerGroupHeartbeatRequest, ctx: RequestContext
) -> ConsumerGroupHeartbeatResponse:
    return _answer(ConsumerHeartbeatResult(COORDINATOR_AWAY.error, COORDINATOR_AWAY.message))


@api(68, versions=range(2), unavailable=_unavailable)
async def consumer_group_heartbeat(
    request: ConsumerGroupHeartbeatRequest, ctx: RequestContext
) -> ConsumerGroupHeartbeatResponse:
    """Tell the group of the member, and the member of its assignment."""
    if not ctx.configs.offers_group_protocol("consumer"):
        return _answer(ConsumerHeartbeatResult(Error.UNSUPPORTED_VERSION))
    if not request.group_id.strip():
        return _answer(_NO_GROUP_ID)
    if not ctx.may(_READ, request.group_id):
        return _answer(ConsumerHeartbeatResult(Error.GROUP_AUTHORIZATION_FAILED))
    names = request.subscribed_topic_names
    if not all(ctx.may(_DESCRIBE_NAMED, name) for name in dict.fromkeys(names or ())):
        return _answer(ConsumerHeartbeatResult(Error.TOPIC_AUTHORIZATION_FAILED))
    result = await ctx.groups.consumer_heartbeat(
        request.group_id,
        ConsumerHeartbeat(
            member_id=request.member_id or _given_id(request, ctx),
            member_epoch=request.member_epoch,
            client=ctx.client,
            instance_id=request.instance_id,
            rack_id=request.rack_id,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            subscribed_topic_names=None if names is None else tuple(names),
            subscribed_topic_regex=_expression(request, ctx),
            server_assignor=request.server_assignor,
            owned=_owned(request.topic_partitions),
        ),
    )
    return _answer(await _without_hidden(result, ctx))


def _expression(request: ConsumerGroupHeartbeatRequest, ctx: RequestContext) -> str | None:
    """Where clients are asked for rights, it matches what this one may see."""
    expression: str | None = request.subscribed_topic_regex
    if expression is None or ctx.rights is None:
        return expression
    return seen_by(expression, Viewer(ctx.principal, java_host(ctx.peer)))


async def _without_hidden(
    result: ConsumerHeartbeatResult, ctx: RequestContext
) -> ConsumerHeartbeatResult:
    """Without topics that the member may not see: a right may have gone since it was given them."""
    if ctx.rights is None or not result.assignment:
        return result
    topics = await ctx.topics.get_many_by_id({UUID(topic_id) for topic_id in result.assignment})
    seen = {
        topic_id: numbers
        for topic_id, numbers in result.assignment.items()
        if (topic := topics.get(UUID(topic_id))) is not None
        and ctx.may(_DESCRIBE_FOUND, topic.name)
    }
    return replace(result, assignment=seen)


def _given_id(request: ConsumerGroupHeartbeatRequest, ctx: RequestContext) -> str:
    if ctx.api_version >= _FIRST_VERSION_WITH_OWN_IDS or request.member_epoch != _JOINING:
        return ""
    made = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[:22]  # as Kafka's Uuid is written
    return made if made[0] != "-" else f"_{made[1:]}"  # which would look like an option


def _owned(topics: Iterable[Any] | None) -> Partitions | None:
    if topics is None:
        return None
    owned: dict[str, set[int]] = {}
    for each in topics:
        owned.setdefault(str(each.topic_id or _NO_TOPIC), set()).update(each.partitions)
    return {topic_id: tuple(sorted(numbers)) for topic_id, numbers in owned.items() if numbers}


def _answer(result: ConsumerHeartbeatResult) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(
        error_code=kafka_code(result.error),
        error_message=result.message,
        member_id=result.member_id,
        member_epoch=result.member_epoch,
        heartbeat_interval_ms=result.heartbeat_interval_ms,
        assignment=_assignment(result.assignment),
    )


def _assignment(assigned: Partitions | None) -> Any:
    if assigned is None:
        return None
    return _Assignment(
        topic_partitions=[
            _Assignment.TopicPartitions(topic_id=UUID(topic_id), partitions=list(numbers))
            for topic_id, numbers in assigned.items()
        ]
    )
