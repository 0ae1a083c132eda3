"""CreateAcls (key 30): makes ACLs (KIP-140, prefixes: KIP-290).

Behavior: each is made or refused by itself; one that is there already is a success. It counts here
when it is answered, at other brokers within a second. Where a request has an unknown number, or one
that is for filters only, Kafka refuses the whole of it without a word that clients could read; here
that one is INVALID_REQUEST, and the rest is made. No name, principal or host may hold NUL.
"""

from typing import Any

from core.errors import Error, Refusal
from core.security.operations import REQUIREMENTS
from gateway.kafka.acl_codes import read_binding
from gateway.kafka.api import api
from gateway.kafka.codec import CreateAclsRequest, CreateAclsResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code
from gateway.kafka.handlers.describe_acls import NO_AUTHORIZER, NOT_AUTHORIZED
from gateway.kafka.unavailable import CHANGE_REFUSED

(_ALTER,) = REQUIREMENTS["CreateAcls"]


def _unavailable(request: CreateAclsRequest, ctx: RequestContext) -> CreateAclsResponse:
    return _all(request, CHANGE_REFUSED)


@api(30, versions=range(1, 4), unavailable=_unavailable)
async def create_acls(request: CreateAclsRequest, ctx: RequestContext) -> CreateAclsResponse:
    """Make those that can be made."""
    if not ctx.may(_ALTER):
        return _all(request, NOT_AUTHORIZED)
    if not ctx.acls.is_on:
        return _all(request, NO_AUTHORIZER)
    bindings = [read_binding(each) for each in request.creations]
    answers = await ctx.acls.create(bindings, principal=ctx.principal, peer=ctx.peer)
    return CreateAclsResponse(results=[_result(each) for each in answers])


def _all(request: CreateAclsRequest, refusal: Refusal) -> CreateAclsResponse:
    return CreateAclsResponse(results=[_result(refusal) for _ in request.creations])


def _result(refusal: Refusal | None) -> Any:
    return CreateAclsResponse.AclCreationResult(
        error_code=kafka_code(refusal.error) if refusal else kafka_code(Error.NONE),
        error_message=refusal.message if refusal else None,
    )
