"""DescribeGroups (key 15): classic groups with their members.

Behavior: metadata and protocol are shown of a stable group only, as in Kafka. A consumer group
(KIP-848) is not found here: its API is ConsumerGroupDescribe.

Versions: v3 authorized operations (KIP-430); v4 static members' instance ids; v5 flexible; v6 says
GROUP_ID_NOT_FOUND and why (KIP-1043), where before an unknown group was "Dead", without an error.
"""

from typing import Any, Final

from core.errors import Error, Refusal
from core.group.values import DescribedGroup
from core.security.acls import ResourceType
from core.security.operations import REQUIREMENTS
from gateway.kafka.acl_codes import NOT_ASKED
from gateway.kafka.api import api
from gateway.kafka.codec import DescribeGroupsRequest, DescribeGroupsResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code
from gateway.kafka.unavailable import COORDINATOR_AWAY

_Group = DescribeGroupsResponse.DescribedGroup
_Member = _Group.DescribedGroupMember
(_DESCRIBE,) = REQUIREMENTS["DescribeGroups"]
_FIRST_VERSION_NOT_FOUND: Final = 6
_DEAD: Final = DescribedGroup("Dead", "", "", ())


def _unavailable(request: DescribeGroupsRequest, ctx: RequestContext) -> DescribeGroupsResponse:
    return DescribeGroupsResponse(
        groups=[_refused(group_id, COORDINATOR_AWAY) for group_id in request.groups]
    )


@api(15, versions=range(7), unavailable=_unavailable)
async def describe_groups(
    request: DescribeGroupsRequest, ctx: RequestContext
) -> DescribeGroupsResponse:
    """Describe each group."""
    groups = []
    for group_id in request.groups:
        if not ctx.may(_DESCRIBE, group_id):
            groups.append(_refused(group_id, Refusal(Error.GROUP_AUTHORIZATION_FAILED)))
            continue
        operations = NOT_ASKED
        if request.include_authorized_operations:
            operations = ctx.authorized_operations(ResourceType.GROUP, group_id)
        found = await ctx.groups.describe_classic(group_id)
        if isinstance(found, Refusal):
            if (
                found.error is not Error.GROUP_ID_NOT_FOUND
                or ctx.api_version >= _FIRST_VERSION_NOT_FOUND
            ):
                groups.append(_refused(group_id, found))
                continue
            found = _DEAD
        groups.append(_group(group_id, found, operations))
    return DescribeGroupsResponse(groups=groups)


def _group(group_id: str, group: DescribedGroup, operations: int) -> Any:
    return _Group(
        error_code=0,
        error_message=None,
        group_id=group_id,
        group_state=group.state,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol_name,
        members=[
            _Member(
                member_id=each.member_id,
                group_instance_id=each.group_instance_id,
                client_id=each.client.client_id,
                client_host=each.client.client_host,
                member_metadata=each.metadata,
                member_assignment=each.assignment,
            )
            for each in group.members
        ],
        authorized_operations=operations,
    )


def _refused(group_id: str, refusal: Refusal) -> Any:
    return _Group(
        error_code=kafka_code(refusal.error),
        error_message=refusal.message,
        group_id=group_id,
        group_state="Dead" if refusal.error is Error.GROUP_ID_NOT_FOUND else "",
        protocol_type="",
        protocol_data="",
        members=[],
        authorized_operations=NOT_ASKED,
    )
