"""Heartbeat (key 12): a member of a classic group is alive, and hears of rebalances.

Behavior: answered from memory.

Versions: v3 static members (KIP-345); v4 flexible.
"""

from core.errors import Error
from core.security.operations import REQUIREMENTS
from gateway.kafka.api import api
from gateway.kafka.codec import HeartbeatRequest, HeartbeatResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code

(_READ,) = REQUIREMENTS["Heartbeat"]


def _unavailable(request: HeartbeatRequest, ctx: RequestContext) -> HeartbeatResponse:
    return HeartbeatResponse(error_code=kafka_code(Error.COORDINATOR_NOT_AVAILABLE))


@api(12, versions=range(5), unavailable=_unavailable)
async def heartbeat(request: HeartbeatRequest, ctx: RequestContext) -> HeartbeatResponse:
    """Tell the group that the member lives."""
    if not ctx.may(_READ, request.group_id):
        return HeartbeatResponse(error_code=kafka_code(Error.GROUP_AUTHORIZATION_FAILED))
    error = await ctx.groups.heartbeat(
        request.group_id, request.member_id, request.group_instance_id, request.generation_id
    )
    return HeartbeatResponse(error_code=kafka_code(error))
