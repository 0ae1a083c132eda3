"""LeaveGroup (key 13): members leave their group, or an administrator removes them.

Versions: v3 several members, and static ones by their instance id (KIP-345), each with an error of
its own; before, there is one member and one error. v4 flexible; v5 reasons (KIP-800).
"""

from core.errors import Error
from core.group.values import LeaveResult, LeavingMember
from core.security.operations import REQUIREMENTS
from gateway.kafka.api import api
from gateway.kafka.codec import LeaveGroupRequest, LeaveGroupResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code

_Member = LeaveGroupResponse.MemberResponse
(_READ,) = REQUIREMENTS["LeaveGroup"]


def _unavailable(request: LeaveGroupRequest, ctx: RequestContext) -> LeaveGroupResponse:
    return _answer(LeaveResult((), Error.COORDINATOR_NOT_AVAILABLE), ctx)


@api(13, versions=range(6), unavailable=_unavailable)
async def leave_group(request: LeaveGroupRequest, ctx: RequestContext) -> LeaveGroupResponse:
    """Let the members go."""
    if not ctx.may(_READ, request.group_id):
        return _answer(LeaveResult((), Error.GROUP_AUTHORIZATION_FAILED), ctx)
    if ctx.api_version < 3:
        members = [LeavingMember(request.member_id)]
    else:
        members = [
            LeavingMember(each.member_id, each.group_instance_id, each.reason)
            for each in request.members
        ]
    return _answer(await ctx.groups.leave(request.group_id, members), ctx)


def _answer(result: LeaveResult, ctx: RequestContext) -> LeaveGroupResponse:
    if ctx.api_version < 3:
        error = result.error
        if error is Error.NONE and result.members:
            [(_, error)] = result.members
        return LeaveGroupResponse(error_code=kafka_code(error))
    return LeaveGroupResponse(
        error_code=kafka_code(result.error),
        members=[
            _Member(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                error_code=kafka_code(error),
            )
            for member, error in result.members
        ],
    )
