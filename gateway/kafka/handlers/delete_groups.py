"""DeleteGroups (key 42): deletes groups without members, with their committed offsets.

Versions: v2 flexible. Behavior: a group named twice is answered once, as in Kafka.
"""

from core.errors import Error
from core.security.operations import REQUIREMENTS
from gateway.kafka.api import api
from gateway.kafka.codec import DeleteGroupsRequest, DeleteGroupsResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code

(_DELETE,) = REQUIREMENTS["DeleteGroups"]


def _unavailable(request: DeleteGroupsRequest, ctx: RequestContext) -> DeleteGroupsResponse:
    group_ids = _named(request)
    return _answer(group_ids, [Error.COORDINATOR_NOT_AVAILABLE] * len(group_ids))


@api(42, versions=range(3), unavailable=_unavailable)
async def delete_groups(request: DeleteGroupsRequest, ctx: RequestContext) -> DeleteGroupsResponse:
    """Delete each group; one result for each."""
    group_ids = _named(request)
    allowed = [each for each in group_ids if ctx.may(_DELETE, each)]
    deleted = dict(zip(allowed, await ctx.groups.delete_groups(allowed), strict=True))
    refused = Error.GROUP_AUTHORIZATION_FAILED
    return _answer(group_ids, [deleted.get(each, refused) for each in group_ids])


def _named(request: DeleteGroupsRequest) -> list[str]:
    return list(dict.fromkeys(request.groups_names))


def _answer(group_ids: list[str], errors: list[Error]) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(
        results=[
            DeleteGroupsResponse.DeletableGroupResult(
                group_id=group_id, error_code=kafka_code(error)
            )
            for group_id, error in zip(group_ids, errors, strict=True)
        ]
    )
