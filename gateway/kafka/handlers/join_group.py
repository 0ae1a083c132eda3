"""JoinGroup (key 11): a member of a classic group joins, or joins again, and waits for the others.

Behavior: answered when the group has all its members, at the latest after its rebalance timeout.
The leader is told everybody's metadata and assigns partitions (SyncGroup). Members get their ids
here: "<client id>-<uuid>", as Kafka gives them.

Versions: v0 has no rebalance timeout, the session's stands for it; v4 demands that a new member
comes again with its id (MEMBER_ID_REQUIRED, KIP-394); v5 static members (KIP-345); v6 flexible; v7
protocol type, and a name that may be null (KIP-559); v8 reasons (KIP-800); v9 a static leader that
comes back is told to skip the assignment (KIP-814).
"""

import uuid
from typing import Final

from core.errors import Error
from core.group.values import GroupProtocol, JoinRequest, JoinResult
from core.security.operations import REQUIREMENTS
from gateway.kafka.api import api
from gateway.kafka.codec import JoinGroupRequest, JoinGroupResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code

_Member = JoinGroupResponse.JoinGroupResponseMember
# Of a client's name, in a member's id: the id has to fit into a Kafka string.
_MOST_OF_A_NAME: Final = 255
(_READ,) = REQUIREMENTS["JoinGroup"]


def _unavailable(request: JoinGroupRequest, ctx: RequestContext) -> JoinGroupResponse:
    error = Error.COORDINATOR_NOT_AVAILABLE
    return _answer(JoinResult(error, member_id=request.member_id), ctx)


@api(11, versions=range(10), unavailable=_unavailable, is_long_poll=True)
async def join_group(request: JoinGroupRequest, ctx: RequestContext) -> JoinGroupResponse:
    """Join the group, and wait."""
    version = ctx.api_version
    instance_id = request.group_instance_id
    named_after = ctx.client_id if instance_id is None else instance_id
    if not ctx.may(_READ, request.group_id):
        return _not_authorized(request, ctx)
    joined = await ctx.groups.join(
        request.group_id,
        JoinRequest(
            member_id=request.member_id,
            group_instance_id=instance_id,
            client=ctx.client,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=(
                request.rebalance_timeout_ms if version >= 1 else request.session_timeout_ms
            ),
            protocol_type=request.protocol_type,
            protocols=tuple(GroupProtocol(each.name, each.metadata) for each in request.protocols),
            new_member_id=f"{named_after[:_MOST_OF_A_NAME]}-{uuid.uuid4()}",
            requires_known_member_id=version >= 4,
            supports_skip_assignment=version >= 9,
            reason=request.reason,
        ),
    )
    # It has waited: its right may be gone.
    return (
        _answer(joined, ctx) if ctx.may(_READ, request.group_id) else _not_authorized(request, ctx)
    )


def _not_authorized(request: JoinGroupRequest, ctx: RequestContext) -> JoinGroupResponse:
    error = Error.GROUP_AUTHORIZATION_FAILED
    return _answer(JoinResult(error, member_id=request.member_id), ctx)


def _answer(result: JoinResult, ctx: RequestContext) -> JoinGroupResponse:
    name = result.protocol_name
    return JoinGroupResponse(
        error_code=kafka_code(result.error),
        generation_id=result.generation_id,
        protocol_type=result.protocol_type,
        protocol_name=name or "" if ctx.api_version < 7 else name,
        leader=result.leader,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=[
            _Member(
                member_id=each.member_id,
                group_instance_id=each.group_instance_id,
                metadata=each.metadata,
            )
            for each in result.members
        ],
    )
