"""DeleteAcls (key 31): deletes the ACLs that filters mean (KIP-140, prefixes: KIP-290).

Behavior: answers what each filter has deleted; what two of them mean, both say. Kafka refuses to
delete more than 10,000 at once; here there is no limit.
"""

from collections.abc import Sequence
from typing import Any

from core.errors import Error, Refusal
from core.security.acls import AclBinding
from core.security.operations import REQUIREMENTS
from gateway.kafka.acl_codes import entry_fields, pattern_fields, read_filter
from gateway.kafka.api import api
from gateway.kafka.codec import DeleteAclsRequest, DeleteAclsResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code
from gateway.kafka.handlers.describe_acls import NO_AUTHORIZER, NOT_AUTHORIZED
from gateway.kafka.unavailable import CHANGE_REFUSED

Result = DeleteAclsResponse.DeleteAclsFilterResult
(_ALTER,) = REQUIREMENTS["DeleteAcls"]


def _unavailable(request: DeleteAclsRequest, ctx: RequestContext) -> DeleteAclsResponse:
    return _all(request, CHANGE_REFUSED)


@api(31, versions=range(1, 4), unavailable=_unavailable)
async def delete_acls(request: DeleteAclsRequest, ctx: RequestContext) -> DeleteAclsResponse:
    """Delete by each filter."""
    if not ctx.may(_ALTER):
        return _all(request, NOT_AUTHORIZED)
    if not ctx.acls.is_on:
        return _all(request, NO_AUTHORIZER)
    filters = [read_filter(each) for each in request.filters]
    answers = await ctx.acls.delete(filters, principal=ctx.principal, peer=ctx.peer)
    return DeleteAclsResponse(filter_results=[_result(each) for each in answers])


def _all(request: DeleteAclsRequest, refusal: Refusal) -> DeleteAclsResponse:
    return DeleteAclsResponse(filter_results=[_result(refusal) for _ in request.filters])


def _result(answer: Sequence[AclBinding] | Refusal) -> Any:
    if isinstance(answer, Refusal):
        return Result(
            error_code=kafka_code(answer.error), error_message=answer.message, matching_acls=[]
        )
    return Result(
        error_code=kafka_code(Error.NONE),
        error_message=None,
        matching_acls=[
            Result.DeleteAclsMatchingAcl(
                error_code=kafka_code(Error.NONE),
                error_message=None,
                **pattern_fields(each),
                **entry_fields(each),
            )
            for each in answer
        ],
    )
