"""DescribeAcls (key 29): the ACLs that a filter means (KIP-140, prefixes: KIP-290).

Behavior: read from the database at each request. Without an authorizer SECURITY_DISABLED, as in
Kafka.
"""

from collections import defaultdict
from typing import Any, Final

from core.errors import Error, Refusal
from core.security.acls import AclBinding
from core.security.operations import REQUIREMENTS
from gateway.kafka.acl_codes import entry_fields, pattern_fields, read_filter
from gateway.kafka.api import api
from gateway.kafka.codec import DescribeAclsRequest, DescribeAclsResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code
from gateway.kafka.unavailable import TIMED_OUT

Resource = DescribeAclsResponse.DescribeAclsResource
(_DESCRIBE,) = REQUIREMENTS["DescribeAcls"]

NOT_AUTHORIZED: Final = Refusal(Error.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")
NO_AUTHORIZER: Final = Refusal(Error.SECURITY_DISABLED, "No Authorizer is configured.")
"""AclApis says so to whoever asks for ACLs, or for their change."""


def _unavailable(request: DescribeAclsRequest, ctx: RequestContext) -> DescribeAclsResponse:
    return _refused(TIMED_OUT)


@api(29, versions=range(1, 4), unavailable=_unavailable)
async def describe_acls(request: DescribeAclsRequest, ctx: RequestContext) -> DescribeAclsResponse:
    """Answer resource by resource."""
    if not ctx.may(_DESCRIBE):
        return _refused(NOT_AUTHORIZED)
    if not ctx.acls.is_on:
        return _refused(NO_AUTHORIZER)
    found = await ctx.acls.describe(read_filter(request))
    if isinstance(found, Refusal):
        return _refused(found)
    by_pattern: defaultdict[tuple[Any, ...], list[AclBinding]] = defaultdict(list)
    for each in found:
        by_pattern[each.resource_type, each.name, each.pattern_type].append(each)
    return DescribeAclsResponse(
        error_code=kafka_code(Error.NONE),
        error_message=None,
        resources=[_resource(each) for each in by_pattern.values()],
    )


def _resource(bindings: list[AclBinding]) -> Any:
    return Resource(
        **pattern_fields(bindings[0]),
        acls=[Resource.AclDescription(**entry_fields(each)) for each in bindings],
    )


def _refused(refusal: Refusal) -> DescribeAclsResponse:
    return DescribeAclsResponse(
        error_code=kafka_code(refusal.error), error_message=refusal.message, resources=[]
    )
