"""SyncGroup (key 14): the leader of a classic group brings assignments, each member gets its own.

Behavior: a follower waits for the leader's SyncGroup. Assignments are opaque. More than a
group may have stored is UNKNOWN_SERVER_ERROR, as in Kafka, and everybody joins again.

Versions: v3 static members (KIP-345); v4 flexible; v5 the member names the protocol it knows
(KIP-559).
"""

from typing import Final

from core.errors import Error
from core.group.values import SyncRequest, SyncResult
from core.security.operations import REQUIREMENTS
from gateway.kafka.api import api
from gateway.kafka.codec import SyncGroupRequest, SyncGroupResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code

_NOT_AUTHORIZED: Final = SyncResult(Error.GROUP_AUTHORIZATION_FAILED)
(_READ,) = REQUIREMENTS["SyncGroup"]


def _unavailable(request: SyncGroupRequest, ctx: RequestContext) -> SyncGroupResponse:
    return _answer(SyncResult(Error.COORDINATOR_NOT_AVAILABLE))


@api(14, versions=range(6), unavailable=_unavailable, is_long_poll=True)
async def sync_group(request: SyncGroupRequest, ctx: RequestContext) -> SyncGroupResponse:
    """Bring the assignments, or wait for them."""
    names_protocol = ctx.api_version >= 5
    if names_protocol and (request.protocol_type is None or request.protocol_name is None):
        # SyncGroupRequest.areMandatoryProtocolTypeAndNamePresent: looked at before the group is
        return _answer(SyncResult(Error.INCONSISTENT_GROUP_PROTOCOL))
    if not ctx.may(_READ, request.group_id):
        return _answer(_NOT_AUTHORIZED)
    synced = await ctx.groups.sync(
        request.group_id,
        SyncRequest(
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            generation_id=request.generation_id,
            protocol_type=request.protocol_type if names_protocol else None,
            protocol_name=request.protocol_name if names_protocol else None,
            assignments={each.member_id: each.assignment for each in request.assignments},
        ),
    )
    # It has waited: its right may be gone.
    return _answer(synced if ctx.may(_READ, request.group_id) else _NOT_AUTHORIZED)


def _answer(result: SyncResult) -> SyncGroupResponse:
    return SyncGroupResponse(
        error_code=kafka_code(result.error),
        protocol_type=result.protocol_type,
        protocol_name=result.protocol_name,
        assignment=result.assignment,
    )
