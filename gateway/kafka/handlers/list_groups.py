"""ListGroups (key 16): the groups that this broker coordinates; clients ask every broker.

Versions: v3 flexible; v4 filters by state and shows it (KIP-518); v5 the same by type (KIP-848).
Behavior: filters ignore case; one that names no state or type there is finds nothing.
"""

from core.errors import Error
from core.security.operations import REQUIREMENTS
from gateway.kafka.api import api
from gateway.kafka.codec import ListGroupsRequest, ListGroupsResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code

_Group = ListGroupsResponse.ListedGroup
(_DESCRIBE,) = REQUIREMENTS["ListGroups"]


def _unavailable(request: ListGroupsRequest, ctx: RequestContext) -> ListGroupsResponse:
    return _refused(Error.COORDINATOR_NOT_AVAILABLE)


@api(16, versions=range(6), unavailable=_unavailable)
async def list_groups(request: ListGroupsRequest, ctx: RequestContext) -> ListGroupsResponse:
    """List the groups that pass the filters."""
    found = await ctx.groups.list_groups()
    if isinstance(found, Error):
        return _refused(found)
    states = {each.strip().lower() for each in request.states_filter or ()}
    types = {each.lower() for each in request.types_filter or ()}
    return ListGroupsResponse(
        error_code=0,
        groups=[
            _Group(
                group_id=each.group_id,
                protocol_type=each.protocol_type,
                group_state=each.state,
                group_type=each.type.value,
            )
            for each in found
            if (not states or each.state.lower() in states)
            and (not types or each.type.value in types)
            and ctx.may(_DESCRIBE, each.group_id)
        ],
    )


def _refused(error: Error) -> ListGroupsResponse:
    return ListGroupsResponse(error_code=kafka_code(error), groups=[])
