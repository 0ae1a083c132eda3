"""CreateDelegationToken (key 38): makes a delegation token (KIP-48, for another owner: KIP-373).

Behavior: as Kafka's. Tokens are on where `delegation.token.secret.key` is set, else
DELEGATION_TOKEN_AUTH_DISABLED. Who has come without a login, or by a token, gets none. The token is
good here when it is answered, at other brokers within a second.

Versions: v2 flexible; v3 names an owner, and who asked.
"""

from core.errors import Error, Refusal
from core.security.operations import REQUIREMENTS
from core.security.principal import USER, Principal
from gateway.kafka.api import api
from gateway.kafka.codec import CreateDelegationTokenRequest, CreateDelegationTokenResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code
from gateway.kafka.unavailable import CHANGE_REFUSED

(_CREATE_TOKENS,) = REQUIREMENTS["CreateDelegationToken"]


def _unavailable(
    request: CreateDelegationTokenRequest, ctx: RequestContext
) -> CreateDelegationTokenResponse:
    return _refused(CHANGE_REFUSED.error, _owner(request, ctx), ctx)


@api(38, versions=range(1, 4), unavailable=_unavailable)
async def create_delegation_token(
    request: CreateDelegationTokenRequest, ctx: RequestContext
) -> CreateDelegationTokenResponse:
    """Make one."""
    owner = _owner(request, ctx)
    renewers = [Principal(each.principal_name, each.principal_type) for each in request.renewers]
    if not ctx.may_handle_tokens:
        return _refused(Error.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, owner, ctx)
    if owner != ctx.principal and not ctx.may(_CREATE_TOKENS, str(owner)):
        return _refused(Error.DELEGATION_TOKEN_AUTHORIZATION_FAILED, owner, ctx)
    if any(each.kind != USER for each in renewers):
        return _refused(Error.INVALID_PRINCIPAL_TYPE, owner, ctx)
    answer = await ctx.delegation_tokens.create(
        owner, renewers, request.max_lifetime_ms, principal=ctx.principal, peer=ctx.peer
    )
    if isinstance(answer, Refusal):
        return _refused(answer.error, owner, ctx, timestamp=0)
    token, token_hmac = answer
    return CreateDelegationTokenResponse(
        error_code=kafka_code(Error.NONE),
        principal_type=owner.kind,
        principal_name=owner.name,
        token_requester_principal_type=ctx.principal.kind,
        token_requester_principal_name=ctx.principal.name,
        issue_timestamp_ms=token.issued_at_ms,
        expiry_timestamp_ms=token.expires_at_ms,
        max_timestamp_ms=token.max_at_ms,
        token_id=token.token_id,
        hmac=token_hmac,
    )


def _owner(request: CreateDelegationTokenRequest, ctx: RequestContext) -> Principal:
    if not request.owner_principal_name:
        return ctx.principal
    return Principal(request.owner_principal_name, request.owner_principal_type or USER)


def _refused(
    error: Error, owner: Principal, ctx: RequestContext, timestamp: int = -1
) -> CreateDelegationTokenResponse:
    """timestamp: 0 where Kafka's controller answers."""
    return CreateDelegationTokenResponse(
        error_code=kafka_code(error),
        principal_type=owner.kind,
        principal_name=owner.name,
        token_requester_principal_type=ctx.principal.kind,
        token_requester_principal_name=ctx.principal.name,
        issue_timestamp_ms=timestamp,
        expiry_timestamp_ms=timestamp,
        max_timestamp_ms=timestamp,
        token_id="",
        hmac=b"",
    )
